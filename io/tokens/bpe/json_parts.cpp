#include "io/tokens/bpe/json_parts.h"

#include <cerrno>
#include <filesystem>

#include "io/base/file.h"

namespace tri {

using Json = nlohmann::json;

void refuse(const std::string& message) { throw Error{message, ExitCode::kFile}; }

Json parse_shallow(std::string_view text, const char* name) {
  constexpr int kMostNested = 64;
  const auto check = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMostNested)
      refuse(fmt::format("{}: lists and objects are nested more than {} deep", name, kMostNested));
    return true;
  };
  return try_parse_json<Json>(text, check);
}

Json read_beside(const std::string& path, const char* name) {
  const std::string other_path = (std::filesystem::path(path).parent_path() / name).string();
  const auto file = MappedFile::open(other_path);
  if (!file && file.error().os_error == ENOENT) return Json::object();
  if (!file) throw file.error();
  Json json = parse_shallow(file.value().text(), name);
  if (!json.is_object()) throw file_error("{}: not a JSON object", other_path);
  return json;
}

nlohmann::ordered_json begin_template(const BpeDescription& d) {
  if (d.begin.empty()) return nullptr;
  using Ordered = nlohmann::ordered_json;
  Ordered single = Ordered::array(), tokens = Ordered::object();
  for (const int32_t id : d.begin) {
    const std::string& name = d.token_bytes[static_cast<size_t>(id)];
    single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
    tokens[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  }
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  Ordered pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

nlohmann::ordered_json special_token_json(int64_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

nlohmann::ordered_json byte_level_json() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
}

nlohmann::ordered_json bpe_model_json(const nlohmann::ordered_json& vocab, const nlohmann::ordered_json& merges,
                                      bool ignore_merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", ignore_merges},
          {"vocab", vocab},
          {"merges", merges}};
}

}  // namespace tri
