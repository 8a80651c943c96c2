// Reads the inputs of `data prepare` in blocks, and encodes the documents of a block.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/base/hash.h"
#include "io/base/progress.h"
#include "io/tokens/input_files.h"
#include "io/tokens/prepare.h"

namespace tri {

// A position between two documents.
struct TextPosition {
  size_t input = 0;
  int64_t bytes = 0;  // of its unpacked text
  int64_t line = 1;   // the next one
  uint64_t hash = 0;  // XXH3 of these bytes
};

// The input of one encoding task: whole lines, or a whole file.
struct TextBlock {
  std::string text;
  TextPosition begin, end;   // without hashes
  std::optional<Xxh3> hash;  // of the input's text up to `begin`; only in the first block that is read of an input
};

// Reads the blocks of all inputs, in order.
class TextBlocks {
 public:
  static constexpr int64_t kBlockBytes = 1 << 20;

  TextBlocks(const std::vector<TextInput>& inputs, TextPosition start, ProgressBar& progress)
      : inputs_(inputs), at_(start), skip_(start.bytes), progress_(progress) {}

  // Returns false after the last block.
  Result<bool> next(TextBlock& block);

 private:
  Result<void> open();

  const std::vector<TextInput>& inputs_;
  TextPosition at_;
  int64_t skip_;  // bytes of the first input's text that are done
  ProgressBar& progress_;
  std::optional<TextReader> reader_;  // of inputs_[at_.input]
  std::optional<Xxh3> hash_;          // for its first block
};

struct EncodedDocument {
  size_t output = 0;  // index of the split
  int64_t text_bytes = 0;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> trained;  // of conversations: 0 or 1, of each token
};

// A document that violates its format.
struct BadDocument {
  size_t documents = 0;  // of the block, before it
  int64_t bytes = 0;     // of the block, before it
  int64_t line = 0;      // 0: the whole file
  TextFaults faults;     // of the text before it, as far as `EncodedBlock::faults` counts it
  std::string why;
};

struct EncodedBlock {
  std::vector<EncodedDocument> documents;
  TextFaults faults;             // of the text without bad documents
  std::vector<BadDocument> bad;  // in order; if none may be skipped, the block is encoded up to the first
  std::optional<Error> error;    // one that does not concern a single document
};

// Runs on options.threads threads; the results are in the order of the blocks.
std::vector<EncodedBlock> encode_blocks(const std::vector<TextBlock>& blocks, const std::vector<TextInput>& inputs,
                                        const PrepareOptions& options, const Tokenizer& tokenizer);

}  // namespace tri
