// precision.gemm: auto is timed once a run: a start that goes on multiplies as the last one did, where its GPUs are of
// the same kind.
#pragma once

#include <optional>
#include <string>

#include "kernels/core/gpu.h"
#include "lib/config/config.h"

namespace tri {

// What of a GPU decides how much FP8 gains on it, for people and to compare: "9.0 with 132 multiprocessors".
std::string gpu_kind(const GpuProperties& gpu);
// Whether it is among several, which stand apart by ", ".
bool has_gpu_kind(const std::string& kinds, const GpuProperties& gpu);

// What precision.gemm: auto meant at the last start in config.run.dir, so that a run that goes on multiplies alike;
// nothing where there was none, or it ran on the CPU, or with another precision, model, tp or micro-batch. By the files
// that a start leaves there.
struct KeptGemm {
  GemmFormat format{};
  std::string gpu_kinds;  // JobPlan's; "" where an older program has left the files
};
std::optional<KeptGemm> kept_gemm(const Config& config);
// The line before resolved.yaml that kept_gemm reads them from; "" where there are none.
std::string gpu_kinds_line(const std::string& kinds);

}  // namespace tri
