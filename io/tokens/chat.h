// Conversations as documents: JSON objects with messages, rendered by a template that says which text is trained.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/tokens/tokenizer.h"

namespace tri {

// The text around messages. A conversation is
//   begin, then of each message: prefix of its role, content, suffix of its role, separator
// and the token that ends a document, unless the text ends with it. The contents and suffixes of roles with `train` are
// trained, and so is the end token after such a message.
struct ChatTemplate {
  struct Role {
    std::string prefix, suffix;
    bool train = false;
  };
  std::string begin, separator;
  bool trim = false;                         // removes white space around contents
  std::map<std::string, Role> roles;         // by name
  std::map<std::string, std::string> names;  // other names of roles in the data
  std::string field;                         // that holds the messages, "a.b" in nested objects; "": a usual name

  std::string fingerprint() const;  // equal for equal templates
};

// Consecutive text of a document.
struct ChatPart {
  std::string text;
  bool trained = false;
  bool operator==(const ChatPart&) const = default;
};

struct ChatText {
  std::vector<ChatPart> parts;
  bool trains_end = false;  // whether the token that ends the document is trained: the last message is
};

// Returns the text of the conversation in `object`, in parts that alternate between trained and not. The messages are
//   messages or conversations: a list of {role or from, content or value}; content: a string, or a list of {text}
//   prompt, question or instruction (with input), and completion, response, output or answer: strings or such lists
// The content `system` comes first, unless it is "". A message's `weight` (0 or 1) or `train` (true or false) replaces
// that of its role. The roles human and gpt are user and assistant, unless the template has them. Fails with kFile,
// naming the message.
Result<ChatText> render_chat(const nlohmann::json& object, const ChatTemplate& chat);

struct ChatTokens {
  std::vector<int32_t> tokens;   // with the token that ends the document
  std::vector<uint8_t> trained;  // 0 or 1, of each token
};
// Encodes each part by itself, as it is when a model continues a prompt.
ChatTokens encode_chat(const ChatText& chat, const Tokenizer& tokenizer);

// Fails with kUsage if the tokenizer adds or removes text where parts join, or puts a token before each document that
// the template also has. Logs a warning for text such as <|im_end|> that is not one token.
Result<void> check_chat(const ChatTemplate& chat, const Tokenizer& tokenizer, const std::string& tokenizer_name);

}  // namespace tri
