#include "lib/fault/stale_records.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "io/base/clock.h"
#include "io/base/file.h"
#include "io/flight_recorder/flight_recorder.h"
#include "io/flight_recorder/record.h"

namespace tri {
namespace {

constexpr double kDay = 24 * 3600;

// Seconds since the file was created or written by a system call. Stores into mapped memory do not count.
double file_age(const struct stat& info) { return wall_seconds() - static_cast<double>(info.st_mtime); }

bool is_stale(const std::string& path, const struct stat& info, const std::string& run_dir) {
  if (path.ends_with(".tmp")) return file_age(info) > kDay;  // it gets its final name right after its creation
  const auto record = read_flight_record(path, 0);
  const ProcessState state = record ? process_state_of(record.value()) : state_of_recorded_process(path);
  const bool silent = record && std::min(record.value().beat_seconds, record.value().last_event_seconds) > kDay;
  if (state == ProcessState::kGone)
    return silent || file_age(info) > kDay || (record && record.value().run_dir == run_dir);
  // It belongs to another container. A live process writes all the time: its watchdog does so several times a second.
  return state == ProcessState::kUnknown && silent;
}

}  // namespace

int remove_stale_records(const std::string& run_dir) {
  const std::string folder = flight_record_folder();
  const auto names = list_folder(folder);
  if (!names) return 0;
  int removed = 0;
  for (const std::string& name : names.value()) {
    const std::string path = folder + "/" + name;
    struct stat info {};
    const bool own = name.starts_with(kFlightRecordPrefix) && ::lstat(path.c_str(), &info) == 0 &&
                     S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
    if (own && is_stale(path, info, run_dir)) removed += ::unlink(path.c_str()) == 0;
  }
  return removed;
}

}  // namespace tri
