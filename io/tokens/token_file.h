// Megatron's indexed token files: PREFIX.bin holds raw tokens, PREFIX.idx says where documents begin.
// .idx, little-endian, arrays unaligned:
//   9 bytes               "MMIDIDX\0\0"
//   u64                   version = 1
//   u8                    element type: read are 1 u8, 4 i32, 8 u16; written are u16 for vocabularies below 65,500, else i32
//   u64                   S sequences
//   u64                   K = documents + 1
//   i32 length[S]         tokens of each sequence
//   i64 byte_pointer[S]   where it begins in .bin
//   i64 document_index[K] first sequence of each document; the first entry is 0, the last S
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/base/file.h"

namespace tri {

enum class TokenType : uint8_t { kU8 = 1, kI32 = 4, kU16 = 8 };

constexpr int token_bytes(TokenType type) { return type == TokenType::kU8 ? 1 : type == TokenType::kU16 ? 2 : 4; }
constexpr TokenType token_type_for(int vocab) { return vocab < 65500 ? TokenType::kU16 : TokenType::kI32; }

// A checked pair of files: one stream of tokens, cut into documents. The index is mapped into memory. Thread-safe.
class TokenFile {
 public:
  // Everything about the files' structure is checked here; a file that opens can be read anywhere.
  static Result<TokenFile> open(const std::string& prefix);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t num_sequences() const { return num_sequences_; }
  TokenType type() const { return type_; }

  // First token of document d; d = num_documents() gives num_tokens().
  int64_t document_start(int64_t document) const;

  // Tokens [first, first + out.size()) of the stream, read from the file. Requires the range to exist; Fatal(kFile)
  // when storage fails.
  void read(int64_t first, std::span<int32_t> out) const;

  // Tells token streams apart by counts and a sample of tokens: equal for copies, whatever their path.
  uint64_t fingerprint() const;

  // Error naming the first token outside [0, vocab) in [first, last).
  Result<void> check_range(int64_t first, int64_t last, int vocab) const;

  const std::string& prefix() const { return prefix_; }

 private:
  Result<void> try_read(int64_t first, std::span<int32_t> out) const;

  std::string prefix_;
  InputFile bin_;
  MappedFile idx_;
  TokenType type_ = TokenType::kU16;
  int64_t num_tokens_ = 0, num_documents_ = 0, num_sequences_ = 0;
  const std::byte *lengths_ = nullptr, *pointers_ = nullptr, *documents_ = nullptr;
};

// Writes a pair of files, one sequence a document. Nothing appears under the final names before finish().
class TokenFileWriter {
 public:
  static Result<TokenFileWriter> create(const std::string& prefix, TokenType type);

  // Tokens must fit the type: requires 0 <= token (and token < 65,536 for u16, < 256 for u8).
  void add_document(std::span<const int32_t> tokens);
  Result<void> finish();

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return static_cast<int64_t>(lengths_.size()); }

 private:
  TokenFileWriter(std::string prefix, TokenType type, AtomicFile bin)
      : prefix_(std::move(prefix)), type_(type), bin_(std::move(bin)) {}

  std::string prefix_;
  TokenType type_;
  AtomicFile bin_;
  std::vector<int32_t> lengths_;
  std::vector<char> buffer_;
  int64_t num_tokens_ = 0;
};

}  // namespace tri
