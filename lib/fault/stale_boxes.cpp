#include "lib/fault/stale_boxes.h"

#include <sys/stat.h>
#include <unistd.h>

#include <ctime>

#include "io/black_box/record.h"

namespace tri {

int remove_stale_boxes(const std::string& run_dir) {
  constexpr time_t kDay = 24 * 3600;
  int removed = 0;
  for (const std::string& path : list_black_boxes()) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0 || info.st_uid != ::geteuid()) continue;
    const auto record = read_black_box(path, 0);
    if (!record || process_state_of(record.value()) != ProcessState::kGone) continue;
    const bool old = std::time(nullptr) - info.st_mtime > kDay;
    if (old || record.value().run_dir == run_dir) removed += ::unlink(path.c_str()) == 0;
  }
  return removed;
}

}  // namespace tri
