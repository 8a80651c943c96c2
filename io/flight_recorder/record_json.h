// A rank's record as JSON: what a dump keeps of it, a file a rank.
#pragma once

#include <string>
#include <string_view>

#include "io/base/error.h"
#include "io/flight_recorder/record.h"

namespace tri {

// One object, in a line: enumerators by name, addresses and connections as "0x..." texts.
std::string to_json(const RankRecord& record);
// Unknown members are passed over, missing ones keep their defaults. Error: no such object; `source` is named in it.
Result<RankRecord> record_from_json(std::string_view text, std::string_view source);

}  // namespace tri
