#include "lib/doctor/host_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <set>
#include <sstream>

#include "io/base/hash.h"
#include "io/base/network_ports.h"
#include "io/base/text_file.h"

namespace tri {
namespace {

// Returns the part of a control group's memory that caches files, which can be reclaimed.
double cached_files(const std::string& stat, const std::string& prefix) {
  std::istringstream in(stat);
  std::string name;
  double value = 0, sum = 0;
  while (in >> name >> value)
    if (name == prefix + "active_file" || name == prefix + "inactive_file") sum += value;
  return sum;
}

}  // namespace

std::string transports_of(std::string_view maps) {
  std::set<std::string> pml, btl, mtl, ucx;
  const auto collect = [&](std::string_view prefix, std::set<std::string>& names) {
    for (size_t at = maps.find(prefix); at != maps.npos; at = maps.find(prefix, at + 1)) {
      const size_t begin = at + prefix.size(), end = maps.find(".so", begin);
      if (end != maps.npos && end - begin < 32) names.emplace(maps.substr(begin, end - begin));
    }
  };
  collect("/mca_pml_", pml);
  collect("/mca_btl_", btl);
  collect("/mca_mtl_", mtl);
  collect("/libuct_", ucx);
  std::string text;
  for (const auto& [kind, names] : {std::pair{"pml", &pml}, {"btl", &btl}, {"mtl", &mtl}, {"UCX", &ucx}})
    if (!names->empty()) text += fmt::format("{}{} {}", text.empty() ? "" : "; ", kind, fmt::join(*names, ", "));
  return text;
}

int64_t within_container(int64_t available, const std::string& root) {
  // Version 2 of control groups, then version 1. Inside a container its own group is the root.
  struct Group {
    const char *limit, *usage, *stat, *prefix;
  };
  const Group groups[] = {{"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat", ""},
                          {"sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes",
                           "sys/fs/cgroup/memory/memory.stat", "total_"}};
  for (const Group& group : groups) {
    const auto most = number_in(root + group.limit), used = number_in(root + group.usage);
    if (!most || !used) continue;
    const double free = *most - *used + cached_files(text_of(root + group.stat), group.prefix);
    available = std::min(available, static_cast<int64_t>(std::max(free, 0.0)));
  }
  return available;
}

std::vector<int> numbers_of_list(std::string_view list) {
  std::vector<int> numbers;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view item = list.substr(0, comma);
    int first = 0, last = 0;
    const auto [end, problem] = std::from_chars(item.data(), item.data() + item.size(), first);
    if (problem != std::errc()) return numbers;
    last = first;
    if (end != item.data() + item.size() && *end == '-') std::from_chars(end + 1, item.data() + item.size(), last);
    for (int number = first; number <= last && number - first < 4096; ++number) numbers.push_back(number);
    list = comma == list.npos ? std::string_view() : list.substr(comma + 1);
  }
  return numbers;
}

std::vector<int> numa_nodes(const std::string& root) {
  return numbers_of_list(first_line_of(root + "sys/devices/system/node/has_memory"));
}

std::string cpu_kind(std::string_view cpuinfo) {
  std::string model = "unknown CPU", flags;
  std::istringstream lines{std::string(cpuinfo)};
  for (std::string line; std::getline(lines, line) && !line.empty();) {  // of the first CPU
    const size_t colon = line.find(": ");
    if (colon == line.npos) continue;
    if (line.starts_with("model name")) model = line.substr(colon + 2);
    if (line.starts_with("flags") || line.starts_with("Features")) flags = line.substr(colon + 2);
  }
  return model + " " + hex64(xxh3_64(flags)).substr(0, 8);
}

}  // namespace tri
