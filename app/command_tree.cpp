#include "app/command_tree.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lib/config/fields.h"
#include "lib/config/nearest.h"
#include "lib/config/other_names.h"

namespace tri {
namespace {

// Replacements for options of other trainers. Config fields: other_names.h.
struct OtherOption {
  std::string_view command, option;  // '-' for '_'
  const char* here;
};
constexpr OtherOption kOtherOptions[] = {
    {"trireme train", "dry-run", "trireme check CONFIG --ranks N shows what a run would do"},
    {"trireme train", "resume", "a run resumes automatically from the newest checkpoint in its folder"},
    {"trireme train", "resume-from-checkpoint", "a run resumes automatically from the newest checkpoint in its folder"},
    {"trireme train", "load", "a run resumes automatically from the newest checkpoint in its folder"},
    {"trireme data prepare", "input", "the files' paths need no option: trireme data prepare --output PREFIX FILES"},
    {"trireme data prepare", "json-keys", "--field names the text's field"},
    {"trireme data prepare", "workers", "--threads sets the number of tokenizing threads"},
    {"trireme data prepare", "num-workers", "--threads sets the number of tokenizing threads"},
    {"trireme data prepare", "append-eod", "every document ends with the tokenizer's end-of-document token"},
    {"trireme generate", "max-new-tokens", "--tokens sets their number"},
    {"trireme generate", "max-length", "--tokens sets their number"},
    {"trireme generate", "max-tokens", "--tokens sets their number"},
    {"trireme eval", "data-path", "--data PREFIX names a token file"},
};
constexpr std::string_view kConfigOptions[] = {"config", "config-file", "config-path", "config-name",
                                               "job.config-file"};

// Whether the command obeys --set of the field.
bool takes_field(const Command& command, const Field& field) {
  if (command.path() == "trireme checkpoint import") return field.section != "model";
  const bool evaluates = command.path() == "trireme eval", generates = command.path() == "trireme generate";
  if (!evaluates && !generates) return true;
  if (field.section == "data") return evaluates || field.key == "tokenizer";
  if (field.section == "model") return field.key == "attention";
  if (field.section == "run") return field.key == "device" || field.key == "gemm_search";
  return field.section == "parallel" || field.section == "precision" || field.section == "fault" ||
         field.section == "metrics";
}

// "--set run.steps=VALUE"
std::string setting(const std::string& name) {
  const Field& field = *find_field(name);
  const bool is_choice = field.kind == FieldKind::kChoice || field.kind == FieldKind::kBoolean;
  return fmt::format("--set {}={}", name, is_choice ? field.rule.allowed_text : "VALUE");
}

// Returns what the command offers instead of an option of other trainers or the name of a field; "": unknown.
std::string in_place_of(const Command& command, const std::string& name) {
  std::string option = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::ranges::replace(option, '_', '-');
  for (const OtherOption& other : kOtherOptions)
    if (command.path() == other.command && option == other.option) return fmt::format("; {}", other.here);
  if (std::ranges::count(kConfigOptions, option) > 0 && command.has_option("config"))
    return fmt::format("; the config's path needs no option: {} my.yaml", command.path());

  const Counterpart here = counterpart_of(name);
  if (here.option == "--ranks" && command.has_option(here.option)) return "; --ranks sets the number of ranks";
  if (here.fields.empty())
    return here.known() && (command.has_option("--set") || !here.option.empty()) ? fmt::format("; {}", here.remark)
                                                                                 : "";
  if (!command.has_option("--set")) return "";
  std::vector<std::string> settings;
  for (const std::string& field : here.fields)
    if (takes_field(command, *find_field(field))) settings.push_back(setting(field));
  if (!settings.empty() && here.remark.empty()) return fmt::format("; {} sets it", fmt::join(settings, " or "));
  if (!settings.empty())
    return fmt::format("; the closest setting is {} ({})", fmt::join(settings, " or "), here.remark);
  if (here.fields[0].starts_with("model.")) return fmt::format("; {} comes from the checkpoint", here.fields[0]);
  return "";
}

// Handles "model.num_layers=4", a form that some programs accept.
std::string in_place_of_setting(const Command& command, const std::string& word) {
  const size_t begin = word.find_first_not_of('+'), equals = word.find('=');
  return begin < equals && equals != word.npos ? in_place_of(command, word.substr(begin, equals - begin)) : "";
}

std::string unknown_option(const Command& command, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  if (const std::string instead = in_place_of(command, name); !instead.empty())
    return fmt::format("{}: not an option of {}{}", name, command.path(), instead);
  std::vector<std::string> known;
  for (const OptionText& option : command.options())
    known.insert(known.end(), option.long_names.begin(), option.long_names.end());
  const std::string near = nearest(name.substr(std::min(name.find_first_not_of('-'), name.size())), known);
  return fmt::format("{}: unknown option of {}{}", name, command.path(),
                     near.empty() ? "" : fmt::format("; did you mean --{}?", near));
}

std::string unknown_subcommand(const Command& root, const Command& command, const std::string& word) {
  const std::vector<std::string> names = command.subcommand_names();
  if (const std::string near = nearest(word, names); !near.empty())
    return fmt::format("{}: unknown subcommand of {}; did you mean {}?", word, command.path(), near);
  std::vector<std::string> elsewhere;  // "inspect" is one of checkpoint and of data
  for (const Command* other : root.all())
    if (other->name() == word) elsewhere.push_back(other->path());
  if (!elsewhere.empty())
    return fmt::format("{}: unknown subcommand of {}; did you mean {}?", word, command.path(),
                       fmt::join(elsewhere, " or "));
  return fmt::format("{}: unknown subcommand of {}; the subcommands are {}", word, command.path(),
                     fmt::join(names, ", "));
}

}  // namespace

std::string usage_problem(const Command& root, const std::string& problem) {
  const Command& command = root.reached();
  const std::vector<std::string> words = command.remaining();
  const bool lacks_subcommand = !command.subcommand_names().empty();
  std::vector<std::string> lines;
  for (const std::string& word : words)
    if (word.size() > 1 && word[0] == '-') lines.push_back(unknown_option(command, word));
  if (lines.empty() && !words.empty()) {  // words after an unknown option are likely to be its values
    if (lacks_subcommand)
      lines.push_back(unknown_subcommand(root, command, words.front()));
    else
      for (const std::string& word : words)
        lines.push_back(
            fmt::format("{}: unexpected argument of {}{}", word, command.path(), in_place_of_setting(command, word)));
  }
  if (lines.empty() && lacks_subcommand)
    lines.push_back(
        fmt::format("{} needs a subcommand: {}", command.path(), fmt::join(command.subcommand_names(), ", ")));
  if (lines.empty()) lines.push_back(fmt::format("{}: {}", command.path(), problem));
  return fmt::format("{}\nsee {} --help\n", fmt::join(lines, "\n"), command.path());
}

}  // namespace tri
