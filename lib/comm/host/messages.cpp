#include "lib/comm/host/messages.h"

#include <algorithm>

namespace tri {

std::optional<Error> first_error(const std::vector<std::optional<Error>>& of_ranks) {
  const auto failed = [](const std::optional<Error>& error) { return error.has_value(); };
  const auto first = std::find_if(of_ranks.begin(), of_ranks.end(), failed);
  if (first == of_ranks.end()) return std::nullopt;
  const auto count = std::count_if(of_ranks.begin(), of_ranks.end(), failed);
  const bool alike = std::all_of(of_ranks.begin(), of_ranks.end(), [&](const std::optional<Error>& error) {
    return error && error->message == (*first)->message;
  });
  const auto rank = first - of_ranks.begin();
  if (alike || (rank == 0 && count == 1)) return **first;
  const std::string place =
      count == 1 ? fmt::format("rank {}", rank) : fmt::format("rank {}, the first of {} that failed", rank, count);
  return Error{fmt::format("{}: {}", place, (*first)->message), (*first)->code, (*first)->os_error};
}

}  // namespace tri
