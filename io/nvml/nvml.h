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

// What a GPU or its driver does not report is absent.
struct GpuHealth {
  int index = 0;  // NVML's index, over all GPUs of the machine
  std::string name, bus_id;
  std::optional<unsigned> pcie_lanes, most_pcie_lanes;
  std::optional<uint64_t> uncorrected_errors;  // of memory, since the driver was loaded
  std::optional<unsigned> remapped_rows;       // for uncorrected errors, over the GPU's life
  std::optional<bool> remap_pending, remap_failed;
  std::optional<unsigned> recovery_action;  // 0: none. Needs driver 570 or later
  std::optional<unsigned> sm_mhz, most_sm_mhz;
  std::optional<uint64_t> slowdown_reasons;  // bits: kSlowed… below, and others that are not faults
  int nvlinks = 0, nvlinks_up = 0;
  // All its NVLinks together, since the driver was loaded: links that were retrained; packets that were resent or
  // damaged.
  std::optional<uint64_t> nvlink_recoveries, nvlink_errors;
};

// The values of a GPU's sensors at one moment.
struct GpuSensors {
  std::optional<unsigned> sm_mhz, celsius, milliwatts, milliwatts_limit;
  std::optional<uint64_t> memory_bytes;  // in use, by all processes
};

// A reading costs 18 driver calls per GPU, and five times as many with its counters.
enum class NvlinkFigures { kNone, kStates, kAll };

// An XID that the driver has reported for a GPU.
struct GpuXid {
  int gpu = 0;  // NVML's index
  int xid = 0;
};

// Bits of GpuHealth::slowdown_reasons: caused by the hardware, by heat, by the power supply.
inline constexpr uint64_t kSlowedByFault = 0x8 | 0x20 | 0x40 | 0x80;

// NVML writes the PCI domain with eight digits, the kernel with four: "00000000:18:00.0" -> "0000:18:00.0".
std::string short_bus_id(std::string_view id);

class Nvml {
 public:
  // Fails with kDevice and the reason. os_error is ENOENT if the library is missing.
  static Result<std::unique_ptr<Nvml>> open();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::string driver_version() const;
  // Returns the number of the machine's GPUs, including those that this process may not access. Fails if NVML does not
  // count them.
  Result<int> num_gpus() const;
  // Returns the present health of GPU `index`. Fails, with NVML's status, if it does not answer; os_error EACCES: it
  // belongs to another job.
  Result<GpuHealth> gpu(int index, NvlinkFigures nvlinks) const;
  // Returns the health of all GPUs that this process may access, with the states of their NVLinks. Fails if one of them
  // does not answer.
  Result<std::vector<GpuHealth>> gpus() const;

  // Returns the sensors of the GPU at a PCI bus id ("0000:18:00.0"), without values if NVML does not know it.
  GpuSensors sensors(const std::string& bus_id) const;

  // Starts keeping XIDs for next_xids(); returns false if the driver does not support that.
  bool watch_xids();
  // Returns the XIDs since the last call, in order; if there is none yet, waits for one for at most this time. Only one
  // thread may call it at a time.
  std::vector<GpuXid> next_xids(int milliseconds) const;

 private:
  struct Functions;
  explicit Nvml(std::unique_ptr<Functions> functions);
  void read_nvlinks(void* handle, NvlinkFigures figures, GpuHealth& gpu) const;
  std::unique_ptr<Functions> functions_;
  void* events_ = nullptr;
};

}  // namespace tri
