#include "lib/huggingface/companions.h"

#include <algorithm>
#include <filesystem>

#include "io/base/file.h"
#include "io/base/folder_entries.h"
#include "io/base/json.h"
#include "io/tokens/tokenizer.h"

namespace tri::huggingface {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Names = std::vector<std::string>;

constexpr const char* kImportedConfig = "imported_config.json";
constexpr const char* kTemplateFolder = "additional_chat_templates";
constexpr std::string_view kTokenizerSettings[] = {"tokenizer_config.json", "special_tokens_map.json",
                                                   "added_tokens.json"};

Result<void> copy(const std::string& from, const std::string& to) {
  const auto file = MappedFile::open(from);
  if (!file) return file.error();
  std::error_code problem;
  fs::create_directories(fs::path(to).parent_path(), problem);
  if (problem) return file_error("{}: {}", to, problem.message());
  return write_file(to, file.value().text());
}

Result<void> copy_all(const Names& names, const std::string& from, const std::string& to) {
  for (const std::string& name : names)
    if (auto done = copy(from + "/" + name, to + "/" + name); !done) return done;
  return {};
}

// An empty object if there is none.
Json imported_config(const std::string& kept) {
  const auto file = MappedFile::open(kept + "/" + kImportedConfig);
  if (!file) return Json::object();
  Json json = try_parse_json<Json>(file.value().text());
  return json.is_object() ? json : Json::object();
}

}  // namespace

Names companions_in(const std::string& folder) {
  Names names;
  if (folder.empty()) return names;
  std::error_code absent;
  for (const char* name : {"generation_config.json", "chat_template.jinja", "chat_template.json"})
    if (fs::is_regular_file(fs::path(folder) / name, absent)) names.emplace_back(name);
  const size_t files = names.size();
  for (const auto& entry : entries_of(fs::path(folder) / kTemplateFolder, absent))
    if (entry.path().extension() == ".jinja" && entry.is_regular_file(absent))
      names.push_back(std::string(kTemplateFolder) + "/" + entry.path().filename().string());
  std::sort(names.begin() + static_cast<int64_t>(files), names.end());
  return names;
}

Result<Names> keep_companions(const std::string& folder, const std::string& run_dir) {
  Names names = companions_in(folder);
  std::error_code absent;
  for (const std::string_view name : kTokenizerSettings)
    if (fs::is_regular_file(fs::path(folder) / name, absent)) names.emplace_back(name);
  if (auto done = copy_all(names, folder, run_dir); !done) return done.error();
  if (auto done = copy(folder + "/config.json", run_dir + "/" + kImportedConfig); !done) return done.error();
  return names;
}

std::string companions_of(const std::string& checkpoint, const Config& config) {
  std::error_code absent;
  const std::string around = fs::absolute(checkpoint, absent).lexically_normal().parent_path().parent_path().string();
  for (const std::string& run_dir : {around, config.run.dir}) {
    if (!fs::is_regular_file(fs::path(run_dir) / kImportedConfig, absent)) continue;
    const std::string& spec = config.data.tokenizer;
    if (spec == "bytes") {  // the imported tokenizer, if the import found no other
      if (tokenizer_file(run_dir) != run_dir) continue;
      return run_dir;
    }
    if (!fs::exists(spec, absent)) return run_dir;
    const fs::path around_tokenizer = fs::absolute(tokenizer_file(spec), absent).parent_path();
    if (fs::equivalent(around_tokenizer, run_dir, absent)) return run_dir;
  }
  return "";
}

Ends imported_ends(const std::string& kept, Ends otherwise) {
  const Json json = imported_config(kept);
  const auto take = [&](const char* key, std::string& id) {
    if (const auto value = json.find(key); value != json.end()) id = value->dump();
  };
  take("bos_token_id", otherwise.bos);
  take("eos_token_id", otherwise.eos);
  take("pad_token_id", otherwise.pad);
  return otherwise;
}

std::string imported_model_type(const std::string& kept) {
  if (kept.empty()) return "";
  const Json json = imported_config(kept);
  const auto type = json.find("model_type");
  return type != json.end() && type->is_string() ? type->get<std::string>() : "";
}

Result<Names> write_companions(const std::string& kept, const std::string& folder) {
  Names names = companions_in(kept);
  if (auto done = copy_all(names, kept, folder); !done) return done.error();
  return names;
}

}  // namespace tri::huggingface
