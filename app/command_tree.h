// The subcommands and options of the executable as they were declared: what `--help`, the man page, the completion of a
// shell and the words about a misspelt command all come from.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tri {

struct Command {
  std::string path;  // "trireme", "trireme data", "trireme data prepare"
  const CLI::App* app = nullptr;
};

// `root` first, then each subcommand in the order of its declaration, before those below it.
std::vector<Command> all_commands(const CLI::App& root);

// The names of the subcommands right below.
std::vector<std::string> subcommand_names(const CLI::App& command);

// "--prompt-ids", "-h,--help", or a positional's "checkpoint".
std::string option_name(const CLI::Option& option);
// What follows the name in `--help`: " TEXT:{fp32,bf16}=fp32 REQUIRED"; "" for a flag.
std::string option_values(const CLI::Option& option);
// The values of an option that takes one of a few: {"fp32", "bf16"}; none: it takes others.
std::vector<std::string> option_choices(const CLI::Option& option);

// What was wrong with the command line, with the nearest name where one is misspelt, and where to read on. `problem` is
// what `root.parse` threw, neither help nor version.
std::string usage_problem(const CLI::App& root, const CLI::ParseError& problem);

// A page for man(1), section 1, of all commands, all config fields, and the exit statuses.
std::string manual_page(const CLI::App& root, const std::string& version);

// A script for bash's `complete`: subcommands, options, their choices, and config fields after --set and --get.
std::string bash_completion(const CLI::App& root);

}  // namespace tri
