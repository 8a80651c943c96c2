// Megatron's indexed token files: PREFIX.bin holds raw tokens, PREFIX.idx says where documents begin.
// .idx, little-endian, arrays unaligned:
//   9 bytes               "MMIDIDX\0\0"
//   u64                   version = 1
//   u8                    element type: read are 1 u8, 4 i32, 8 u16; written: u16 for vocab below 65,500, else i32
//   u64                   S sequences
//   u64                   K = documents + 1
//   i32 length[S]         tokens of each sequence
//   i64 byte_pointer[S]   where it begins in .bin
//   i64 document_index[K] first sequence of each document; the first entry is 0, the last S
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "io/base/file.h"

namespace tri {

enum class TokenType : uint8_t { kU8 = 1, kI32 = 4, kU16 = 8 };

constexpr int token_bytes(TokenType type) { return type == TokenType::kU8 ? 1 : type == TokenType::kU16 ? 2 : 4; }
constexpr TokenType token_type_for(int vocab) { return vocab < 65500 ? TokenType::kU16 : TokenType::kI32; }

// One stream of tokens, read from its file. Of the index, opening reads the header and the ends of the arrays, 62 bytes
// however many documents there are: enough to tell a pair of files that do not belong together, or that were truncated.
// Samples of training need no more; what lies between the ends is DocumentIndex's. Thread-safe.
class TokenFile {
 public:
  static Result<TokenFile> open(const std::string& prefix);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t num_sequences() const { return num_sequences_; }
  TokenType type() const { return type_; }

  // Tokens [first, first + out.size()) of the stream, read from the file. Requires the range to exist; Fatal(kFile)
  // when storage fails.
  void read(int64_t first, std::span<int32_t> out) const;

  // 64 bits that tell contents apart: equal for copies, whatever their path. They cover the type of the tokens, the
  // numbers of tokens, sequences and documents, and 32 pages of 4 KiB of .bin, spread evenly, the first and the last
  // among them; so all of a small file. Text that was changed and prepared again nearly always has other numbers, or
  // other tokens behind the change. An edit that keeps all lengths is seen only where it meets one of the pages.
  Result<uint64_t> fingerprint() const;
  // Keys the order of the samples that are cut from this stream, which must not change while a run lasts, nor from one
  // version of the program to the next: from the numbers of tokens and documents and three ranges of 1,024 tokens.
  Result<uint64_t> shuffle_key() const;

  // Error naming the first token outside [0, vocab) in [first, last).
  Result<void> check_range(int64_t first, int64_t last, int vocab) const;

  const std::string& prefix() const { return prefix_; }

 private:
  Result<void> try_read(int64_t first, std::span<int32_t> out) const;

  std::string prefix_;
  InputFile bin_;
  TokenType type_ = TokenType::kU16;
  int64_t num_tokens_ = 0, num_documents_ = 0, num_sequences_ = 0;
};

// Where documents begin: the whole index, read into memory and checked from end to end. Thread-safe.
class DocumentIndex {
 public:
  static Result<DocumentIndex> open(const std::string& prefix);

  int64_t num_documents() const { return num_documents_; }
  // First token of document d; d = num_documents() gives the number of tokens.
  int64_t document_start(int64_t document) const;

 private:
  std::vector<std::byte> idx_;
  TokenType type_ = TokenType::kU16;
  int64_t num_tokens_ = 0, num_documents_ = 0, num_sequences_ = 0;
  int64_t pointers_ = 0, documents_ = 0;  // offsets of the arrays in idx_
};

// Writes a pair of files, one sequence a document. Nothing appears under the final names before finish(): until then
// the tokens are in PREFIX.bin.part and, once saved, the documents' lengths in PREFIX.idx.part. Parts that were not
// saved go with the writer; saved ones stay until they are finished or discarded. Two writers of one PREFIX are
// refused.
class TokenFileWriter {
 public:
  struct Saved {
    int64_t documents = 0, tokens = 0;
  };

  static Result<TokenFileWriter> create(const std::string& prefix, TokenType type);
  // Goes on behind what was saved; what was written after that is dropped. Error when the parts hold less.
  static Result<TokenFileWriter> resume(const std::string& prefix, TokenType type, const Saved& saved);
  TokenFileWriter(TokenFileWriter&& other) noexcept;
  ~TokenFileWriter();

  // Tokens must fit the type: requires 0 <= token (and token < 65,536 for u16, < 256 for u8).
  void add_document(std::span<const int32_t> tokens);
  // All that was added so far is on storage, to be resumed from.
  Result<Saved> save();
  Result<void> finish();

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return static_cast<int64_t>(lengths_.size()); }

 private:
  TokenFileWriter(std::string prefix, TokenType type, std::FILE* bin)
      : prefix_(std::move(prefix)), type_(type), bin_(bin) {}
  static Result<TokenFileWriter> open(const std::string& prefix, TokenType type, const char* mode);
  Result<void> read_lengths(int64_t documents);
  Result<void> flush();
  std::string bin_part() const { return prefix_ + ".bin.part"; }
  std::string idx_part() const { return prefix_ + ".idx.part"; }

  std::string prefix_;
  TokenType type_;
  std::FILE* bin_ = nullptr;  // null: finished or moved from
  int error_ = 0;             // errno of the first failed write
  std::vector<int32_t> lengths_;
  std::vector<char> buffer_;
  int64_t num_tokens_ = 0;
  int64_t saved_documents_ = 0;
  bool kept_ = false;  // the parts stay
};

}  // namespace tri
