#include "lib/huggingface/tokenizer_files.h"

#include <filesystem>

#include "io/base/file.h"
#include "io/base/json.h"
#include "io/tokens/bpe/bpe_tokenizer.h"
#include "io/tokens/bpe/byte_letters.h"
#include "io/tokens/bpe/json_parts.h"
#include "io/tokens/sentencepiece_json.h"
#include "io/tokens/tokenizer.h"

namespace tri::huggingface {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;  // for small objects: finding a key is a linear search

// Returns the tokenizer.json of plain bytes for transformers' fast tokenizers: a byte-level BPE without merges.
std::string byte_tokenizer_json() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[letters_of(std::string(1, static_cast<char>(byte)))] = byte;
  const Json end = special_token_json(256, "<|endoftext|>"), level = byte_level_json();
  const Json json = {
      {"version", "1.0"},          {"truncation", nullptr}, {"padding", nullptr},
      {"added_tokens", {end}},     {"normalizer", nullptr}, {"pre_tokenizer", level},
      {"post_processor", nullptr}, {"decoder", level},      {"model", bpe_model_json(vocab, Json::array(), false)}};
  return json.dump(1) + "\n";
}

// Returns the text of a token from tokenizer.json's added tokens (which may be missing) or its vocabulary; "" if there
// is none. io/tokens/bpe/tokenizer_json.cpp has validated the file.
std::string content_of(const nlohmann::json& tokenizer, int id) {
  if (const auto added = tokenizer.find("added_tokens"); added != tokenizer.end())
    for (const auto& token : *added)
      if (token.at("id") == id) return token.at("content").get<std::string>();
  for (const auto& [token, number] : tokenizer.at("model").at("vocab").items())
    if (number == id) return token;
  return {};
}

// This class loads tokenizer.json unchanged in transformers 4 and 5, whatever the model's type.
Json settings_of(const Config& config, const nlohmann::json& tokenizer, const TokenizerInfo& info) {
  Json settings = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"add_bos_token", info.bos >= 0},
                   {"add_eos_token", false},
                   {"eos_token", content_of(tokenizer, info.eos)},
                   {"clean_up_tokenization_spaces", false},
                   {"model_max_length", config.model.seq_len}};
  if (info.bos >= 0) settings["bos_token"] = content_of(tokenizer, info.bos);
  return settings;
}

// Adds those settings of `folder` that change no ids: the chat template, the names of special tokens.
// tokenizer_config.json takes precedence over special_tokens_map.json, as in transformers.
void add_hf_settings(const std::string& folder, Json& settings) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto file = MappedFile::open((fs::path(folder) / name).string());
    if (!file) continue;
    const Json hf = try_parse_json<Json>(file.value().text());
    if (!hf.is_object()) continue;
    for (const char* key :
         {"chat_template", "bos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token",
          "additional_special_tokens", "extra_special_tokens", "padding_side", "split_special_tokens"})
      if (hf.contains(key) && !settings.contains(key)) settings[key] = hf[key];
  }
}

bool is_tokenizer_json(const std::string& path) { return path.ends_with(".json"); }

Result<std::string> json_of(const std::string& spec, const std::string& path) {
  if (spec == "bytes") return byte_tokenizer_json();
  if (is_tokenizer_json(path)) return portable_tokenizer_json(path);
  if (is_tiktoken_file(path)) return tiktoken_as_json(path);
  const auto model = MappedFile::open(path);
  if (!model) return model.error();
  return sentencepiece_tokenizer_json(model.value().text());
}

Result<void> copy_file(const std::string& from, const std::string& to) {
  const auto file = MappedFile::open(from);
  if (!file) return file.error();
  return write_file(to, file.value().text());
}

}  // namespace

Result<TokenizerInfo> write_tokenizer(const Config& config, const std::string& folder, const std::string& kept) {
  const std::string& spec = config.data.tokenizer;
  const auto opened = open_tokenizer(spec, OtherClass::kWarn);
  if (!opened)
    return TokenizerInfo{spec, fmt::format("{}, which cannot be read ({}); add its files to the folder yourself", spec,
                                           opened.error().message)};
  const Tokenizer& tokenizer = *opened.value();
  TokenizerInfo info{.name = tokenizer.fingerprint()};
  const int vocab = tokenizer.vocab_size();
  if (vocab > config.model.vocab || (spec == "bytes" && vocab != config.model.vocab)) {
    info.summary = fmt::format(
        "unknown: data.tokenizer {} has {} tokens, but the model has {}; add the files of the tokenizer that the "
        "model was trained with",
        spec, vocab, config.model.vocab);
    info.name = "unknown";
    return info;
  }
  info.eos = tokenizer.eod();
  if (const auto begin = tokenizer.encode(""); !begin.empty()) info.bos = begin[0];
  const std::string path = tokenizer_file(spec);
  const bool sentencepiece = spec != "bytes" && !is_tokenizer_json(path) && !is_tiktoken_file(path);
  if (sentencepiece)
    if (auto done = copy_file(path, folder + "/tokenizer.model"); !done) return done.error();
  const auto json = json_of(spec, path);
  if (!json) {
    if (!sentencepiece) return json.error();
    info.summary =
        fmt::format("{}, copied to tokenizer.model (SentencePiece; it cannot be converted to tokenizer.json: {})",
                    info.name, json.error().message);
    return info;
  }
  if (auto done = write_file(folder + "/tokenizer.json", json.value()); !done) return done.error();
  Json settings = settings_of(config, parse_json<nlohmann::json>(json.value()), info);
  if (!kept.empty())
    add_hf_settings(kept, settings);
  else if (is_tokenizer_json(path))
    add_hf_settings(fs::path(path).parent_path().string(), settings);
  if (auto done = write_file(folder + "/tokenizer_config.json", settings.dump(2) + "\n"); !done) return done.error();
  info.summary = spec == "bytes" ? "bytes, as tokenizer.json"
                 : sentencepiece ? fmt::format("{}, copied to tokenizer.model, and as tokenizer.json", info.name)
                                 : fmt::format("{}, as tokenizer.json", info.name);
  return info;
}

Result<std::string> find_tokenizer(const std::string& folder, int vocab) {
  const std::string path = tokenizer_file(folder);
  if (path == folder)
    return file_error("the folder has no supported tokenizer: prepare token files with the model's own tokenizer");
  const auto tokenizer = open_tokenizer(path);
  if (!tokenizer) return tokenizer.error();
  if (tokenizer.value()->vocab_size() > vocab)
    return file_error("{} is not used: it has {} tokens, but the model has {}", path, tokenizer.value()->vocab_size(),
                      vocab);
  return path;
}

std::string tokenizer_copy(const std::string& path, const std::string& folder) {
  return folder + "/" + fs::path(path).filename().string();
}

Result<void> copy_tokenizer(const std::string& path, const std::string& folder) {
  return copy_file(path, tokenizer_copy(path, folder));
}

}  // namespace tri::huggingface
