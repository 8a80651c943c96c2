// Dense GEMM peaks of GPUs, the denominator of MFU.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/core/dtype.h"

namespace tri {

// Returns 10^12 FLOPs per second by the product's data sheet, without sparsity; for fp32, outside the tensor cores.
// `name` is the driver's ("NVIDIA H100 PCIe"), since products of one compute capability differ by up to seven times.
// The peak scales with the number of multiprocessors, for example on a MIG slice. None for an unknown product, for a
// type that it does not multiply, and where the proportion is unknown.
std::optional<double> gpu_peak_tflops(std::string_view name, int num_multiprocessors, Dtype dtype);

}  // namespace tri
