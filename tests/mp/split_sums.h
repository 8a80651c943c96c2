// The CPU backend's GEMMs with split sums (equal except for rounding), and with faults. In a program linked with
// split_sums.cpp all GEMMs of the CPU backend pass through it (--wrap).
#pragma once

#include <map>

#include "kernels/core/qkv_row.h"

namespace tri {

enum class GemmFault {
  kNone,
  kMissesEverySecond,  // skips every second GEMM that adds to a gradient, like a missing reduction
  kTwice,              // adds each of them twice
  kKeysTakeValues,     // the gradient of a QKV bias adds to its keys what belongs to its values
};

// How all GEMMs of the CPU backend in this process compute. Set it while no stream has work.
struct GemmSums {
  // K is divided into this many parts, whose products are rounded to the type of the output before they are added in
  // fp32, like tensor parallelism with that many ranks. 1: the backend's own sum.
  int parts = 1;
  GemmFault fault = GemmFault::kNone;
  std::map<const void*, int> faulty_calls;  // of the outputs that have the fault; initially 0
  const void* faulty_bias = nullptr;        // the gradient of a QKV bias
  QkvRow row{};                             // the heads of that bias
};
void set_gemm_sums(const GemmSums& sums);

}  // namespace tri
