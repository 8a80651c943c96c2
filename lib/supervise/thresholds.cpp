#include "lib/supervise/thresholds.h"

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

namespace tri {
namespace {

constexpr std::array kFields{
    std::pair{std::string_view("silent_seconds"), &Thresholds::silent_seconds},
    std::pair{std::string_view("stopped_seconds"), &Thresholds::stopped_seconds},
    std::pair{std::string_view("gone_seconds"), &Thresholds::gone_seconds},
    std::pair{std::string_view("start_seconds"), &Thresholds::start_seconds},
    std::pair{std::string_view("end_seconds"), &Thresholds::end_seconds},
    std::pair{std::string_view("exclusion_hours"), &Thresholds::exclusion_hours},
    std::pair{std::string_view("repeat_hours"), &Thresholds::repeat_hours},
    std::pair{std::string_view("flap_seconds"), &Thresholds::flap_seconds},
    std::pair{std::string_view("attempts"), &Thresholds::attempts},
    std::pair{std::string_view("doctor_seconds"), &Thresholds::doctor_seconds},
};

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == text.npos ? "" : text.substr(begin, end - begin + 1);
}

}  // namespace

Result<Thresholds> thresholds_from(std::string_view text, const std::string& source) {
  Thresholds thresholds;
  std::istringstream in{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const size_t colon = line.find(':');
    const std::string name = trimmed(line.substr(0, colon));
    const std::string value = colon == line.npos ? "" : trimmed(line.substr(colon + 1));
    double Thresholds::*field = nullptr;
    for (const auto& [known, member] : kFields)
      if (known == name) field = member;
    if (field == nullptr) return usage_error("{}:{}: no threshold is called '{}'", source, number, name);
    char* end = nullptr;
    const double parsed = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0' || !std::isfinite(parsed) || parsed < 0)
      return usage_error("{}:{}: {} '{}' is no number of 0 or more", source, number, name, value);
    thresholds.*field = parsed;
  }
  return thresholds;
}

Result<Thresholds> read_thresholds(const std::string& run_dir) {
  const std::string path = run_dir + "/supervise.conf";
  errno = 0;
  std::ifstream in(path);
  if (!in) {
    if (errno == ENOENT) return Thresholds{};
    return system_error(errno, "{}", path);
  }
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return thresholds_from(text, path);
}

}  // namespace tri
