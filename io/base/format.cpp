#include "io/base/format.h"

#include <fmt/format.h>

#include <cmath>

namespace tri {

std::string format_bytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole >= 48 * 3600) return fmt::format("{:.{}f} days", seconds / 86400, seconds < 864000 ? 1 : 0);
  if (whole >= 3600) return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{:.1f} s", seconds);
}

std::string format_count(double count) {
  const char* units[] = {"", "k", "M", "B", "T", "P", "E"};
  int unit = 0;
  for (; std::fabs(count) >= 1000 && unit < 6; ++unit) count /= 1000;
  return fmt::format("{:.{}f}{}", count, unit == 0 || count >= 100 ? 0 : (count >= 10 ? 1 : 2), units[unit]);
}

std::string counted(int64_t count, const std::string& noun) {
  const bool adds_es = noun.ends_with("ch") || noun.ends_with("ss");
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : adds_es ? "es" : "s");
}

}  // namespace tri
