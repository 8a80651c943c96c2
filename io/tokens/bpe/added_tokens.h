// Tokens that stand in a text as they are ("<|endoftext|>") and are found before it is split into words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tri {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;       // no text when it is decoded
  bool normalized = false;    // looked for behind the normalizer, not before it
  bool lstrip = false;        // takes the white space before it
  bool rstrip = false;        // and behind it
  bool kept_as_text = false;  // found, but its text stays text
};

// A piece of a text: an added token, or what stands between two.
struct TextPiece {
  std::string_view text;
  int32_t token = -1;  // -1: text
};

// Finds a set of added tokens. Immutable, so thread-safe.
class AddedTokenFinder {
 public:
  AddedTokenFinder() : nodes_(1) {}
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens);

  bool empty() const { return tokens_.empty(); }
  // Appends the pieces of `text`, well-formed UTF-8, in order; none are empty. Of tokens that begin at the same place
  // the longest is taken, and the search goes on behind it.
  void split(std::string_view text, std::vector<TextPiece>& pieces) const;

 private:
  struct Node {
    std::vector<std::pair<char, int>> next;
    int token = -1;  // into tokens_: the one that ends here
  };
  // The longest token at the beginning of `text`, into tokens_; -1: none.
  int longest(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // [0]: the root
  bool begins_[256] = {};    // first bytes
};

}  // namespace tri
