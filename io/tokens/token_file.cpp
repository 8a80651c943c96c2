#include "io/tokens/token_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include "io/base/hash.h"
#include "io/base/random.h"

namespace tri {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, read in place");

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr size_t kHeaderBytes = sizeof kMagic + 8 + 1 + 8 + 8;
constexpr const char* kDtypeNames[] = {"", "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"};

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

struct IndexHeader {
  TokenType type;
  int64_t sequences, documents;  // entries of the arrays; documents: one more than the number of documents

  int64_t lengths() const { return static_cast<int64_t>(kHeaderBytes); }  // offsets in the file
  int64_t pointers() const { return lengths() + 4 * sequences; }
  int64_t document_index() const { return pointers() + 8 * sequences; }
};

// Reads the header of an index of `file_bytes` bytes, the first of which are at `bytes`.
Result<IndexHeader> read_header(const std::string& path, const std::byte* bytes, int64_t file_bytes) {
  if (file_bytes < static_cast<int64_t>(kHeaderBytes))
    return file_error("{}: {} bytes, too short for an index header of {}; the file is truncated or not an index", path,
                      file_bytes, kHeaderBytes);
  if (std::memcmp(bytes, kMagic, sizeof kMagic) != 0)
    return file_error("{}: does not begin with MMIDIDX; not a token index. Make one with `trireme data prepare`", path);
  const std::byte* at = bytes + sizeof kMagic;
  const auto version = load<uint64_t>(at);
  const auto dtype = load<uint8_t>(at + 8);
  const auto sequences = load<uint64_t>(at + 9), documents = load<uint64_t>(at + 17);
  if (version != 1) return file_error("{}: version {}, expected 1", path, version);
  if (dtype != 1 && dtype != 4 && dtype != 8)
    return file_error("{}: tokens of type {} ({}); supported are u8, u16 and i32", path, dtype,
                      dtype >= 1 && dtype <= 8 ? kDtypeNames[dtype] : "unknown");

  // Checks bounds before products: a damaged count must not overflow the sum below.
  const auto payload = static_cast<uint64_t>(file_bytes) - kHeaderBytes;
  if (sequences > payload / 12 || documents > payload / 8 || sequences * 12 + documents * 8 != payload)
    return file_error("{}: {} bytes, but {} sequences and {} document entries take {}; truncated or damaged", path,
                      file_bytes, sequences, documents,
                      sequences > payload || documents > payload
                          ? "more"
                          : fmt::format("{}", kHeaderBytes + sequences * 12 + documents * 8));
  if (documents == 0) return file_error("{}: no document index", path);
  return IndexHeader{static_cast<TokenType>(dtype), static_cast<int64_t>(sequences), static_cast<int64_t>(documents)};
}

Error wrong_length(const std::string& path, int64_t sequence, int32_t length) {
  return file_error("{}: sequence {} has length {}", path, sequence, length);
}
Error wrong_document(const std::string& path, int64_t entry, int64_t is, const std::string& expected) {
  return file_error("{}: document entry {} is {}, expected {}", path, entry, is, expected);
}

template <class T>
Result<T> entry(const InputFile& file, int64_t array, int64_t index) {
  T value;
  if (auto got = file.read(&value, sizeof value, array + index * static_cast<int64_t>(sizeof value)); !got)
    return got.error();
  return value;
}

// Returns the bytes of .bin, computed from the ends of the index's arrays.
Result<int64_t> bytes_by_ends(const InputFile& file, const std::string& path, const IndexHeader& header) {
  const auto first_document = entry<int64_t>(file, header.document_index(), 0);
  if (!first_document) return first_document.error();
  const auto last_document = entry<int64_t>(file, header.document_index(), header.documents - 1);
  if (!last_document) return last_document.error();
  if (first_document.value() != 0) return wrong_document(path, 0, first_document.value(), "0");
  if (last_document.value() != header.sequences)
    return wrong_document(path, header.documents - 1, last_document.value(), fmt::format("{}", header.sequences));
  if (header.sequences == 0) return int64_t{0};
  const int64_t last = header.sequences - 1;
  const auto length = entry<int32_t>(file, header.lengths(), last);
  if (!length) return length.error();
  const auto pointer = entry<int64_t>(file, header.pointers(), last);
  if (!pointer) return pointer.error();
  if (length.value() < 0) return wrong_length(path, last, length.value());
  const int64_t most = std::numeric_limits<int64_t>::max() - int64_t{4} * length.value();
  if (pointer.value() < 0 || pointer.value() > most || (last == 0 && pointer.value() != 0))
    return file_error("{}: sequence {} starts at byte {}", path, last, pointer.value());
  return pointer.value() + int64_t{length.value()} * token_bytes(header.type);
}

// Returns what is wrong with `prefix` if it has no index.
Error no_index(const std::string& prefix, Error error) {
  if (error.os_error != ENOENT) return error;
  if (prefix.ends_with(".bin") || prefix.ends_with(".idx"))
    error.message += fmt::format("; name the pair without the extension: {}", prefix.substr(0, prefix.size() - 4));
  else
    error.message += fmt::format("; `trireme data prepare --output {} TEXT...` creates it", prefix);
  return error;
}

}  // namespace

Result<TokenFile> TokenFile::open(const std::string& prefix) {
  const std::string idx_path = prefix + ".idx", bin_path = prefix + ".bin";
  auto idx = InputFile::open(idx_path);
  if (!idx) return no_index(prefix, idx.error());
  auto bin = InputFile::open(bin_path);
  if (!bin) return bin.error();
  std::byte bytes[kHeaderBytes] = {};
  const auto there = std::min<int64_t>(idx.value().bytes(), kHeaderBytes);
  if (auto got = idx.value().read(bytes, there, 0); !got) return got.error();
  const auto header = read_header(idx_path, bytes, idx.value().bytes());
  if (!header) return header.error();
  const auto expected = bytes_by_ends(idx.value(), idx_path, header.value());
  if (!expected) return expected.error();

  TokenFile file;
  file.prefix_ = prefix;
  file.bin_ = std::move(bin).value();
  file.type_ = header.value().type;
  file.num_sequences_ = header.value().sequences;
  file.num_documents_ = header.value().documents - 1;
  const int64_t bin_bytes = file.bin_.bytes(), width = token_bytes(file.type_);
  if (bin_bytes != expected.value() || bin_bytes % width != 0)
    return file_error("{}: {} bytes, but {} lists {}; truncated, or from another index", bin_path, bin_bytes, idx_path,
                      expected.value());
  file.num_tokens_ = bin_bytes / width;
  return file;
}

Result<DocumentIndex> DocumentIndex::open(const std::string& prefix) {
  DocumentIndex index;
  index.path_ = prefix + ".idx";
  auto opened = InputFile::open(index.path_);
  if (!opened) return opened.error();
  index.file_ = std::move(opened).value();
  std::byte bytes[kHeaderBytes] = {};
  const auto there = std::min<int64_t>(index.file_.bytes(), kHeaderBytes);
  if (auto got = index.file_.read(bytes, there, 0); !got) return got.error();
  const auto read = read_header(index.path_, bytes, index.file_.bytes());
  if (!read) return read.error();
  const IndexHeader& header = read.value();
  const auto bin_bytes = bytes_by_ends(index.file_, index.path_, header);
  if (!bin_bytes) return bin_bytes.error();
  index.type_ = header.type;
  index.num_tokens_ = bin_bytes.value() / token_bytes(header.type);
  index.num_sequences_ = header.sequences;
  index.num_documents_ = header.documents - 1;
  index.lengths_ = header.lengths();
  index.pointers_ = header.pointers();
  index.documents_ = header.document_index();
  return index;
}

namespace {

constexpr int64_t kBlockEntries = int64_t{1} << 16;

// Reads entries [first, first + out.size()) of the array at `array`.
template <class T>
Result<void> read_entries(const InputFile& file, int64_t array, int64_t first, std::span<T> out) {
  return file.read(out.data(), static_cast<int64_t>(out.size_bytes()), array + first * static_cast<int64_t>(sizeof(T)));
}

}  // namespace

Result<void> DocumentIndex::check() const {
  const int64_t width = token_bytes(type_);
  int64_t expected = 0;  // byte pointer of the next sequence: sequences are contiguous
  std::vector<int32_t> lengths;
  std::vector<int64_t> entries;
  for (int64_t first = 0; first < num_sequences_; first += kBlockEntries) {
    const auto count = static_cast<size_t>(std::min(kBlockEntries, num_sequences_ - first));
    lengths.resize(count);
    entries.resize(count);
    if (auto got = read_entries<int32_t>(file_, lengths_, first, lengths); !got) return got;
    if (auto got = read_entries<int64_t>(file_, pointers_, first, entries); !got) return got;
    for (size_t i = 0; i < count; ++i) {
      const int64_t s = first + static_cast<int64_t>(i);
      if (lengths[i] < 0) return wrong_length(path_, s, lengths[i]);
      if (entries[i] != expected)
        return file_error("{}: sequence {} starts at byte {}, expected {}", path_, s, entries[i], expected);
      expected += lengths[i] * width;
    }
  }
  int64_t previous = 0;
  for (int64_t first = 0; first <= num_documents_; first += kBlockEntries) {
    entries.resize(static_cast<size_t>(std::min(kBlockEntries, num_documents_ + 1 - first)));
    if (auto got = read_entries<int64_t>(file_, documents_, first, entries); !got) return got;
    for (size_t i = 0; i < entries.size(); ++i) {
      const int64_t d = first + static_cast<int64_t>(i), sequence = entries[i];
      const bool wrong_end = d == num_documents_ && sequence != num_sequences_;
      if (sequence < previous || sequence > num_sequences_ || (d == 0 && sequence != 0) || wrong_end)
        return wrong_document(path_, d, sequence,
                              d == 0      ? "0"
                              : wrong_end ? fmt::format("{}", num_sequences_)
                                          : fmt::format("{} to {}", previous, num_sequences_));
      previous = sequence;
    }
  }
  return {};
}

int64_t DocumentIndex::document_start(int64_t document) const {
  TRI_REQUIRE(document >= 0 && document <= num_documents_, "document {} of {}", document, num_documents_);
  const int64_t sequence = value_or_throw(entry<int64_t>(file_, documents_, document));
  if (sequence == num_sequences_) return num_tokens_;
  if (sequence < 0 || sequence > num_sequences_)
    throw Fatal(ExitCode::kFile, wrong_document(path_, document, sequence, "an entry of the index").message);
  const int64_t start = value_or_throw(entry<int64_t>(file_, pointers_, sequence)) / token_bytes(type_);
  if (start < 0 || start > num_tokens_)
    throw Fatal(ExitCode::kFile,
                fmt::format("{}: sequence {} starts at token {} of {}", path_, sequence, start, num_tokens_));
  return start;
}

int64_t DocumentIndex::first_from(int64_t token) const {
  int64_t low = 0, high = num_documents_;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (document_start(middle) < token)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

std::vector<int64_t> DocumentIndex::bounds(int64_t first, int64_t end) const {
  TRI_REQUIRE(first >= 0 && first < end && end <= num_tokens_, "tokens [{}, {}) of {}", first, end, num_tokens_);
  std::vector<int64_t> list{first};
  // Documents of one sequence each, as `trireme data prepare` writes them, are read as a block.
  std::vector<int64_t> sequences, pointers;
  for (int64_t document = first_from(first + 1); document < num_documents_ && list.back() < end;) {
    sequences.resize(static_cast<size_t>(std::min<int64_t>(1024, num_documents_ - document)));
    value_or_throw(read_entries<int64_t>(file_, documents_, document, sequences));
    const bool one_each = sequences.front() >= 0 && sequences.back() < num_sequences_ &&
                          sequences.back() - sequences.front() == static_cast<int64_t>(sequences.size()) - 1;
    if (one_each) {
      pointers.resize(sequences.size());
      value_or_throw(read_entries<int64_t>(file_, pointers_, sequences.front(), pointers));
    }
    for (size_t i = 0; i < sequences.size() && list.back() < end; ++i) {
      const int64_t start =
          one_each ? pointers[i] / token_bytes(type_) : document_start(document + static_cast<int64_t>(i));
      if (start < list.back())
        throw Fatal(ExitCode::kFile, fmt::format("{}: document {} starts at token {}, before its predecessor at {}",
                                                 path_, document + static_cast<int64_t>(i), start, list.back()));
      if (start > list.back()) list.push_back(std::min(start, end));  // else the predecessor is empty
    }
    document += static_cast<int64_t>(sequences.size());
  }
  if (list.back() < end) list.push_back(end);
  return list;
}

void TokenFile::read(int64_t first, std::span<int32_t> out) const { value_or_throw(try_read(first, out)); }

Result<void> TokenFile::try_read(int64_t first, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  TRI_REQUIRE(first >= 0 && first + count <= num_tokens_, "tokens [{}, {}) of {}", first, first + count, num_tokens_);
  // Narrow tokens are read to the end of `out` and widened from its beginning, so none is overwritten too early.
  const int64_t width = tri::token_bytes(type_), bytes = count * width;
  auto* at = reinterpret_cast<std::byte*>(out.data()) + static_cast<int64_t>(out.size_bytes()) - bytes;
  if (auto got = bin_.read(at, bytes, first * width); !got) return got;
  for (int64_t i = 0; i < count; ++i) {
    switch (type_) {
      case TokenType::kU8:
        out[i] = load<uint8_t>(at + i);
        break;
      case TokenType::kU16:
        out[i] = load<uint16_t>(at + 2 * i);
        break;
      case TokenType::kI32:
        return {};
    }
  }
  return {};
}

Result<void> add_pages(const InputFile& file, Xxh3& hash) {
  constexpr int64_t kPages = 32, kPageBytes = 4096;
  const int64_t bytes = file.bytes(), last = std::max<int64_t>(bytes - kPageBytes, 0);
  std::vector<char> page(kPageBytes);
  int64_t end = 0;  // of what was read: pages of a small file are contiguous
  for (int64_t i = 0; i < kPages; ++i) {
    const int64_t first = std::max(end, last * i / (kPages - 1)), count = std::min(kPageBytes, bytes - first);
    if (count <= 0) break;
    if (auto got = file.read(page.data(), count, first); !got) return got;
    hash.update(page.data(), static_cast<size_t>(count));
    end = first + count;
  }
  return {};
}

namespace {

Result<uint64_t> fingerprint_of(const InputFile& bin, TokenType type, int64_t tokens, int64_t sequences,
                                int64_t documents) {
  Xxh3 hash;
  const int64_t numbers[] = {static_cast<int64_t>(type), tokens, sequences, documents};
  hash.update(numbers, sizeof numbers);
  if (auto added = add_pages(bin, hash); !added) return added.error();
  return hash.digest();
}

}  // namespace

Result<uint64_t> TokenFile::fingerprint() const {
  return fingerprint_of(bin_, type_, num_tokens_, num_sequences_, num_documents_);
}

Result<uint64_t> TokenFile::shuffle_key() const {
  std::string text = fmt::format("{} {}", num_tokens_, num_documents_);
  const int64_t count = std::min<int64_t>(num_tokens_, 1024);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (const int64_t first : {int64_t{0}, (num_tokens_ - count) / 2, num_tokens_ - count}) {
    if (auto got = try_read(first, tokens); !got) return got.error();
    for (const int32_t token : tokens) text += fmt::format(" {}", token);
  }
  return derive_key(0, text);
}

Result<void> TokenFile::check_range(int64_t first, int64_t last, int vocab) const {
  std::vector<int32_t> block(std::min<int64_t>(last - first, 1 << 16));
  for (int64_t at = first; at < last; at += static_cast<int64_t>(block.size())) {
    const auto count = static_cast<size_t>(std::min<int64_t>(last - at, static_cast<int64_t>(block.size())));
    if (auto got = try_read(at, std::span(block).first(count)); !got) return got;
    for (size_t i = 0; i < count; ++i)
      if (block[i] < 0 || block[i] >= vocab)
        return file_error("{}.bin: token {} is {}, outside the vocabulary of {}", prefix_, at + static_cast<int64_t>(i),
                          block[i], vocab);
  }
  return {};
}

Result<TokenFileWriter> TokenFileWriter::open(const std::string& prefix, TokenType type, const char* mode) {
  const std::string path = prefix + ".bin.part";
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (file == nullptr) return system_error(errno, "{}", path);
  if (::flock(::fileno(file), LOCK_EX | LOCK_NB) != 0) {
    const int why = errno;
    std::fclose(file);
    if (why == EWOULDBLOCK) return file_error("{}: another process is writing it", path);
    return system_error(why, "{}: locking the file", path);
  }
  return TokenFileWriter(prefix, type, file);
}

Result<TokenFileWriter> TokenFileWriter::create(const std::string& prefix, TokenType type) {
  auto writer = open(prefix, type, "abe");  // existing files are dropped only under the lock
  if (writer && ::ftruncate(::fileno(writer.value().bin_), 0) != 0)
    return system_error(errno, "{}", writer.value().bin_part());
  return writer;
}

Result<TokenFileWriter> TokenFileWriter::resume(const std::string& prefix, TokenType type, const Saved& saved) {
  auto writer = open(prefix, type, "r+be");
  if (!writer) return writer;
  TokenFileWriter& w = writer.value();
  w.kept_ = true;
  if (auto read = w.read_lengths(saved.documents); !read) return read.error();
  const int64_t bytes = saved.tokens * tri::token_bytes(type);
  struct stat found {};
  if (::fstat(::fileno(w.bin_), &found) != 0 || ::ftruncate(::fileno(w.bin_), bytes) != 0 ||
      std::fseek(w.bin_, 0, SEEK_END) != 0)
    return system_error(errno, "{}", w.bin_part());
  if (w.num_tokens_ != saved.tokens || found.st_size < bytes)
    return file_error("{}: is shorter than the saved state says; remove it and {}.json.part, and start over",
                      w.bin_part(), prefix);
  return writer;
}

Result<void> TokenFileWriter::read_lengths(int64_t documents) {
  const auto file = InputFile::open(idx_part());
  if (!file) return file.error();
  lengths_.resize(static_cast<size_t>(documents));
  const auto bytes = documents * static_cast<int64_t>(sizeof(int32_t));
  if (auto read = file.value().read(lengths_.data(), bytes, 0); !read) return read;
  for (const int32_t length : lengths_) num_tokens_ += length;
  saved_documents_ = documents;
  return {};
}

TokenFileWriter::TokenFileWriter(TokenFileWriter&& other) noexcept
    : prefix_(std::move(other.prefix_)),
      type_(other.type_),
      bin_(std::exchange(other.bin_, nullptr)),
      error_(other.error_),
      lengths_(std::move(other.lengths_)),
      num_tokens_(other.num_tokens_),
      saved_documents_(other.saved_documents_),
      kept_(other.kept_) {}

TokenFileWriter::~TokenFileWriter() {
  if (bin_ == nullptr) return;
  if (!kept_) {  // removed under the lock
    ::unlink(bin_part().c_str());
    ::unlink(idx_part().c_str());
  }
  std::fclose(bin_);
}

Result<void> TokenFileWriter::flush() {
  if (error_ == 0 && (std::fflush(bin_) != 0 || ::fsync(::fileno(bin_)) != 0)) error_ = errno;
  if (error_ != 0) return system_error(error_, "{}", bin_part());
  return {};
}

Result<TokenFileWriter::Saved> TokenFileWriter::save() {
  if (auto flushed = flush(); !flushed) return flushed.error();
  const Descriptor idx(::open(idx_part().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (idx.get() < 0) return system_error(errno, "{}", idx_part());
  const auto width = static_cast<int64_t>(sizeof(int32_t));
  if (auto written = write_at(idx.get(), idx_part(), lengths_.data() + saved_documents_,
                              (num_documents() - saved_documents_) * width, saved_documents_ * width);
      !written)
    return written.error();
  if (::fsync(idx.get()) != 0) return system_error(errno, "{}", idx_part());
  saved_documents_ = num_documents();
  kept_ = true;
  return Saved{num_documents(), num_tokens_};
}

void TokenFileWriter::add_document(std::span<const int32_t> tokens) {
  TRI_REQUIRE(tokens.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()), "a document of {} tokens",
              tokens.size());
  const auto width = static_cast<size_t>(tri::token_bytes(type_));
  const int64_t limit = type_ == TokenType::kU8 ? 256 : type_ == TokenType::kU16 ? 65536 : int64_t{1} << 31;
  buffer_.resize(tokens.size() * width);
  for (size_t i = 0; i < tokens.size(); ++i) {
    TRI_REQUIRE(tokens[i] >= 0 && tokens[i] < limit, "token {} does not fit {} bytes", tokens[i], width);
    std::memcpy(buffer_.data() + i * width, &tokens[i], width);  // little-endian: the low bytes
  }
  if (error_ == 0 && !buffer_.empty() && std::fwrite(buffer_.data(), 1, buffer_.size(), bin_) != buffer_.size())
    error_ = errno;
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  num_tokens_ += static_cast<int64_t>(tokens.size());
}

Result<uint64_t> TokenFileWriter::fingerprint() {
  if (auto flushed = flush(); !flushed) return flushed.error();
  const auto bin = InputFile::open(bin_part());
  if (!bin) return bin.error();
  return fingerprint_of(bin.value(), type_, num_tokens_, num_documents(), num_documents());
}

Result<void> TokenFileWriter::finish() {
  std::string idx(kMagic, sizeof kMagic);
  append(idx, uint64_t{1});
  append(idx, static_cast<uint8_t>(type_));
  append(idx, static_cast<uint64_t>(lengths_.size()));
  append(idx, static_cast<uint64_t>(lengths_.size() + 1));
  for (const int32_t length : lengths_) append(idx, length);
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    append(idx, pointer);
    pointer += int64_t{length} * tri::token_bytes(type_);
  }
  for (int64_t d = 0; d <= num_documents(); ++d) append(idx, d);
  // Completes both files before either is renamed: a full disk leaves the existing pair intact.
  auto idx_file = AtomicFile::create(prefix_ + ".idx");
  if (!idx_file) return idx_file.error();
  idx_file.value().write(idx.data(), idx.size());
  if (auto written = idx_file.value().flush(); !written) return written;
  if (auto flushed = flush(); !flushed) return flushed;
  const std::string path = prefix_ + ".bin";
  if (::rename(bin_part().c_str(), path.c_str()) != 0) return system_error(errno, "{}", path);
  std::fclose(std::exchange(bin_, nullptr));
  ::unlink(idx_part().c_str());
  return idx_file.value().commit();  // makes both names durable
}

}  // namespace tri
