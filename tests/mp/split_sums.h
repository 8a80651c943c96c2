// The CPU backend's GEMMs with their sums split (equal except for rounding), and with faults.
// A program that is linked with split_sums.cpp has all GEMMs of the CPU backend pass through it (--wrap).
#pragma once

#include <map>

#include "kernels/core/qkv_row.h"

namespace tri {

enum class GemmFault {
  kNone,
  kMissesEverySecond,  // of the GEMMs that add to a gradient every second one is not made: a missing reduction
  kTwice,              // each of them is added twice
  kKeysTakeValues,     // the gradient of a QKV bias adds to its keys what it adds to its values
};

// What all GEMMs of the CPU backend in this process do. Set while no stream has work.
struct GemmSums {
  // K is cut into so many parts, whose products are rounded to the type of the output before they are added in fp32, as
  // tensor parallelism of that many ranks does. 1: the backend's own sum.
  int parts = 1;
  GemmFault fault = GemmFault::kNone;
  std::map<const void*, int> faulty_calls;  // of the outputs that have the fault; 0 at first
  const void* faulty_bias = nullptr;        // the gradient of a QKV bias
  QkvRow row{};                             // its heads
};
void set_gemm_sums(const GemmSums& sums);

}  // namespace tri
