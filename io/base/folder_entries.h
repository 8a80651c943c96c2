// Lists a folder without exceptions.
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace tri {

// Returns the entries of `folder` that can be read, in no order; `problem` is the error that ended the listing, or
// clear at its end. (A range-for over a directory_iterator throws if a later entry cannot be read.)
inline std::vector<std::filesystem::directory_entry> entries_of(const std::filesystem::path& folder,
                                                                std::error_code& problem) {
  std::vector<std::filesystem::directory_entry> entries;
  for (std::filesystem::directory_iterator at(folder, problem); !problem && at != std::filesystem::directory_iterator();
       at.increment(problem))
    entries.push_back(*at);
  return entries;
}

}  // namespace tri
