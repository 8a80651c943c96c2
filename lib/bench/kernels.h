// `trireme bench kernels`: times every operation at the shapes of a config against the limits of the device.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "lib/config/config.h"

namespace tri {

struct KernelBench {
  int rounds = 21;  // the median counts
};

struct KernelRow {
  std::string name;
  std::string shape;
  double microseconds = 0;
  double bytes = 0;               // least traffic of device memory; 0: bound by arithmetic
  double flops = 0;               // 0: bound by memory
  double floor_microseconds = 0;  // by the measured copy bandwidth or the data sheet's peak; 0: unknown
};

struct KernelBenchResult {
  double copy_bytes_per_s = 0;  // device copy, bytes read plus bytes written: the limit of memory-bound rows
  std::vector<KernelRow> rows;
};

// `config` must be resolved for one rank: times the microbatch of its stage on one device. Inputs are random.
KernelBenchResult bench_kernels(const Config& config, Device& device, const KernelBench& bench);

}  // namespace tri
