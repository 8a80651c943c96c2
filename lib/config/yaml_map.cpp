#include "lib/config/yaml_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace tri {
namespace {

// Returns the first line that is indented by a tab, or 0.
int line_after_tab(std::string_view text) {
  int line = 1;
  for (bool indents = true; const char c : text) {
    if (c == '\t' && indents) return line;
    if (c == '\n') ++line;
    indents = c == '\n' || (indents && c == ' ');
  }
  return 0;
}

class Pairs {
 public:
  Pairs(const std::string& prefix, std::vector<Problem>& problems) : prefix_(prefix), problems_(problems) {}

  // A map adds no key when it is added again, so anchors that merge each other often cost no more.
  void add(const YAML::Node& map) {
    added_.push_back(map);
    under_way_.push_back(map);
    std::vector<YAML::Node> merges;
    std::map<std::string, int> own;  // the keys of this map and their lines
    for (const auto& entry : map) {
      const int line = entry.first.Mark().line + 1;
      if (!entry.first.IsScalar()) {
        problems_.push_back({line, "", "a key must be a single word"});
        continue;
      }
      const std::string key = entry.first.Scalar();
      if (key == "<<") {
        add_merge(entry.second, line, merges);
        continue;
      }
      const auto [first, is_new] = own.emplace(key, line);
      if (!is_new)
        problems_.push_back(
            {line, prefix_ + key, fmt::format("given twice, first on line {}; keep one", first->second)});
      else if (known_.emplace(key, line).second)
        pairs_.push_back({key, line, entry.second});
    }
    for (const YAML::Node& merged : merges) {
      if (contains(under_way_, merged))
        problems_.push_back({merged.Mark().line + 1, prefix_ + "<<", "merges itself"});
      else if (added_.size() >= kMostMaps) {
        problems_.push_back(
            {merged.Mark().line + 1, prefix_ + "<<", fmt::format("merges more than {} maps", kMostMaps)});
        break;
      } else if (!contains(added_, merged))
        add(merged);
    }
    under_way_.pop_back();
  }

  std::vector<YamlPair> finish() && { return std::move(pairs_); }

 private:
  static constexpr size_t kMostMaps = 1000;  // each map is compared with all others

  static bool contains(const std::vector<YAML::Node>& maps, const YAML::Node& map) {
    return std::any_of(maps.begin(), maps.end(), [&](const YAML::Node& one) { return one.is(map); });
  }
  void add_merge(const YAML::Node& value, int line, std::vector<YAML::Node>& merges) {
    if (value.IsMap()) return merges.push_back(value);
    bool maps = value.IsSequence();
    if (maps)
      for (const YAML::Node& part : value) {
        maps = maps && part.IsMap();
        if (part.IsMap()) merges.push_back(part);
      }
    if (!maps)
      problems_.push_back(
          {line, prefix_ + "<<", "merges only maps; write <<: *NAME, where &NAME marks a map further up"});
  }

  const std::string& prefix_;
  std::vector<Problem>& problems_;
  std::map<std::string, int> known_;
  std::vector<YamlPair> pairs_;
  std::vector<YAML::Node> added_, under_way_;
};

}  // namespace

YAML::Node load_document(std::string_view text, std::vector<Problem>& problems) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() == 1) return documents[0];
    if (documents.size() > 1)
      problems.push_back({.text = fmt::format("{} YAML documents in one file; keep one", documents.size())});
  } catch (const YAML::Exception& error) {
    if (const int line = line_after_tab(text); line > 0 && line <= error.mark.line + 1)
      problems.push_back(
          {line, "", "a tab indents this line, but YAML allows only spaces; replace each tab with two spaces"});
    else
      problems.push_back(
          {error.mark.line + 1, "", "not valid YAML: " + error.msg + "; correct the brackets, quotes or indentation"});
  }
  return YAML::Node(YAML::NodeType::Null);
}

std::vector<YamlPair> yaml_pairs(const YAML::Node& map, const std::string& prefix, std::vector<Problem>& problems) {
  Pairs pairs(prefix, problems);
  pairs.add(map);
  return std::move(pairs).finish();
}

}  // namespace tri
