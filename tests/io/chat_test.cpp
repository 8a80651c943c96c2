// Conversations: their text by a template, their tokens, and what of them is trained; the files of loss masks.
#include "io/tokens/chat.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "io/tokens/loss_mask.h"
#include "io/tokens/prepare.h"
#include "io/tokens/token_file.h"
#include "tests/io/packed.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

ChatTemplate chat_of_brackets() {
  return {.begin = "^",
          .separator = "\n",
          .trim = false,
          .roles = {{"system", {"<s:", ">", false}}, {"user", {"<u:", ">", false}}, {"assistant", {"<a:", ">", true}}},
          .names = {{"bot2", "assistant"}},
          .field = ""};
}

// Shows trained text in [].
std::string shown(const ChatText& chat) {
  std::string text;
  for (const ChatPart& part : chat.parts) text += part.trained ? "[" + part.text + "]" : part.text;
  return text + (chat.trains_end ? "[.]" : ".");
}
std::string rendered(const std::string& line, const ChatTemplate& chat = chat_of_brackets()) {
  const auto text = render_chat(Json::parse(line), chat);
  return text ? shown(text.value()) : text.error().message;
}

TEST(Chat, contents_and_suffixes_of_trained_roles_are_trained) {
  EXPECT_EQ(rendered(R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
                        {"role": "assistant", "content": "A"}]})"),
            "^<s:S>\n<u:U>\n<a:[A>]\n[.]");
  EXPECT_EQ(rendered(R"({"messages": [{"role": "assistant", "content": "A"}, {"role": "user", "content": "U"}]})"),
            "^<a:[A>]\n<u:U>\n.");
}

TEST(Chat, the_usual_forms_are_recognized) {
  const std::string expected = "^<u:U>\n<a:[A>]\n[.]";
  for (const char* line :
       {R"({"messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]})",
        R"({"conversations": [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A"}]})",
        R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "U"}]},
                        {"role": "bot2", "content": "A"}]})",
        R"({"prompt": "U", "completion": "A"})", R"({"question": "U", "answer": "A"})",
        R"({"instruction": "U", "input": "", "output": "A"})",
        R"({"prompt": [{"role": "user", "content": "U"}], "completion": [{"role": "assistant", "content": "A"}]})"})
    EXPECT_EQ(rendered(line), expected) << line;
  EXPECT_EQ(rendered(R"({"instruction": "U", "input": "I", "output": "A"})"), "^<u:U\n\nI>\n<a:[A>]\n[.]");
  EXPECT_EQ(rendered(R"({"system": "S", "prompt": "U", "response": "A"})"), "^<s:S>\n<u:U>\n<a:[A>]\n[.]");
  EXPECT_EQ(rendered(R"({"system": [{"text": "S"}], "prompt": "U", "response": "A"})"), "^<s:S>\n<u:U>\n<a:[A>]\n[.]");
  EXPECT_EQ(rendered(R"({"system": "", "prompt": "U", "response": "A"})"), expected);
  ChatTemplate deep = chat_of_brackets();
  deep.field = "a.b";
  EXPECT_EQ(rendered(R"({"a": {"b": [{"role": "user", "content": "U"}]}})", deep), "^<u:U>\n.");
  deep.trim = true;
  EXPECT_EQ(rendered(R"({"a": {"b": [{"role": "user", "content": " U\n"}]}})", deep), "^<u:U>\n.");
}

TEST(Chat, a_message_may_say_whether_it_is_trained) {
  EXPECT_EQ(rendered(R"({"messages": [{"role": "assistant", "content": "A", "weight": 0},
                        {"role": "user", "content": "U", "train": true},
                        {"role": "assistant", "content": "B", "weight": 1}]})"),
            "^<a:A>\n<u:[U>]\n<a:[B>]\n[.]");
}

TEST(Chat, what_cannot_be_read_is_named) {
  const std::pair<const char*, const char*> table[] = {
      {R"([1])", "a JSON array, expected an object"},
      {R"({"text": "x"})", "no field \"messages\" or \"conversations\""},
      {R"({"messages": []})", "no messages"},
      {R"({"messages": "x"})", "the messages: a JSON string, expected a list of messages"},
      {R"({"messages": [{"role": "user", "content": "U"}, {"role": "tool", "content": "T"}]})",
       "message 2: the template has no role \"tool\"; add it under roles"},
      {R"({"messages": [{"content": "U"}]})", "message 1: no \"role\" or \"from\""},
      {R"({"messages": [{"role": "user", "content": null}]})", "message 1: no \"content\" or \"value\""},
      {R"({"messages": [{"role": "user", "content": 3}]})", "message 1: content is a JSON number, expected a string"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "message 1: a part of the content is not text"},
      {R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]})", "message 1: calls tools"},
      {R"({"messages": [{"role": "user", "content": "U", "weight": 0.5}]})",
       "message 1: weight is 0.5; expected 0 or 1"},
      {R"({"messages": [{"role": "assistant", "content": "A", "train": "false"}]})",
       "message 1: train is \"false\"; expected true or false"},
      {R"({"system": {"text": "S"}, "prompt": "U", "response": "A"})", "message 1: content is a JSON object, expected"},
  };
  for (const auto& [line, words] : table) {
    EXPECT_EQ(rendered(line).find(words), 0u) << line << ": " << rendered(line);
    EXPECT_EQ(rendered(line).find("--skip-bad"), std::string::npos) << "prepare names that remedy for any bad line";
  }
}

TEST(Chat, tokens_carry_the_mask_of_their_text) {
  const auto tokenizer = value_or_throw(open_tokenizer("bytes"));
  const ChatTokens chat =
      encode_chat({.parts = {{"ab", false}, {"c", true}, {"d", false}}, .trains_end = true}, *tokenizer);
  EXPECT_EQ(chat.tokens, (std::vector<int32_t>{'a', 'b', 'c', 'd', 256}));
  EXPECT_EQ(chat.trained, (std::vector<uint8_t>{0, 0, 1, 0, 1}));
  EXPECT_TRUE(check_chat(chat_of_brackets(), *tokenizer, "bytes"));
}

// Returns the tokens as text, with trained ones in [] and the end of a document as a dot.
std::string file_text(const std::string& prefix) {
  const TokenFile file = value_or_throw(TokenFile::open(prefix));
  const auto mask = value_or_throw(LossMask::open(file));
  std::vector<int32_t> tokens(static_cast<size_t>(file.num_tokens()));
  std::vector<uint8_t> trained(tokens.size());
  file.read(0, tokens);
  if (mask) mask->read(0, trained);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const char c = tokens[i] == 256 ? '.' : static_cast<char>(tokens[i]);
    text += trained[i] != 0 ? std::string("[") + c + "]" : std::string(1, c);
  }
  return text;
}

std::string chat_lines(int first, int count) {
  std::string lines;
  for (int i = first; i < first + count; ++i)
    lines += fmt::format("{{\"prompt\": \"question {}\", \"completion\": \"answer {}\"}}\n", i, int64_t{i} * i % 1009);
  return lines;
}

TEST(LossMask, prepare_writes_it_next_to_the_tokens) {
  const TemporaryFolder folder;
  write_all(folder / "a.jsonl",
            "{\"prompt\": \"U\", \"completion\": \"A\"}\n{\"prompt\": \"V\", \"completion\": \"BC\"}\n");
  PrepareOptions options{.inputs = {folder / "a.jsonl"}, .output = folder / "out"};
  options.chat = chat_of_brackets();
  const PrepareSummary summary = value_or_throw(prepare(options));
  EXPECT_EQ(file_text(folder / "out"), "^<u:U>\n<a:[A][>]\n[.]^<u:V>\n<a:[B][C][>]\n[.]");
  EXPECT_EQ(summary.outputs.front().trained_tokens, 7);
  EXPECT_EQ(value_or_throw(prepared_with(folder / "out")).trained_tokens, 7);
  EXPECT_FALSE(fs::exists(folder / "out.mask.part"));
  EXPECT_FALSE(prepare(options)) << "the output exists";
  // Tokens of plain text have none.
  options.chat.reset();
  options.text_field = "prompt";
  options.existing = Existing::kOverwrite;
  value_or_throw(prepare(options));
  EXPECT_FALSE(fs::exists(folder / "out.mask"));
  EXPECT_EQ(file_text(folder / "out"), "U.V.");
}

TEST(LossMask, threads_and_splits_change_no_document) {
  const TemporaryFolder folder;
  write_all(folder / "a.jsonl", chat_lines(0, 300));
  PrepareOptions options{.inputs = {folder / "a.jsonl"}, .output = folder / "one"};
  options.chat = chat_of_brackets();
  value_or_throw(prepare(options));
  options.output = folder / "two";
  options.threads = 3;
  value_or_throw(prepare(options));
  EXPECT_EQ(read_all(folder / "one.mask"), read_all(folder / "two.mask"));
  options.splits = {{"x", 0.5}, {"y", 0.5}};
  value_or_throw(prepare(options));
  EXPECT_EQ(file_text(folder / "two_x").size() + file_text(folder / "two_y").size(), file_text(folder / "one").size());
}

TEST(LossMask, an_interrupted_prepare_continues_with_the_same_bytes) {
  const TemporaryFolder folder;
  PrepareOptions options{.inputs = {folder / "a.jsonl", folder / "b.jsonl"}, .output = folder / "out"};
  options.chat = chat_of_brackets();
  write_all(folder / "a.jsonl", chat_lines(0, 200));
  write_all(folder / "b.jsonl", "{\"prompt\": 3}\n");
  ASSERT_FALSE(prepare(options));  // saves the first input
  ASSERT_TRUE(fs::exists(folder / "out.mask.part"));
  write_all(folder / "b.jsonl", chat_lines(200, 50));
  PrepareOptions other = options;
  other.chat->separator = "";
  const auto refused = prepare(other);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("--chat"), std::string::npos);
  EXPECT_GT(value_or_throw(prepare(options)).resumed, 0);
  options.output = folder / "whole";
  value_or_throw(prepare(options));
  EXPECT_EQ(read_all(folder / "out.mask"), read_all(folder / "whole.mask"));
  EXPECT_EQ(read_all(folder / "out.bin"), read_all(folder / "whole.bin"));
  // Text that replaces an interrupted run of conversations leaves no part of a mask.
  write_all(folder / "b.jsonl", "{\"prompt\": 3}\n");
  options.output = folder / "text";
  ASSERT_FALSE(prepare(options));
  ASSERT_TRUE(fs::exists(folder / "text.mask.part"));
  options.inputs.pop_back();
  options.chat.reset();
  options.text_field = "prompt";
  options.existing = Existing::kOverwrite;
  value_or_throw(prepare(options));
  EXPECT_FALSE(fs::exists(folder / "text.mask.part"));
}

TEST(LossMask, files_that_do_not_belong_together_are_refused) {
  const TemporaryFolder folder;
  write_all(folder / "a.jsonl", chat_lines(0, 20));
  PrepareOptions options{.inputs = {folder / "a.jsonl"}, .output = folder / "out"};
  options.chat = chat_of_brackets();
  value_or_throw(prepare(options));
  const TokenFile file = value_or_throw(TokenFile::open(folder / "out"));
  const std::string good = read_all(folder / "out.mask");
  const auto refusal = [&](const std::string& bytes) {
    write_all(folder / "out.mask", bytes);
    const auto opened = LossMask::open(file);
    return opened ? std::string() : opened.error().message;
  };
  EXPECT_EQ(refusal(good), "");
  EXPECT_TRUE(value_or_throw(LossMask::open(file))->check());
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_PRED2(contains, refusal(good.substr(0, good.size() - 1)), "truncated, or belongs to another token file");
  EXPECT_PRED2(contains, refusal("TRIMASK"), "truncated, or not a loss mask");
  EXPECT_PRED2(contains, refusal(std::string(good.size(), 'x')), "not a loss mask");
  std::string other = good;
  other[24] = static_cast<char>(other[24] ^ 1);
  EXPECT_PRED2(contains, refusal(other), "was written for other tokens");
  std::string newer = good;
  newer[7] = 2;
  EXPECT_PRED2(contains, refusal(newer), "has version 2, and this program reads version 1");
  std::string strange = good;
  strange.back() = 7;
  EXPECT_EQ(refusal(strange), "");
  const auto mask = value_or_throw(LossMask::open(file));
  std::vector<uint8_t> last(1);
  EXPECT_THROW(mask->read(file.num_tokens() - 1, last), Fatal);
  EXPECT_FALSE(mask->check());
  fs::remove(folder / "out.mask");
  EXPECT_PRED2(contains, LossMask::open(file).error().message, "is missing, but");
  write_all(folder / "out.mask", good);
  Json sidecar = Json::parse(read_all(folder / "out.json"));
  sidecar.erase("trained_tokens");
  write_all(folder / "out.json", sidecar.dump());
  EXPECT_PRED2(contains, LossMask::open(file).error().message, "does not say that the tokens have a loss mask");
  fs::remove(folder / "out.json");  // of another program
  EXPECT_TRUE(value_or_throw(LossMask::open(file)));
}

// As if the process had been killed between the two files: the mask of the new tokens is next to the old ones.
TEST(LossMask, a_mask_of_as_many_other_tokens_is_refused) {
  const TemporaryFolder folder;
  const auto prepare_bits = [&](const char* bits) {
    std::string lines;
    for (const char* bit = bits; *bit != 0; ++bit)
      lines +=
          Json{{"messages",
                {{{"role", "user"}, {"content", "x"}}, {{"role", "assistant"}, {"content", std::string(1, *bit)}}}}}
              .dump() +
          "\n";
    write_all(folder / "in.jsonl", lines);
    PrepareOptions options{.inputs = {folder / "in.jsonl"}, .output = folder / "out"};
    options.chat = chat_of_brackets();
    options.existing = Existing::kOverwrite;
    value_or_throw(prepare(options));
    return read_all(folder / "out.mask");
  };
  const std::string next = prepare_bits("acb"), before = prepare_bits("abc");
  EXPECT_EQ(next.substr(32), before.substr(32));
  const TokenFile file = value_or_throw(TokenFile::open(folder / "out"));
  EXPECT_TRUE(value_or_throw(LossMask::open(file)));
  write_all(folder / "out.mask", next);
  EXPECT_NE(LossMask::open(file).error().message.find("was written for other tokens"), std::string::npos);
}

}  // namespace
}  // namespace tri
