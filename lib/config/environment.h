// Variables of the environment in the config's paths and names, and ~ for the home folder.
#pragma once

#include <string>
#include <string_view>

#include "io/base/error.h"

namespace tri {

// $NAME, ${NAME} and ${NAME:-DEFAULT} give way to the variable's value, or to DEFAULT where it is not set or empty;
// "~/" at the beginning to $HOME; $$ is a plain $, and so is one before anything else. Error (kUsage): a variable is
// not set, or a brace is missing.
Result<std::string> expand_environment(std::string_view text);

// The text that expand_environment turns into `text`, except for a "~/" at its beginning.
std::string escape_environment(std::string_view text);

}  // namespace tri
