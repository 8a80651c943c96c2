// The field table as a JSON Schema (draft 7): what editors and `check-jsonschema` know of a run config.
#pragma once

#include <string>

namespace tri {

// One field a line. It accepts every file that parse_config accepts, and refuses unknown keys, other types, numbers out
// of range and other choices; rules that join fields are beyond it.
std::string config_schema();

}  // namespace tri
