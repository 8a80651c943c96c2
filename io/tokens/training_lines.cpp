#include "io/tokens/training_lines.h"

#include <algorithm>

namespace tri {
namespace {

constexpr std::string_view kUnknown = "\xe2\x96\x85";  // U+2585, which represents unknown text in SentencePiece

// Returns the bytes of `line` up to the first reserved character, and the bytes of that character; {size, 0}: none.
std::pair<size_t, size_t> find_reserved(std::string_view line) {
  const size_t nul = line.find('\0'), unknown = line.find(kUnknown);
  if (nul == std::string_view::npos && unknown == std::string_view::npos) return {line.size(), 0};
  return nul < unknown ? std::pair{nul, size_t{1}} : std::pair{unknown, kUnknown.size()};
}

// Returns the length of the first part of a line that is too long: up to a space, which begins the next part, or up to
// the end of a character.
size_t part_of(std::string_view line) {
  const size_t space = line.rfind(' ', TrainingLines::kLongest);
  if (space != std::string_view::npos && space > 0) return space;
  size_t end = TrainingLines::kLongest / 2;
  while (end > 1 && (line[end] & 0xC0) == 0x80) --end;
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
  if (taken > kLongest) taken = part_of(line);
  line_ = line.substr(0, taken);
  any_ = any_ || !line_.empty();
  rest_.remove_prefix(taken + dropped);
  if (rest_.starts_with('\n')) rest_.remove_prefix(1);
}

}  // namespace tri
