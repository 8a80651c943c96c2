#include "lib/huggingface/tokenizer_files.h"
#include "io/base/json.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "io/base/file.h"
#include "io/tokens/bpe/unicode.h"
#include "io/tokens/tokenizer.h"
#include "lib/huggingface/companions.h"
#include "tests/io/temporary_folder.h"

namespace tri::huggingface {
namespace {

using Json = nlohmann::json;

std::string text_of(const std::string& path) { return std::string(value_or_throw(MappedFile::open(path)).text()); }

class TokenizerFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!unicode_support()) GTEST_SKIP() << unicode_support().error().message;
    for (const char* name : {"bytes", "in", "out"}) std::filesystem::create_directory(folder_ / name);
    config_.model.vocab = 257;
    config_.data.tokenizer = "bytes";
    value_or_throw(write_tokenizer(config_, folder_ / "bytes"));
    json_ = Json::parse(text_of(folder_ / "bytes/tokenizer.json"));
    config_.data.tokenizer = folder_ / "in/tokenizer.json";
  }
  TokenizerInfo write() {
    write_all(folder_ / "in/tokenizer.json", json_.dump());
    return value_or_throw(write_tokenizer(config_, folder_ / "out"));
  }
  Json written(const char* name) { return Json::parse(text_of(folder_ / "out/" + name)); }

  const TemporaryFolder folder_;
  Config config_;
  Json json_;  // bytes as tokens; an added token ends a text
};

TEST_F(TokenizerFiles, a_file_without_added_tokens_is_written_with_the_text_of_its_end) {
  json_.erase("added_tokens");
  json_["model"]["vocab"]["<|endoftext|>"] = 256;
  EXPECT_EQ(write().eos, 256);
  EXPECT_EQ(written("tokenizer_config.json")["eos_token"], "<|endoftext|>");
  EXPECT_EQ(written("tokenizer.json"), json_);
}

TEST_F(TokenizerFiles, what_begins_a_text_is_written_into_the_file) {
  write_all(folder_ / "in/tokenizer_config.json", R"({"bos_token": "<|endoftext|>"})");
  json_["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
      "pair": [], "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [256], "tokens": []}}})");
  EXPECT_EQ(write().bos, 256);
  EXPECT_EQ(written("tokenizer_config.json")["bos_token"], "<|endoftext|>");
  const Json made = written("tokenizer.json");
  EXPECT_EQ(made["post_processor"]["single"][0]["SpecialToken"]["id"], "<|endoftext|>");
  EXPECT_EQ(made["model"], json_["model"]);
  EXPECT_EQ(value_or_throw(open_tokenizer(folder_ / "out"))->encode("a"), (std::vector<int32_t>{256, 'a'}));
}

TEST_F(TokenizerFiles, tokens_of_the_other_files_are_written_into_the_file) {
  write_all(folder_ / "in/tokenizer_config.json",
            R"({"additional_special_tokens": ["<|x|>"], "split_special_tokens": true, "eos_token": "<|endoftext|>"})");
  config_.model.vocab = 300;
  write();
  EXPECT_EQ(written("tokenizer.json")["added_tokens"][1]["content"], "<|x|>");
  EXPECT_EQ(written("tokenizer.json")["added_tokens"][1]["id"], 257);
  EXPECT_EQ(written("tokenizer_config.json")["split_special_tokens"], true);
  EXPECT_EQ(value_or_throw(open_tokenizer(folder_ / "out"))->encode("<|x|>"),
            value_or_throw(open_tokenizer(folder_ / "in"))->encode("<|x|>"));
  ASSERT_TRUE(std::filesystem::create_directory(folder_ / "copied"));
  write_all(folder_ / "in/added_tokens.json", R"({"<|y|>": 257})");
  write_all(folder_ / "in/config.json", "{}");
  value_or_throw(copy_tokenizer(folder_ / "in/tokenizer.json", folder_ / "copied"));  // like an import
  value_or_throw(keep_companions(folder_ / "in", folder_ / "copied"));
  EXPECT_EQ(value_or_throw(open_tokenizer(folder_ / "copied"))->fingerprint(),
            value_or_throw(open_tokenizer(folder_ / "in"))->fingerprint());
}

TEST_F(TokenizerFiles, companions_of_an_imported_tokenizer_are_not_those_of_bytes) {
  ASSERT_TRUE(std::filesystem::create_directory(folder_ / "run"));
  write_all(folder_ / "run/imported_config.json", "{}");
  config_.data.tokenizer = "bytes";
  const std::string checkpoint = folder_ / "run/checkpoints/step_00000000";
  EXPECT_EQ(companions_of(checkpoint, config_), folder_ / "run") << "the import found no tokenizer";
  write_all(folder_ / "run/tokenizer.json", json_.dump());
  EXPECT_EQ(companions_of(checkpoint, config_), "");
  config_.data.tokenizer = folder_ / "run/tokenizer.json";
  EXPECT_EQ(companions_of(checkpoint, config_), folder_ / "run");
}

}  // namespace
}  // namespace tri::huggingface
