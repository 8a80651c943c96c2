// Megatron's indexed token files: PREFIX.bin holds raw tokens, PREFIX.idx the places where documents begin.
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
#include "io/base/hash.h"

namespace tri {

enum class TokenType : uint8_t { kU8 = 1, kI32 = 4, kU16 = 8 };

constexpr int token_bytes(TokenType type) { return type == TokenType::kU8 ? 1 : type == TokenType::kU16 ? 2 : 4; }
constexpr TokenType token_type_for(int vocab) { return vocab < 65500 ? TokenType::kU16 : TokenType::kI32; }

// Adds 32 pages of 4 KiB of the file to `hash`, spread evenly, including the first and the last; all of a small file.
Result<void> add_pages(const InputFile& file, Xxh3& hash);

// One stream of tokens, read from its file. Opening reads only the header of the index and the ends of its arrays, 62
// bytes for any number of documents: enough to detect files that do not belong together or are truncated. Samples of
// training need no more; DocumentIndex reads the rest. Safe for concurrent use.
class TokenFile {
 public:
  // Fails if a file is missing, is damaged or does not belong to the other.
  static Result<TokenFile> open(const std::string& prefix);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t num_sequences() const { return num_sequences_; }
  TokenType type() const { return type_; }

  // Reads tokens [first, first + out.size()) of the stream. Requires the range to exist; throws Fatal (kFile) if
  // storage fails.
  void read(int64_t first, std::span<int32_t> out) const;

  // Returns 64 bits that identify the contents: equal for copies, whatever their path. They cover the type of the
  // tokens, the numbers of tokens, sequences and documents, and 32 pages of 4 KiB of .bin, spread evenly, including the
  // first and the last; so all of a small file. Text that was changed and prepared again nearly always has other
  // numbers, or other tokens after the change. An edit that keeps all lengths is detected only in one of the pages.
  Result<uint64_t> fingerprint() const;
  // Returns the key of the order of samples of this stream, which must not change during a run, nor between versions of
  // the program: from the numbers of tokens and documents and three ranges of 1,024 tokens.
  Result<uint64_t> shuffle_key() const;

  // Fails, naming the token, at the first one outside [0, vocab) in [first, last).
  Result<void> check_range(int64_t first, int64_t last, int vocab) const;

  const std::string& prefix() const { return prefix_; }

 private:
  Result<void> try_read(int64_t first, std::span<int32_t> out) const;

  std::string prefix_;
  InputFile bin_;
  TokenType type_ = TokenType::kU16;
  int64_t num_tokens_ = 0, num_documents_ = 0, num_sequences_ = 0;
};

// Where documents begin. Reads entries of the index when they are needed, so that it opens at once and needs the same
// memory for any number of documents. Reads instead of a mapping: if another machine truncates the file, they fail with
// an error, not with a signal. Safe for concurrent use. All but open() and check() throw Fatal (kFile) if storage fails
// or an entry is damaged.
class DocumentIndex {
 public:
  // Reads the header and the ends of the arrays.
  static Result<DocumentIndex> open(const std::string& prefix);
  // Reads and checks the whole index, in blocks.
  Result<void> check() const;

  int64_t num_documents() const { return num_documents_; }
  // Returns the first token of document d; d = num_documents() gives the number of tokens.
  int64_t document_start(int64_t document) const;
  // Returns `first`, the starts of the documents inside (first, end), and `end`, ascending. Finds them by bisection.
  // Requires 0 <= first < end <= tokens.
  std::vector<int64_t> bounds(int64_t first, int64_t end) const;

 private:
  // Returns the first document that begins at `token` or later; num_documents() if there is none.
  int64_t first_from(int64_t token) const;

  InputFile file_;
  std::string path_;
  TokenType type_ = TokenType::kU16;
  int64_t num_tokens_ = 0, num_documents_ = 0, num_sequences_ = 0;
  int64_t lengths_ = 0, pointers_ = 0, documents_ = 0;  // offsets of the arrays in the file
};

// Writes a pair of files, one sequence per document. Nothing appears under the final names before finish(): until then
// the tokens are in PREFIX.bin.part and, once saved, the documents' lengths in PREFIX.idx.part. The destructor removes
// unsaved parts; saved ones stay until they are finished or discarded. Two writers of one PREFIX are refused. Not
// thread-safe.
class TokenFileWriter {
 public:
  struct Saved {
    int64_t documents = 0, tokens = 0;
  };

  static Result<TokenFileWriter> create(const std::string& prefix, TokenType type);
  // Continues after what was saved, and drops what was written after that. Fails if the parts hold less.
  static Result<TokenFileWriter> resume(const std::string& prefix, TokenType type, const Saved& saved);
  TokenFileWriter(TokenFileWriter&& other) noexcept;
  ~TokenFileWriter();

  // Tokens must fit the type: requires 0 <= token (and token < 65,536 for u16, < 256 for u8).
  void add_document(std::span<const int32_t> tokens);
  // Makes everything added so far durable, so that it can be resumed from.
  Result<Saved> save();
  // Returns TokenFile::fingerprint() of the files that finish() would leave. Writes out what was added so far.
  Result<uint64_t> fingerprint();
  // Writes out both files under their final names, and ends the writer. If the disk is full, an existing pair stays
  // intact.
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
  bool kept_ = false;  // keep the parts
};

}  // namespace tri
