#include "lib/supervise/node_health.h"
#include "io/base/folder_entries.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <thread>

namespace tri {
namespace {

namespace fs = std::filesystem;

int64_t number_in(const fs::path& path, int64_t otherwise = 0) {
  std::ifstream in(path);
  int64_t value = otherwise;
  return in >> value ? value : otherwise;
}

std::string word_in(const fs::path& path) {
  std::ifstream in(path);
  std::string word;
  in >> word;
  return word;
}

constexpr size_t kMostXids = 16;
constexpr int64_t kWord = 4;  // InfiniBand's counters of data are in words of four bytes

}  // namespace

std::vector<PortSight> read_ports(const std::string& sys) {
  std::vector<PortSight> ports;
  std::error_code problem;
  for (const auto& entry : entries_of(sys + "/class/net", problem)) {
    if (!fs::exists(entry.path() / "device", problem)) continue;  // virtual
    const fs::path statistics = entry.path() / "statistics";
    PortSight sight{.name = entry.path().filename(),
                    .up = word_in(entry.path() / "operstate") != "down",
                    .changes = number_in(entry.path() / "carrier_changes"),
                    .received = number_in(statistics / "rx_bytes"),
                    .sent = number_in(statistics / "tx_bytes"),
                    .errors = number_in(statistics / "rx_errors") + number_in(statistics / "tx_errors")};
    // RDMA over Ethernet passes the kernel by, and its statistics.
    for (const auto& device : entries_of(entry.path() / "device/infiniband", problem))
      for (const auto& port : entries_of(device.path() / "ports", problem)) {
        sight.received += kWord * number_in(port.path() / "counters/port_rcv_data");
        sight.sent += kWord * number_in(port.path() / "counters/port_xmit_data");
      }
    ports.push_back(std::move(sight));
  }
  for (const auto& device : entries_of(sys + "/class/infiniband", problem))
    for (const auto& port : entries_of(device.path() / "ports", problem)) {
      const fs::path counters = port.path() / "counters";
      ports.push_back({.name = device.path().filename().string() + ":" + port.path().filename().string(),
                       .up = word_in(port.path() / "state") == "4:",  // "4: ACTIVE"
                       .changes = 2 * number_in(counters / "link_downed"),
                       .received = kWord * number_in(counters / "port_rcv_data"),
                       .sent = kWord * number_in(counters / "port_xmit_data"),
                       .errors = number_in(counters / "symbol_error") + number_in(counters / "port_rcv_errors")});
    }
  std::sort(ports.begin(), ports.end(), [](const PortSight& a, const PortSight& b) { return a.name < b.name; });
  return ports;
}

GpuWatch::GpuWatch() {
  auto opened = Nvml::open();
  if (!opened) return;
  const auto count = opened.value()->num_gpus();
  if (!count) return;
  nvml_ = std::move(opened).value();
  nvml_->watch_xids();
  for (int i = 0; i < count.value(); ++i) {
    const auto gpu = nvml_->gpu(i, NvlinkFigures::kNone);
    if (!gpu && gpu.error().os_error == EACCES) continue;  // another job's
    gpus_.push_back({.pci = fmt::format("GPU {}", i)});
    indices_.push_back(i);
  }
}

std::vector<GpuSight> GpuWatch::look(int milliseconds) {
  if (!nvml_) return {};
  for (const auto [index, xid] : nvml_->next_xids(milliseconds))
    for (size_t i = 0; i < gpus_.size(); ++i)
      if (indices_[i] == index) add_xid(gpus_[i], xid);
  const auto links = looks_++ % kLinksEvery == 0 ? NvlinkFigures::kAll : NvlinkFigures::kNone;
  for (size_t i = 0; i < gpus_.size(); ++i) {
    GpuSight& sight = gpus_[i];
    const auto now = nvml_->gpu(indices_[i], links);
    sight.lost = !now.ok();
    if (!now) continue;
    const GpuHealth& gpu = now.value();
    if (!gpu.bus_id.empty()) sight.pci = short_bus_id(gpu.bus_id);
    sight.ecc_errors = static_cast<int64_t>(gpu.uncorrected_errors.value_or(0));
    sight.remapped_rows = gpu.remapped_rows.value_or(0);
    sight.remap_failed = gpu.remap_failed.value_or(false);
    sight.recovery_action = gpu.recovery_action ? static_cast<int>(*gpu.recovery_action) : -1;
    sight.slowed = (gpu.slowdown_reasons.value_or(0) & kSlowedByFault) != 0;
    if (links == NvlinkFigures::kNone) continue;
    sight.nvlinks_up = gpu.nvlinks_up;
    sight.nvlink_recoveries = static_cast<int64_t>(gpu.nvlink_recoveries.value_or(0));
    sight.nvlink_errors = static_cast<int64_t>(gpu.nvlink_errors.value_or(0));
  }
  return gpus_;
}

void add_xid(GpuSight& gpu, int xid) {
  gpu.xids.push_back(xid);
  ++gpu.num_xids;
  if (gpu.xids.size() > kMostXids) gpu.xids.erase(gpu.xids.begin());
}

std::string short_bus_id(std::string_view id) {
  // NVML writes the domain with eight digits, the kernel with four.
  constexpr std::string_view kZeros = "0000";
  const bool is_long = id.find(':') == 8 && id.substr(0, kZeros.size()) == kZeros;
  std::string text(is_long ? id.substr(kZeros.size()) : id);
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

KernelXid kernel_xid(std::string_view line) {
  constexpr std::string_view kMark = "NVRM: Xid (PCI:";
  const size_t at = line.find(kMark);
  if (at == line.npos) return {};
  line.remove_prefix(at + kMark.size());
  const size_t end = line.find("): ");
  if (end == line.npos) return {};
  return {.pci = std::string(line.substr(0, end)) + ".0", .xid = std::atoi(std::string(line.substr(end + 3)).c_str())};
}

KernelLog::KernelLog(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (file_.get() >= 0) ::lseek(file_.get(), 0, SEEK_END);
}

std::vector<std::string> KernelLog::lines() {
  std::vector<std::string> lines;
  constexpr int kMost = 100;
  char record[8192];
  for (int i = 0; i < kMost && file_.get() >= 0; ++i) {
    const ssize_t got = ::read(file_.get(), record, sizeof record);  // one record: "6,123,456,-;text\n"
    if (got < 0 && errno == EPIPE) continue;                         // records were overwritten before they were read
    if (got <= 0) break;
    const std::string_view text(record, static_cast<size_t>(got));
    const size_t begin = text.find(';') == text.npos ? 0 : text.find(';') + 1;
    lines.emplace_back(text.substr(begin, text.find('\n', begin) - begin));
  }
  return lines;
}

HealthWatch::HealthWatch() {
  std::thread([shared = shared_] {
    GpuWatch gpus;
    while (true) {
      Seen seen;
      try {
        seen.ports = read_ports();
      } catch (const std::exception&) {  // a card is being taken away, and its folder with it
      }
      seen.gpus = gpus.look(500);
      {
        const std::lock_guard lock(shared->mutex);
        if (shared->over) return;
        shared->seen = std::move(seen);
        shared->time = std::chrono::steady_clock::now();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  }).detach();
}

HealthWatch::~HealthWatch() {
  const std::lock_guard lock(shared_->mutex);
  shared_->over = true;
}

HealthWatch::Seen HealthWatch::last() const {
  const std::lock_guard lock(shared_->mutex);
  Seen seen = shared_->seen;
  seen.age = std::chrono::duration<double>(std::chrono::steady_clock::now() - shared_->time).count();
  return seen;
}

}  // namespace tri
