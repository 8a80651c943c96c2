#include "io/base/proc.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "io/base/file.h"
#include "io/base/text_file.h"

namespace tri {

// Parses "12 (name) S 1 ...". The name may contain anything, including blanks and brackets.
std::optional<ProcessStat> process_stat(const std::string& folder) {
  const std::string text = text_of(folder + "/stat");
  const size_t name_end = text.rfind(')');
  if (name_end == text.npos || text.size() < name_end + 4) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 2));
  ProcessStat stat;
  if (!(fields >> stat.state >> stat.parent)) return std::nullopt;
  std::string skipped;
  for (int field = 5; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;  // in clock ticks
  fields >> user >> system;
  for (int field = 16; field < 22; ++field) fields >> skipped;
  fields >> stat.start;
  stat.cpu_seconds = (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return stat;
}

std::vector<pid_t> process_ids(const std::string& proc) {
  std::vector<pid_t> ids;
  const auto names = list_folder(proc);
  if (!names) return ids;
  for (const std::string& name : names.value()) {
    pid_t id = 0;
    const char* const last = name.data() + name.size();
    const auto [end, problem] = std::from_chars(name.data(), last, id);
    if (problem == std::errc() && end == last) ids.push_back(id);
  }
  return ids;
}

std::string process_folder(pid_t process, const std::string& proc) { return fmt::format("{}/{}", proc, process); }

std::optional<std::string_view> variable_in(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
    environment.remove_prefix(std::min(entry.size() + 1, environment.size()));
  }
  return std::nullopt;
}

int64_t pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? static_cast<int64_t>(info.st_ino) : 0;
}

std::optional<int64_t> available_bytes(std::string_view meminfo) {
  constexpr std::string_view kName = "MemAvailable:";
  const size_t at = meminfo.find(kName);
  if (at == meminfo.npos) return std::nullopt;
  const size_t begin = meminfo.find_first_not_of(' ', at + kName.size());
  int64_t kib = 0;
  if (begin == meminfo.npos ||
      std::from_chars(meminfo.data() + begin, meminfo.data() + meminfo.size(), kib).ec != std::errc())
    return std::nullopt;
  return kib * 1024;
}

}  // namespace tri
