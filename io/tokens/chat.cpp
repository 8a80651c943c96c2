#include "io/tokens/chat.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "io/base/hash.h"
#include "io/base/json.h"
#include "io/base/log.h"
#include "io/tokens/json_line.h"

namespace tri {
namespace {

using Json = nlohmann::json;

struct Message {
  std::string role, content;
  std::optional<bool> train;
};

// Returns the first of `keys` that the object has and that is not null.
const Json* first_of(const Json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto found = object.find(key); found != object.end() && !found->is_null()) return &*found;
  return nullptr;
}

std::string trimmed(const std::string& text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// Returns the role of the template that the data calls `name`; empty: none.
std::string role_named(const std::string& name, const ChatTemplate& chat) {
  static const std::map<std::string, std::string> kUsual = {
      {"human", "user"}, {"gpt", "assistant"}, {"bot", "assistant"}, {"model", "assistant"}, {"developer", "system"}};
  if (const auto other = chat.names.find(name); other != chat.names.end()) return other->second;
  if (chat.roles.contains(name)) return name;
  const auto usual = kUsual.find(name);
  return usual != kUsual.end() && chat.roles.contains(usual->second) ? usual->second : "";
}

class Reader {
 public:
  explicit Reader(const ChatTemplate& chat) : chat_(chat) {}

  Result<std::vector<Message>> read(const Json& object) {
    if (!object.is_object()) return file_error("a JSON {}, expected an object", object.type_name());
    if (const Json* system = first_of(object, {"system"}); system != nullptr && *system != Json(""))
      if (auto added = add("system", *system); !added) return added.error();
    if (auto added = add_messages(object); !added) return added.error();
    if (messages_.empty()) return file_error("no messages");
    return std::move(messages_);
  }

 private:
  Result<void> add_messages(const Json& object) {
    const Json* list = chat_.field.empty() ? first_of(object, {"messages", "conversations", "conversation"})
                                           : find_json_field(object, chat_.field);
    if (list != nullptr) return add_all(*list, chat_.field.empty() ? "the messages" : chat_.field);
    if (!chat_.field.empty())
      return file_error("no field \"{}\"; name the field of the messages with --field", chat_.field);
    const Json* prompt = first_of(object, {"prompt", "question", "instruction"});
    const Json* answer = first_of(object, {"completion", "response", "output", "answer"});
    if (prompt == nullptr || answer == nullptr)
      return file_error(
          "no field \"messages\" or \"conversations\", nor a pair such as \"prompt\" and \"completion\"; name the "
          "field of the messages with --field");
    if (prompt->is_string()) {
      std::string text = prompt->get<std::string>();
      if (const Json* input = first_of(object, {"input"}); object.contains("instruction") && input != nullptr)
        if (input->is_string() && !input->get<std::string>().empty()) text += "\n\n" + input->get<std::string>();
      if (auto added = add("user", text); !added) return added;
    } else if (auto added = add_all(*prompt, "the prompt"); !added) {
      return added;
    }
    return answer->is_string() ? add("assistant", *answer) : add_all(*answer, "the answer");
  }

  Result<void> add_all(const Json& list, const std::string& what) {
    if (!list.is_array()) return file_error("{}: a JSON {}, expected a list of messages", what, list.type_name());
    for (const Json& message : list) {
      if (!message.is_object()) return error("a JSON {}, expected an object", message.type_name());
      const Json* role = first_of(message, {"role", "from"});
      if (role == nullptr || !role->is_string())
        return error("no \"role\" or \"from\" says whose message it is; add one");
      const Json* calls = first_of(message, {"tool_calls", "function_call"});
      if (calls != nullptr && !calls->empty()) return error("calls tools, which a template cannot express");
      const Json* content = first_of(message, {"content", "value", "text"});
      if (content == nullptr) return error("no \"content\" or \"value\" holds its text; add one");
      if (auto added = add(*role, *content); !added) return added;
      if (const Json* train = first_of(message, {"train"}); train != nullptr) {
        if (!train->is_boolean()) return error_of_last("train is {}; expected true or false", train->dump());
        messages_.back().train = train->get<bool>();
      }
      if (const Json* weight = first_of(message, {"weight"}); weight != nullptr) {
        if (*weight != 0 && *weight != 1) return error_of_last("weight is {}; expected 0 or 1", weight->dump());
        messages_.back().train = *weight == 1;
      }
    }
    return {};
  }

  Result<void> add(const std::string& name, const Json& content) {
    const std::string role = role_named(name, chat_);
    if (role.empty())
      return error("the template has no role \"{}\"; add it under roles, or under names as another name of a role",
                   name);
    std::string text;
    if (content.is_string()) text = content.get<std::string>();
    if (!content.is_string() && !content.is_array())
      return error("content is a JSON {}, expected a string", content.type_name());
    if (content.is_array())
      for (const Json& part : content) {
        const auto found = part.is_object() ? part.find("text") : part.end();
        if (!part.is_object() || found == part.end() || !found->is_string())
          return error("a part of the content is not text, which alone can be trained");
        text += found->get<std::string>();
      }
    messages_.push_back({role, chat_.trim ? trimmed(text) : text, std::nullopt});
    return {};
  }

  // Errors name messages from 1 on: the one that is being read, and the last one that was.
  template <class... Args>
  Error error(fmt::format_string<Args...> format, Args&&... args) const {
    return file_error("message {}: {}", messages_.size() + 1, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  Error error_of_last(fmt::format_string<Args...> format, Args&&... args) const {
    return file_error("message {}: {}", messages_.size(), fmt::format(format, std::forward<Args>(args)...));
  }

  const ChatTemplate& chat_;
  std::vector<Message> messages_;
};

void append(std::vector<ChatPart>& parts, const std::string& text, bool trained) {
  if (text.empty()) return;
  if (parts.empty() || parts.back().trained != trained)
    parts.push_back({text, trained});
  else
    parts.back().text += text;
}

}  // namespace

std::string ChatTemplate::fingerprint() const {
  Json all = {begin, separator, trim, field, names};
  for (const auto& [name, role] : roles) all.push_back({name, role.prefix, role.suffix, role.train});
  return "chat:" + hex64(xxh3_64(all.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

Result<ChatText> render_chat(const Json& object, const ChatTemplate& chat) {
  const auto messages = Reader(chat).read(object);
  if (!messages) return messages.error();
  ChatText text;
  std::vector<ChatPart>& parts = text.parts;
  append(parts, chat.begin, false);
  for (const Message& message : messages.value()) {
    const ChatTemplate::Role& role = chat.roles.at(message.role);
    const bool train = message.train.value_or(role.train);
    append(parts, role.prefix, false);
    append(parts, message.content, train);
    append(parts, role.suffix, train);
    append(parts, chat.separator, false);
    text.trains_end = train;
  }
  return text;
}

ChatTokens encode_chat(const ChatText& chat, const Tokenizer& tokenizer) {
  ChatTokens document;
  const size_t begins = tokenizer.encode("").size();  // tokens that begin each text
  for (const ChatPart& part : chat.parts) {
    const std::vector<int32_t> tokens = tokenizer.encode(part.text);
    const size_t from = document.tokens.empty() ? 0 : begins;
    document.tokens.insert(document.tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(from), tokens.end());
    document.trained.resize(document.tokens.size(), part.trained ? 1 : 0);
  }
  std::fill_n(document.trained.begin(), std::min(begins, document.trained.size()), uint8_t{0});
  if (document.tokens.empty() || document.tokens.back() != tokenizer.eod()) {
    document.tokens.push_back(tokenizer.eod());
    document.trained.push_back(chat.trains_end ? 1 : 0);
  }
  return document;
}

Result<void> check_chat(const ChatTemplate& chat, const Tokenizer& tokenizer, const std::string& tokenizer_name) {
  const ChatText probe{.parts = {{"a\n", false}, {" b", true}, {"c", false}}};
  const ChatTokens joined = encode_chat(probe, tokenizer);
  if (const std::string text = tokenizer.decode(joined.tokens); text != "a\n bc")
    return usage_error(
        "--tokenizer {}: adds or removes spaces where parts of a conversation join; use a byte-level BPE tokenizer, or "
        "a SentencePiece model with add_dummy_prefix: false",
        tokenizer_name);
  const std::vector<int32_t> begins = tokenizer.encode("");
  const std::vector<int32_t> first = tokenizer.encode(chat.begin);
  if (!begins.empty() && first.size() > begins.size() && first[begins.size()] == begins.back())
    return usage_error(
        "--chat: the tokenizer {} already begins each document with the token in the template's begin; remove "
        "it from begin",
        tokenizer_name);
  std::set<std::string> seen;
  const auto warn = [&](const std::string& text) {
    for (size_t at = text.find("<|"); at != std::string::npos; at = text.find("<|", at + 1)) {
      const size_t end = text.find("|>", at);
      if (end == std::string::npos) return;
      const std::string token = text.substr(at, end + 2 - at);
      const size_t count = tokenizer.encode(token).size() - begins.size();
      if (count > 1 && seen.insert(token).second)
        log_warn(
            "the template's {} is not a token of {} and becomes {} tokens of text; use the tokenizer of the model "
            "for which the template was written",
            token, tokenizer_name, count);
    }
  };
  warn(chat.begin);
  warn(chat.separator);
  for (const auto& [name, role] : chat.roles) {
    warn(role.prefix);
    warn(role.suffix);
  }
  return {};
}

}  // namespace tri
