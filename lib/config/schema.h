// Publishes the field table as a JSON Schema (draft 7) for editors and `check-jsonschema`, and as a document.
#pragma once

#include <string>

namespace tri {

// Returns a schema with one line per field. It accepts every file that parse_config accepts, and rejects unknown keys,
// other types, numbers out of range and other choices; it can't express rules over several fields.
std::string config_schema();

// Returns Markdown with every field, for configs/REFERENCE.md.
std::string config_reference();

}  // namespace tri
