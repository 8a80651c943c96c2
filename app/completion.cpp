// The completion of a command line in bash, from the tree of commands and the table of config fields.
#include <fmt/ranges.h>

#include "app/command_tree.h"
#include "lib/config/fields.h"

namespace tri {
namespace {

// The fixed part: finds the word to complete, and cuts the candidates to what bash will replace. It splits the line
// itself, because bash splits "--set model.norm=rms" into four words, or two with another setting.
constexpr const char* kFrame = R"(_trireme() {
  local line=${COMP_LINE:0:COMP_POINT} words=() path='' word prev='' cur='' i
  read -ra words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=('')
  cur=${words[${#words[@]} - 1]}
  [[ ${#words[@]} -gt 1 ]] && prev=${words[${#words[@]} - 2]}
  for ((i = 1; i < ${#words[@]} - 1; ++i)); do
    word=${words[i]}
    [[ " $(_trireme_commands "$path") " == *" $word "* ]] && path+=${path:+ }$word
  done
  local candidates='' from=$cur option=''
  if [[ $cur == --[sg]et=* ]]; then # --set=FIELD=VALUE is one word
    option=${cur%%=*}=
    prev=${cur%%=*}
    cur=${cur#*=}
    from=$cur
  fi
  if [[ ($prev == --set || $prev == --get) && $cur == *=* ]]; then
    candidates=$(_trireme_field_values "${cur%%=*}")
    from=${cur#*=}
  elif [[ $prev == --set || $prev == --get ]]; then
    candidates=$(_trireme_fields)
  elif [[ $cur == --*=* ]]; then
    candidates=$(_trireme_values "$path ${cur%%=*}")
    from=${cur#*=}
  elif candidates=$(_trireme_values "$path $prev") && [[ -n $candidates ]]; then
    :
  elif [[ $cur == -* ]]; then
    candidates=$(_trireme_options "$path")
  else
    candidates=$(_trireme_commands "$path")
  fi
  COMPREPLY=()
  if [[ $prev == --set && $cur != *=* ]]; then
    compopt -o nospace 2>/dev/null
    for word in $candidates; do
      [[ $word == "$from"* ]] && COMPREPLY+=("$word=")
    done
    [[ $COMP_WORDBREAKS == *=* ]] || COMPREPLY=("${COMPREPLY[@]/#/$option}")
  else
    for word in $candidates; do
      [[ $word == "$from"* ]] && COMPREPLY+=("$word")
    done
    if [[ $COMP_WORDBREAKS != *=* ]]; then
      [[ $cur == *=* ]] && option+=${cur%%=*}=
      COMPREPLY=("${COMPREPLY[@]/#/$option}")
    fi
  fi
}
complete -o default -F _trireme trireme
)";

// Returns "  'a b') echo 'x y' ;;": the candidates of a function for one word.
std::string row(const std::string& word, const std::vector<std::string>& values) {
  return values.empty() ? "" : fmt::format("    '{}') echo '{}' ;;\n", word, fmt::join(values, " "));
}

std::string function(const char* name, const std::string& rows) {
  return fmt::format("{}() {{\n  case $1 in\n{}  esac\n}}\n", name, rows);
}

std::vector<std::string> field_choices(const Field& field) {
  if (field.kind != FieldKind::kChoice && field.kind != FieldKind::kBoolean) return {};
  return choices_of(field.rule.allowed_text);
}

}  // namespace

std::string bash_completion(const Command& root) {
  std::string commands, options, values, fields = "  echo '", field_values;
  for (const Command* command : root.all()) {
    const std::string path = command->is_root() ? "" : command->path().substr(command->path().find(' ') + 1);
    commands += row(path, command->subcommand_names());
    std::vector<std::string> names;
    for (const OptionText& option : command->options())
      for (const std::string& name : option.long_names) {
        names.push_back("--" + name);
        values += row(path + " --" + name, option.choices);
      }
    options += row(path, names);
  }
  for (const Section& section : config_sections())
    for (const Field& field : section.fields) {
      fields += (fields.back() == '\'' ? "" : " ") + field.name();
      field_values += row(field.name(), field_choices(field));
    }
  return "# bash completion of trireme. Made by `trireme completion bash`.\n# shellcheck shell=bash\n" +
         function("_trireme_commands", commands) + function("_trireme_options", options) +
         function("_trireme_values", values) + fmt::format("_trireme_fields() {{\n{}'\n}}\n", fields) +
         function("_trireme_field_values", field_values) + kFrame;
}

}  // namespace tri
