#include "lib/supervise/thresholds.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "lib/config/nearest.h"

namespace tri {
namespace {

struct Field {
  std::string_view name;
  double Thresholds::*value;
  double least = 0;
};
constexpr std::array kFields{
    Field{"silent_seconds", &Thresholds::silent_seconds, 3},  // agents report once a second
    Field{"stopped_seconds", &Thresholds::stopped_seconds},
    Field{"begin_seconds", &Thresholds::begin_seconds},
    Field{"gone_seconds", &Thresholds::gone_seconds},
    Field{"start_seconds", &Thresholds::start_seconds, 1},
    Field{"end_seconds", &Thresholds::end_seconds, 1},
    Field{"exclusion_hours", &Thresholds::exclusion_hours, 0.1},  // less, and the next attempt could have it again
    Field{"repeat_hours", &Thresholds::repeat_hours},
    Field{"flap_seconds", &Thresholds::flap_seconds},
    Field{"port_errors", &Thresholds::port_errors},
    Field{"attempts", &Thresholds::attempts, 1},
    Field{"doctor_seconds", &Thresholds::doctor_seconds},
    Field{"drain_seconds", &Thresholds::drain_seconds},
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
    const auto field = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.name == name; });
    if (field == kFields.end()) {
      std::vector<std::string> known;
      for (const Field& f : kFields) known.emplace_back(f.name);
      const std::string meant = nearest(name, known);
      return usage_error("{}:{}: no threshold is called '{}'{}", source, number, name,
                         meant.empty() ? "" : "; did you mean " + meant + "?");
    }
    char* end = nullptr;
    const double parsed = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0' || !std::isfinite(parsed) || parsed < field->least)
      return usage_error("{}:{}: {} '{}' is no number of {:g} or more", source, number, name, value, field->least);
    thresholds.*(field->value) = parsed;
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
