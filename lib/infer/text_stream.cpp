#include "lib/infer/text_stream.h"

#include <algorithm>

namespace tri {
namespace {

constexpr size_t kContext = 8;  // tokens before new ones with which they are decoded

// Returns the bytes before the last character if that is incomplete or represents invalid bytes (U+FFFD).
size_t complete_bytes(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0 && text.size() - begin < 4 && (text[begin - 1] & 0xC0) == 0x80) --begin;
  if (begin == 0) return text.size();
  const auto lead = static_cast<unsigned char>(text[begin - 1]);
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  const bool whole = text.size() - (begin - 1) >= length;
  return whole && text.compare(begin - 1, 3, "\xEF\xBF\xBD") != 0 ? text.size() : begin - 1;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before, std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  const auto context = before.last(std::min(before.size(), kContext));
  tail_.assign(context.begin(), context.end());
  decoded_ = tail_.size();
}

bool TextStream::add(int32_t token) {
  if (stopped_) return true;
  tail_.push_back(token);
  const std::string before = tokenizer_.decode(std::span(tail_).first(decoded_)), all = tokenizer_.decode(tail_);
  const std::string added = all.starts_with(before) ? all.substr(before.size()) : all.substr(complete_bytes(before));
  text_.replace(complete_, std::string::npos, added);
  // A stop string that is new ends in what was added.
  size_t cut = std::string::npos;
  for (const std::string& stop : stops_)
    cut = std::min(cut, text_.find(stop, complete_ - std::min(complete_, stop.size() - 1)));
  if (cut != std::string::npos) {
    text_.resize(cut);
    return stopped_ = true;
  }
  if (complete_bytes(text_) == text_.size()) {
    complete_ = text_.size();
    tail_.erase(tail_.begin(), tail_.end() - static_cast<int64_t>(std::min(tail_.size(), kContext)));
    decoded_ = tail_.size();
  }
  return false;
}

size_t TextStream::final_bytes() const {
  if (stopped_) return text_.size();
  size_t bytes = complete_bytes(text_);
  for (const std::string& stop : stops_)
    for (size_t length = std::min(stop.size() - 1, text_.size()); length > 0; --length)
      if (text_.ends_with(std::string_view(stop).substr(0, length))) {
        bytes = std::min(bytes, text_.size() - length);
        break;
      }
  return bytes;
}

}  // namespace tri
