#include "lib/doctor/host_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "io/base/file.h"
#include "io/base/hash.h"

namespace tri {
namespace {

std::vector<std::string> sorted_names(const std::string& folder) {
  auto names = list_folder(folder);
  if (!names) return {};
  std::sort(names.value().begin(), names.value().end());
  return std::move(names).value();
}

std::optional<double> number_in(const std::string& path) {
  const std::string text = first_line(path);
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return end == text.c_str() ? std::nullopt : std::optional(number);
}

void read_lanes(NetworkLink& link, const std::string& device) {
  if (const auto lanes = number_in(device + "/current_link_width")) link.pcie_lanes = static_cast<int>(*lanes);
  if (const auto most = number_in(device + "/max_link_width")) link.most_pcie_lanes = static_cast<int>(*most);
  // 255: a card that is not on PCIe, or asleep.
  for (auto* lanes : {&link.pcie_lanes, &link.most_pcie_lanes})
    if (*lanes && (**lanes <= 0 || **lanes > 32)) lanes->reset();
}

std::string joined(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Of the bytes that a control group uses, those of files that it has read or written: they make room for others.
double cached_files(const std::string& stat, const std::string& prefix) {
  std::istringstream in(stat);
  std::string name;
  double value = 0, sum = 0;
  while (in >> name >> value)
    if (name == prefix + "active_file" || name == prefix + "inactive_file") sum += value;
  return sum;
}

}  // namespace

std::string whole_text(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

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
    if (!names->empty()) text += fmt::format("{}{} {}", text.empty() ? "" : "; ", kind, joined(*names));
  return text;
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

int64_t within_container(int64_t available, const std::string& root) {
  // Version 2 of control groups, then version 1; inside a container its own group is the root.
  struct Group {
    const char *limit, *usage, *stat, *prefix;
  };
  const Group groups[] = {{"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat", ""},
                          {"sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes",
                           "sys/fs/cgroup/memory/memory.stat", "total_"}};
  for (const Group& group : groups) {
    const auto most = number_in(root + group.limit), used = number_in(root + group.usage);
    if (!most || !used) continue;
    const double free = *most - *used + cached_files(whole_text(root + group.stat), group.prefix);
    available = std::min(available, static_cast<int64_t>(std::max(free, 0.0)));
  }
  return available;
}

std::vector<NetworkLink> infiniband_ports(const std::string& root) {
  std::vector<NetworkLink> links;
  const std::string cards = root + "sys/class/infiniband";
  for (const std::string& card : sorted_names(cards))
    for (const std::string& port : sorted_names(cards + "/" + card + "/ports")) {
      const std::string folder = cards + "/" + card + "/ports/" + port;
      NetworkLink link{.name = card + " port " + port};
      link.up = first_line(folder + "/state").find("ACTIVE") != std::string::npos;
      link.gigabits = link.up ? number_in(folder + "/rate") : 0;  // "400 Gb/sec (4X NDR)"
      double errors = 0;
      for (const char* name : {"link_downed", "symbol_error", "port_rcv_errors", "local_link_integrity_errors"})
        errors += number_in(folder + "/counters/" + name).value_or(0);
      link.errors = errors;
      read_lanes(link, cards + "/" + card + "/device");
      links.push_back(std::move(link));
    }
  return links;
}

std::vector<NetworkLink> network_interfaces(const std::string& root) {
  std::vector<NetworkLink> links;
  const std::string cards = root + "sys/class/net";
  for (const std::string& card : sorted_names(cards)) {
    const std::string folder = cards + "/" + card;
    if (sorted_names(folder + "/device").empty()) continue;
    NetworkLink link{.name = card};
    link.up = first_line(folder + "/operstate") == "up";
    const auto megabits = number_in(folder + "/speed");  // -1: a virtual card that does not know
    if (link.up && megabits && *megabits > 0) link.gigabits = *megabits / 1000;
    read_lanes(link, folder + "/device");
    links.push_back(std::move(link));
  }
  return links;
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
  return numbers_of_list(first_line(root + "sys/devices/system/node/has_memory"));
}

std::string cpu_kind(std::string_view cpuinfo) {
  std::string model = "unknown CPU", flags;
  std::istringstream lines{std::string(cpuinfo)};
  for (std::string line; std::getline(lines, line) && !line.empty();) {  // the first CPU's
    const size_t colon = line.find(": ");
    if (colon == line.npos) continue;
    if (line.starts_with("model name")) model = line.substr(colon + 2);
    if (line.starts_with("flags") || line.starts_with("Features")) flags = line.substr(colon + 2);
  }
  return model + " " + hex64(xxh3_64(flags)).substr(0, 8);
}

}  // namespace tri
