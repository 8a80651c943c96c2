// The lines of text files, for SentencePiece's trainer.
#pragma once

#include <sentencepiece_trainer.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"
#include "io/tokens/text_reader.h"

namespace tri {

// SentencePiece drops lines that are long or hold one of its reserved characters. Here they are split instead: a long
// line before a space if it has one, and every line at a reserved character, which is then dropped.
class TrainingLines final : public sentencepiece::SentenceIterator {
 public:
  static constexpr size_t kLongest = 65536;  // bytes of a line

  explicit TrainingLines(std::vector<std::string> paths);

  bool done() const override { return done_; }
  void Next() override;
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }  // error() says more

  // Returns the error of a file that cannot be read; the iteration ended there.
  const std::optional<Error>& error() const { return error_; }
  // Returns whether there was a line with text.
  bool any() const { return any_; }

 private:
  bool next_block();

  std::vector<std::string> paths_;
  size_t next_path_ = 0;
  std::optional<TextReader> reader_;
  std::string block_;      // whole lines
  std::string_view rest_;  // of it
  std::string line_;
  bool done_ = false, any_ = false;
  std::optional<Error> error_;
};

}  // namespace tri
