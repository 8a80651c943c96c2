// Text files to a token file: PREFIX.bin, PREFIX.idx, and PREFIX.json, which says how they were made.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/tokens/text_reader.h"
#include "io/tokens/tokenizer.h"

namespace tri {

enum class Existing { kRefuse, kOverwrite };  // output that is there already

struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string output;  // PREFIX
  std::string tokenizer = "bytes";
  std::optional<TextFormat> format;  // none: by each input's name
  std::string text_field = "text";
  int threads = 1;
  Existing existing = Existing::kRefuse;
};

struct PrepareSummary {
  int64_t documents = 0, tokens = 0;
  int64_t text_bytes = 0;   // of the documents, in UTF-8: without line ends, and of JSON the text field alone
  int64_t text_faults = 0;  // bytes of the inputs that are NUL or no UTF-8: too few to refuse them, and kept
  int vocab = 0;
};

// What PREFIX.json says of the tokenizer; empty when there is no such file (data prepared elsewhere).
Result<std::string> prepared_with(const std::string& prefix);

// Every document is followed by the tokenizer's end-of-document token. The result does not depend on `threads`. Inputs
// may be packed by gzip or Zstandard. Errors, after which nothing is left under the final names: a line that is not
// what the format says (names file and line), an input that is no text (text_reader.h), output that is there already.
Result<PrepareSummary> prepare(const PrepareOptions& options);

}  // namespace tri
