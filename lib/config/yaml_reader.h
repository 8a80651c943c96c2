// Shared by readers of YAML files: collects problems, each with its location, and reports them together.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "io/base/readable_text.h"
#include "lib/config/error_list.h"
#include "lib/config/yaml_map.h"

namespace tri {

class YamlReader {
 protected:
  explicit YamlReader(const std::string& file_name) : file_name_(file_name) {}

  const std::string& file_name() const { return file_name_; }
  std::string at_line(int line) const { return fmt::format("{}:{}", file_name_, line); }

  // Names and values come from the file and may contain terminal control characters, so makes them readable.
  void add(const std::string& where, const std::string& text) { errors_.push_back(readable_text(where + ": " + text)); }
  bool has_errors() const { return !errors_.empty(); }
  bool shows_more_errors() const { return errors_.size() < kMostShownErrors; }
  Error all_errors() const { return join_errors(errors_); }

  // Returns the file's document; null if there is none, or after adding an error if it can't be read.
  YAML::Node document(std::string_view text) {
    std::vector<Problem> problems;
    const YAML::Node root = load_document(text, problems);
    for (const Problem& problem : problems) add(problem.line > 0 ? at_line(problem.line) : file_name_, problem.text);
    return root;
  }

  // Calls visit(pair) for each pair of a map, once per key.
  template <class Visit>
  void each_pair(const YAML::Node& map, const std::string& prefix, Visit visit) {
    std::vector<Problem> problems;
    const std::vector<YamlPair> pairs = yaml_pairs(map, prefix, problems);
    for (const Problem& problem : problems)
      add(at_line(problem.line), problem.part.empty() ? problem.text : problem.part + ": " + problem.text);
    for (const YamlPair& pair : pairs) visit(pair);
  }

 private:
  const std::string file_name_;
  std::vector<std::string> errors_;
};

}  // namespace tri
