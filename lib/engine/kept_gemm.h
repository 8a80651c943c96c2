// precision.gemm: auto is timed once a run: a start that goes on multiplies as the last one did, where its GPUs are of
// the same kinds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/core/gpu.h"
#include "lib/config/config.h"

namespace tri {

// What of GPUs decides how much FP8 gains on them, for people and to compare, each kind once and sorted:
// "8.0 with 108 multiprocessors, 9.0 with 132 multiprocessors". "" where there are none.
std::string kinds_of(const std::vector<std::optional<GpuProperties>>& gpus);

// What precision.gemm: auto meant at the last start in config.run.dir, so that a run that goes on multiplies alike;
// nothing where there was none, or it ran on the CPU, or with another precision, model, tp or micro-batch. By the files
// that a start leaves there.
struct KeptGemm {
  GemmFormat format{};
  std::string gpu_kinds;  // of that start (kinds_of); "" where an older program has left the files
};
// Fatal (kDrained where storage does not answer, also after several tries; else kFile): the files are there and cannot
// be read. A run must not change its number format for that.
std::optional<KeptGemm> kept_gemm(const Config& config);
// The first line of resolved.yaml, which kept_gemm reads the kinds from; "" where there are none.
std::string gpu_kinds_line(const std::string& kinds);

}  // namespace tri
