#include "io/nvml/nvml.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstdlib>

namespace tri {
namespace {

// The parts of nvml.h that are used here; the library keeps them from version to version.
using Return = int;  // 0: success
using Handle = struct nvmlDevice_st*;
constexpr Return kNotSupported = 3, kDriverNotLoaded = 9;

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
static_assert(sizeof(PciInfo) == 68 && sizeof(FieldValue) == 40);

constexpr int kSmClock = 1, kUncorrected = 1, kVolatile = 0, kMostNvlinks = 18;
constexpr unsigned kRecoveryActionField = 230;

}  // namespace

struct Nvml::Functions {
  explicit Functions(void* file) : library(file) {}
  ~Functions() { ::dlclose(library); }

  // Absent where this version of the library lacks it.
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

Nvml::Nvml(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}
Nvml::~Nvml() { functions_->call("nvmlShutdown"); }

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

Result<std::vector<GpuHealth>> Nvml::gpus() const {
  const Functions& f = *functions_;
  unsigned count = 0;
  if (const Return status = f.call("nvmlDeviceGetCount_v2", &count); status != 0)
    return Error{fmt::format("NVML does not count its GPUs: {}", f.error_text(status)), ExitCode::kDevice};
  std::vector<GpuHealth> list;
  for (unsigned i = 0; i < count; ++i) {
    GpuHealth& g = list.emplace_back();
    g.index = static_cast<int>(i);
    Handle gpu = nullptr;
    if (const Return status = f.call("nvmlDeviceGetHandleByIndex_v2", i, &gpu); status != 0)
      return Error{fmt::format("GPU {} does not answer: {}", i, f.error_text(status)), ExitCode::kDevice};
    char name[96] = {};
    if (f.call("nvmlDeviceGetName", gpu, name, unsigned{sizeof name - 1}) == 0) g.name = name;
    if (const auto pci = f.ask<PciInfo>("nvmlDeviceGetPciInfo_v3", gpu)) g.bus_id = pci->bus_id;
    g.pcie_lanes = f.ask<unsigned>("nvmlDeviceGetCurrPcieLinkWidth", gpu);
    g.most_pcie_lanes = f.ask<unsigned>("nvmlDeviceGetMaxPcieLinkWidth", gpu);
    if (const auto errors = f.ask<unsigned long long>("nvmlDeviceGetTotalEccErrors", gpu, kUncorrected, kVolatile))
      g.uncorrected_errors = *errors;
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    if (f.call("nvmlDeviceGetRemappedRows", gpu, &corrected, &uncorrected, &pending, &failed) == 0) {
      g.remap_pending = pending != 0;
      g.remap_failed = failed != 0;
    }
    FieldValue field{.field = kRecoveryActionField};
    if (f.call("nvmlDeviceGetFieldValues", gpu, 1, &field) == 0 && field.status == 0) g.recovery_action = field.value.u;
    g.sm_mhz = f.ask<unsigned>("nvmlDeviceGetClockInfo", gpu, kSmClock);
    g.most_sm_mhz = f.ask<unsigned>("nvmlDeviceGetMaxClockInfo", gpu, kSmClock);
    if (const auto reasons = f.ask<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", gpu))
      g.slowdown_reasons = *reasons;
    for (unsigned link = 0; link < kMostNvlinks; ++link)
      if (const auto state = f.ask<int>("nvmlDeviceGetNvLinkState", gpu, link)) {
        ++g.nvlinks;
        g.nvlinks_up += *state == 1;
      }
  }
  return list;
}

}  // namespace tri
