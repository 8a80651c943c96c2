// Arena: all device memory of a rank, reserved once, handed out as named slices. Nothing is allocated after set-up.
//
// A measuring arena hands out addresses without memory behind them: running the set-up on one predicts the bytes of a
// run by name, which is how `trireme check` and the run's own table agree.
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

  Arena() = default;                                       // measuring, for a device that is not there
  explicit Arena(const GpuProperties& gpu) : gpu_(gpu) {}  // the same; where it is a GPU, it is such a one
  explicit Arena(Device& device) : device_(&device) {}     // measuring, for this device: no memory
  Arena(Device& device, int64_t bytes);                    // reserves `bytes`, zeroed
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  bool measuring() const { return memory_ == nullptr; }
  const Device* device() const { return device_; }          // null: none is there
  const GpuProperties& absent_gpu() const { return gpu_; }  // where device() is null

  // The next slice, accounted under `name`; slices of one name add up. Requires room.
  Tensor take(const std::string& name, Dtype dtype, std::initializer_list<int64_t> shape);

  int64_t used() const { return used_; }
  void* memory() const { return memory_; }  // where it begins; null: measuring
  // (name, bytes) in the order of first use.
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
