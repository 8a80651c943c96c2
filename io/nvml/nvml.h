// The health of this machine's GPUs according to NVIDIA's management library. It is loaded at the first use, so a build
// needs neither its header nor the library. TRIREME_NVML names another file than libnvidia-ml.so.1.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"

namespace tri {

// What a GPU or its driver does not tell is absent.
struct GpuHealth {
  int index = 0;  // NVML's, which counts all GPUs of the machine
  std::string name, bus_id;
  std::optional<unsigned> pcie_lanes, most_pcie_lanes;
  std::optional<uint64_t> uncorrected_errors;  // of memory, since the driver was loaded
  std::optional<unsigned> remapped_rows;       // for uncorrected errors, ever
  std::optional<bool> remap_pending, remap_failed;
  std::optional<unsigned> recovery_action;  // 0: none. Drivers from 570 on
  std::optional<unsigned> sm_mhz, most_sm_mhz;
  std::optional<uint64_t> slowdown_reasons;  // bits: kSlowed… below, and others that are no fault
  int nvlinks = 0, nvlinks_up = 0;
  // Of all its NVLinks together, since the driver was loaded: links that were retrained; packets that were sent
  // again or came damaged.
  std::optional<uint64_t> nvlink_recoveries, nvlink_errors;
};

// What a GPU's sensors say at a moment.
struct GpuSensors {
  std::optional<unsigned> sm_mhz, celsius, milliwatts, milliwatts_limit;
};

// One is 18 calls of the driver a GPU, and five times as many with its counters.
enum class NvlinkFigures { kNone, kStates, kAll };

// An XID that the driver has reported of a GPU.
struct GpuXid {
  int gpu = 0;  // NVML's index
  int xid = 0;
};

// Of GpuHealth::slowdown_reasons: by the hardware, by heat, by the power supply.
inline constexpr uint64_t kSlowedByFault = 0x8 | 0x20 | 0x40 | 0x80;

// NVML writes the PCI domain with eight digits, the kernel with four: "00000000:18:00.0" -> "0000:18:00.0".
std::string short_bus_id(std::string_view id);

class Nvml {
 public:
  // kDevice error: why there is none. os_error is ENOENT where the library is missing.
  static Result<std::unique_ptr<Nvml>> open();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::string driver_version() const;
  // Of the machine, with those that this process may not talk to. Error: NVML does not count them.
  Result<int> num_gpus() const;
  // GPU `index` now. Error, with its number: it does not answer; os_error EACCES: it is another job's.
  Result<GpuHealth> gpu(int index, NvlinkFigures nvlinks) const;
  // All GPUs that this process may talk to now, with the states of their NVLinks. Error: one of them does not answer.
  Result<std::vector<GpuHealth>> gpus() const;

  // Sensors of the GPU at a PCI bus id ("0000:18:00.0"); none of them if NVML does not know it.
  GpuSensors sensors(const std::string& bus_id) const;

  // From here on XIDs are kept for next_xids(); false: this driver can't.
  bool watch_xids();
  // XIDs since the last call, in order; where there is none yet, waits for one no longer than this. Only one thread may
  // be in here at a time.
  std::vector<GpuXid> next_xids(int milliseconds) const;

 private:
  struct Functions;
  explicit Nvml(std::unique_ptr<Functions> functions);
  void read_nvlinks(void* handle, NvlinkFigures figures, GpuHealth& gpu) const;
  std::unique_ptr<Functions> functions_;
  void* events_ = nullptr;
};

}  // namespace tri
