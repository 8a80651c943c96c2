#include "io/tokens/bpe/added_tokens.h"

#include <algorithm>

#include "io/tokens/utf8.h"

namespace tri {
namespace {

// Returns whether `c` is in Unicode's White_Space.
bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Return the bytes of white space at the end of `text`, at most `most`, and at its beginning.
size_t space_at_end(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
    if (!is_space(utf8_code_point(text.substr(begin), end - begin))) break;
    end = begin;
  }
  return text.size() - end;
}
size_t space_at_begin(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = std::max<size_t>(utf8_sequence(text.substr(at, 4)), 1);
    if (!is_space(utf8_code_point(text.substr(at), length))) break;
    at += length;
  }
  return at;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens) : tokens_(tokens), nodes_(1) {
  for (size_t t = 0; t < tokens_.size(); ++t) {
    size_t node = 0;
    for (const char c : tokens_[t].content) {
      auto& next = nodes_[node].next;
      const auto known = std::find_if(next.begin(), next.end(), [&](const auto& edge) { return edge.first == c; });
      if (known != next.end()) {
        node = static_cast<size_t>(known->second);
        continue;
      }
      next.emplace_back(c, static_cast<int>(nodes_.size()));
      node = nodes_.size();
      nodes_.emplace_back();
    }
    nodes_[node].token = static_cast<int>(t);
    if (!tokens_[t].content.empty()) begins_[static_cast<unsigned char>(tokens_[t].content[0])] = true;
  }
}

int AddedTokenFinder::longest(std::string_view text) const {
  int found = -1;
  const Node* node = &nodes_[0];
  for (const char c : text) {
    const auto edge = std::find_if(node->next.begin(), node->next.end(), [&](const auto& e) { return e.first == c; });
    if (edge == node->next.end()) break;
    node = &nodes_[static_cast<size_t>(edge->second)];
    if (node->token >= 0) found = node->token;
  }
  return found;
}

void AddedTokenFinder::split(std::string_view text, std::vector<TextPiece>& pieces) const {
  size_t taken = 0;  // bytes of the text already in pieces
  const auto take_until = [&](size_t end, int32_t token) {
    if (end > taken) pieces.push_back({text.substr(taken, end - taken), token});
    taken = std::max(taken, end);
  };
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    const int found = begins_[static_cast<unsigned char>(text[at])] ? longest(text.substr(at)) : -1;
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    size_t begin = at, end = at + token.content.size();
    at = end;
    if (token.kept_as_text) continue;
    if (token.lstrip) begin -= space_at_end(text.substr(0, begin));
    if (token.rstrip) end += space_at_begin(text.substr(end));
    take_until(begin, -1);
    pieces.push_back({text.substr(taken, end - std::min(end, taken)), token.id});
    taken = std::max(taken, end);
  }
  take_until(text.size(), -1);
}

}  // namespace tri
