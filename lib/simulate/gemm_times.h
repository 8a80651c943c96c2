// How long a GEMM takes on a device, by tiles and waves or by a measured table.
#pragma once

#include "lib/simulate/cluster.h"
#include "lib/simulate/workload.h"

namespace tri {

double activation_bytes(Numbers numbers);                    // per element; with FP8 GEMMs activations are bf16
double peak_flops(const Cluster& cluster, Numbers numbers);  // per second
double memory_bytes_per_second(const Cluster& cluster);      // reached by memory-bound kernels

// Memory traffic of the result of a GEMM (m, k) x (k, n), in bytes per element of (m, n).
inline constexpr double kWritesBf16 = 2, kAddsFp32 = 8;

// Returns the seconds of a GEMM (m, k) x (k, n).
double gemm_seconds(const Cluster& cluster, Numbers numbers, double m, double n, double k, double output_bytes);

// Returns the seconds of `groups` such GEMMs in one kernel: the products of a rank's experts. Their tiles fill the
// waves together; rows that fill a part of a tile cost a whole one, or with software.grouped_rows a tile of so many
// rows. The kernel reaches software.grouped_share or fp8_grouped_share of the rate of dense GEMMs.
enum class GroupSizes { kEqual, kUneven };  // kUneven: m is the mean of the groups' rows
double grouped_gemm_seconds(const Cluster& cluster, Numbers numbers, double groups, GroupSizes sizes, double m,
                            double n, double k, double output_bytes);

}  // namespace tri
