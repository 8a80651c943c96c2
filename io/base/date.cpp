#include "io/base/date.h"

#include <time.h>

namespace tri {
namespace {

std::string date(double seconds, tm* (*parts_of)(const time_t*, tm*), const char* format) {
  const auto whole = static_cast<time_t>(seconds);
  tm parts{};
  char text[64];
  if (parts_of(&whole, &parts) == nullptr) return "?";  // a year that does not fit
  return {text, ::strftime(text, sizeof text, format, &parts)};
}

}  // namespace

std::string local_date(double seconds_since_1970, const char* format) {
  return date(seconds_since_1970, ::localtime_r, format);
}

std::string utc_date(double seconds_since_1970, const char* format) {
  return date(seconds_since_1970, ::gmtime_r, format);
}

}  // namespace tri
