#include "io/nvml/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>

namespace tri {
namespace {

// The parts of nvml.h that are used here; the library keeps them stable across versions.
using Return = int;  // 0: success
using Handle = struct nvmlDevice_st*;
constexpr Return kNotSupported = 3, kNoPermission = 4, kDriverNotLoaded = 9, kLost = 15;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  int value_type;
  Return status;
  union {
    double d;
    unsigned u;
    unsigned long long ull;
  } value;
};
struct EventData {
  Handle gpu;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
struct MemoryInfo {
  unsigned long long total, free, used;
};
static_assert(sizeof(MemoryInfo) == 24 && sizeof(PciInfo) == 68 && sizeof(FieldValue) == 40 && sizeof(EventData) == 32);

constexpr int kSmClock = 1, kGpuTemperature = 0, kUncorrected = 1, kVolatile = 0, kMostNvlinks = 18;
constexpr unsigned kRecoveryActionField = 230;
constexpr unsigned long long kXidEvent = 8;
// From nvmlNvLinkErrorCounter_t.
constexpr int kReplays = 0, kRecoveries = 1, kDamagedFlits = 2, kDamagedData = 3;

}  // namespace

struct Nvml::Functions {
  explicit Functions(void* file) : library(file) {}
  ~Functions() { ::dlclose(library); }

  // Absent if this version of the library lacks the function.
  template <class... Args>
  Return call(const char* name, Args... args) const {
    void* const symbol = ::dlsym(library, name);
    return symbol == nullptr ? kNotSupported : reinterpret_cast<Return (*)(Args...)>(symbol)(args...);
  }
  template <class T, class... Args>
  std::optional<T> ask(const char* name, Handle gpu, Args... args) const {
    T value{};
    return call(name, gpu, args..., &value) == 0 ? std::optional(value) : std::nullopt;
  }
  std::string error_text(Return status) const {
    void* const symbol = ::dlsym(library, "nvmlErrorString");
    if (symbol == nullptr) return fmt::format("NVML error {}", status);
    return reinterpret_cast<const char* (*)(Return)>(symbol)(status);
  }

  void* const library;
};

std::string short_bus_id(std::string_view id) {
  constexpr std::string_view kZeros = "0000";
  const bool is_long = id.find(':') == 8 && id.substr(0, kZeros.size()) == kZeros;
  std::string text(is_long ? id.substr(kZeros.size()) : id);
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

Nvml::Nvml(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}
Nvml::~Nvml() {
  if (events_ != nullptr) functions_->call("nvmlEventSetFree", events_);
  functions_->call("nvmlShutdown");
}

Result<std::unique_ptr<Nvml>> Nvml::open() {
  const char* given = std::getenv("TRIREME_NVML");
  const std::string path = given != nullptr && *given != '\0' ? given : "libnvidia-ml.so.1";
  void* const library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return Error{fmt::format("{}: {}", path, ::dlerror()), ExitCode::kDevice, ENOENT};
  auto functions = std::make_unique<Functions>(library);
  const Return status = functions->call("nvmlInit_v2");
  if (status != 0) {
    const int os_error = status == kDriverNotLoaded ? ENOENT : 0;
    return Error{fmt::format("NVML does not start: {}", functions->error_text(status)), ExitCode::kDevice, os_error};
  }
  return std::unique_ptr<Nvml>(new Nvml(std::move(functions)));
}

std::string Nvml::driver_version() const {
  char text[96] = {};
  if (functions_->call("nvmlSystemGetDriverVersion", text, unsigned{sizeof text - 1}) != 0) return "unknown";
  return text;
}

Result<int> Nvml::num_gpus() const {
  unsigned count = 0;
  if (const Return status = functions_->call("nvmlDeviceGetCount_v2", &count); status != 0)
    return Error{fmt::format("NVML cannot count the GPUs: {}", functions_->error_text(status)), ExitCode::kDevice};
  return static_cast<int>(count);
}

void Nvml::read_nvlinks(void* handle, NvlinkFigures figures, GpuHealth& g) const {
  const auto gpu = static_cast<Handle>(handle);
  const auto count = [&](unsigned link, int counter, std::optional<uint64_t>& sum) {
    if (const auto more = functions_->ask<unsigned long long>("nvmlDeviceGetNvLinkErrorCounter", gpu, link, counter))
      sum = sum.value_or(0) + *more;
  };
  for (unsigned link = 0; link < kMostNvlinks; ++link) {
    const auto state = functions_->ask<int>("nvmlDeviceGetNvLinkState", gpu, link);
    if (!state) continue;
    ++g.nvlinks;
    g.nvlinks_up += *state == 1;
    if (figures != NvlinkFigures::kAll) continue;
    count(link, kRecoveries, g.nvlink_recoveries);
    for (const int counter : {kReplays, kDamagedFlits, kDamagedData}) count(link, counter, g.nvlink_errors);
  }
}

Result<GpuHealth> Nvml::gpu(int index, NvlinkFigures nvlinks) const {
  const Functions& f = *functions_;
  GpuHealth g{.index = index};
  Handle gpu = nullptr;
  Return status = f.call("nvmlDeviceGetHandleByIndex_v2", static_cast<unsigned>(index), &gpu);
  if (status == 0) {
    char name[96] = {};
    status = f.call("nvmlDeviceGetName", gpu, name, unsigned{sizeof name - 1});
    g.name = name;
    if (status != kLost) status = 0;
  }
  if (status == kNoPermission)
    return Error{fmt::format("GPU {} is not accessible to this job: {}", index, f.error_text(status)),
                 ExitCode::kDevice, EACCES};
  if (status != 0)
    return Error{fmt::format("GPU {} does not respond: {}", index, f.error_text(status)), ExitCode::kDevice};
  if (const auto pci = f.ask<PciInfo>("nvmlDeviceGetPciInfo_v3", gpu)) g.bus_id = pci->bus_id;
  g.pcie_lanes = f.ask<unsigned>("nvmlDeviceGetCurrPcieLinkWidth", gpu);
  g.most_pcie_lanes = f.ask<unsigned>("nvmlDeviceGetMaxPcieLinkWidth", gpu);
  if (const auto errors = f.ask<unsigned long long>("nvmlDeviceGetTotalEccErrors", gpu, kUncorrected, kVolatile))
    g.uncorrected_errors = *errors;
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (f.call("nvmlDeviceGetRemappedRows", gpu, &corrected, &uncorrected, &pending, &failed) == 0) {
    g.remapped_rows = uncorrected;
    g.remap_pending = pending != 0;
    g.remap_failed = failed != 0;
  }
  FieldValue field{.field = kRecoveryActionField};
  if (f.call("nvmlDeviceGetFieldValues", gpu, 1, &field) == 0 && field.status == 0) g.recovery_action = field.value.u;
  g.sm_mhz = f.ask<unsigned>("nvmlDeviceGetClockInfo", gpu, kSmClock);
  g.most_sm_mhz = f.ask<unsigned>("nvmlDeviceGetMaxClockInfo", gpu, kSmClock);
  if (const auto reasons = f.ask<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", gpu))
    g.slowdown_reasons = *reasons;
  if (nvlinks != NvlinkFigures::kNone) read_nvlinks(gpu, nvlinks, g);
  return g;
}

Result<std::vector<GpuHealth>> Nvml::gpus() const {
  const auto count = num_gpus();
  if (!count) return count.error();
  std::vector<GpuHealth> list;
  for (int i = 0; i < count.value(); ++i) {
    auto one = gpu(i, NvlinkFigures::kStates);
    if (!one && one.error().os_error == EACCES) continue;
    if (!one) return one.error();
    list.push_back(std::move(one).value());
  }
  return list;
}

GpuSensors Nvml::sensors(const std::string& bus_id) const {
  const Functions& f = *functions_;
  Handle gpu = nullptr;
  if (f.call("nvmlDeviceGetHandleByPciBusId_v2", bus_id.c_str(), &gpu) != 0) return {};
  const auto memory = f.ask<MemoryInfo>("nvmlDeviceGetMemoryInfo", gpu);
  return {.sm_mhz = f.ask<unsigned>("nvmlDeviceGetClockInfo", gpu, kSmClock),
          .celsius = f.ask<unsigned>("nvmlDeviceGetTemperature", gpu, kGpuTemperature),
          .milliwatts = f.ask<unsigned>("nvmlDeviceGetPowerUsage", gpu),
          .milliwatts_limit = f.ask<unsigned>("nvmlDeviceGetEnforcedPowerLimit", gpu),
          .memory_bytes = memory ? std::optional<uint64_t>(memory->used) : std::nullopt};
}

bool Nvml::watch_xids() {
  const Functions& f = *functions_;
  const auto count = num_gpus();
  if (!count || f.call("nvmlEventSetCreate", &events_) != 0) return false;
  bool any = false;
  for (unsigned i = 0; i < static_cast<unsigned>(count.value()); ++i) {
    Handle gpu = nullptr;
    if (f.call("nvmlDeviceGetHandleByIndex_v2", i, &gpu) == 0)
      any |= f.call("nvmlDeviceRegisterEvents", gpu, kXidEvent, events_) == 0;
  }
  return any;
}

std::vector<GpuXid> Nvml::next_xids(int milliseconds) const {
  const Functions& f = *functions_;
  constexpr int kMost = 1000;  // a flood of XIDs must not keep this loop busy
  std::vector<GpuXid> xids;
  if (events_ == nullptr) return xids;
  EventData event{};
  for (int i = 0; i < kMost; ++i) {
    if (f.call("nvmlEventSetWait_v2", events_, &event, static_cast<unsigned>(xids.empty() ? milliseconds : 0)) != 0)
      break;
    unsigned index = 0;
    if ((event.type & kXidEvent) != 0 && f.call("nvmlDeviceGetIndex", event.gpu, &index) == 0)
      xids.push_back({.gpu = static_cast<int>(index), .xid = static_cast<int>(event.data)});
  }
  return xids;
}

}  // namespace tri
