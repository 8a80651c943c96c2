// Follows transformers 5.24: PreTrainedTokenizerBase._from_pretrained, TokenizersBackend.__init__ and AutoTokenizer.
#include "io/tokens/bpe/folder_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "io/base/file.h"
#include "io/tokens/bpe/json_parts.h"

namespace tri {
namespace {

using OrderedJson = nlohmann::ordered_json;  // ordered, because the order of keys decides which token gets which id

constexpr const char* kSettings = "tokenizer_config.json";
constexpr const char* kMap = "special_tokens_map.json";
constexpr const char* kAdded = "added_tokens.json";

constexpr std::array<const char*, 7> kNamed = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};
bool is_named(std::string_view key) { return std::find(kNamed.begin(), kNamed.end(), key) != kNamed.end(); }

constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// With marks (\p{M}) as parts of words.
constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Returns the object in the file `name` next to `path`, with its keys in file order; {} if there is no such file.
OrderedJson read_ordered(const std::string& path, const char* name) {
  if (read_beside(path, name).empty()) return OrderedJson::object();  // refuses non-objects and deep nesting
  const auto file = MappedFile::open((std::filesystem::path(path).parent_path() / name).string());
  if (!file) throw file.error();
  return parse_json<OrderedJson>(file.value().text());
}

// Reads config.json, which has another name in the folder of an imported run.
OrderedJson read_config(const std::string& path) {
  std::error_code ignored;
  const bool here = std::filesystem::exists(std::filesystem::path(path).parent_path() / "config.json", ignored);
  return read_ordered(path, here ? "config.json" : "imported_config.json");
}

enum class Words { kGpt2, kQwen2, kQwen35, kDigitsGpt2 };

// Classes that build their own normalizer and pre-tokenizer, regardless of tokenizer.json.
struct OwnClass {
  std::string_view name;
  bool nfc;
  Words words;
  bool keeps_template;
  std::vector<std::pair<const char*, const char*>> defaults;  // named tokens that a config omits
};
const std::vector<OwnClass>& own_classes() {
  static const char* const kEnd = "<|endoftext|>";
  static const std::vector<OwnClass> classes = {
      {"GPT2Tokenizer", false, Words::kGpt2, true, {{"unk_token", kEnd}, {"bos_token", kEnd}, {"eos_token", kEnd}}},
      {"CodeGenTokenizer", false, Words::kGpt2, true, {{"unk_token", kEnd}, {"bos_token", kEnd}, {"eos_token", kEnd}}},
      {"Qwen2Tokenizer", true, Words::kQwen2, true, {{"unk_token", kEnd}, {"eos_token", kEnd}, {"pad_token", kEnd}}},
      {"Qwen3_5Tokenizer", true, Words::kQwen35, true, {{"unk_token", kEnd}, {"eos_token", kEnd}, {"pad_token", kEnd}}},
      {"GPTNeoXTokenizer",
       true,
       Words::kGpt2,
       false,
       {{"unk_token", kEnd}, {"bos_token", kEnd}, {"eos_token", kEnd}, {"pad_token", "<|padding|>"}}},
      {"CohereTokenizer",
       true,
       Words::kDigitsGpt2,
       true,
       {{"unk_token", "<UNK>"},
        {"bos_token", "<BOS_TOKEN>"},
        {"eos_token", "<|END_OF_TURN_TOKEN|>"},
        {"pad_token", "<PAD>"},
        {"cls_token", "<CLS>"},
        {"sep_token", "<SEP>"},
        {"mask_token", "<MASK_TOKEN>"}}}};
  return classes;
}

// Returns the tokenizer class of a model type (config.json); "": tokenizer.json is used unchanged, whatever class
// tokenizer_config.json names. For other types tokenizer_config.json decides. tests/tokenizers/auto_tokenizer.py
// compares these lists with those of transformers.
std::optional<std::string_view> class_of_model(std::string_view type) {
  static constexpr std::string_view kGpt2[] = {
      "blip-2",       "codegen",           "dbrx",  "emu3", "gpt2", "gpt_neo",   "gptj", "hyperclovax_vision_v2",
      "instructblip", "instructblipvideo", "jais2", "opt",  "phi",  "starcoder2"};
  static constexpr std::string_view kNeoX[] = {"falcon_mamba", "gpt_neox", "mamba", "mamba2", "mpt",
                                               "olmo",         "olmoe",    "rwkv",  "xlstm"};
  static constexpr std::string_view kQwen2[] = {"audioflamingo3", "colqwen2",     "cosmos3_omni",
                                                "dots3_note",     "fun_asr_nano", "hunyuan_vl",
                                                "internvl",       "lighton_ocr",  "moss_transcribe_diarize",
                                                "ovis2",          "qianfan_ocr",  "qwen2",
                                                "qwen2_5_omni",   "qwen2_5_vl",   "qwen2_audio",
                                                "qwen2_moe",      "qwen2_vl",     "qwen3",
                                                "qwen3_asr",      "qwen3_moe",    "qwen3_next",
                                                "qwen3_omni_moe", "qwen3_vl",     "qwen3_vl_moe",
                                                "vibevoice"};
  static constexpr std::string_view kQwen35[] = {"qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text",
                                                 "qwen4_exp"};
  static constexpr std::string_view kCohere[] = {"aya_vision", "cohere", "cohere2"};
  // clang-format off
  static constexpr std::string_view kAsItIs[] = {
      "EvollaModel", "arctic", "aria", "beam", "bigbird_pegasus", "camembertv2-base", "canary", "chatlm", "cohere_asr",
      "ernie4_5", "ernie4_5_moe", "flex_olmo", "fuyu", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v", "glm4v_moe",
      "glm_image", "glmasr", "got_ocr2", "gpt_bigcode", "gradium_phonon_tts", "granite", "granitemoe",
      "granitemoehybrid", "granitemoeshared", "h2ovl_chat", "hyperclovax", "hyperclovax_vlm", "internlm2", "internlm3",
      "iquestcoder", "jamba", "kimi_k25", "kimi_linear", "kosmos-2", "llava", "llava_next", "mimo_v2_flash", "minicpm3",
      "minicpm_ocr", "minicpmv", "minicpmv4_6", "minicpmv4_7", "minimax_m2", "ministral", "ministral3", "mistral",
      "mistral3", "mistral_large4", "mixtral", "modernbert", "modernbert-decoder", "molmo", "molmo2", "nemo_speechlm",
      "nemotron", "nvfp4", "nystromformer", "olmo2", "olmo3", "olmo_hybrid", "omniasr", "opencua", "openvla",
      "paddleocr_vl", "pegasus_x", "persimmon", "phi3", "phi3_v", "phimoe", "pix2struct", "pixtral", "pocket_tts",
      "smolvlm", "stablelm", "step3_vl", "umt5", "vipllava", "voxtral", "voxtral_realtime", "xlm-roberta-xl"};
  // clang-format on
  const auto has = [&](const auto& types) {
    return std::find(std::begin(types), std::end(types), type) != std::end(types);
  };
  if (has(kGpt2)) return "GPT2Tokenizer";
  if (has(kNeoX)) return "GPTNeoXTokenizer";
  if (has(kQwen2)) return "Qwen2Tokenizer";
  if (has(kQwen35)) return "Qwen3_5Tokenizer";
  if (has(kCohere)) return "CohereTokenizer";
  if (has(kAsItIs)) return "";
  return std::nullopt;
}

// Types whose tokenizer_config.json on the Hub names a wrong class: the type's class takes precedence.
bool is_misnamed(std::string_view type) {
  static constexpr std::string_view kMisnamed[] = {"hyperclovax_vision_v2", "qwen2",    "qwen3_5", "qwen3_5_moe",
                                                   "qwen3_5_moe_text",      "qwen4_exp"};
  return std::find(std::begin(kMisnamed), std::end(kMisnamed), type) != std::end(kMisnamed);
}

std::string without_fast(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

std::string text_of(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Classes for a byte-level tokenizer.json that set words, normalizer or template themselves, which is not supported.
bool is_unsupported(std::string_view name) {
  static constexpr std::string_view kNames[] = {"BartTokenizer",       "BlenderbotTokenizer", "CLIPTokenizer",
                                                "DebertaTokenizer",    "LEDTokenizer",        "LayoutLMv3Tokenizer",
                                                "LongformerTokenizer", "LukeTokenizer",       "MarkupLMTokenizer",
                                                "NougatTokenizer",     "RobertaTokenizer",    "WhisperTokenizer"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

// Returns the name of the class that AutoTokenizer uses; "": none of its own.
std::string class_name(const OrderedJson& settings, const OrderedJson& config) {
  std::string named = without_fast(text_of(settings, "tokenizer_class"));
  if (named.empty()) named = without_fast(text_of(config, "tokenizer_class"));
  const std::string type = text_of(config, "model_type");
  std::string taken = named;
  if (const auto of_model = class_of_model(type))
    if (named.empty() || is_misnamed(type) || of_model->empty()) taken = *of_model;
  return taken;
}

nlohmann::json words_of(Words words, bool prefix_space) {
  nlohmann::json level = {{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}, {"use_regex", true}};
  if (words == Words::kGpt2) return level;
  nlohmann::json first = {{"type", "Digits"}, {"individual_digits", true}};
  if (words == Words::kQwen2 || words == Words::kQwen35) {
    const std::string_view regex = words == Words::kQwen2 ? kQwen2Pattern : kQwen35Pattern;
    level["use_regex"] = false;
    first = {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
  }
  return {{"type", "Sequence"}, {"pretokenizers", {first, level}}};
}

bool flag_of(const OrderedJson& object, const char* key, bool absent, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return absent;
  if (!found->is_boolean()) refuse(fmt::format("{}: {} is not true or false", where, key));
  return found->get<bool>();
}

struct ListedToken : AddedToken {
  bool is_text = false;  // given as text only, without flags
};
ListedToken text_token(std::string content) { return {{.content = std::move(content), .special = true}, true}; }

// Returns a token given as text or as an object; none if the value names no token.
std::optional<ListedToken> token_of(const OrderedJson& value, bool special, const std::string& where) {
  if (value.is_string()) return text_token(value.get<std::string>());
  if (!value.is_object() || !value.contains("content") || !value["content"].is_string()) return std::nullopt;
  ListedToken token;
  token.content = value["content"].get<std::string>();
  const std::string name = where + ": " + token.content;
  token.special = special || flag_of(value, "special", false, name);
  token.normalized = flag_of(value, "normalized", !token.special, name);
  token.lstrip = flag_of(value, "lstrip", false, name);
  token.rstrip = flag_of(value, "rstrip", false, name);
  if (flag_of(value, "single_word", false, name)) refuse(name + ": single_word: true is not supported");
  return token;
}

bool same(const AddedToken& a, const AddedToken& b) {
  return a.content == b.content && a.special == b.special && a.normalized == b.normalized && a.lstrip == b.lstrip &&
         a.rstrip == b.rstrip;
}

class FolderReader {
 public:
  FolderReader(const std::string& path, const std::vector<AddedToken>& added, OwnClassUse class_use)
      : settings_(read_ordered(path, kSettings)),
        map_(read_ordered(path, kMap)),
        ids_(read_ordered(path, kAdded)),
        config_(read_config(path)),
        added_(added),
        class_use_(class_use) {}

  FolderTokens read() {
    read_class();
    const auto decoder = settings_.find("added_tokens_decoder");
    const bool decodes = decoder != settings_.end() && decoder->is_object();
    read_named(settings_, kSettings);
    const auto listed = settings_.find("extra_special_tokens");
    if (listed == settings_.end() || listed->is_null() || listed->empty()) take_additional();
    if (decodes) {
      read_decoder(*decoder);
    } else {
      read_map();
      read_ids();
    }
    if (!has_extra_) take_additional();
    add_numbered(decodes);
    add_named();
    add_extra();
    if (own_ != nullptr) add_again(own_->name == "Qwen2Tokenizer");
    d_.eos = content_of("eos_token", !decodes);
    d_.bos = content_of("bos_token", !decodes);
    d_.splits_special = flag_of(settings_, "split_special_tokens", false, kSettings);
    return std::move(d_);
  }

 private:
  void read_class() {
    if (class_use_ == OwnClassUse::kIgnore) return;
    const std::string name = class_name(settings_, config_);
    d_.unsupported = is_unsupported(name);
    if (d_.unsupported) d_.own_class = name;
    for (const OwnClass& known : own_classes())
      if (known.name == name) own_ = &known;
    if (own_ == nullptr) return;
    d_.own_class = own_->name;
    d_.keeps_template = own_->keeps_template;
    if (own_->nfc) d_.own_normalizer = {{"type", "NFC"}};
    d_.own_pre_tokenizer = words_of(own_->words, flag_of(settings_, "add_prefix_space", false, kSettings));
    for (const auto& [key, content] : own_->defaults) named_[key] = text_token(content);
  }

  // Reads bos_token and similar, tokens specific to the model (image_token), and extra ones.
  void read_named(const OrderedJson& object, const char* where) {
    for (const auto& [key, value] : object.items()) {
      if (!key.ends_with("_token")) continue;
      if (value.is_null() && is_named(key)) named_.erase(key);
      const auto token = token_of(value, &object == &map_, fmt::format("{}: {}", where, key));
      if (!token) continue;
      if (is_named(key))
        named_[key] = *token;
      else
        set_own(key, *token);
    }
    const auto extra = object.find("extra_special_tokens"), additional = object.find("additional_special_tokens");
    if (additional != object.end()) {
      additional_ = *additional;
      additional_in_ = where;
    }
    if (extra == object.end()) return;
    if (!extra->is_array()) extra_.clear();  // the map's value replaces that of tokenizer_config.json
    if (extra->is_object())                  // names tokens specific to the model, not extra ones
      for (const auto& [key, value] : extra->items()) {
        if (const auto token = token_of(value, false, where)) set_own(key, *token);
      }
    else if (extra->is_array())
      read_extra(*extra, fmt::format("{}: extra_special_tokens", where));
    has_extra_ = !extra->is_object();
  }
  // Reads the older name of the list of extra tokens.
  void take_additional() {
    if (!additional_) return;
    if (additional_->is_array()) read_extra(*additional_, fmt::format("{}: additional_special_tokens", additional_in_));
    has_extra_ = true;
    additional_.reset();
  }
  void set_own(const std::string& key, const ListedToken& token) {
    for (auto& [name, known] : own_named_)
      if (name == key) return void(known = token);
    own_named_.emplace_back(key, token);
  }
  void read_extra(const OrderedJson& list, const std::string& where) {
    for (const OrderedJson& value : list) {
      const auto token = token_of(value, false, where);
      if (!token) refuse(fmt::format("{}: {} is not a token", where, value.dump().substr(0, 80)));
      extra_.push_back(*token);
    }
  }

  void read_decoder(const OrderedJson& decoder) {
    for (const auto& [key, value] : decoder.items()) {
      int32_t id = -1;
      const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
      const auto token =
          value.is_object() ? token_of(value, false, fmt::format("{}: added_tokens_decoder", kSettings)) : std::nullopt;
      if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || id < 0 || !token)
        refuse(fmt::format("{}: added_tokens_decoder: {}: {} is not a token with an id", kSettings, key,
                           value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace).substr(0, 80)));
      numbered_[id] = *token;
      numbered_[id].id = id;
    }
  }

  // Its entries precede those of tokenizer_config.json.
  void read_map() { read_named(map_, kMap); }

  void read_ids() {
    for (const auto& [content, id] : ids_.items()) {
      if (!id.is_number_integer() || id < 0 || id > (1 << 30))
        refuse(fmt::format("{}: {}: {} is not a token id", kAdded, content, id.dump().substr(0, 80)));
      bool special = false;
      for (const auto& [key, token] : named_) special = special || token.content == content;
      for (const AddedToken& token : extra_) special = special || token.content == content;
      const auto number = id.get<int32_t>();
      numbered_[number] = {.id = number, .content = content, .special = special, .normalized = !special};
    }
  }

  // Adds the tokens with ids, in the order of the ids. If the class builds its own tokenizer, these include the tokens
  // of tokenizer.json only if tokenizer_config.json has no list. A named token among them becomes a special one, which
  // matters only where special tokens are split.
  void add_numbered(bool decodes) {
    if (!decodes)
      for (const AddedToken& token : added_) numbered_[token.id] = token;
    const bool splits = flag_of(settings_, "split_special_tokens", false, kSettings);
    for (auto& numbered : numbered_) {
      AddedToken& token = numbered.second;
      token.special = token.special || (splits && names(token.content));
      const bool known = std::any_of(added_.begin(), added_.end(), [&](const auto& old) { return same(old, token); });
      if (own_ != nullptr || !known) d_.tokens.push_back(token);
    }
    num_numbered_ = d_.tokens.size();
  }

  // Adds a named or extra token. Tokens with ids keep their flags. For any other token the last flags given count,
  // except that a token repeated as text alone is ignored.
  void add(const ListedToken& token) {
    const auto has_content = [&](const AddedToken& known) { return known.content == token.content; };
    const auto numbered_end = d_.tokens.begin() + static_cast<std::ptrdiff_t>(num_numbered_);
    if (token.content.empty() || std::any_of(d_.tokens.begin(), numbered_end, has_content)) return;
    if (own_ == nullptr && std::any_of(added_.begin(), added_.end(), has_content)) return;
    if (token.is_text && !texts_.insert(token.content).second) return;
    const auto known = std::find_if(numbered_end, d_.tokens.end(), has_content);
    if (known == d_.tokens.end())
      d_.tokens.push_back(token);
    else
      *known = token;
  }
  void add_named() {
    for (const char* key : kNamed)
      if (const auto found = named_.find(key); found != named_.end()) add(found->second);
    for (const auto& [key, token] : own_named_) add(token);
  }
  // Returns whether a named token has this content.
  bool names(const std::string& content) const {
    const auto has = [&](const auto& named) { return named.second.content == content; };
    return std::any_of(named_.begin(), named_.end(), has) || std::any_of(own_named_.begin(), own_named_.end(), has);
  }
  void add_extra() {
    for (const ListedToken& token : extra_) add(token);
    for (AddedToken& token : d_.tokens) token.special = token.special || names(token.content);
  }
  // Qwen2Tokenizer adds all special tokens a second time, without their flags.
  void add_again(bool all) {
    if (!all) return;
    for (AddedToken& token : d_.tokens) {
      const bool special = names(token.content) || std::any_of(extra_.begin(), extra_.end(), [&](const auto& extra) {
                             return extra.content == token.content;
                           });
      if (special) token = {.id = token.id, .content = token.content, .special = true};
    }
  }

  // The token that ends a document must be known: if tokenizer_config.json does not name it, the map is always read.
  std::string content_of(const char* key, bool map_read) const {
    if (const auto found = named_.find(key); found != named_.end()) return found->second.content;
    if (map_read || !map_.contains(key)) return {};
    const auto token = token_of(map_[key], true, kMap);
    return token ? token->content : std::string();
  }

  const OrderedJson settings_, map_, ids_, config_;
  const std::vector<AddedToken>& added_;  // of tokenizer.json
  const OwnClassUse class_use_;
  const OwnClass* own_ = nullptr;
  std::map<std::string, ListedToken, std::less<>> named_;
  std::vector<std::pair<std::string, ListedToken>> own_named_;  // specific to the model: image_token
  std::vector<ListedToken> extra_;
  bool has_extra_ = false;                 // a file had such a list, possibly empty
  std::optional<OrderedJson> additional_;  // additional_special_tokens, until it becomes that list
  std::string additional_in_;
  std::map<int32_t, AddedToken> numbered_;
  size_t num_numbered_ = 0;      // the first tokens of d_.tokens
  std::set<std::string> texts_;  // accepted by add()
  FolderTokens d_;
};

}  // namespace

FolderTokens read_folder_tokens(const std::string& path, const std::vector<AddedToken>& added, OwnClassUse class_use) {
  return FolderReader(path, added, class_use).read();
}

}  // namespace tri
