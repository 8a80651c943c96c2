// Hand-made .tiktoken files; tests/tokenizers/tiktoken_agree.py compares with the package itself.
#include <gtest/gtest.h>

#include <array>

#include "io/tokens/bpe/bpe_tokenizer.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

using Ids = std::vector<int32_t>;

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    std::array<uint32_t, 3> b{};
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < count; ++k) b[k] = static_cast<unsigned char>(bytes[i + k]);
    const uint32_t bits = b[0] << 16 | b[1] << 8 | b[2];
    for (size_t k = 0; k < 4; ++k) text += k <= count ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

// Returns ranks of all bytes in order, then of these tokens.
std::string ranks(std::vector<std::string> more = {"he", "ll", "hell", "aa", "aaa", "ab", "'a"}) {
  std::string text;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte)
    text += fmt::format("{} {}\n", base64(std::string(1, static_cast<char>(byte))), rank++);
  for (const std::string& token : more) text += fmt::format("{} {}\n", base64(token), rank++);
  return text;
}

class Tiktoken : public testing::Test {
 protected:
  void SetUp() override {
    if (!unicode_support()) GTEST_SKIP() << "a build without PCRE2";
  }
  std::string file(const std::string& name, const std::string& text) {
    write_all(folder_ / name, text);
    return folder_ / name;
  }
  std::string error(const std::string& name, const std::string& text) {
    const auto tokenizer = open_tokenizer(file(name, text));
    return tokenizer ? "" : tokenizer.error().message;
  }
  TemporaryFolder folder_;
};

TEST_F(Tiktoken, ranks_are_ids_and_the_order_of_merges) {
  const auto t = value_or_throw(open_tokenizer(file("cl100k_base.tiktoken", ranks())));
  EXPECT_EQ(t->encode("hell"), Ids{258});
  EXPECT_EQ(t->encode("hello"), (Ids{258, 'o'}));
  EXPECT_EQ(t->encode("aab"), (Ids{259, 'b'}));    // "aa" precedes "ab"
  EXPECT_EQ(t->encode("aaaa"), (Ids{259, 259}));   // the leftmost pair comes first
  EXPECT_EQ(t->encode("aaaaa"), (Ids{259, 260}));  // "aa" and "a" make "aaa" from either side
  EXPECT_EQ(t->encode("\xff<|endoftext|>h"), (Ids{255, 100257, 'h'}));
  EXPECT_EQ(t->decode(Ids{258, 'o', 100257, '!'}), "hello!");
  EXPECT_EQ(t->vocab_size(), 100277);
  EXPECT_EQ(t->eod(), 100257);
  EXPECT_TRUE(t->fingerprint().starts_with("tiktoken:cl100k_base:"));
}

TEST_F(Tiktoken, the_name_says_how_text_is_split) {
  const auto gpt2 = value_or_throw(open_tokenizer(file("r50k_base.tiktoken", ranks())));
  const auto o200k = value_or_throw(open_tokenizer(file("o200k_base.mine.tiktoken", ranks())));
  EXPECT_EQ(gpt2->eod(), 50256);
  EXPECT_EQ(o200k->eod(), 199999);
  EXPECT_EQ(gpt2->encode("'a"), (Ids{'\'', 'a'}));
  EXPECT_EQ(o200k->encode("'a"), Ids{262});
  EXPECT_NE(gpt2->fingerprint(), o200k->fingerprint());
  EXPECT_NE(error("mine.tiktoken", ranks()).find("cl100k_base, o200k_base"), std::string::npos);
}

TEST_F(Tiktoken, space_at_the_end_of_text_is_one_word_of_cl100k_base_alone) {
  const std::string text = ranks({"\n ", "\n  "});
  const auto cl100k = value_or_throw(open_tokenizer(file("cl100k_base.tiktoken", text)));
  const auto llama3 = value_or_throw(open_tokenizer(file("llama3.tiktoken", text)));
  EXPECT_EQ(cl100k->encode("x\n  "), (Ids{'x', 257}));
  EXPECT_EQ(cl100k->encode("x\n  y"), (Ids{'x', '\n', ' ', ' ', 'y'}));
  EXPECT_EQ(cl100k->encode("x\n  <|endoftext|>"), (Ids{'x', 257, 100257}));
  EXPECT_EQ(llama3->encode("x\n  "), (Ids{258, 'x', '\n', ' ', ' '}));
}

// Returns 128,000 tokens: the bytes, these, and others of four bytes that occur in no text.
std::string llama3_ranks(size_t count = 128000) {
  std::vector<std::string> more{"he", "ll", "hell"};
  for (size_t i = 0; 256 + more.size() < count; ++i)
    more.push_back(fmt::format("\xff{}{}{}", static_cast<char>(128 + i % 64), static_cast<char>(128 + i / 64 % 64),
                               static_cast<char>(128 + i / 4096)));
  return ranks(more);
}

TEST_F(Tiktoken, llama3_is_called_tokenizer_model_and_begins_documents) {
  file("tokenizer.model", llama3_ranks());
  const auto t = value_or_throw(open_tokenizer(folder_.path().string()));
  EXPECT_EQ(t->encode("hell<|eot_id|>"), (Ids{128000, 258, 128009}));
  EXPECT_EQ(t->eod(), 128001);
  EXPECT_EQ(t->vocab_size(), 128256);
}

TEST_F(Tiktoken, another_model_s_tokenizer_model_is_refused) {
  for (const auto& text : {ranks(), llama3_ranks(127999), llama3_ranks(128001)})
    EXPECT_NE(error("tokenizer.model", text).find("qwen, llama3, and LLaMA 3's"), std::string::npos);
}

TEST_F(Tiktoken, of_two_files_in_a_folder_one_has_to_be_named) {
  const std::string folder = folder_.path().string();
  file("qwen.tiktoken", ranks());
  EXPECT_TRUE(value_or_throw(open_tokenizer(folder))->fingerprint().starts_with("tiktoken:qwen:"));
  file("cl100k_base.tiktoken", ranks());
  const auto refused = open_tokenizer(folder);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("2 .tiktoken files"), std::string::npos) << refused.error().message;
}

TEST_F(Tiktoken, what_is_wrong_in_a_file_is_said_with_its_line) {
  EXPECT_NE(error("qwen.tiktoken", ranks() + "aGU= 257\n").find("line 264: rank 257"), std::string::npos);
  EXPECT_NE(error("qwen.tiktoken", ranks() + "aGU= 263\n").find("line 264: rank 263"), std::string::npos);
  EXPECT_NE(error("qwen.tiktoken", ranks() + "a*U= 263\n").find("line 264 is not a"), std::string::npos);
  EXPECT_NE(error("qwen.tiktoken", ranks() + "\n").find("line 264 is not a"), std::string::npos);
  EXPECT_NE(error("qwen.tiktoken", ranks() + "eHg= 99999999\n").find("too large"), std::string::npos);
  EXPECT_EQ(error("qwen.tiktoken", ranks({std::string(1024, 'x')})), "");
  EXPECT_NE(error("qwen.tiktoken", ranks({std::string(1025, 'x')})).find("line 257: a token of 1025"),
            std::string::npos);
  EXPECT_NE(error("qwen.tiktoken", "aGU= 0\n").find("byte"), std::string::npos);  // not every byte has a token
}

TEST_F(Tiktoken, a_tokenizer_json_of_it_makes_the_same_ids) {
  const std::string path = file("llama3.tiktoken", ranks());
  const auto first = value_or_throw(open_tokenizer(path));
  file("tokenizer_config.json", R"({"eos_token": "<|end_of_text|>"})");
  const std::string json = file("tokenizer.json", value_or_throw(tiktoken_as_json(path)));
  const auto second = value_or_throw(open_tokenizer(json));
  for (const char* text : {"hello hell's 1234", "aab  aaa\n\n", "é<|eot_id|>x", ""})
    EXPECT_EQ(first->encode(text), second->encode(text)) << text;
  EXPECT_EQ(first->eod(), second->eod());
  EXPECT_NE(read_all(json).find("\"<|eot_id|>\": 272"), std::string::npos)
      << "transformers reads ids in the vocabulary";
}

}  // namespace
}  // namespace tri
