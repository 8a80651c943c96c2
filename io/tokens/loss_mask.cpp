#include "io/tokens/loss_mask.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "io/base/hash.h"
#include "io/tokens/token_file.h"
#include "io/tokens/token_origin.h"

namespace tri {
namespace {

constexpr char kMaskMagic[7] = {'T', 'R', 'I', 'M', 'A', 'S', 'K'};
constexpr uint8_t kVersion = 1;
constexpr int64_t kBlock = int64_t{1} << 20;

struct Header {
  char magic[7] = {};
  uint8_t version = 0;
  int64_t tokens = 0, trained = 0;
  uint64_t fingerprint = 0;  // of the tokens
};
static_assert(sizeof(Header) == 32);
constexpr auto kMaskHeaderBytes = static_cast<int64_t>(sizeof(Header));

}  // namespace

Result<std::optional<LossMask>> LossMask::open(const TokenFile& tokens) {
  const std::string path = tokens.prefix() + ".mask", sidecar = tokens.prefix() + ".json";
  const auto origin = prepared_with(tokens.prefix());
  if (!origin) return origin.error();
  const std::optional<int64_t> expected = origin.value().trained_tokens;
  auto file = InputFile::open(path);
  if (!file && file.error().os_error != ENOENT) return file.error();
  if (!file) {
    if (expected)
      return file_error(
          "{}: is missing, but {} says that the tokens have a loss mask; copy it too, or prepare the tokens "
          "again",
          path, sidecar);
    return std::optional<LossMask>();
  }
  LossMask mask;
  mask.path_ = path;
  mask.file_ = std::move(file).value();
  Header header;
  if (mask.file_.bytes() < kMaskHeaderBytes)
    return file_error("{}: has {} bytes, so it is truncated, or not a loss mask; prepare the tokens again", path,
                      mask.file_.bytes());
  if (auto got = mask.file_.read(&header, kMaskHeaderBytes, 0); !got) return got.error();
  if (std::memcmp(header.magic, kMaskMagic, sizeof kMaskMagic) != 0)
    return file_error("{}: is not a loss mask; remove it, or prepare the tokens again", path);
  if (header.version != kVersion)
    return file_error("{}: has version {}, and this program reads version {}; use a newer trireme", path,
                      header.version, kVersion);
  if (mask.file_.bytes() != kMaskHeaderBytes + header.tokens || header.tokens != tokens.num_tokens())
    return file_error(
        "{}: holds {} bytes for {} tokens, but {}.bin has {}, so it is truncated, or belongs to another token file; "
        "prepare the tokens again",
        path, mask.file_.bytes() - kMaskHeaderBytes, header.tokens, tokens.prefix(), tokens.num_tokens());
  const auto fingerprint = tokens.fingerprint();
  if (!fingerprint) return fingerprint.error();
  if (header.fingerprint != fingerprint.value())
    return file_error("{}: was written for other tokens than those of {}.bin; prepare the tokens again", path,
                      tokens.prefix());
  if (header.trained < 0 || header.trained > header.tokens || (expected && *expected != header.trained))
    return file_error("{}: says that {} of {} tokens are trained{}; prepare the tokens again", path, header.trained,
                      header.tokens, expected ? fmt::format(", but {} says {}", sidecar, *expected) : "");
  if (!origin.value().fingerprint.empty() && !expected)
    return file_error(
        "{}: {} does not say that the tokens have a loss mask, so it belongs to other tokens; remove it, "
        "or prepare the tokens again",
        path, sidecar);
  if (header.trained == 0) return file_error("{}: no token is trained; check the roles that the template trains", path);
  mask.num_tokens_ = header.tokens;
  mask.num_trained_ = header.trained;
  return std::optional<LossMask>(std::move(mask));
}

Result<void> LossMask::try_read(int64_t first, std::span<uint8_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  TRI_REQUIRE(first >= 0 && first + count <= num_tokens_, "tokens [{}, {}) of {}", first, first + count, num_tokens_);
  if (auto got = file_.read(out.data(), count, kMaskHeaderBytes + first); !got) return got;
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i] > 1)
      return file_error("{}: token {} has the byte {}, expected 0 or 1; prepare the tokens again", path_,
                        first + static_cast<int64_t>(i), out[i]);
  return {};
}

void LossMask::read(int64_t first, std::span<uint8_t> out) const { value_or_throw(try_read(first, out)); }

Result<uint64_t> LossMask::fingerprint() const {
  Xxh3 hash;
  if (auto added = add_pages(file_, hash); !added) return added.error();
  return hash.digest();
}

Result<void> LossMask::check() const {
  std::vector<uint8_t> block;
  int64_t trained = 0;
  for (int64_t at = 0; at < num_tokens_; at += kBlock) {
    block.resize(static_cast<size_t>(std::min(kBlock, num_tokens_ - at)));
    if (auto got = try_read(at, block); !got) return got;
    trained += std::count(block.begin(), block.end(), 1);
  }
  if (trained != num_trained_)
    return file_error("{}: trains {} tokens, but its header says {}, so it is damaged; prepare the tokens again", path_,
                      trained, num_trained_);
  return {};
}

Result<LossMaskWriter> LossMaskWriter::create(const std::string& prefix) {
  LossMaskWriter writer(prefix, nullptr);
  writer.file_ = std::fopen(writer.part().c_str(), "wbe");
  if (writer.file_ == nullptr) return system_error(errno, "{}", writer.part());
  const Header blank;
  if (std::fwrite(&blank, sizeof blank, 1, writer.file_) != 1) writer.error_ = errno;
  return writer;
}

Result<LossMaskWriter> LossMaskWriter::resume(const std::string& prefix, int64_t tokens) {
  LossMaskWriter writer(prefix, nullptr);
  writer.kept_ = true;
  const std::string path = writer.part();
  {
    const auto written = InputFile::open(path);
    if (!written) return written.error();
    if (written.value().bytes() < kMaskHeaderBytes + tokens)
      return file_error("{}: is shorter than the saved state says; remove it and {}.json.part, and start over", path,
                        prefix);
    std::vector<uint8_t> block;
    for (int64_t at = 0; at < tokens; at += kBlock) {
      block.resize(static_cast<size_t>(std::min(kBlock, tokens - at)));
      const auto bytes = static_cast<int64_t>(block.size());
      if (auto got = written.value().read(block.data(), bytes, kMaskHeaderBytes + at); !got) return got.error();
      writer.num_trained_ += std::count(block.begin(), block.end(), 1);
    }
  }
  writer.num_tokens_ = tokens;
  writer.file_ = std::fopen(path.c_str(), "r+be");
  if (writer.file_ == nullptr || ::ftruncate(::fileno(writer.file_), kMaskHeaderBytes + tokens) != 0 ||
      std::fseek(writer.file_, 0, SEEK_END) != 0)
    return system_error(errno, "{}", path);
  return writer;
}

LossMaskWriter::LossMaskWriter(LossMaskWriter&& other) noexcept
    : prefix_(std::move(other.prefix_)),
      file_(std::exchange(other.file_, nullptr)),
      error_(other.error_),
      num_tokens_(other.num_tokens_),
      num_trained_(other.num_trained_),
      kept_(other.kept_) {}

LossMaskWriter::~LossMaskWriter() {
  if (file_ == nullptr) return;
  if (!kept_) ::unlink(part().c_str());
  std::fclose(file_);
}

void LossMaskWriter::add(std::span<const uint8_t> trained) {
  if (error_ == 0 && !trained.empty() && std::fwrite(trained.data(), 1, trained.size(), file_) != trained.size())
    error_ = errno;
  num_tokens_ += static_cast<int64_t>(trained.size());
  num_trained_ += std::count(trained.begin(), trained.end(), 1);
}

Result<void> LossMaskWriter::save() {
  if (error_ == 0 && (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0)) error_ = errno;
  if (error_ != 0) return system_error(error_, "{}", part());
  kept_ = true;
  return {};
}

Result<void> LossMaskWriter::finish(uint64_t fingerprint) {
  Header header{.version = kVersion, .tokens = num_tokens_, .trained = num_trained_, .fingerprint = fingerprint};
  std::memcpy(header.magic, kMaskMagic, sizeof kMaskMagic);
  if (error_ == 0 && (std::fseek(file_, 0, SEEK_SET) != 0 || std::fwrite(&header, sizeof header, 1, file_) != 1))
    error_ = errno;
  if (auto saved = save(); !saved) return saved;
  const std::string path = prefix_ + ".mask";
  if (::rename(part().c_str(), path.c_str()) != 0) return system_error(errno, "{}", path);
  std::fclose(std::exchange(file_, nullptr));
  return {};
}

}  // namespace tri
