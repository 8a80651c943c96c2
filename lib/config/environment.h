// Expands environment variables in the config's paths and names, and ~ for the home folder.
#pragma once

#include <string>
#include <string_view>

#include "io/base/error.h"

namespace tri {

// Replaces $NAME, ${NAME} and ${NAME:-DEFAULT} by the variable's value, or by DEFAULT if it is not set or empty, and
// "~/" at the beginning by $HOME. $$ is a plain $, and so is a $ before any other character. Fails with kUsage if a
// variable is not set or a brace is missing.
Result<std::string> expand_environment(std::string_view text);

// Returns the text that expand_environment turns into `text`, except for a "~/" at its beginning.
std::string escape_environment(std::string_view text);

}  // namespace tri
