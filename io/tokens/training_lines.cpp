#include "io/tokens/training_lines.h"

namespace tri {
namespace {

constexpr std::string_view kUnknown = "\xe2\x96\x85";  // U+2585, which represents unknown text in SentencePiece

// Returns the bytes of `line` up to the first reserved character, and the bytes of that character; {size, 0}: none.
std::pair<size_t, size_t> find_reserved(std::string_view line) {
  const size_t nul = line.find('\0'), unknown = line.find(kUnknown);
  if (nul == std::string_view::npos && unknown == std::string_view::npos) return {line.size(), 0};
  return nul < unknown ? std::pair{nul, size_t{1}} : std::pair{unknown, kUnknown.size()};
}

// Returns the length of the first part of a line that is too long: up to a space, which begins the next part, or 0 if
// there is none.
size_t part_of(std::string_view line) {
  const size_t space = line.rfind(' ', TrainingLines::kLongest);
  return space == std::string_view::npos ? 0 : space;
}

// Returns the length of the first part of a word that is too long: whole characters.
size_t part_of_word(std::string_view word) {
  size_t end = TrainingLines::kLongest;
  while (end > 1 && (word[end] & 0xC0) == 0x80) --end;
  return end;
}

}  // namespace

TrainingLines::TrainingLines(std::vector<std::string> paths) : paths_(std::move(paths)) { Next(); }

bool TrainingLines::next_block() {
  constexpr int64_t kBlockBytes = 1 << 20;
  while (true) {
    if (!reader_) {
      if (next_path_ == paths_.size()) return false;
      auto opened = TextReader::open(paths_[next_path_++]);
      if (!opened) return error_ = opened.error(), false;
      reader_.emplace(std::move(opened).value());
    }
    if (auto got = reader_->next_lines(kBlockBytes, block_); !got) return error_ = got.error(), false;
    rest_ = block_;
    if (!rest_.empty()) return true;
    reader_.reset();
  }
}

void TrainingLines::Next() {
  if (rest_.empty() && !next_block()) {
    done_ = true;
    return;
  }
  const size_t newline = rest_.substr(0, kLongest + 1).find('\n');
  const std::string_view line = rest_.substr(0, newline);
  auto [taken, dropped] = find_reserved(line.substr(0, kLongest + 1));
  bool splits_word = false;
  if (taken > kLongest && (taken = part_of(line)) == 0) {
    taken = part_of_word(line);
    splits_word = true;
    num_split_words_ += in_split_word_ ? 0 : 1;
  }
  in_split_word_ = splits_word;
  line_ = line.substr(0, taken);
  any_ = any_ || !line_.empty();
  rest_.remove_prefix(taken + dropped);
  if (rest_.starts_with('\n')) rest_.remove_prefix(1);
}

}  // namespace tri
