// JSON Lines that users write: prompts to continue, and texts to score.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/tokens/tokenizer.h"
#include "lib/infer/scoring.h"

namespace tri {

struct PromptLine {
  std::string text;
  std::vector<int32_t> ids;  // instead of the text
  std::optional<uint64_t> seed;
};
// Returns the lines of `json_lines`: objects with "prompt" (text) or "prompt_ids" (a list of token ids), and optionally
// "seed". Other fields and empty lines are ignored. Fails with kUsage, naming `path` and the line.
Result<std::vector<PromptLine>> read_prompt_lines(const std::string& json_lines, const std::string& path);

struct TextLine {
  std::string context, text;  // `text` is scored
};
// Returns the lines: objects with "text", or with "context" and "continuation". As above.
Result<std::vector<TextLine>> read_text_lines(const std::string& json_lines, const std::string& path);

// Returns the tokens of a line. A text without context follows the token that begins documents or, if the tokenizer has
// none, the one that ends the previous document. Spaces at the end of the context are tokenized, and scored, with the
// continuation, as lm-evaluation-harness does. Fails if nothing is left to score.
Result<ScoredText> tokens_to_score(const TextLine& line, const Tokenizer& tokenizer);

}  // namespace tri
