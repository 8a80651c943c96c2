#include "lib/data/chat_template.h"

#include "io/base/file.h"
#include "lib/config/yaml_reader.h"

namespace tri {
namespace {

bool is_jinja(std::string_view text, const std::string& file_name) {
  return file_name.ends_with(".jinja") || file_name.ends_with(".jinja2") || text.find("{%") != text.npos ||
         text.find("{{") != text.npos || text.find("\"chat_template\"") != text.npos;
}

class TemplateReader : YamlReader {
 public:
  explicit TemplateReader(const std::string& file_name) : YamlReader(file_name) {}

  Result<ChatTemplate> read(std::string_view text) {
    const YAML::Node root = document(text);
    if (!has_errors() && !root.IsMap()) add(file_name(), "expected keys, such as \"roles:\"; " + known());
    if (has_errors()) return all_errors();
    each_pair(root, "", [&](const YamlPair& pair) { read_top(pair); });
    if (!has_errors() && chat_.roles.empty())
      add(file_name(), "no roles; add \"roles: {assistant: {prefix: ..., suffix: ..., train: true}, ...}\"");
    bool trains = false;
    for (const auto& [name, role] : chat_.roles) trains = trains || role.train;
    if (!has_errors() && !trains)
      add(file_name(), "no role has train: true, so no token would be trained; set it for the roles to train");
    for (const auto& [name, role] : chat_.names)
      if (!has_errors() && !chat_.roles.contains(role))
        add(file_name(),
            fmt::format("names: {} is another name of {}, which is not a role; add {} under roles", name, role, role));
    if (has_errors()) return all_errors();
    return std::move(chat_);
  }

 private:
  static std::string known() { return "the keys are begin, separator, roles, names, trim"; }

  void read_top(const YamlPair& pair) {
    const std::string where = at_line(pair.line);
    if (pair.key == "begin") return read_text(pair, chat_.begin);
    if (pair.key == "separator") return read_text(pair, chat_.separator);
    if (pair.key == "trim") return read_flag(pair, chat_.trim);
    if (pair.key == "names")
      return each_of(pair, [&](const YamlPair& inner) { read_text(inner, chat_.names[inner.key]); });
    if (pair.key != "roles") return add(where, pair.key + ": unknown key; " + known());
    each_of(pair, [&](const YamlPair& role) {
      ChatTemplate::Role& to = chat_.roles[role.key];
      each_of(role, [&](const YamlPair& inner) {
        if (inner.key == "prefix")
          read_text(inner, to.prefix);
        else if (inner.key == "suffix")
          read_text(inner, to.suffix);
        else if (inner.key == "train")
          read_flag(inner, to.train);
        else
          add(at_line(inner.line), inner.key + ": unknown key; those of a role are prefix, suffix, train");
      });
    });
  }

  template <class Visit>
  void each_of(const YamlPair& pair, Visit visit) {
    if (!pair.value.IsMap()) return add(at_line(pair.line), pair.key + ": expected {key: value, ...}");
    each_pair(pair.value, pair.key + ".", visit);
  }
  void read_text(const YamlPair& pair, std::string& out) {
    if (!pair.value.IsScalar())
      return add(at_line(pair.line), pair.key + ": expected a text in quotes, such as \"<|im_end|>\\n\"");
    out = pair.value.Scalar();
  }
  void read_flag(const YamlPair& pair, bool& out) {
    const std::string value = pair.value.IsScalar() ? pair.value.Scalar() : "";
    if (value != "true" && value != "false") return add(at_line(pair.line), pair.key + ": expected true or false");
    out = value == "true";
  }

  ChatTemplate chat_;
};

}  // namespace

Result<ChatTemplate> parse_chat_template(std::string_view text, const std::string& file_name) {
  if (is_jinja(text, file_name))
    return usage_error(
        "{}: is a chat template of Jinja, which trireme does not run; write the text that it puts around the messages "
        "of each role into a YAML file:\n"
        "  separator: \"\\n\"\n"
        "  roles:\n"
        "    user: {{prefix: \"<|im_start|>user\\n\", suffix: \"<|im_end|>\"}}\n"
        "    assistant: {{prefix: \"<|im_start|>assistant\\n\", suffix: \"<|im_end|>\", train: true}}",
        file_name);
  return TemplateReader(file_name).read(text);
}

Result<ChatTemplate> read_chat_template(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (!file) return file.error();
  return parse_chat_template(file.value().text(), path);
}

}  // namespace tri
