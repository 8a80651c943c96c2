// Listing a folder without exceptions.
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace tri {

// The entries of `folder`, in no order, as far as they can be read; `problem` says what ended the listing, and is clear
// at its end. A range-for over a directory_iterator throws when a later entry cannot be read.
inline std::vector<std::filesystem::directory_entry> entries_of(const std::filesystem::path& folder,
                                                                std::error_code& problem) {
  std::vector<std::filesystem::directory_entry> entries;
  for (std::filesystem::directory_iterator at(folder, problem); !problem && at != std::filesystem::directory_iterator();
       at.increment(problem))
    entries.push_back(*at);
  return entries;
}

}  // namespace tri
