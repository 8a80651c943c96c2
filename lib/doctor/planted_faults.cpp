#include "lib/doctor/planted_faults.h"

#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

namespace tri {
namespace {

std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

bool plant(PlantedFaults& faults, std::string_view name, std::optional<int> number) {
  if (name == "wrong-bits" && !number) return faults.wrong_bits = true;
  if (name == "full-disk" && !number) return faults.full_disk = true;
  if (!number) return false;
  if (name == "slow-copy") return faults.slow_copy = std::chrono::microseconds(*number), true;
  if (name == "throttled-link") return faults.throttled_link = std::chrono::microseconds(*number), true;
  if (name == "nodes") return faults.pretend_nodes = *number, true;
  return false;
}

}  // namespace

Result<PlantedFaults> planted_faults(const std::string& text, int world_rank) {
  PlantedFaults faults;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t slash = word.find('/'), equals = word.find('=');
    const std::string rank = word.substr(0, slash);
    const auto number = equals == word.npos ? std::nullopt : number_of(std::string_view(word).substr(equals + 1));
    PlantedFaults others;
    const bool known = slash != word.npos && (equals == word.npos || number) && (rank == "*" || number_of(rank)) &&
                       plant(others, std::string_view(word).substr(slash + 1, equals - slash - 1), number);
    if (!known) return usage_error("TRIREME_TEST_DOCTOR: {}: not RANK/FAULT[=NUMBER] of a fault that is known", word);
    if (rank == "*" || number_of(rank) == world_rank)
      plant(faults, std::string_view(word).substr(slash + 1, equals - slash - 1), number);
  }
  return faults;
}

}  // namespace tri
