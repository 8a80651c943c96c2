// Tokens that are matched literally in a text ("<|endoftext|>"), before it is split into words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tri {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;       // decodes to nothing
  bool normalized = false;    // matched after the normalizer, not before it
  bool lstrip = false;        // includes the white space before it
  bool rstrip = false;        // and after it
  bool kept_as_text = false;  // matched, but encoded as plain text
};

// A piece of a text: an added token, or the text between two of them.
struct TextPiece {
  std::string_view text;
  int32_t token = -1;  // -1: text
};

// Finds a set of added tokens. Immutable, so safe for concurrent use.
class AddedTokenFinder {
 public:
  AddedTokenFinder() : nodes_(1) {}
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens);

  bool empty() const { return tokens_.empty(); }
  // Appends the pieces of `text`, well-formed UTF-8, in order; none are empty. Of tokens that begin at the same place
  // the longest matches, and the search continues after it.
  void split(std::string_view text, std::vector<TextPiece>& pieces) const;

 private:
  struct Node {
    std::vector<std::pair<char, int>> next;
    int token = -1;  // into tokens_: the one that ends here
  };
  // Returns the longest token at the beginning of `text`, an index into tokens_; -1: none.
  int longest(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // [0]: the root
  bool begins_[256] = {};    // first bytes
};

}  // namespace tri
