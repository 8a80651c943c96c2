#include "io/tokens/text_reader.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <new>
#include <vector>

#include "io/base/file.h"
#include "io/base/format.h"
#include "io/tokens/utf8.h"

namespace tri {
namespace {

constexpr size_t kReadBytes = size_t{1} << 18;  // read from the file at once
constexpr std::string_view kGzipMagic = "\x1f\x8b";
constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Returns whether the eight bytes are ASCII without a NUL.
bool plain(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  constexpr uint64_t kOnes = 0x0101010101010101, kHigh = 0x8080808080808080;
  return ((word | (word - kOnes)) & kHigh) == 0;  // no high bit, and no byte that needed a borrow
}

}  // namespace

Result<TextFormat> format_of(const std::string& path) {
  std::string name = lower(path.substr(path.rfind('/') + 1));
  for (const char* packed : {".gz", ".zst"})
    if (name.ends_with(packed)) name.resize(name.size() - std::strlen(packed));
  constexpr std::pair<std::string_view, TextFormat> kExtensions[] = {
      {".txt", TextFormat::kText},    {".text", TextFormat::kText},    {".md", TextFormat::kText},
      {".jsonl", TextFormat::kJsonl}, {".ndjson", TextFormat::kJsonl}, {".json", TextFormat::kJsonl}};
  for (const auto& [extension, format] : kExtensions)
    if (name.ends_with(extension)) return format;
  if (name.ends_with(".parquet"))
    return usage_error("{}: Parquet is not supported; convert it to JSON lines as io/tokens/README.md shows", path);
  return usage_error("{}: the format is not clear from the file name; give it with --format {}", path,
                     enum_choices<TextFormat>());
}

std::string_view foreign_encoding(std::string_view text) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, std::string_view> kMarks[] = {{"\xff\xfe\0\0"sv, "UTF-32 (little-endian)"},
                                                                      {"\0\0\xfe\xff"sv, "UTF-32 (big-endian)"},
                                                                      {"\xff\xfe"sv, "UTF-16 (little-endian)"},
                                                                      {"\xfe\xff"sv, "UTF-16 (big-endian)"}};
  for (const auto& [mark, name] : kMarks)
    if (text.starts_with(mark)) return name;
  return {};
}

TextFaults faults_of(std::string_view text) {
  TextFaults found{.bytes = static_cast<int64_t>(text.size())};
  for (size_t at = 0; at < text.size();) {
    if (at + 8 <= text.size() && plain(text.data() + at)) {
      at += 8;
      continue;
    }
    const size_t length = text[at] == '\0' ? 0 : utf8_sequence(text.substr(at, 4));
    if (length == 0 && found.faults++ == 0) found.first = static_cast<int64_t>(at);
    at += std::max<size_t>(length, 1);
  }
  return found;
}

Error TextCheck::refusal() const {
  return file_error(
      "{}: not UTF-8 text: of its first {} bytes (decompressed), {} are NUL or not UTF-8 ({:.2g} %; at most {:g} % are "
      "accepted), the first at offset {}; convert it, or give another file",
      path_, total_.bytes, total_.faults, 100 * static_cast<double>(total_.faults) / static_cast<double>(total_.bytes),
      100 * kMaxShare, total_.first);
}

Result<void> TextCheck::add(const TextFaults& block) {
  if (total_.first < 0 && block.first >= 0) total_.first = total_.bytes + block.first;
  total_.bytes += block.bytes;
  total_.faults += block.faults;
  constexpr int64_t kSettled = 1 << 20;
  if (static_cast<double>(total_.faults) <= kMaxShare * static_cast<double>(std::max(total_.bytes, kSettled)))
    return {};
  return refusal();
}

Result<void> TextCheck::finish() const {
  if (static_cast<double>(total_.faults) <= kMaxShare * static_cast<double>(total_.bytes)) return {};
  return refusal();
}

// Reads the file's bytes unchanged; decoders derive from it.
class TextReader::Source {
 public:
  explicit Source(std::string path, InputFile file) : path_(std::move(path)), file_(std::move(file)) {}
  virtual ~Source() = default;

  // Appends some of the text to `out`; returns false at its end.
  virtual Result<bool> more(std::string& out) {
    auto got = fill();
    if (!got || !got.value()) return got;
    out += input_;
    return true;
  }

  virtual bool packed() const { return false; }

  const std::string path_;
  int64_t consumed_ = 0;
  const InputFile& file() const { return file_; }

 protected:
  // Replaces input_ with the next bytes of the file; returns false at its end.
  Result<bool> fill() {
    input_.resize(static_cast<size_t>(std::min<int64_t>(kReadBytes, file_.bytes() - consumed_)));
    if (auto got = file_.read(input_.data(), static_cast<int64_t>(input_.size()), consumed_); !got) return got.error();
    consumed_ += static_cast<int64_t>(input_.size());
    return !input_.empty();
  }
  Error truncated() const { return file_error("{}: ends within its compressed stream; truncated", path_); }

  std::string input_;

 private:
  InputFile file_;
};

namespace {

constexpr size_t kOutputBytes = size_t{1} << 18;  // produced by a decoder at once

class GzipSource final : public TextReader::Source {
 public:
  GzipSource(std::string path, InputFile file) : Source(std::move(path), std::move(file)), output_(kOutputBytes) {
    TRI_REQUIRE(::inflateInit2(&stream_, 15 + 16) == Z_OK, "{}: zlib", path_);  // the largest window; gzip's header
  }
  ~GzipSource() override { ::inflateEnd(&stream_); }

  bool packed() const override { return true; }
  Result<bool> more(std::string& out) override {
    // If the output is full, the decoder may hold more, although all input has been consumed.
    if (stream_.avail_in == 0 && !full_) {
      auto got = fill();
      if (!got) return got;
      if (!got.value()) return within_ ? Result<bool>(truncated()) : Result<bool>(false);
      stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
      stream_.avail_in = static_cast<uInt>(input_.size());
    }
    if (padding_) {  // gzip and Python's gzip also ignore NUL bytes after a member
      for (; stream_.avail_in > 0 && *stream_.next_in == 0; --stream_.avail_in) ++stream_.next_in;
      if (stream_.avail_in == 0) return true;
      padding_ = false;
    }
    within_ = within_ || stream_.avail_in > 0;
    stream_.next_out = reinterpret_cast<Bytef*>(output_.data());
    stream_.avail_out = static_cast<uInt>(output_.size());
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
      return file_error("{}: gzip before byte {}: {}; damaged", path_, consumed_ - stream_.avail_in,
                        stream_.msg == nullptr ? "no stream of it" : stream_.msg);
    out.append(output_.data(), output_.size() - stream_.avail_out);
    full_ = stream_.avail_out == 0;
    if (status == Z_STREAM_END) {  // another member may follow
      within_ = full_ = false;
      padding_ = true;
      ::inflateReset(&stream_);
    }
    return true;
  }

 private:
  z_stream stream_{};
  std::vector<char> output_;
  bool within_ = false, full_ = false;  // within_: a member has begun and not ended
  bool padding_ = false;                // NUL bytes may follow
};

class ZstdSource final : public TextReader::Source {
 public:
  ZstdSource(std::string path, InputFile file)
      : Source(std::move(path), std::move(file)), stream_(::ZSTD_createDStream()), output_(kOutputBytes) {
    TRI_REQUIRE(stream_ != nullptr, "{}: zstd", path_);
    ::ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, 31);  // also reads files packed with --long
  }
  ~ZstdSource() override { ::ZSTD_freeDStream(stream_); }

  bool packed() const override { return true; }
  Result<bool> more(std::string& out) override {
    if (in_.pos == in_.size && !full_) {
      auto got = fill();
      if (!got) return got;
      if (!got.value()) return within_ ? Result<bool>(truncated()) : Result<bool>(false);
      in_ = {input_.data(), input_.size(), 0};
    }
    ZSTD_outBuffer produced{output_.data(), output_.size(), 0};
    const size_t hint = ::ZSTD_decompressStream(stream_, &produced, &in_);
    if (::ZSTD_isError(hint) && ::ZSTD_getErrorCode(hint) == ZSTD_error_memory_allocation)
      return file_error("{}: not enough memory for its zstd window; compress it again without --long", path_);
    if (::ZSTD_isError(hint))
      return file_error("{}: zstd before byte {}: {}; damaged", path_,
                        consumed_ - static_cast<int64_t>(in_.size - in_.pos), ::ZSTD_getErrorName(hint));
    out.append(output_.data(), produced.pos);
    within_ = hint != 0;  // 0: a frame ended; another may follow
    full_ = within_ && produced.pos == produced.size;
    return true;
  }

 private:
  ZSTD_DStream* stream_;
  std::vector<char> output_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool within_ = false, full_ = false;  // within_: a frame has begun and not ended
};

// Recognizes a frame, or a skippable frame, which parallel compressors write first.
bool is_zstd(std::string_view magic) {
  return magic == kZstdMagic || (magic.ends_with("\x2a\x4d\x18") && (magic[0] & 0xF0) == 0x50);
}

}  // namespace

TextReader::TextReader(std::unique_ptr<Source> source, int64_t most)
    : source_(std::move(source)), most_(static_cast<size_t>(most)) {}
TextReader::TextReader(TextReader&&) noexcept = default;
TextReader::~TextReader() = default;

Result<TextReader> TextReader::open(const std::string& path, int64_t most) {
  std::error_code ignored;                      // a file without a status is refused when it is opened
  if (std::filesystem::is_fifo(path, ignored))  // opening it would wait for a writer
    return file_error("{}: not a regular file; an interrupted run could not read it again", path);
  auto file = InputFile::open(path);
  if (!file) return file.error();
  std::string magic(static_cast<size_t>(std::min<int64_t>(4, file.value().bytes())), '\0');
  if (auto got = file.value().read(magic.data(), static_cast<int64_t>(magic.size()), 0); !got) return got.error();
  InputFile input = std::move(file).value();
  if (magic.starts_with(kGzipMagic)) return TextReader(std::make_unique<GzipSource>(path, std::move(input)), most);
  if (is_zstd(magic)) return TextReader(std::make_unique<ZstdSource>(path, std::move(input)), most);
  for (const char* packed : {".gz", ".zst"})
    if (lower(path).ends_with(packed))
      return file_error("{}: not a {} stream, although its name says so", path, packed + 1);
  return TextReader(std::make_unique<Source>(path, std::move(input)), most);
}

// Appends some of the text to `block`, which must hold `what` whole; returns false at the end of the text.
Result<bool> TextReader::more(std::string& block, const char* what) {
  try {
    auto got = source_->more(block);
    if (!got || block.size() <= most_) return got;
  } catch (const std::bad_alloc&) {
    return file_error("{}: not enough memory for {}, of which {} are decompressed; split it", source_->path_, what,
                      format_bytes(static_cast<int64_t>(block.size())));
  }
  return file_error("{}: {} is longer than {} (decompressed); split it, or give the file's format with --format",
                    source_->path_, what, format_bytes(static_cast<int64_t>(most_)));
}

Result<void> TextReader::begin() {
  begun_ = true;
  while (ahead_.size() < kByteOrderMark.size()) {
    auto got = source_->more(ahead_);
    if (!got) return got.error();
    if (!got.value()) break;
  }
  had_mark_ = ahead_.starts_with(kByteOrderMark);
  if (had_mark_) ahead_.erase(0, kByteOrderMark.size());
  return {};
}

Result<void> TextReader::next_lines(int64_t bytes, std::string& block) {
  if (!begun_)
    if (auto done = begin(); !done) return done;
  block = std::move(ahead_);
  ahead_.clear();
  const auto enough = static_cast<size_t>(bytes);
  size_t searched = 0;  // no line end for at least `enough` bytes before it
  while (true) {
    const size_t newline = block.find('\n', std::max(searched, std::max<size_t>(enough, 1) - 1));
    if (newline != std::string::npos) {
      ahead_ = block.substr(newline + 1);
      block.resize(newline + 1);
      return {};
    }
    searched = block.size();
    auto got = more(block, "a line");
    if (!got) return got.error();
    if (!got.value()) return {};
  }
}

Result<void> TextReader::rest(std::string& block) {
  if (!begun_)
    if (auto done = begin(); !done) return done;
  block = std::move(ahead_);
  ahead_.clear();
  while (true) {
    auto got = more(block, "the document");
    if (!got) return got.error();
    if (!got.value()) return {};
  }
}

bool TextReader::packed() const { return source_->packed(); }
int64_t TextReader::file_bytes() const { return source_->file().bytes(); }
int64_t TextReader::consumed() const { return source_->consumed_; }

}  // namespace tri
