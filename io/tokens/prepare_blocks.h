// The inputs of `data prepare` in blocks, and the documents of a block as tokens.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/base/progress.h"
#include "io/tokens/input_files.h"
#include "io/tokens/prepare.h"

namespace tri {

// Between two blocks.
struct TextPosition {
  size_t input = 0;
  int64_t bytes = 0;  // of its text, unpacked
  int64_t line = 1;   // the next one
};

// What one task tokenizes: whole lines, or a whole file.
struct Block {
  size_t input = 0;
  std::string text;
  int64_t first_line = 1;
  TextPosition end;
};

// The blocks of all inputs, in order.
class Blocks {
 public:
  static constexpr int64_t kBlockBytes = 1 << 20;

  Blocks(const std::vector<TextInput>& inputs, TextPosition start, ProgressBar& progress)
      : inputs_(inputs), at_(start), skip_(start.bytes), progress_(progress) {}

  // False behind the last.
  Result<bool> next(Block& block);

 private:
  Result<void> open();

  const std::vector<TextInput>& inputs_;
  TextPosition at_;
  int64_t skip_;  // bytes of the first input's text that are done
  ProgressBar& progress_;
  std::optional<TextReader> reader_;  // of inputs_[at_.input]
};

struct EncodedDocument {
  size_t output = 0;  // which split
  int64_t text_bytes = 0;
  std::vector<int32_t> tokens;
};

struct EncodedBlock {
  std::vector<EncodedDocument> documents;
  TextFaults faults;
  std::optional<Error> error;  // behind the documents
};

// On options.threads threads; the results are in the order of the blocks.
std::vector<EncodedBlock> encode_blocks(const std::vector<Block>& blocks, const std::vector<TextInput>& inputs,
                                        const PrepareOptions& options, const Tokenizer& tokenizer);

}  // namespace tri
