// The subcommands and options of the executable as declared: the source of `--help`, the man page, the shell completion
// and the messages about a misspelt command.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace tri {

struct Command {
  std::string path;  // "trireme", "trireme data", "trireme data prepare"
  const CLI::App* app = nullptr;
};

// Returns `root`, then each subcommand in order of declaration, each followed by its own subcommands.
std::vector<Command> all_commands(const CLI::App& root);

// Returns the names of the direct subcommands.
std::vector<std::string> subcommand_names(const CLI::App& command);

// Returns "--prompt-ids", "-h,--help", or a positional's "checkpoint".
std::string option_name(const CLI::Option& option);
// Returns what follows the name in `--help`: " TEXT:{fp32,bf16}=fp32 REQUIRED"; "" for a flag.
std::string option_values(const CLI::Option& option);
// Returns the values of an option that accepts only a few: {"fp32", "bf16"}; none for other options.
std::vector<std::string> option_choices(const CLI::Option& option);

// Returns what is wrong with the command line, the nearest name if one is misspelt, and where to find help. `problem`
// was thrown by `root.parse` and is neither help nor version.
std::string usage_problem(const CLI::App& root, const CLI::ParseError& problem);

// Returns a page for man(1), section 1, of all commands, all config fields, and the exit statuses.
std::string manual_page(const CLI::App& root, const std::string& version);

// Returns a script for bash's `complete`: subcommands, options, their choices, and fields after --set and --get.
std::string bash_completion(const CLI::App& root);

}  // namespace tri
