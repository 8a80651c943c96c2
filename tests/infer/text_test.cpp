// Texts outside the model: JSON Lines, tokens to score, text that grows token by token.
#include <gtest/gtest.h>

#include "lib/infer/text_lines.h"
#include "lib/infer/text_stream.h"

namespace tri::test {
namespace {

std::unique_ptr<Tokenizer> bytes() { return value_or_throw(open_tokenizer("bytes")); }

TEST(TextStream, stops_before_a_stop_string_that_spans_tokens) {
  const auto tokenizer = bytes();
  TextStream stream(*tokenizer, tokenizer->encode("before\n"), {"\n\n", "END"});
  size_t shown = 0;
  std::string printed;
  const auto add = [&](std::string_view text) {
    bool stopped = false;
    for (const int32_t token : tokenizer->encode(text)) {
      stopped = stream.add(token);
      EXPECT_GE(stream.final_bytes(), shown) << "text that was final has changed";
      printed += stream.text().substr(shown, stream.final_bytes() - shown);
      shown = stream.final_bytes();
      if (stopped) break;
    }
    return stopped;
  };
  EXPECT_FALSE(add("\none\ntwo EN"));  // the prompt's newline is not part of the text
  EXPECT_EQ(printed, "\none\ntwo ");
  EXPECT_FALSE(add("d\n"));
  EXPECT_EQ(printed, "\none\ntwo ENd");
  EXPECT_TRUE(add("\nthree"));
  EXPECT_EQ(stream.text(), "\none\ntwo ENd");
  EXPECT_EQ(printed, stream.text());
}

TEST(TextStream, holds_incomplete_characters_back) {
  const auto tokenizer = bytes();
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";
  TextStream stream(*tokenizer, {}, {});
  std::vector<size_t> final_bytes;
  for (const int32_t token : tokenizer->encode(text)) {
    EXPECT_FALSE(stream.add(token));
    final_bytes.push_back(stream.final_bytes());
  }
  EXPECT_EQ(final_bytes, (std::vector<size_t>{1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11}));
  EXPECT_EQ(stream.text(), text);
}

TEST(TextLines, name_the_line_that_is_wrong) {
  const auto prompts =
      read_prompt_lines("{\"prompt\": \"a\", \"id\": 3}\n\n{\"prompt_ids\": [1, 2], \"seed\": 7}\r\n", "p");
  ASSERT_TRUE(prompts);
  ASSERT_EQ(prompts.value().size(), 2u);
  EXPECT_EQ(prompts.value()[0].text, "a");
  EXPECT_EQ(prompts.value()[1].ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(prompts.value()[1].seed, 7u);
  for (const char* bad : {"hello", "[1]", "{}", "{\"prompt\": 3}", "{\"prompt\": \"a\", \"prompt_ids\": [1]}",
                          "{\"prompt_ids\": []}", "{\"prompt_ids\": [1, -1]}", "{\"prompt_ids\": [1.5]}",
                          "{\"prompt\": \"a\", \"seed\": -1}", "{\"text\": \"a\"}"}) {
    const auto refused = read_prompt_lines("{\"prompt\": \"a\"}\n" + std::string(bad), "file");
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().code, ExitCode::kUsage);
    EXPECT_EQ(refused.error().message.find("file:2: "), 0u) << refused.error().message;
  }
  EXPECT_FALSE(read_prompt_lines("\n", "file"));

  const auto texts = read_text_lines("{\"text\": \"t\"}\n{\"context\": \"c\", \"continuation\": \"d\"}", "p");
  ASSERT_TRUE(texts);
  EXPECT_EQ(texts.value()[1].context + "|" + texts.value()[1].text, "c|d");
  for (const char* bad : {"{\"context\": \"c\"}", "{\"continuation\": \"c\"}", "{\"text\": null}",
                          "{\"text\": \"t\", \"context\": \"c\"}"})
    EXPECT_FALSE(read_text_lines(bad, "file")) << bad;
  EXPECT_EQ(read_text_lines("{\"text\": \"caf\xe9\"}", "file").error().message,
            "file:1: not UTF-8 text; save the file as UTF-8, such as with iconv -f latin1 -t utf-8");
}

TEST(TextLines, a_text_follows_the_end_of_a_document) {
  const auto tokenizer = bytes();
  const auto scored = [&](const char* context, const char* text) {
    return value_or_throw(tokens_to_score({context, text}, *tokenizer));
  };
  const ScoredText alone = scored("", "ab");
  EXPECT_EQ(alone.tokens, (std::vector<int32_t>{tokenizer->eod(), 'a', 'b'}));
  EXPECT_EQ(alone.first, 1u);
  EXPECT_EQ(scored("xy", " ab").first, 2u);
  const ScoredText spaced = scored("xy \n", "ab");  // the spaces are scored
  EXPECT_EQ(spaced.tokens, (std::vector<int32_t>{'x', 'y', ' ', '\n', 'a', 'b'}));
  EXPECT_EQ(spaced.first, 2u);
  EXPECT_EQ(scored(" ", "a").tokens, (std::vector<int32_t>{tokenizer->eod(), ' ', 'a'}));
  EXPECT_FALSE(tokens_to_score({"context", ""}, *tokenizer));
  EXPECT_FALSE(tokens_to_score({"", ""}, *tokenizer));
}

}  // namespace
}  // namespace tri::test
