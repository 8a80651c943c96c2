// Dates as text, from seconds since 1970.
#pragma once

#include <string>

namespace tri {

// Return the date in the machine's time zone, and in UTC. `format`: that of strftime, for up to 63 characters. Safe for
// concurrent use.
std::string local_date(double seconds_since_1970, const char* format = "%F %T");
std::string utc_date(double seconds_since_1970, const char* format);

}  // namespace tri
