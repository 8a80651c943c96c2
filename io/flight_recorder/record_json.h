// A rank's record as JSON, as a dump stores it: one file per rank.
#pragma once

#include <string>
#include <string_view>

#include "io/base/error.h"
#include "io/flight_recorder/record.h"

namespace tri {

// Returns one object on one line: enumerators by name, addresses and connections as "0x..." texts.
std::string to_json(const RankRecord& record);
// Ignores unknown members; missing ones keep their defaults. Fails, naming `source`, if the text is not such an object.
Result<RankRecord> record_from_json(std::string_view text, std::string_view source);

}  // namespace tri
