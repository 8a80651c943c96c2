#include "lib/supervise/node_health.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "io/base/clock.h"
#include "io/base/network_ports.h"

namespace tri {
namespace {

constexpr size_t kMostXids = 16;

}  // namespace

std::vector<PortSight> read_ports(const std::string& sys) {
  std::vector<PortSight> ports;
  for (const NetworkPort& p : network_ports(sys))
    ports.push_back({.name = p.is_infiniband() ? p.card + ":" + p.port : p.card,
                     .up = p.is_infiniband() ? p.is_active() : p.state != "down",
                     .changes = static_cast<int64_t>(p.carrier_changes),
                     .received = static_cast<int64_t>(p.received),
                     .sent = static_cast<int64_t>(p.sent),
                     .errors = static_cast<int64_t>(p.errors())});
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
    if (!gpu && gpu.error().os_error == EACCES) continue;  // belongs to another job
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
      seen.ports = read_ports();
      seen.gpus = gpus.look(500);
      {
        const MutexLock lock(shared->mutex);
        if (shared->over) return;
        shared->seen = std::move(seen);
        shared->time = std::chrono::steady_clock::now();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  }).detach();
}

HealthWatch::~HealthWatch() {
  const MutexLock lock(shared_->mutex);
  shared_->over = true;
}

HealthWatch::Seen HealthWatch::last() const {
  const MutexLock lock(shared_->mutex);
  Seen seen = shared_->seen;
  seen.age = seconds_since(shared_->time);
  return seen;
}

}  // namespace tri
