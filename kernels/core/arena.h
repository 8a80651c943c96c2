// Arena: all device memory of a rank, reserved once and handed out as named slices. Nothing is allocated after set-up.
//
// A measuring arena hands out addresses without memory behind them. Running the set-up on one predicts the bytes of a
// run by name, so `trireme check` and the run's own table agree.
//
// Threads: not thread-safe; one host thread takes slices. The device outlives the arena.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/device.h"

namespace tri {

class Arena {
 public:
  static constexpr int64_t kAlignment = 256;  // bytes

  Arena() = default;                                       // measures for a CPU, without a device
  explicit Arena(const GpuProperties& gpu) : gpu_(gpu) {}  // measures for a device like `gpu`, without a device
  explicit Arena(Device& device) : device_(&device) {}     // measures for this device, without memory
  Arena(Device& device, int64_t bytes);                    // reserves `bytes`, zeroed; throws Fatal (kDevice)
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  bool measuring() const { return memory_ == nullptr; }
  const Device* device() const { return device_; }          // null: measures without a device
  const GpuProperties& absent_gpu() const { return gpu_; }  // valid where device() is null

  // Returns the next slice, aligned to kAlignment and accounted under `name`; slices of one name add up. The rest of
  // the capacity must be large enough.
  Tensor take(const std::string& name, Dtype dtype, std::initializer_list<int64_t> shape);

  int64_t used() const { return used_; }
  void* memory() const { return memory_; }  // the first byte; null while measuring
  // Returns (name, bytes) in the order of first use.
  const std::vector<std::pair<std::string, int64_t>>& bytes_by_name() const { return table_; }

 private:
  Device* device_ = nullptr;
  GpuProperties gpu_;
  char* memory_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
  std::vector<std::pair<std::string, int64_t>> table_;
};

}  // namespace tri
