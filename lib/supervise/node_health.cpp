#include "lib/supervise/node_health.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
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

// NVML's types, as nvml.h has them.
using Device = void*;
struct PciInfo {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};
struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency;
  int type, result;
  union {
    double real;
    unsigned whole;
    unsigned long long long_whole;
  } value;
};
constexpr unsigned long long kXidEvent = 8;
constexpr unsigned kRecoveryActionField = 230;  // NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, driver 570 and later
constexpr int kUncorrected = 1, kVolatile = 0;
constexpr size_t kMostXids = 16;

}  // namespace

std::vector<PortSight> read_ports(const std::string& sys) {
  std::vector<PortSight> ports;
  std::error_code problem;
  for (const auto& entry : fs::directory_iterator(sys + "/class/net", problem)) {
    if (!fs::exists(entry.path() / "device", problem)) continue;  // virtual
    const fs::path statistics = entry.path() / "statistics";
    ports.push_back({.name = entry.path().filename(),
                     .up = word_in(entry.path() / "operstate") != "down",
                     .changes = number_in(entry.path() / "carrier_changes"),
                     .received = number_in(statistics / "rx_bytes"),
                     .sent = number_in(statistics / "tx_bytes"),
                     .errors = number_in(statistics / "rx_errors") + number_in(statistics / "tx_errors")});
  }
  for (const auto& device : fs::directory_iterator(sys + "/class/infiniband", problem))
    for (const auto& port : fs::directory_iterator(device.path() / "ports", problem)) {
      const fs::path counters = port.path() / "counters";
      constexpr int64_t kWord = 4;  // the counters of data are in words of four bytes
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

struct GpuHealth::Nvml {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, Device*) = nullptr;
  int (*pci)(Device, PciInfo*) = nullptr;
  int (*ecc)(Device, int, int, unsigned long long*) = nullptr;
  int (*remapped)(Device, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  int (*fields)(Device, int, FieldValue*) = nullptr;
  int (*make_events)(void**) = nullptr;
  int (*subscribe)(Device, unsigned long long, void*) = nullptr;
  int (*wait)(void*, EventData*, unsigned) = nullptr;

  void* events = nullptr;
  struct Gpu {
    Device device = nullptr;
    GpuSight sight;
  };
  std::vector<Gpu> gpus;

  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
  }
  void open();
  void read(Gpu& gpu) const;
};

void GpuHealth::Nvml::open() {
  const char* path = std::getenv("TRIREME_NVML");
  library = ::dlopen(path == nullptr ? "libnvidia-ml.so.1" : path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  find(init, "nvmlInit_v2");
  find(count, "nvmlDeviceGetCount_v2");
  find(device, "nvmlDeviceGetHandleByIndex_v2");
  find(pci, "nvmlDeviceGetPciInfo_v3");
  find(ecc, "nvmlDeviceGetTotalEccErrors");
  find(remapped, "nvmlDeviceGetRemappedRows");
  find(fields, "nvmlDeviceGetFieldValues");
  find(make_events, "nvmlEventSetCreate");
  find(subscribe, "nvmlDeviceRegisterEvents");
  find(wait, "nvmlEventSetWait_v2");
  unsigned number = 0;
  if (!init || !count || !device || !pci || init() != 0 || count(&number) != 0) return;
  if (make_events && subscribe && wait && make_events(&events) != 0) events = nullptr;
  for (unsigned i = 0; i < number; ++i) {
    Gpu gpu;
    PciInfo info{};
    if (device(i, &gpu.device) != 0 || pci(gpu.device, &info) != 0) continue;
    gpu.sight.pci = fmt::format("{:04x}:{:02x}:{:02x}.0", info.domain, info.bus, info.device);
    if (events != nullptr) subscribe(gpu.device, kXidEvent, events);
    gpus.push_back(std::move(gpu));
  }
}

void GpuHealth::Nvml::read(Gpu& gpu) const {
  unsigned long long errors = 0;
  if (ecc && ecc(gpu.device, kUncorrected, kVolatile, &errors) == 0)
    gpu.sight.ecc_errors = static_cast<int64_t>(errors);
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (remapped && remapped(gpu.device, &corrected, &uncorrected, &pending, &failed) == 0) {
    gpu.sight.remapped_rows = uncorrected;
    gpu.sight.remap_failed = failed != 0;
  }
  FieldValue value{};
  value.field = kRecoveryActionField;
  gpu.sight.recovery_action =
      fields && fields(gpu.device, 1, &value) == 0 && value.result == 0 ? static_cast<int>(value.value.whole) : -1;
}

GpuHealth::GpuHealth() : nvml_(std::make_unique<Nvml>()) { nvml_->open(); }
GpuHealth::~GpuHealth() = default;  // NVML stays loaded: threads of its own may be at work

std::vector<GpuSight> GpuHealth::look(int milliseconds) {
  std::vector<GpuSight> sights;
  EventData event{};
  while (nvml_->events != nullptr && nvml_->wait(nvml_->events, &event, static_cast<unsigned>(milliseconds)) == 0) {
    milliseconds = 0;
    for (Nvml::Gpu& gpu : nvml_->gpus) {
      if (gpu.device != event.device || (event.type & kXidEvent) == 0) continue;
      std::vector<int>& xids = gpu.sight.xids;
      xids.push_back(static_cast<int>(event.data));
      if (xids.size() > kMostXids) xids.erase(xids.begin());
    }
  }
  for (Nvml::Gpu& gpu : nvml_->gpus) {
    nvml_->read(gpu);
    sights.push_back(gpu.sight);
  }
  return sights;
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
    GpuHealth gpus;
    while (true) {
      Seen seen{.ports = read_ports(), .gpus = gpus.look(500)};
      {
        const std::lock_guard lock(shared->mutex);
        if (shared->over) return;
        shared->seen = std::move(seen);
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
  return shared_->seen;
}

}  // namespace tri
