// The subcommands and options of the executable as declared: the source of `--help`, the man page, the shell completion
// and the messages about a misspelt command.
#pragma once

#include <string>

#include "app/command_line.h"

namespace tri {

// The message about a wrong command line, with the nearest name where one is misspelt, and where to read on. `problem`
// is the message of `root.parse`.
std::string usage_problem(const Command& root, const std::string& problem);

// A page for man(1), section 1, of all commands, all config fields, and the exit statuses.
std::string manual_page(const Command& root, const std::string& version);

// A script for bash's `complete`: subcommands, options, their choices, and config fields after --set and --get.
std::string bash_completion(const Command& root);

}  // namespace tri
