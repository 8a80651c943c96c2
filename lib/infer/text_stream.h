// The text of tokens as they are generated: decoded one by one, cut at stop strings, and the part of it that later
// tokens cannot change.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/tokens/tokenizer.h"

namespace tri {

class TextStream {
 public:
  // `before`: the tokens before the text, which decide for instance whether it begins with a space. `stops`: none is
  // empty.
  TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before, std::vector<std::string> stops);

  // Adds a token. Returns whether the text contains a stop string: it then ends before that.
  bool add(int32_t token);

  const std::string& text() const { return text_; }
  // Returns the number of bytes at the start of the text that are final: all except an incomplete last character and an
  // end that may begin a stop string.
  size_t final_bytes() const;

 private:
  const Tokenizer& tokenizer_;
  const std::vector<std::string> stops_;
  std::vector<int32_t> tail_;  // the last tokens, of which the first `decoded_` are part of `complete_`
  size_t decoded_ = 0;
  size_t complete_ = 0;  // bytes of the text that end with a complete character
  std::string text_;
  bool stopped_ = false;
};

}  // namespace tri
