// Dense GEMM peaks of GPUs, the denominator of MFU.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/core/dtype.h"

namespace tri {

// 10^12 FLOPs a second by the product's data sheet, without sparsity; fp32 outside the tensor cores. `name` is the
// driver's ("NVIDIA H100 PCIe"), since products of one compute capability differ by up to seven times. A GPU with
// another number of multiprocessors than the product, such as a MIG slice, has a peak in proportion. None for an
// unknown product, for a type that it does not multiply, and where the proportion is not known.
std::optional<double> gpu_peak_tflops(std::string_view name, int num_multiprocessors, Dtype dtype);

}  // namespace tri
