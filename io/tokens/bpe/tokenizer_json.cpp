// tokenizer.json as the `tokenizers` package writes it, version 1.0; only byte-level BPE is supported. Every key of
// every object is either read or known to change no token; any other key is refused by name.
#include <fmt/ranges.h>
#include <algorithm>
#include <utility>

#include "io/base/file.h"
#include "io/base/json.h"
#include "io/base/log.h"
#include "io/base/random.h"
#include "io/tokens/bpe/bpe_tokenizer.h"
#include "io/tokens/bpe/byte_letters.h"
#include "io/tokens/bpe/folder_tokens.h"
#include "io/tokens/bpe/json_parts.h"
#include "io/tokens/utf8.h"

namespace tri {
namespace {

using Json = nlohmann::json;

// Returns `value`, shortened for messages: a value may be a whole vocabulary.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

// Returns a normalizer or pre-tokenizer without settings that change no token or that its class sets itself.
Json comparable(Json step) {
  if (!step.is_object()) return step;
  for (const char* list : {"pretokenizers", "normalizers"})
    if (step.contains(list) && step[list].is_array()) {
      if (step[list].size() == 1) return comparable(step[list][0]);
      for (Json& inner : step[list]) inner = comparable(inner);
    }
  if (step.value("type", Json()) != "ByteLevel") return step;
  return {{"type", "ByteLevel"}, {"use_regex", step.value("use_regex", true)}};
}

class Reader {
 public:
  Reader(const Json& file, BpeDescription& out) : file_(file), d_(out) {}

  void read() {
    known_keys(file_, "the file",
               {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                "decoder", "model"});
    for (const char* key : {"truncation", "padding"})
      if (file_.contains(key) && !file_[key].is_null())
        refuse(fmt::format("{}: {} would truncate or pad documents; set it to null", key, shown(file_[key])));
    read_model(member(file_, "model", "the file"));
    read_added();
    if (const Json* normalizer = set_member(file_, "normalizer")) read_normalizer(*normalizer, "normalizer");
    read_pre_tokenizer(member(file_, "pre_tokenizer", "the file"), "pre_tokenizer", true);
    if (!byte_level_) refuse("pre_tokenizer: no ByteLevel at its end; only byte-level BPE is supported");
    if (const Json* processor = set_member(file_, "post_processor")) read_post_processor(*processor, "post_processor");
    const Json& decoder = member(file_, "decoder", "the file");
    if (decoder.is_null()) refuse("decoder: null is not supported; set it to {\"type\": \"ByteLevel\"}");
    read_decoder(decoder, "decoder");
  }

  // Applies what the files next to this one change: they add tokens, and their class may set its own steps.
  void apply(const FolderTokens& folder) {
    if (!folder.own_class.empty()) take_class(folder);
    for (AddedToken token : folder.tokens) {
      const int32_t said = token.id;
      token.id = id_to_add(token.content);
      if (said >= 0 && said != token.id)
        refuse(fmt::format(
            "the other files of the folder give token {} the id {}, but transformers 5 gives it {}; make the ids "
            "agree, or add the token to tokenizer.json",
            token.content, said, token.id));
      std::string& known_as = bytes_of(token.id);
      if (find(token.content) < 0 && !known_as.empty())
        refuse(fmt::format("the other files of the folder add token {}, but the next id {} belongs to another token",
                           token.content, token.id));
      known_as = token.content;
      const auto old = std::find_if(d_.added.begin(), d_.added.end(),
                                    [&](const AddedToken& known) { return known.content == token.content; });
      if (old == d_.added.end()) {
        d_.added.push_back(std::move(token));
        continue;
      }
      token.special = token.special || old->special;  // the package never clears this flag
      *old = std::move(token);
    }
    d_.splits_special = folder.splits_special;
  }

  // Returns how the ids of the file's own added tokens differ from those that AutoTokenizer gives them; empty: not. The
  // package `tokenizers` (0.23) ignores the ids of tokens that are not in the vocabulary, and numbers them in order.
  std::string id_change() const {
    std::unordered_map<std::string, int32_t> given;
    auto next = static_cast<int32_t>(ids_.size());
    for (const AddedToken& token : d_.added) {
      const auto known = ids_.find(token.content);
      const auto [entry, is_new] = given.emplace(token.content, known == ids_.end() ? next : known->second);
      if (is_new && known == ids_.end()) ++next;
      if (entry->second != token.id)
        return fmt::format("gives token {} of added_tokens the id {}, not {}", token.content, entry->second, token.id);
    }
    return {};
  }

  // Returns the token of this text in the added tokens or the vocabulary; -1: none.
  int32_t find(const std::string& content) const {
    for (const AddedToken& token : d_.added)
      if (token.content == content) return token.id;
    const auto known = ids_.find(content);
    return known == ids_.end() ? -1 : known->second;
  }

 private:
  // Returns the id that the package gives to an added token.
  int32_t id_to_add(const std::string& content) const {
    if (const int32_t known = find(content); known >= 0) return known;
    auto next = static_cast<int32_t>(ids_.size());
    for (const AddedToken& token : d_.added) next = std::max(next, token.id + 1);
    return next;
  }

  void take_class(const FolderTokens& folder) {
    if (const std::string change = class_change(folder); !change.empty())
      refuse(
          fmt::format("transformers 5 uses the class {} for this folder, which {}; to use this file unchanged, set "
                      "tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json",
                      folder.own_class, change));
    d_.steps.clear();
    read_pre_tokenizer(folder.own_pre_tokenizer, "pre_tokenizer", true);
    if (!folder.keeps_template) d_.begin.clear(), ends_.clear();
    const std::vector<AddedToken> before = std::exchange(d_.added, {});
    for (const AddedToken& token : before)
      if (!ids_.contains(token.content)) bytes_of(token.id).clear();  // until they are added again
  }

 public:
  // Returns the unsupported change that the folder's class makes to this file; empty: none.
  std::string class_change(const FolderTokens& folder) const {
    if (folder.own_class.empty()) return {};
    if (folder.unsupported) return "sets words and a template of its own, which are not supported";
    const auto differs = [&](const char* key, const Json& own) {
      const Json* given = set_member(file_, key);
      return comparable(given == nullptr ? Json() : *given) != comparable(own);
    };
    for (const auto& [key, own] :
         {std::pair{"normalizer", &folder.own_normalizer}, std::pair{"pre_tokenizer", &folder.own_pre_tokenizer}})
      if (differs(key, *own)) return fmt::format("replaces the file's {} with its own", key);
    if (d_.whole == WholeWords::kTaken) return "drops the file's ignore_merges";
    for (const AddedToken& token : d_.added)
      if (std::none_of(folder.tokens.begin(), folder.tokens.end(),
                       [&](const AddedToken& kept) { return kept.content == token.content; }))
        return fmt::format("drops the token {}, which added_tokens_decoder does not list", token.content);
    return {};
  }

 private:
  static const Json& member(const Json& object, const char* key, const std::string& where) {
    if (!object.is_object() || !object.contains(key)) refuse(fmt::format("{}: {} is missing", where, key));
    return object[key];
  }
  // Treats null like a missing member.
  static const Json* set_member(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  static void known_keys(const Json& object, const std::string& where, const std::vector<std::string_view>& keys) {
    if (!object.is_object()) refuse(fmt::format("{}: {}, expected an object", where, shown(object)));
    for (const auto& [key, value] : object.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        refuse(fmt::format("{}: {}: {} is not supported", where, key, shown(value)));
  }
  static bool flag(const Json& object, const char* key, const std::string& where, std::optional<bool> absent = {}) {
    const auto found = object.find(key);
    if (found == object.end() && absent) return *absent;
    if (found == object.end() || !found->is_boolean()) refuse(fmt::format("{}: {} is not true or false", where, key));
    return found->get<bool>();
  }
  static std::string text(const Json& object, const char* key, const std::string& where) {
    const Json& value = member(object, key, where);
    if (!value.is_string()) refuse(fmt::format("{}: {}: {} is not a string", where, key, shown(value)));
    return value.get<std::string>();
  }
  // An id may have no token, but ids must stay below a bound: memory is allocated for every id.
  int32_t id_of(const Json& value, std::string_view where) const {
    if (!value.is_number_integer() || value < 0) refuse(fmt::format("{}: {} is not a token id", where, shown(value)));
    if (value >= ids_below_)
      refuse(fmt::format("{}: id {} is too large for a file with so few tokens: {} and above are refused", where,
                         shown(value), ids_below_));
    return value.get<int32_t>();
  }
  std::string& bytes_of(int32_t id) {
    if (static_cast<size_t>(id) >= d_.token_bytes.size()) d_.token_bytes.resize(static_cast<size_t>(id) + 1);
    return d_.token_bytes[static_cast<size_t>(id)];
  }

  void read_model(const Json& model) {
    known_keys(model, "model",
               {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (model.contains("type") && model["type"] != "BPE")
      refuse(fmt::format("model: type: {} is not supported; only \"BPE\" is", shown(model["type"])));
    // With a token for every byte nothing is unknown, so unk_token, fuse_unk and byte_fallback change nothing.
    if (const Json* dropout = set_member(model, "dropout"); dropout != nullptr && *dropout != 0.0)
      refuse(fmt::format("model: dropout: {} is not supported; set it to null", shown(*dropout)));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json* affix = set_member(model, key); affix != nullptr && *affix != "")
        refuse(fmt::format("model: {}: {} is not supported", key, shown(*affix)));
    d_.whole = flag(model, "ignore_merges", "model", false) ? WholeWords::kTaken : WholeWords::kMerged;
    const Json& vocab = member(model, "vocab", "model");
    if (!vocab.is_object()) refuse("model: vocab is not an object");
    const Json* added = set_member(file_, "added_tokens");
    ids_below_ = static_cast<int64_t>(2 * (vocab.size() + (added == nullptr ? 0 : added->size())) + 1024);
    for (const auto& [token, id] : vocab.items()) {
      const int32_t number = id_of(id, "model: vocab");
      ids_.emplace(token, number);
      if (!bytes_of(number).empty())
        refuse(fmt::format("model: vocab: id {} belongs to {} and to another token", number, token));
      auto bytes = bytes_of_letters(token);
      if (!bytes) d_.unspelled.push_back(number);
      bytes_of(number) = bytes ? std::move(*bytes) : token;
    }
    read_merges(member(model, "merges", "model"));
  }

  void read_merges(const Json& merges) {
    if (!merges.is_array()) refuse("model: merges is not a list");
    const auto token = [&](const std::string& letters, const Json& merge) {
      const auto found = ids_.find(letters);
      if (found == ids_.end())
        refuse(fmt::format("model: merges: {}: {} is not in the vocabulary", shown(merge), letters));
      if (!bytes_of_letters(letters))
        refuse(fmt::format("model: merges: {}: contains characters outside GPT-2's byte-level alphabet", shown(merge)));
      return found->second;
    };
    for (const Json& merge : merges) {
      std::string left, right;
      if (merge.is_string()) {
        const std::string pair = merge.get<std::string>();
        const size_t space = pair.find(' ');
        if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos)
          refuse(fmt::format("model: merges: {} is not a pair", shown(merge)));
        left = pair.substr(0, space), right = pair.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
      } else {
        refuse(fmt::format("model: merges: {} is not a pair", shown(merge)));
      }
      d_.merges.push_back({.left = token(left, merge),
                           .right = token(right, merge),
                           .rank = static_cast<int32_t>(d_.merges.size()),
                           .made = token(left + right, merge)});
    }
  }

  void read_added() {
    const Json* list = set_member(file_, "added_tokens");
    if (list == nullptr) return;
    if (!list->is_array()) refuse("added_tokens is not a list");
    for (const Json& entry : *list) {
      known_keys(entry, "added_tokens", {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token{.content = text(entry, "content", "added_tokens")};
      const std::string where = fmt::format("added_tokens: {}", token.content);
      token.id = id_of(member(entry, "id", where), where);
      token.special = flag(entry, "special", where);
      token.normalized = flag(entry, "normalized", where, !token.special);
      token.lstrip = flag(entry, "lstrip", where, false);
      token.rstrip = flag(entry, "rstrip", where, false);
      if (flag(entry, "single_word", where, false)) refuse(where + ": single_word: true is not supported");
      if (token.content.empty()) refuse(where + ": an empty token");
      std::string& known_as = bytes_of(token.id);  // a token of the vocabulary may be added under its own name
      const auto known = ids_.find(token.content);
      if (!known_as.empty() && known_as != token.content && (known == ids_.end() || known->second != token.id))
        refuse(fmt::format("{}: id {} belongs to another token", where, token.id));
      known_as = token.content;
      d_.added.push_back(std::move(token));
    }
  }

  void read_normalizer(const Json& json, const std::string& where) {
    const std::string type = text(json, "type", where);
    if (type == "Sequence") {
      known_keys(json, where, {"type", "normalizers"});
      for (const Json& inner : member(json, "normalizers", where)) read_normalizer(inner, where);
      return;
    }
    const auto form = enum_from_name<NormalForm>(type);
    if (!form)
      refuse(
          fmt::format("{}: {} is not supported; supported are Sequence, {}", where, type, enum_choices<NormalForm>()));
    known_keys(json, where, {"type"});
    d_.normal_forms.push_back(*form);
  }

  static SplitPattern pattern(const std::string& regex, const std::string& where) {
    auto compiled = SplitPattern::compile(regex);
    if (!compiled) refuse(where + ": " + compiled.error().message);
    return std::move(compiled).value();
  }

  void read_pre_tokenizer(const Json& json, const std::string& where, bool last) {
    const std::string type = text(json, "type", where);
    if (type == "Sequence") {
      known_keys(json, where, {"type", "pretokenizers"});
      const Json& list = member(json, "pretokenizers", where);
      for (size_t i = 0; i < list.size(); ++i) read_pre_tokenizer(list[i], where, last && i + 1 == list.size());
    } else if (type == "ByteLevel") {
      if (!last) refuse(where + ": ByteLevel is supported only as the last step");
      known_keys(json, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"});  // no token needs offsets
      byte_level_ = true;
      if (flag(json, "add_prefix_space", where)) d_.steps.emplace_back();
      if (flag(json, "use_regex", where, true))
        d_.steps.push_back({.pattern = pattern(std::string(kGpt2Pattern), where)});
    } else if (type == "Digits") {
      known_keys(json, where, {"type", "individual_digits"});
      d_.steps.push_back(
          {.pattern = pattern("\\p{N}", where),
           .behavior = flag(json, "individual_digits", where) ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
    } else if (type == "Split") {
      read_split(json, where);
    } else {
      refuse(fmt::format("{}: {} is not supported; supported are Sequence, Split, Digits, ByteLevel", where, type));
    }
  }

  void read_split(const Json& json, const std::string& where) {
    known_keys(json, where, {"type", "pattern", "behavior", "invert"});
    const Json& given = member(json, "pattern", where);
    std::string regex;
    if (given.is_object() && given.size() == 1 && given.contains("Regex")) {
      regex = text(given, "Regex", where);
    } else if (given.is_object() && given.size() == 1 && given.contains("String")) {
      const std::string literal = text(given, "String", where);
      for (size_t at = 0; at < literal.size();) {
        const size_t length = std::max<size_t>(utf8_sequence(std::string_view(literal).substr(at, 4)), 1);
        regex += fmt::format("\\x{{{:x}}}", utf8_code_point(std::string_view(literal).substr(at), length));
        at += length;
      }
    } else {
      refuse(fmt::format("{}: Split: pattern: {} is not supported; only Regex and String are", where, shown(given)));
    }
    const auto behavior = enum_from_name<SplitBehavior>(text(json, "behavior", where));
    if (!behavior)
      refuse(fmt::format("{}: Split: behavior: {} is not supported; supported are {}", where, shown(json["behavior"]),
                         enum_choices<SplitBehavior>()));
    d_.steps.push_back(
        {.pattern = pattern(regex, where), .behavior = *behavior, .invert = flag(json, "invert", where)});
  }

  void read_post_processor(const Json& json, const std::string& where) {
    const std::string type = text(json, "type", where);
    if (type == "Sequence") {
      known_keys(json, where, {"type", "processors"});
      for (const Json& inner : member(json, "processors", where)) read_post_processor(inner, where);
    } else if (type == "ByteLevel") {
      known_keys(json, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"});  // these concern only offsets
    } else if (type == "TemplateProcessing") {
      read_template(json, where + ": TemplateProcessing");
    } else {
      refuse(
          fmt::format("{}: {} is not supported; supported are Sequence, ByteLevel, TemplateProcessing", where, type));
    }
  }

  // Reads the tokens before the text, which begin documents, and after it, where only the end token is supported.
  void read_template(const Json& json, const std::string& where) {
    known_keys(json, where, {"type", "single", "pair", "special_tokens"});
    bool behind = false;
    for (const Json& element : member(json, "single", where)) {
      if (element.contains("Sequence")) {
        if (behind || element["Sequence"].value("id", "") != "A")
          refuse(fmt::format("{}: single: {} is not supported", where, shown(element)));
        behind = true;
        continue;
      }
      const std::string name = text(member(element, "SpecialToken", where), "id", where);
      const Json& ids = member(member(member(json, "special_tokens", where), name.c_str(), where), "ids", where);
      if (!ids.is_array()) refuse(fmt::format("{}: {}: ids is not a list", where, name));
      for (const Json& id : ids) (behind ? ends_ : d_.begin).push_back(id_of(id, where));
    }
    if (!behind) refuse(where + ": single: does not contain the text");
  }

  void read_decoder(const Json& json, const std::string& where) {
    const std::string type = text(json, "type", where);
    if (type == "Sequence") {
      known_keys(json, where, {"type", "decoders"});
      const Json& list = member(json, "decoders", where);
      if (list.size() != 1) refuse(where + ": a Sequence of several decoders is not supported");
      return read_decoder(list[0], where);
    }
    if (type != "ByteLevel") refuse(fmt::format("{}: {} is not supported; only ByteLevel is", where, type));
    known_keys(json, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }

 public:
  bool adds_prefix_space() const {
    return std::any_of(d_.steps.begin(), d_.steps.end(), [](const SplitStep& step) { return !step.pattern; });
  }

  std::vector<int32_t> ends_;  // that the template puts after a text

 private:
  const Json& file_;
  BpeDescription& d_;
  std::unordered_map<std::string, int32_t> ids_;  // of the vocabulary, by letters
  int64_t ids_below_ = 0;
  bool byte_level_ = false;
};

// transformers 5 ignores add_bos_token if a tokenizer.json exists: its post_processor decides.
void warn_of_bos(const std::string& path, const FolderTokens& folder, const BpeDescription& d) {
  const Json settings = read_beside(path, "tokenizer_config.json");
  const auto add = settings.find("add_bos_token");
  if (add == settings.end() || !add->is_boolean() || add->get<bool>() == !d.begin.empty()) return;
  log_warn(
      "{}: its post_processor puts {} before a text and add_bos_token in tokenizer_config.json is ignored; "
      "transformers 5 does the same, transformers 4 not for all classes",
      path, d.begin.empty() ? fmt::format("no bos_token {}", folder.bos) : "a token");
}

void read_ends(const Reader& reader, const FolderTokens& folder, BpeDescription& d) {
  if (!folder.eos.empty()) {
    d.eod = reader.find(folder.eos);
    if (d.eod < 0) refuse(fmt::format("eos_token {} of tokenizer_config.json is not in the vocabulary", folder.eos));
  }
  for (const char* usual : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    if (d.eod < 0) d.eod = reader.find(usual);
  if (d.eod < 0)
    refuse(
        "the token that ends a document is unknown; name it as \"eos_token\" in a file tokenizer_config.json in the "
        "same folder");
  for (const int32_t end : reader.ends_)
    if (end != d.eod)
      refuse(fmt::format(
          "post_processor: appends token {} to every text; only the token that ends documents is supported there "
          "({}, eos_token)",
          end, d.eod));
  for (const int32_t id : d.begin)
    if (static_cast<size_t>(id) >= d.token_bytes.size() || d.token_bytes[static_cast<size_t>(id)].empty())
      refuse(fmt::format("post_processor: token {} is not in the vocabulary", id));
}

void set_prefix_space(nlohmann::ordered_json& step, bool prefix) {
  if (step.contains("pretokenizers"))
    for (auto& inner : step["pretokenizers"]) set_prefix_space(inner, prefix);
  if (step.value("type", "") == "ByteLevel") step["add_prefix_space"] = prefix;
}

// Returns the differences from the file alone, for fingerprints; empty: none.
std::string change_of(const BpeDescription& alone, const BpeDescription& d, bool steps_differ) {
  const auto all = [](const BpeDescription& one) {
    std::vector<std::string> lines;
    for (const AddedToken& t : one.added)
      lines.push_back(
          fmt::format("{} {} {:d}{:d}{:d}{:d}", t.id, t.content, t.special, t.normalized, t.lstrip, t.rstrip));
    std::sort(lines.begin(), lines.end());
    return fmt::format("{}", fmt::join(lines, "\n"));
  };
  const std::string before = all(alone), after = all(d);
  if (before == after && !steps_differ && !d.splits_special) return {};
  return fmt::format("{}\n{:d}{:d}", after, d.splits_special, steps_differ);
}

struct ReadFile {
  BpeDescription description;
  std::string change;      // made by the files next to it; empty: none
  bool as_it_says = true;  // the file alone describes everything
  bool fixes_ids = false;  // its added tokens have ids that transformers 5 gives them only if the vocabulary lists them
  std::string warning;     // that transformers 5 produces other ids; empty: it does not
};

Result<ReadFile> read_file(const std::string& path, std::string_view text, OtherClass other_class) {
  ReadFile read{.description = {.path = path}};
  BpeDescription& d = read.description;
  try {
    const Json json = parse_shallow(text, "the file");
    if (!json.is_object()) refuse("not a JSON object");
    Reader reader(json, d);
    reader.read();
    BpeDescription alone{.added = d.added};
    const std::vector<int32_t> begin = d.begin;
    FolderTokens folder = read_folder_tokens(path, d.added, OwnClassUse::kFollow);
    if (const std::string change = reader.class_change(folder); !change.empty() && other_class == OtherClass::kWarn) {
      read.warning = fmt::format(
          "{}: used unchanged, but transformers 5 uses the class {} for this folder, which {}: its tokens can differ "
          "from those of this run",
          path, folder.own_class, change);
      folder = read_folder_tokens(path, d.added, OwnClassUse::kIgnore);
    }
    if (const std::string change = folder.own_class.empty() ? reader.id_change() : ""; !change.empty()) {
      if (other_class == OtherClass::kRefuse)
        refuse(fmt::format(
            "transformers 5 {}: it numbers tokens that are not in the vocabulary without gaps, in the order of the "
            "file; correct the ids, or also list the tokens with their ids in model.vocab",
            change));
      read.fixes_ids = true;
      if (read.warning.empty())
        read.warning = fmt::format(
            "{}: used unchanged, but transformers 5 {}: its tokens can differ from those of this run", path, change);
    }
    const bool prefix = reader.adds_prefix_space();
    reader.apply(folder);
    warn_of_bos(path, folder, d);
    read_ends(reader, folder, d);
    read.change = change_of(alone, d, reader.adds_prefix_space() != prefix);
    read.as_it_says = reader.ends_.empty() && begin == d.begin && read.change.empty() && !read.fixes_ids;
  } catch (const Error& error) {
    return Error{fmt::format("{}: {}", path, error.message), error.code};
  } catch (const Json::exception& problem) {
    return file_error("{}: not a valid tokenizer.json: {}", path, problem.what());
  }
  return read;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> open_tokenizer_json(const std::string& path, OtherClass other_class) {
  if (auto able = unicode_support(); !able) return Error{path + ": " + able.error().message, able.error().code};
  const auto file = MappedFile::open(path);
  if (!file) return file.error();
  auto read = read_file(path, file.value().text(), other_class);
  if (!read) return read.error();
  if (!read.value().warning.empty()) log_warn("{}", read.value().warning);
  BpeDescription description = std::move(read.value().description);
  const std::string begin = fmt::format("{}{}", fmt::join(description.begin, ","), read.value().change);
  description.fingerprint = fmt::format(
      "bpe:{:016x}", derive_key(derive_key(static_cast<uint64_t>(description.eod), begin), file.value().text()));
  return make_bpe_tokenizer(std::move(description));
}

Result<std::string> portable_tokenizer_json(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (!file) return file.error();
  const auto read = read_file(path, file.value().text(), OtherClass::kWarn);
  if (!read) return read.error();
  if (read.value().as_it_says) return std::string(file.value().text());
  nlohmann::ordered_json json = parse_json<nlohmann::ordered_json>(file.value().text());
  const BpeDescription& d = read.value().description;
  json["post_processor"] = begin_template(d);
  if (read.value().fixes_ids)
    for (const AddedToken& token : d.added) json["model"]["vocab"][token.content] = token.id;
  if (!read.value().change.empty()) {
    auto& added = json["added_tokens"] = nlohmann::ordered_json::array();
    std::vector<AddedToken> tokens = d.added;
    std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    for (const AddedToken& token : tokens)
      added.push_back({{"id", token.id},
                       {"content", token.content},
                       {"single_word", false},
                       {"lstrip", token.lstrip},
                       {"rstrip", token.rstrip},
                       {"normalized", token.normalized},
                       {"special", token.special}});
    const bool prefix = std::any_of(d.steps.begin(), d.steps.end(), [](const auto& step) { return !step.pattern; });
    set_prefix_space(json["pre_tokenizer"], prefix);
  }
  return json.dump(1) + "\n";
}

}  // namespace tri
