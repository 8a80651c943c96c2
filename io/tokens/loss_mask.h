// PREFIX.mask: which tokens of the token file PREFIX are trained as targets. Little-endian:
//   7 bytes   "TRIMASK"
//   u8        version = 1
//   u64       N tokens, as many as PREFIX.bin has
//   u64       how many of them are trained
//   u64       TokenFile::fingerprint() of PREFIX.bin and PREFIX.idx
//   u8[N]     1: the token is trained as a target; 0: it is only an input
// A token file without such a file trains every token.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>

#include "io/base/file.h"

namespace tri {

class TokenFile;

// Safe for concurrent use.
class LossMask {
 public:
  // Opens the mask of `tokens`; none if there is no mask. Fails if the mask is damaged or was written for other tokens,
  // or if PREFIX.json contradicts the files.
  static Result<std::optional<LossMask>> open(const TokenFile& tokens);

  int64_t num_trained() const { return num_trained_; }
  // Reads the bytes of tokens [first, first + out.size()), 0 or 1. Requires the range to exist; throws Fatal (kFile) if
  // storage fails, or a byte is neither.
  void read(int64_t first, std::span<uint8_t> out) const;
  // Returns 64 bits that identify the contents, like TokenFile::fingerprint().
  Result<uint64_t> fingerprint() const;
  // Reads everything: fails if a byte is neither 0 nor 1, or the number of trained tokens is wrong.
  Result<void> check() const;

 private:
  Result<void> try_read(int64_t first, std::span<uint8_t> out) const;

  std::string path_;
  InputFile file_;
  int64_t num_tokens_ = 0, num_trained_ = 0;
};

// Writes PREFIX.mask next to the parts of a TokenFileWriter, whose lock also protects it: until finish() the bytes are
// in PREFIX.mask.part. The destructor removes the part unless it was saved. Not thread-safe.
class LossMaskWriter {
 public:
  static Result<LossMaskWriter> create(const std::string& prefix);
  // Continues after `tokens` tokens, and drops what was written after them. Fails if the part holds less.
  static Result<LossMaskWriter> resume(const std::string& prefix, int64_t tokens);
  LossMaskWriter(LossMaskWriter&& other) noexcept;
  ~LossMaskWriter();

  void add(std::span<const uint8_t> trained);  // 0 or 1, of the next tokens
  Result<void> save();                         // makes everything added so far durable
  // Completes the file and gives it its final name. `fingerprint`: TokenFile::fingerprint() of its tokens. Call it
  // before TokenFileWriter::finish().
  Result<void> finish(uint64_t fingerprint);

  int64_t num_trained() const { return num_trained_; }

 private:
  LossMaskWriter(std::string prefix, std::FILE* file) : prefix_(std::move(prefix)), file_(file) {}
  std::string part() const { return prefix_ + ".mask.part"; }

  std::string prefix_;
  std::FILE* file_ = nullptr;  // null: finished or moved from
  int error_ = 0;              // errno of the first failed write
  int64_t num_tokens_ = 0, num_trained_ = 0;
  bool kept_ = false;
};

}  // namespace tri
