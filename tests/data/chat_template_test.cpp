#include "lib/data/chat_template.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

TEST(ChatTemplateFile, gives_the_text_around_messages) {
  const ChatTemplate chat = value_or_throw(parse_chat_template(R"(
begin: "<|begin|>"
separator: "\n"
trim: true
roles:
  user: {prefix: "<|im_start|>user\n", suffix: "<|im_end|>"}
  assistant: {prefix: "<|im_start|>assistant\n", suffix: "<|im_end|>", train: true}
names: {tool: user}
)",
                                                               "chat.yaml"));
  EXPECT_EQ(chat.begin, "<|begin|>");
  EXPECT_EQ(chat.separator, "\n");
  EXPECT_TRUE(chat.trim);
  ASSERT_EQ(chat.roles.size(), 2u);
  EXPECT_EQ(chat.roles.at("assistant").prefix, "<|im_start|>assistant\n");
  EXPECT_EQ(chat.roles.at("user").suffix, "<|im_end|>");
  EXPECT_TRUE(chat.roles.at("assistant").train);
  EXPECT_FALSE(chat.roles.at("user").train);
  EXPECT_EQ(chat.names.at("tool"), "user");
}

TEST(ChatTemplateFile, what_is_wrong_is_named_with_its_line) {
  const std::pair<const char*, const char*> table[] = {
      {"roles: {user: {prefix: a}}\n", "no role has train: true"},
      {"begin: a\n", "no roles"},
      {"- a\n", "expected keys"},
      {"begin: a\nend: b\n", "chat.yaml:2: end: unknown key; the keys are begin, separator, roles, names, trim"},
      {"roles: {user: {before: a, train: true}}\n", "before: unknown key; those of a role are prefix, suffix, train"},
      {"roles: {user: {prefix: [a], train: true}}\n", "prefix: expected a text in quotes"},
      {"roles: {user: {train: yes}}\n", "train: expected true or false"},
      {"roles: {user: {train: true}}\nnames: {a: b}\n", "names: a is another name of b, which is not a role"},
  };
  for (const auto& [text, words] : table) {
    const auto parsed = parse_chat_template(text, "chat.yaml");
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ExitCode::kUsage);
    EXPECT_NE(parsed.error().message.find(words), std::string::npos) << parsed.error().message;
  }
}

TEST(ChatTemplateFile, jinja_is_refused_with_what_to_write_instead) {
  for (const auto& [text, name] : {std::pair{"{% for m in messages %}{{ m.content }}{% endfor %}", "chat.yaml"},
                                   {"anything", "chat_template.jinja"},
                                   {R"({"chat_template": "x", "model_max_length": 5})", "tokenizer_config.json"}}) {
    const auto parsed = parse_chat_template(text, name);
    ASSERT_FALSE(parsed) << text;
    EXPECT_NE(parsed.error().message.find("is a chat template of Jinja, which trireme does not run"),
              std::string::npos);
    const size_t example = parsed.error().message.find("  separator");
    ASSERT_NE(example, std::string::npos);
    EXPECT_TRUE(parse_chat_template(parsed.error().message.substr(example), "example.yaml")) << "the example is valid";
  }
}

}  // namespace
}  // namespace tri
