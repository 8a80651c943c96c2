#include <gtest/gtest.h>

#include "io/base/json.h"
#include "io/base/random.h"
#include "io/tokens/bpe/bpe_tokenizer.h"
#include "io/tokens/bpe/byte_letters.h"
#include "tests/io/packed.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

// Returns a hand-made tokenizer.json: tokens 0 to 255 are the bytes, those from 256 on are made by merges, followed by
// the added ones.
Json small_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges) {
  Json vocab = Json::object(), pairs = Json::array();
  for (int byte = 0; byte < 256; ++byte) vocab[letters_of(std::string(1, static_cast<char>(byte)))] = byte;
  int next = 256;
  for (const auto& [left, right] : merges) {
    pairs.push_back(letters_of(left) + " " + letters_of(right));
    vocab[letters_of(left + right)] = next++;
  }
  const auto added = [&](const char* content, bool special) {
    return Json{{"id", next++},    {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", special}};
  };
  Json tokens = Json::array();
  tokens.push_back(added("<|endoftext|>", true));
  tokens.push_back(added("<|begin|>", true));
  tokens.push_back(added("<|endoftext|><|x|>", false));
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", tokens},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", pairs}}}};
}
// Lists the added tokens in the vocabulary as well, where transformers also reads their ids.
Json with_fixed_ids(Json json) {
  for (const Json& token : json["added_tokens"])
    json["model"]["vocab"][token["content"].get<std::string>()] = token["id"];
  return json;
}
const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"a", "b"}, {"b", "c"}, {"ab", "c"}, {" ", "a"}, {" a", "b"}, {"\xc3", "\xa9"}, {"a", "a"}, {"aa", "aa"}};
constexpr int32_t kAb = 256, kBc = 257, kAbc = 258, kEnd = 264, kBegin = 265, kLong = 266;

class TokenizerJson : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!unicode_support()) GTEST_SKIP() << unicode_support().error().message;
  }
  Result<std::unique_ptr<Tokenizer>> open(const Json& json) {
    write_all(folder_ / "tokenizer.json", json.dump());
    return open_tokenizer(folder_ / "tokenizer.json");
  }
  std::string refusal(const Json& json) {
    auto opened = open(json);
    return opened ? "opened" : opened.error().message;
  }
  const TemporaryFolder folder_;
};

TEST_F(TokenizerJson, merges_by_rank_and_the_leftmost_first) {
  const auto tokenizer = value_or_throw(open(small_tokenizer(kMerges)));
  EXPECT_EQ(tokenizer->encode("abc"), (Ids{kAbc}));
  EXPECT_EQ(tokenizer->encode("bca"), (Ids{kBc, 'a'}));
  EXPECT_EQ(tokenizer->encode("aaaaa"), (Ids{263, 'a'})) << "aa aa a, not a aa aa";
  EXPECT_EQ(tokenizer->encode("ab ab  ab"), (Ids{kAb, ' ', kAb, ' ', ' ', kAb})) << "ab goes before \" a\"";
  EXPECT_EQ(tokenizer->encode("\xc3\xa9"), (Ids{261}));
  EXPECT_EQ(tokenizer->encode(""), Ids{});
  EXPECT_EQ(tokenizer->vocab_size(), 267);
  EXPECT_EQ(tokenizer->eod(), kEnd);
  EXPECT_EQ(tokenizer->token_bytes(kAbc), 3);
  EXPECT_EQ(tokenizer->token_bytes(kEnd), 0);
  EXPECT_EQ(tokenizer->token_bytes(kLong), 18);
  EXPECT_EQ(tokenizer->token_bytes(9999), 0);
}

TEST_F(TokenizerJson, added_tokens_are_found_first_and_the_longest_wins) {
  const auto tokenizer = value_or_throw(open(small_tokenizer(kMerges)));
  EXPECT_EQ(tokenizer->encode("a<|endoftext|>b<|endoftext|><|x|>c<|endoftext"),
            (Ids{'a', kEnd, 'b', kLong, 'c', '<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't'}));
  EXPECT_EQ(tokenizer->decode(Ids{'a', kEnd, kLong, kAbc, 9999, -1}), "a<|endoftext|><|x|>abc");
}

TEST_F(TokenizerJson, decode_undoes_encode_for_any_bytes) {
  const auto tokenizer = value_or_throw(open(small_tokenizer(kMerges)));
  std::string every, noise;
  for (int i = 0; i < 256; ++i) every.push_back(static_cast<char>(i));
  for (uint64_t i = 0; i < 5000; ++i) noise.push_back(static_cast<char>(random_u64(3, i)));
  for (const std::string& text :
       {every, noise, std::string("\xff\xfe caf\xc3\xa9 \xc3"), std::string("\0a\0", 3), std::string("\xed\xa0\x80")}) {
    const Ids tokens = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(tokens), text);
    int bytes = 0;
    for (const int32_t token : tokens) bytes += tokenizer->token_bytes(token);
    EXPECT_EQ(bytes, static_cast<int>(text.size()));
  }
}

// Applies random merges one after another to the whole word, as in the definition.
TEST_F(TokenizerJson, words_of_any_length_are_merged_as_the_definition_says) {
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<std::string> tokens = {"a", "b", "c"};
  for (uint64_t i = 0; merges.size() < 60; ++i) {
    const std::string left = tokens[random_u64(5, 2 * i) % tokens.size()];
    const std::string right = tokens[random_u64(5, 2 * i + 1) % tokens.size()];
    if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end() || left.size() + right.size() > 9)
      continue;
    merges.emplace_back(left, right);
    tokens.push_back(left + right);
  }
  const Json json = small_tokenizer(merges);
  const auto tokenizer = value_or_throw(open(json));
  const auto by_definition = [&](const std::string& word) {
    std::vector<std::string> symbols;
    for (const char c : word) symbols.emplace_back(1, c);
    for (const auto& [left, right] : merges)  // a merge never makes a pair of a lower rank than its own
      for (size_t i = 0; i + 1 < symbols.size(); ++i)
        if (symbols[i] == left && symbols[i + 1] == right) {
          symbols[i] += right;
          symbols.erase(symbols.begin() + static_cast<int64_t>(i) + 1);
        }
    Ids ids;
    for (const std::string& symbol : symbols) ids.push_back(json["model"]["vocab"][symbol].get<int32_t>());
    return ids;
  };
  uint64_t counter = 0;
  for (int round = 0; round < 400; ++round) {
    std::string word;
    const auto length = static_cast<size_t>(1 + round % 140);
    while (word.size() < length) word += static_cast<char>('a' + random_u64(6, counter++) % 3);
    ASSERT_EQ(tokenizer->encode(word), by_definition(word)) << word;
    ASSERT_EQ(tokenizer->encode(word), by_definition(word)) << word << ", from the cache";
  }
}

TEST_F(TokenizerJson, a_word_that_is_a_token_is_taken_whole_with_ignore_merges) {
  Json json = with_fixed_ids(small_tokenizer(kMerges));
  json["model"]["vocab"]["hello"] = 270;
  EXPECT_EQ(value_or_throw(open(json))->encode("hello"), (Ids{'h', 'e', 'l', 'l', 'o'}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(value_or_throw(open(json))->encode("hello hello"), (Ids{270, ' ', 'h', 'e', 'l', 'l', 'o'}));
}

// Vocabulary entries are written in byte letters, and a word is looked up by its byte letters.
TEST_F(TokenizerJson, an_entry_of_other_letters_is_decoded_and_never_encoded) {
  Json json = with_fixed_ids(small_tokenizer(kMerges));
  const std::string japan = "\xe6\x97\xa5\xe6\x9c\xac";
  json["model"]["vocab"][" "] = 270;
  json["model"]["vocab"][japan] = 271;
  for (const bool whole : {false, true}) {
    json["model"]["ignore_merges"] = whole;
    const auto tokenizer = value_or_throw(open(json));
    EXPECT_EQ(tokenizer->encode(" "), (Ids{' '}));
    EXPECT_EQ(tokenizer->encode(japan), (Ids{0xe6, 0x97, 0xa5, 0xe6, 0x9c, 0xac})) << whole;
    EXPECT_EQ(tokenizer->decode(Ids{271, 270, 'a'}), japan + " a");
  }
}

TEST_F(TokenizerJson, the_template_begins_documents_and_tokenizer_config_adds_settings) {
  Json json = small_tokenizer(kMerges);
  json["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [265], "tokens": ["<|begin|>"]}}})");
  const auto with_begin = value_or_throw(open(json));
  EXPECT_EQ(with_begin->encode("ab"), (Ids{kBegin, kAb}));
  EXPECT_EQ(with_begin->encode(""), (Ids{kBegin}));
  EXPECT_EQ(with_begin->decode(Ids{kBegin, kAb}), "ab");
  const auto settings = [&](const char* text) { write_all(folder_ / "tokenizer_config.json", text); };
  settings(R"({"add_bos_token": false, "eos_token": {"content": "<|begin|>"}})");
  const auto other_end = value_or_throw(open(json));
  EXPECT_EQ(other_end->encode("ab"), (Ids{kBegin, kAb})) << "the post_processor decides, not add_bos_token";
  EXPECT_EQ(other_end->eod(), kBegin);
  EXPECT_NE(other_end->fingerprint(), with_begin->fingerprint());
  json["post_processor"] = nullptr;
  settings(R"({"add_bos_token": true, "bos_token": "<|begin|>", "eos_token": "<|endoftext|>"})");
  write_all(folder_ / "tokenizer.json", json.dump());
  EXPECT_EQ(value_or_throw(open_tokenizer(folder_.path().string()))->encode("ab"), (Ids{kAb})) << "a folder";
  settings(R"({"eos_token": "<|more|>"})");
  EXPECT_EQ(value_or_throw(open(json))->eod(), 267) << "a named token that the file lacks is added";
}

// The expected ids are those of AutoTokenizer, transformers 5.24.
TEST_F(TokenizerJson, tokens_of_the_other_files_are_added) {
  const std::string plain_flags = R"("lstrip": false, "rstrip": false, "normalized": false, "special": true)";
  const std::string a = R"({"content": "<|a|>", )" + plain_flags + "}";
  const std::string end = R"("264": {"content": "<|endoftext|>", )" + plain_flags + "}";
  const std::string begin = R"("265": {"content": "<|begin|>", )" + plain_flags + "}";
  const auto of = [&](const Json& files, const char* sample, const char* config_json = "") {
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json",
                             "imported_config.json"})
      std::filesystem::remove(folder_ / name);
    for (const auto& [name, content] : files.items()) write_all(folder_ / name, content.get<std::string>());
    if (*config_json != '\0') write_all(folder_ / "config.json", config_json);
    auto opened = open(small_tokenizer(kMerges));
    EXPECT_TRUE(opened) << files << opened.error().message;
    return opened ? opened.value()->encode(sample) : Ids{};
  };
  const auto settings = [](const std::string& content) { return Json{{"tokenizer_config.json", content}}; };
  const Ids a_only = {'x', ' ', 267, ' ', '<', '|', 'b', '|', '>'}, both = {'x', ' ', 267, ' ', 268},
            reversed = {'x', ' ', 268, ' ', 267};
  EXPECT_EQ(of(settings(R"({"added_tokens_decoder": {"267": )" + a + "}}"), "x <|a|> <|b|>"), a_only);
  EXPECT_EQ(of(settings(R"({"additional_special_tokens": ["<|a|>", "<|b|>"]})"), "x <|a|> <|b|>"), both);
  EXPECT_EQ(
      of(settings(R"({"extra_special_tokens": ["<|a|>"], "additional_special_tokens": ["<|b|>"]})"), "x <|a|> <|b|>"),
      a_only);
  EXPECT_EQ(of(settings(R"({"extra_special_tokens": {"image_token": "<|a|>"}})"), "x <|a|> <|b|>"), a_only);
  EXPECT_EQ(
      of(settings(R"({"extra_special_tokens": {}, "additional_special_tokens": ["<|a|>", "<|b|>"]})"), "x <|a|> <|b|>"),
      both);
  EXPECT_EQ(of(settings(R"({"extra_special_tokens": {"image_token": "<|a|>"},
                            "additional_special_tokens": ["<|b|>"]})"),
               "x <|a|> <|b|>"),
            both)
      << "an object names tokens, and leaves the list to the older name";
  EXPECT_EQ(of({{"tokenizer_config.json", R"({"extra_special_tokens": {"image_token": "<|a|>"}})"},
                {"special_tokens_map.json", R"({"additional_special_tokens": ["<|b|>"]})"}},
               "x <|a|> <|b|>"),
            both);
  EXPECT_EQ(of(settings(R"({"image_token": "<|a|>", "pad_token": "<|b|>"})"), "x <|a|> <|b|>"), reversed)
      << "named ones first";
  EXPECT_EQ(of({{"added_tokens.json", R"({"<|b|>": 267, "<|a|>": 268})"}}, "x <|a|> <|b|>"), reversed);
  EXPECT_EQ(of({{"special_tokens_map.json", R"({"additional_special_tokens": ["<|a|>"], "pad_token": )" + a + "}"}},
               "x <|a|> <|b|>"),
            a_only);
  EXPECT_EQ(of({{"tokenizer_config.json", R"({"added_tokens_decoder": {)" + end + "}}"},
                {"special_tokens_map.json", R"({"additional_special_tokens": ["<|a|>"]})"},
                {"added_tokens.json", R"({"<|b|>": 267})"}},
               "<|a"),
            (Ids{'<', '|', 'a'}))
      << "with a decoder the older files say nothing";
  // If a token is listed several times, its last flags count, unless the decoder or tokenizer.json gives it an id.
  const std::string wide =
      R"({"content": "<|a|>", "lstrip": true, "rstrip": true, "normalized": false, "special": true})";
  const Ids stripped = {'x', 267}, spaced = {'x', ' ', 267, ' '};
  for (const auto& [content, ids] : {
           std::pair(R"({"pad_token": )" + wide + "}", stripped),
           {R"({"additional_special_tokens": ["<|a|>"], "pad_token": )" + wide + "}", spaced},
           {R"({"extra_special_tokens": ["<|a|>"], "pad_token": )" + wide + "}", spaced},
           {R"({"pad_token": "<|a|>", "additional_special_tokens": [)" + wide + "]}", stripped},
           {R"({"bos_token": "<|a|>", "pad_token": )" + wide + "}", stripped},
           {R"({"pad_token": "<|a|>", "bos_token": )" + wide + "}", spaced},
           {R"({"image_token": "<|a|>", "pad_token": )" + wide + "}", spaced},
           {R"({"additional_special_tokens": ["<|a|>", )" + wide + "]}", stripped},
           {R"({"additional_special_tokens": [)" + wide + R"(, "<|a|>"]})", spaced},
           {R"({"bos_token": "<|a|>", "pad_token": "<|a|>", "eos_token": )" + wide + "}", stripped},
           {R"({"additional_special_tokens": ["<|a|>"], "added_tokens_decoder": {"267": )" + wide + "}}", stripped},
       })
    EXPECT_EQ(of(settings(content), "x <|a|> "), ids) << content;
  // Flags in the decoder precede those in tokenizer.json; a name may be a token of the vocabulary.
  EXPECT_EQ(of(settings(R"({"added_tokens_decoder": {"264": {"content": "<|endoftext|>", "lstrip": true,
                            "normalized": false, "special": true}}})"),
               "x <|endoftext|>"),
            (Ids{'x', kEnd}));
  EXPECT_EQ(of(settings(R"({"pad_token": "!"})"), "a!"), (Ids{'a', '!'}));
  EXPECT_EQ(of(settings(R"({"split_special_tokens": true})"), "<|begin|>"),
            (Ids{'<', '|', 'b', 'e', 'g', 'i', 'n', '|', '>'}));
  // A named token is special, unless a list without it precedes tokenizer.json. 266 is not special there.
  const std::string longest = "<|endoftext|><|x|>";
  const Ids split(longest.begin(), longest.end());
  const std::string own = R"("split_special_tokens": true, "pad_token": "<|endoftext|><|x|>")";
  const std::string listed = R"("266": {"content": "<|endoftext|><|x|>", "normalized": false, "special": false})";
  for (const auto& [content, ids] :
       {std::pair{std::string(R"({"split_special_tokens": true})"), Ids{kLong}},
        {"{" + own + "}", split},
        {R"({"split_special_tokens": true, "image_token": "<|endoftext|><|x|>"})", split},
        {R"({"split_special_tokens": true, "extra_special_tokens": ["<|endoftext|><|x|>"]})", Ids{kLong}},
        {"{" + own + R"(, "added_tokens_decoder": {)" + listed + "}}", split},
        {"{" + own + R"(, "added_tokens_decoder": {)" + end + "}}", Ids{kLong}}})
    EXPECT_EQ(of(settings(content), longest.c_str()), ids) << content;
  // GPT2Tokenizer sets add_prefix_space itself and reads the added tokens from the decoder.
  EXPECT_EQ(of(settings(R"({"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": true})"), "x"),
            (Ids{' ', 'x'}));
  EXPECT_EQ(of(settings(R"({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": true})"), "x"),
            (Ids{'x'}));
  EXPECT_EQ(of(settings(R"({"add_prefix_space": true})"), "x", R"({"model_type": "gpt2"})"), (Ids{' ', 'x'}));
  EXPECT_EQ(of(settings(R"({"add_prefix_space": true})"), "x", R"({"model_type": "instructblip"})"), (Ids{' ', 'x'}));
  const Json gpt2 = settings(R"({"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": true})");
  for (const char* type : {"glm4v", "llava_next", "pixtral"})
    EXPECT_EQ(of(gpt2, "x", fmt::format(R"({{"model_type": "{}"}})", type).c_str()), (Ids{'x'})) << type;
  Json imported = settings(R"({"add_prefix_space": true})");
  imported["imported_config.json"] = R"({"model_type": "gpt2"})";
  EXPECT_EQ(of(imported, "x"), (Ids{' ', 'x'})) << "in the folder of an imported run";
  EXPECT_EQ(of(imported, "x", R"({"model_type": "llama"})"), (Ids{'x'})) << "config.json goes before it";
  std::filesystem::remove(folder_ / "imported_config.json");
  const std::pair<std::string, const char*> refused[] = {
      {R"({"added_tokens_decoder": {"300": )" + a + "}}",
       "give token <|a|> the id 300, but transformers 5 gives it 267"},
      {R"({"added_tokens_decoder": {"267": {"content": "<|a|>", "single_word": true}}})", "single_word: true"},
      {R"({"tokenizer_class": "Qwen2Tokenizer"})", "replaces the file's normalizer with its own"},
      {R"({"tokenizer_class": "RobertaTokenizerFast"})",
       "the class RobertaTokenizer for this folder, which sets words"},
      {R"({"tokenizer_class": "WhisperTokenizer"})", "set tokenizer_class to PreTrainedTokenizerFast"},
      {R"({"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {)" + end + ", " + begin + "}}",
       "drops the token <|endoftext|><|x|>"}};
  std::filesystem::remove(folder_ / "config.json");
  for (const auto& [content, message] : refused) {
    write_all(folder_ / "tokenizer_config.json", content);
    EXPECT_NE(refusal(small_tokenizer(kMerges)).find(message), std::string::npos) << refusal(small_tokenizer(kMerges));
  }
}

// Runs whose tokens exist already continue with a tokenizer that would be refused for new tokens.
TEST_F(TokenizerJson, another_class_of_transformers_is_only_warned_of_on_request) {
  const std::string plain = value_or_throw(open(small_tokenizer(kMerges)))->fingerprint();
  for (const char* name : {"Qwen2Tokenizer", "CLIPTokenizer"}) {
    write_all(folder_ / "tokenizer_config.json", fmt::format(R"({{"tokenizer_class": "{}"}})", name));
    EXPECT_FALSE(open_tokenizer(folder_ / "tokenizer.json"));
    const auto opened = open_tokenizer(folder_ / "tokenizer.json", OtherClass::kWarn);
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened.value()->fingerprint(), plain);
    EXPECT_EQ(opened.value()->encode("ab"), Ids{kAb});
  }
}

// The expected ids are those of AutoTokenizer, transformers 5.24 with tokenizers 0.23: ids in the file do not count.
TEST_F(TokenizerJson, ids_of_added_tokens_that_transformers_changes_are_refused) {
  const Json plain = small_tokenizer(kMerges);
  Json gap = plain, small_gap = plain, order = plain, twice = plain, in_vocabulary = plain;
  gap["added_tokens"][2]["id"] = 300;
  small_gap["added_tokens"][2]["id"] = 267;
  std::swap(order["added_tokens"][0], order["added_tokens"][1]);
  twice["added_tokens"].push_back(plain["added_tokens"][0]);
  in_vocabulary["model"]["vocab"]["<|endoftext|>"] = kEnd;
  for (const auto& [json, message] :
       {std::pair{gap, "gives token <|endoftext|><|x|> of added_tokens the id 266, not 300"},
        {small_gap, "gives token <|endoftext|><|x|> of added_tokens the id 266, not 267"},
        {order, "gives token <|begin|> of added_tokens the id 264, not 265"},
        {twice, "opened"},
        {in_vocabulary, "opened"}})
    EXPECT_NE(refusal(json).find(message), std::string::npos) << refusal(json);
  EXPECT_EQ(value_or_throw(open(with_fixed_ids(gap)))->encode("<|endoftext|><|x|>"), Ids{300});
  EXPECT_FALSE(open(gap));
  testing::internal::CaptureStderr();
  const auto opened = open_tokenizer(folder_ / "tokenizer.json", OtherClass::kWarn);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the id 266, not 300"), std::string::npos) << said;
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened.value()->encode("<|endoftext|><|x|>"), Ids{300}) << "as a run that began earlier uses it";
  const Json exported = Json::parse(value_or_throw(portable_tokenizer_json(folder_ / "tokenizer.json")));
  EXPECT_EQ(value_or_throw(open(exported))->encode("<|endoftext|><|x|>"), Ids{300});
}

TEST_F(TokenizerJson, anchors_stand_at_every_line) {
  const auto of = [&](const char* regex, const char* text) {
    Json json = small_tokenizer({{" ", " "}, {"!", " "}, {"!", "  "}});
    json["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    return value_or_throw(open(json))->encode(text);
  };
  // The expected ids follow the package's splits: DeepSeek-LLM and V2 have this pattern.
  EXPECT_EQ(of("\\s+$", "!  "), (Ids{'!', 256}));
  EXPECT_EQ(of("\\s+$", "!  !  "), (Ids{258, '!', 256}));
  EXPECT_EQ(of("\\s+$", "!  \n!"), (Ids{'!', 256, '\n', '!'}));
  EXPECT_EQ(of("^!", "!  \n! !"), (Ids{'!', 256, '\n', '!', ' ', '!'}));
}

TEST_F(TokenizerJson, what_is_not_understood_is_refused_by_name) {
  const auto split = [](const char* regex) {
    return Json{{"type", "Sequence"},
                {"pretokenizers",
                 {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}},
                  {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  };
  const Json prepend = {{"type", "Prepend"}, {"prepend", "_"}};
  const std::tuple<const char*, Json, const char*> table[] = {
      {"/model/type", "WordPiece", "model: type: \"WordPiece\" is not supported"},
      {"/model/dropout", 0.1, "model: dropout: 0.1"},
      {"/model/end_of_word_suffix", "</w>", "model: end_of_word_suffix: \"</w>\""},
      {"/model/new_thing", 1, "model: new_thing: 1 is not supported"},
      {"/model/merges/0", "a b c", "\"a b c\" is not a pair"},
      {"/model/merges/0", "a z", "az is not in the vocabulary"},
      {"/model/vocab/a", -1, "-1 is not a token id"},
      {"/model/vocab/a", 99, "model: vocab: id 99 belongs to c and to another token"},
      {"/model/vocab/more", 5000, "id 5000 is too large"},
      {"/added_tokens/0/id", (1 << 24) - 1, "added_tokens: <|endoftext|>: id 16777215 is too large"},
      {"/added_tokens/0/id", 97, "added_tokens: <|endoftext|>: id 97 belongs to another token"},
      {"/added_tokens/0/id", 265, "added_tokens: <|begin|>: id 265 belongs to another token"},
      {"/truncation", {{"max_length", 5}}, "truncation: {\"max_length\":5}"},
      {"/normalizer", prepend, "normalizer: Prepend is not supported"},
      {"/pre_tokenizer/type", "Metaspace", "pre_tokenizer: Metaspace is not supported"},
      {"/pre_tokenizer/other", 1, "pre_tokenizer: other: 1"},
      {"/pre_tokenizer", split("\\w+"), "byte 0, \"\\w\""},
      {"/pre_tokenizer", split("a{1,3}+"), "a quantifier cannot follow another one"},
      {"/pre_tokenizer", split("(?i)a"), "this kind of group"},
      {"/pre_tokenizer", split("[a&&b]"), "an intersection"},
      {"/pre_tokenizer", split("a$+"), "an anchor cannot have a quantifier"},
      {"/pre_tokenizer", split("$"), "can match empty text"},
      {"/pre_tokenizer", split("a*"), "can match empty text"},
      {"/pre_tokenizer", split("(a"), "cannot be parsed"},
      {"/decoder/type", "Metaspace", "decoder: Metaspace"},
      {"/decoder", nullptr, "decoder: null is not supported; set it to {\"type\": \"ByteLevel\"}"},
      {"/post_processor", {{"type", "BertProcessing"}}, "post_processor: BertProcessing"},
      {"/added_tokens/0/single_word", true, "<|endoftext|>: single_word"},
      {"/added_tokens/0/content", "<other>", "the token that ends a document is unknown"},
      {"/more", 1, "the file: more: 1"},
  };
  for (const auto& [place, value, message] : table) {
    Json json = small_tokenizer(kMerges);
    json[Json::json_pointer(place)] = value;
    const std::string said = refusal(json);
    EXPECT_NE(said.find(message), std::string::npos) << place << ": " << said;
    EXPECT_EQ(said.find((folder_ / "tokenizer.json") + ": "), 0u) << said;
  }
  Json lacking = with_fixed_ids(small_tokenizer(kMerges));
  lacking["model"]["vocab"].erase("z");
  EXPECT_NE(refusal(lacking).find("byte 0x7a has no token"), std::string::npos) << refusal(lacking);
  EXPECT_EQ(refusal(small_tokenizer(kMerges)), "opened");
  write_all(folder_ / "tokenizer.json", "not JSON");
  EXPECT_FALSE(open_tokenizer(folder_ / "tokenizer.json"));
  EXPECT_FALSE(open_tokenizer(folder_ / "missing.json"));
}

// A function call per level would overflow the stack.
TEST_F(TokenizerJson, what_is_nested_too_deep_is_refused) {
  const std::tuple<const char*, std::string, std::string> table[] = {
      {"truncation", "[", "]"},
      {"normalizer", R"({"type": "Sequence", "normalizers": [)", "]}"},
      {"pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [)", "]}"},
      {"post_processor", R"({"type": "Sequence", "processors": [)", "]}"},
      {"decoder", R"({"type": "Sequence", "decoders": [)", "]}"}};
  const auto refused = [&](const char* message) {
    const auto opened = open_tokenizer(folder_ / "tokenizer.json");
    EXPECT_NE((opened ? std::string("opened") : opened.error().message).find(message), std::string::npos);
  };
  for (const auto& [key, begin, end] : table) {
    std::string nested;
    for (int i = 0; i < 200'000; ++i) nested += begin;
    for (int i = 0; i < 200'000; ++i) nested += end;
    Json json = small_tokenizer(kMerges);
    json[key] = "HERE";
    const std::string text = json.dump();
    const size_t here = text.find("\"HERE\"");
    write_all(folder_ / "tokenizer.json", text.substr(0, here) + nested + text.substr(here + 6));
    refused("the file: lists and objects are nested more than 64 deep");
  }
  write_all(folder_ / "tokenizer.json", small_tokenizer(kMerges).dump());
  write_all(folder_ / "tokenizer_config.json", "{\"a\": " + std::string(70, '[') + std::string(70, ']') + "}");
  refused("tokenizer_config.json: lists and objects are nested");
  write_all(folder_ / "tokenizer_config.json", "{\"a\": " + std::string(60, '[') + std::string(60, ']') + "}");
  refused("opened");
}

TEST(PatternDialect, what_differs_is_rewritten) {
  const std::pair<const char*, const char*> table[] = {{"a+?b*+c?", "a+?b*+c?"},
                                                       {"\\r\\n", "\\x{d}\\x{a}"},
                                                       {"a{,3}b{2}c{1,}?", "a{0,3}b{2}c{1,}?"},
                                                       {"[(a[bc]]", "[\\x{28}abc]"},
                                                       {"[^a-c-]", "[^a-c\\x{2d}]"},
                                                       {"(a|.)", "(?:a|[^\\n])"},
                                                       {"\\p{Han}", "\\p{sc:Han}"},
                                                       {"\\p{Lt}\\P{Zs}", "\\p{Lt}\\P{Zs}"},
                                                       {"\\d", "\\p{Nd}"},
                                                       {"(?i:'s)(?!é)", "(?i:\\x{27}s)(?!\\x{e9})"}};
  for (const auto& [oniguruma, pcre2] : table) EXPECT_EQ(value_or_throw(to_pcre2(oniguruma)), pcre2);
}

}  // namespace
}  // namespace tri
