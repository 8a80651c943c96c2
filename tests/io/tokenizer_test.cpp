#include "io/tokens/tokenizer.h"

#include <gtest/gtest.h>

#include "io/base/random.h"
#include "io/tokens/sentencepiece_json.h"
#include "tests/io/packed.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

std::string english_like(int sentences) {
  const char* words[] = {"the",  "sea",    "rower", "bench",  "oar",    "stroke",
                         "drum", "bronze", "ram",   "turned", "slowly", "toward"};
  std::string text;
  for (int s = 0; s < sentences; ++s) {
    for (int w = 0; w < 8; ++w)
      text += (w ? " " : "") + std::string(words[random_u64(11, static_cast<uint64_t>(s * 8 + w)) % std::size(words)]);
    text += s % 5 == 4 ? ".\n\n" : ".\n";
  }
  return text;
}

TEST(ByteTokenizer, decode_undoes_encode_for_any_bytes) {
  const auto tokenizer = value_or_throw(open_tokenizer("bytes"));
  std::string every;
  for (int i = 0; i < 256; ++i) every.push_back(static_cast<char>(i));
  for (const std::string& text :
       {std::string(), std::string("plain"), every, std::string("\xff\xfe\x80 broken utf-8 \xc3")}) {
    const std::vector<int32_t> tokens = tokenizer->encode(text);
    EXPECT_EQ(tokens.size(), text.size());
    EXPECT_EQ(tokenizer->decode(tokens), text);
    int bytes = 0;
    for (const int32_t token : tokens) bytes += tokenizer->token_bytes(token);
    EXPECT_EQ(bytes, static_cast<int>(text.size()));
  }
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  EXPECT_EQ(tokenizer->token_bytes(256), 0);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{72, 256, 105, 9999, -1}), "Hi");
}

TEST(SentencePiece, a_trained_model_round_trips_and_counts_bytes) {
  const TemporaryFolder folder;
  write_all(folder / "text.txt", english_like(2000));
  ASSERT_TRUE(
      train_tokenizer({.inputs = {folder / "text.txt"}, .model_path = folder / "bpe.model", .vocab_size = 400}));
  auto opened = open_tokenizer(folder / "bpe.model");
  ASSERT_TRUE(opened) << opened.error().message;
  const Tokenizer& tokenizer = *opened.value();
  EXPECT_GE(tokenizer.eod(), 0);
  const std::string text = english_like(50);
  for (const std::string& sample : {text, std::string("  two spaces,  a tab\t and a newline\n\n at the end "),
                                    std::string("unseen: Ωmega 東京 1234")}) {
    const std::vector<int32_t> tokens = tokenizer.encode(sample);
    EXPECT_EQ(tokenizer.decode(tokens), sample);
    int bytes = 0;
    for (const int32_t token : tokens) bytes += tokenizer.token_bytes(token);
    EXPECT_EQ(bytes, static_cast<int>(sample.size())) << sample;
  }
  EXPECT_LT(tokenizer.encode(text).size(), text.size() / 3) << "does not compress its own training text";
  EXPECT_EQ(tokenizer.token_bytes(tokenizer.eod()), 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

// SentencePiece itself drops lines above its limit, and lines with a NUL or U+2585.
TEST(SentencePiece, lines_of_any_length_are_trained_on) {
  const TemporaryFolder folder;
  std::string wrapped, one_line = "\xef\xbb\xbf", scripts;
  for (int i = 0; i < 12000; ++i) {
    const std::string word = i % 3 == 0 ? "zebraquux" : i % 3 == 1 ? "fjordmixture" : "glyphwaltz";
    wrapped += word + (i % 12 == 11 ? "\n" : " ");
    one_line += word + (i % 50 == 49 ? " \xe2\x96\x85" : " ");
    scripts += "\xe5\xad\x97\xe6\xaf\x8d";  // without a space
  }
  ASSERT_GT(one_line.size(), size_t{1} << 16);
  write_all(folder / "wrapped.txt", wrapped);
  write_all(folder / "one_line.txt.gz", gzip(one_line));
  write_all(folder / "scripts, too.txt", scripts);
  const auto tokens = [&](std::vector<std::string> inputs, const std::string& text) {
    const auto trained =
        train_tokenizer({.inputs = std::move(inputs), .model_path = folder / "m.model", .vocab_size = 310});
    EXPECT_TRUE(trained) << trained.error().message;
    return value_or_throw(open_tokenizer(folder / "m.model"))->encode(text).size();
  };
  const std::string text = "zebraquux fjordmixture glyphwaltz";
  EXPECT_LE(tokens({folder / "one_line.txt.gz"}, text), tokens({folder / "wrapped.txt"}, text) + 3);
  EXPECT_LE(tokens({folder / "scripts, too.txt"}, scripts.substr(0, 600)), 100u);
  write_all(folder / "empty.txt", "\n\n");
  write_all(folder / "wide.txt", std::string("\xff\xfe"
                                             "a\0b\0",
                                             6));
  for (const auto& [name, message] : {std::pair{"empty.txt", "empty.txt: the inputs contain no text"},
                                      std::pair{"wide.txt",
                                                "wide.txt: not UTF-8 text: its byte order mark is that of "
                                                "UTF-16 (little-endian)"}}) {
    const auto refused = train_tokenizer({.inputs = {folder / name}, .model_path = folder / "n.model"});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find(message), std::string::npos) << refused.error().message;
    EXPECT_FALSE(std::filesystem::exists(folder / "n.model"));
  }
}

// SentencePiece itself crashes on a word of more than 32,767 characters.
TEST(SentencePiece, words_of_any_length_are_trained_on) {
  const TemporaryFolder folder;
  uint64_t state = 1;
  const auto letters = [&](int count) {
    std::string word;
    for (; count > 0; --count)
      word += static_cast<char>('a' + (state = state * 6364136223846793005u + 1442695040888963407u) % 2311 % 26);
    return word;
  };
  const std::string alone = letters(40000) + "\n", inside = "a word " + letters(90000) + " and more\n",
                    blanks = "a" + std::string(40000, ' ') + "b\n",
                    allowed = letters(32000) + " " + letters(31999) + "\n";
  for (const auto& [text, split] :
       {std::pair{alone, 1}, {inside, 1}, {alone + inside + alone, 3}, {blanks, 0}, {allowed, 0}}) {
    write_all(folder / "text.txt", text);
    testing::internal::CaptureStderr();
    const auto trained =
        train_tokenizer({.inputs = {folder / "text.txt"}, .model_path = folder / "m.model", .vocab_size = 300});
    const std::string said = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(trained) << trained.error().message;
    const std::string words = fmt::format("text.txt: {} word{} of more than 32000 bytes", split, split == 1 ? "" : "s");
    EXPECT_EQ(said.find(words) != said.npos, split > 0) << said;
    EXPECT_FALSE(value_or_throw(open_tokenizer(folder / "m.model"))->encode(text).empty());
  }
}

// Returns a field of Protocol Buffers with fewer than 128 bytes.
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

TEST(SentencePiece, a_model_of_pieces_that_json_cannot_write_is_refused) {
  const std::string trainer = {3 << 3, 2, '\x98', 2, 1};  // BPE, with byte fallback (field 35)
  const std::string normalizer = {3 << 3, 0, 4 << 3, 0};  // no space added or removed
  const auto model = [&](const std::string& piece) {
    return sentencepiece_tokenizer_json(field(1, field(1, "a")) + field(1, field(1, piece)) + field(2, trainer) +
                                        field(3, normalizer));
  };
  EXPECT_NE(value_or_throw(model("ba")).find("\"ba\""), std::string::npos);
  for (const char* piece : {"b\xff", "\xff", "\xe6\x97", ""}) {
    const auto made = model(piece);
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().message.find("piece 1"), std::string::npos) << made.error().message;
  }
}

TEST(SentencePiece, what_is_no_model_is_refused) {
  const TemporaryFolder folder;
  write_all(folder / "x.model", "this is text");
  const auto opened = open_tokenizer(folder / "x.model");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().message, (folder / "x.model") +
                                        ": not a SentencePiece model; other tokenizers are recognized by their "
                                        "extensions: .json, .tiktoken");
  const auto missing = open_tokenizer("meta-llama/Llama-3.1-8B");
  ASSERT_FALSE(missing);
  EXPECT_EQ(
      missing.error().message,
      "meta-llama/Llama-3.1-8B: No such file or directory; a tokenizer is bytes or a local path: names on Hugging "
      "Face's Hub are not downloaded");
  EXPECT_EQ(missing.error().os_error, ENOENT);
  std::filesystem::create_directory(folder / "empty");
  const auto empty = open_tokenizer(folder / "empty");
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().message,
            (folder / "empty") + ": contains no tokenizer: no tokenizer.json, tokenizer.model or .tiktoken");
  EXPECT_FALSE(train_tokenizer({.inputs = {folder / "missing.txt"}, .model_path = folder / "y.model"}));
  EXPECT_FALSE(train_tokenizer({.inputs = {folder / "x.model"}, .model_path = folder / "y.bin"}));
  // SentencePiece would accept these as text.
  write_all(folder / "x.jsonl", "{\"text\": \"some text\"}\n");
  write_all(folder / "x.txt", std::string(100, '\xff'));
  for (const auto& [name, message] : {std::pair{"x.jsonl", "JSON"}, {"x.txt", "not UTF-8 text"}}) {
    const auto refused = train_tokenizer({.inputs = {folder / name}, .model_path = folder / "y.model"});
    ASSERT_FALSE(refused) << name;
    EXPECT_NE(refused.error().message.find(message), std::string::npos) << refused.error().message;
  }
}

}  // namespace
}  // namespace tri
