// The lines of text files, for SentencePiece's trainer.
#pragma once

#include <sentencepiece_trainer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"
#include "io/tokens/text_reader.h"

namespace tri {

// SentencePiece drops lines that are long or hold one of its reserved characters, and crashes on a word of more than
// 32,767 characters (version 0.1.97: a position in a word has 16 bits). Here lines are split instead: a long line
// before a space, or inside a word if that word alone is too long, and every line at a reserved character, which is
// then dropped.
class TrainingLines final : public sentencepiece::SentenceIterator {
 public:
  static constexpr size_t kLongest = 32000;  // bytes of a line, and thus of a word

  explicit TrainingLines(std::vector<std::string> paths);

  bool done() const override { return done_; }
  void Next() override;
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }  // error() says more

  // Returns the error of a file that cannot be read; the iteration ended there.
  const std::optional<Error>& error() const { return error_; }
  // Returns whether there was a line with text.
  bool any() const { return any_; }
  // Returns the number of words that were longer than kLongest and are therefore trained on in parts.
  int64_t num_split_words() const { return num_split_words_; }

 private:
  bool next_block();

  std::vector<std::string> paths_;
  size_t next_path_ = 0;
  std::optional<TextReader> reader_;
  std::string block_;      // whole lines
  std::string_view rest_;  // of it
  std::string line_;
  bool done_ = false, any_ = false;
  bool in_split_word_ = false;  // the next line continues a word
  int64_t num_split_words_ = 0;
  std::optional<Error> error_;
};

}  // namespace tri
