// The field table for others: as a JSON Schema (draft 7) for editors and `check-jsonschema`, and as a document.
#pragma once

#include <string>

namespace tri {

// One field a line. It accepts every file that parse_config accepts, and refuses unknown keys, other types, numbers out
// of range and other choices; rules that join fields are beyond it.
std::string config_schema();

// Markdown with every field: configs/REFERENCE.md.
std::string config_reference();

}  // namespace tri
