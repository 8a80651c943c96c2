// Text files to a token file: PREFIX.bin, PREFIX.idx, and PREFIX.json, which says how they were made.
#pragma once

#include <string>
#include <vector>

#include "io/base/enum_names.h"
#include "io/tokens/tokenizer.h"

namespace tri {

enum class TextFormat {
  kText,   // a file is a document
  kLines,  // a line is a document; empty lines are none
  kJsonl,  // a line is a JSON object; the document is its text field
};

template <>
struct EnumNames<TextFormat> {
  static constexpr std::array table{std::pair{TextFormat::kText, std::string_view("text")},
                                    std::pair{TextFormat::kLines, std::string_view("lines")},
                                    std::pair{TextFormat::kJsonl, std::string_view("jsonl")}};
};

struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string output;  // PREFIX
  std::string tokenizer = "bytes";
  TextFormat format = TextFormat::kText;
  std::string text_field = "text";
  int threads = 1;
};

struct PrepareSummary {
  int64_t documents = 0, tokens = 0;
  int64_t text_bytes = 0;  // of the documents, in UTF-8: without line ends, and of JSON the text field alone
  int vocab = 0;
};

// What PREFIX.json says of the tokenizer; empty when there is no such file (data prepared elsewhere).
Result<std::string> prepared_with(const std::string& prefix);

// Every document is followed by the tokenizer's end-of-document token. The result does not depend on `threads`. A line
// that is not what the format says is an error naming file and line; nothing is left under the final names then.
Result<PrepareSummary> prepare(const PrepareOptions& options);

}  // namespace tri
