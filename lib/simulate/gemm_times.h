// How long a GEMM takes on a device: by tiles and waves, or by a measured table.
#pragma once

#include "lib/simulate/cluster.h"
#include "lib/simulate/workload.h"

namespace tri {

double activation_bytes(Numbers numbers);                    // of an element; activations are bf16 with FP8 GEMMs
double peak_flops(const Cluster& cluster, Numbers numbers);  // a second
double memory_bytes_per_second(const Cluster& cluster);      // that memory-bound kernels reach

// What a GEMM (m, k) x (k, n) leaves in memory, an element of (m, n).
inline constexpr double kWritesBf16 = 2, kAddsFp32 = 8;

// Seconds of a GEMM (m, k) x (k, n).
double gemm_seconds(const Cluster& cluster, Numbers numbers, double m, double n, double k, double output_bytes);

}  // namespace tri
