// The man page, from the tree of commands and the table of config fields.
#include <string_view>

#include "app/command_tree.h"
#include "io/base/error.h"
#include "lib/config/fields.h"

namespace tri {
namespace {

// Escapes text for troff: no line begins with a request, and hyphens can be copied into a shell.
std::string troff(std::string_view text) {
  std::string escaped;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) escaped += "\\&";
    line_begins = c == '\n';
    if (c == '\\')
      escaped += "\\e";
    else if (c == '-')
      escaped += "\\-";
    else
      escaped += c;
  }
  return escaped;
}

// Allows line breaks after commas, because a list of values may be longer than a line.
std::string breakable(const std::string& values) {
  std::string text;
  for (const char c : values) {
    text += c;
    if (c == ',') text += "\\:";
  }
  return text;
}

std::string entry(const std::string& name, const std::string& values, std::string_view text) {
  return fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", troff(name), breakable(troff(values)), troff(text));
}

std::string options_of(const Command& command) {
  std::string text;
  for (const bool positional : {true, false})
    for (const OptionText& option : command.options()) {
      // Every command has the help option, so only the root describes it.
      if (!command.is_root() && option.help) continue;
      if (option.positional == positional) text += entry(option.name, option.values, option.description);
    }
  return text;
}

std::string fields() {
  std::string text;
  for (const Section& section : config_sections()) {
    text += fmt::format(".SS {}: {}\n", troff(section.name), troff(section.title));
    for (const Field& field : section.fields)
      text += entry(field.name(), fmt::format(" = {}  ({})", field.rule.default_text, field.rule.allowed_text),
                    field.consequence);
  }
  return text;
}

std::string exit_statuses() {
  const std::pair<int, const char*> meanings[] = {
      {static_cast<int>(ExitCode::kOk), "Done."},
      {1, "An internal error, or the checked condition is false: checkpoints or configs differ."},
      {static_cast<int>(ExitCode::kUsage), "An error in the config or on the command line."},
      {static_cast<int>(ExitCode::kFile), "A file or a checkpoint is missing, damaged or cannot be written."},
      {static_cast<int>(ExitCode::kDevice), "A device or its driver failed."},
      {static_cast<int>(ExitCode::kComm), "MPI, NCCL or another rank failed."},
      {static_cast<int>(ExitCode::kWatchdog), "The run hung: runs/NAME/hang names the rank that blocked it."},
      {static_cast<int>(ExitCode::kNotFinite), "Loss or gradients are not finite."},
      {static_cast<int>(ExitCode::kNoProgress), "supervise: consecutive attempts made no newer checkpoint."},
      {static_cast<int>(ExitCode::kSuspect), "doctor: a machine is slower than its peers, or configured differently."},
      {static_cast<int>(ExitCode::kBad), "doctor: a machine is broken; do not use it."},
      {static_cast<int>(ExitCode::kDrained),
       "Stopped by a signal, by unavailable storage or for lack of nodes: re-run the job."},
  };
  std::string text;
  for (const auto& [status, meaning] : meanings) text += entry(fmt::format("{}", status), "", meaning);
  return text;
}

std::string examples() {
  const std::pair<const char*, const char*> shown[] = {
      {"trireme check my.yaml --ranks 8", "Print memory, bubble and traffic of a config without starting it."},
      {"mpirun -n 8 trireme train my.yaml --set run.steps=300", "Train on eight ranks, from the newest checkpoint on."},
      {"trireme supervise my.yaml --launcher \"mpirun -n 8\"", "The same, restarted after faults."},
      {"trireme status runs/mine --watch", "Follow the run on a screen; ? lists its keys."},
      {"trireme report runs/mine", "Write runs/mine/report.html: curves, wall time, ranks, incidents."},
      {"trireme report runs/a runs/b", "Compare two runs on one page."},
      {"trireme timeline runs/mine --record 3", "Record the next three steps for ui.perfetto.dev."},
      {"trireme checkpoint export runs/mine out", "Write a folder that transformers loads."},
  };
  std::string text;
  for (const auto& [command, meaning] : shown)
    text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", troff(command), troff(meaning));
  return text;
}

}  // namespace

std::string manual_page(const Command& root, const std::string& version) {
  std::string text = fmt::format(".TH TRIREME 1 \"\" \"trireme {}\" \"User Commands\"\n", troff(version));
  text += ".nh\n.ad l\n";                       // names stay whole, and lines that hold long ones are not stretched
  const std::string does = root.description();  // "trireme trains ..."
  text += ".SH NAME\ntrireme \\- " + troff(does.starts_with("trireme ") ? does.substr(8) : does) + "\n";
  text +=
      ".SH SYNOPSIS\n.B trireme\n.I SUBCOMMAND\n[\\fIOPTIONS\\fR]\n.br\n.B mpirun \\-n\n.I RANKS\n.B trireme train\n"
      ".I CONFIG\n.SH OPTIONS\n";
  text += options_of(root) + ".SH COMMANDS\n";
  for (const Command* command : root.all()) {
    if (command->is_root()) continue;
    text += fmt::format(".SS {}\n{}\n", troff(command->path()), troff(command->description()));
    text += options_of(*command);
  }
  text +=
      ".SH CONFIG FIELDS\n"
      "A run config is YAML with one table per section. Each field has its default, allowed values and effect.\n" +
      fields();
  return text + ".SH EXIT STATUS\n" + exit_statuses() + ".SH EXAMPLES\n" + examples();
}

}  // namespace tri
