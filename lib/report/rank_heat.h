// The times of all ranks over a run, small enough for a page: a byte a rank, quantity and slice of time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/ranks/rank_times.h"

namespace tri {

enum class HeatScale {
  kRatio,  // against the median of the rank's role (lib/observe/stragglers.h), whose work is the same: byte = 128 +
           // 127 · log2(slower), slower = the amount over the median, of rates the median over the amount, in [1/2, 2]
  kAmount,  // byte = 255 · amount / the most of all ranks and slices
};

struct HeatQuantity {
  std::string name;  // as in heat_quantities() of lib/observe/heat_map.h
  HeatScale scale = HeatScale::kRatio;
  bool is_rate = false;                     // amounts are TFLOP/s; else seconds a step
  double most = 0;                          // of all ranks and slices
  std::vector<std::vector<float>> medians;  // (slices, pp · tp) of each role, by stage and tp rank; of kRatio
  std::vector<std::vector<uint8_t>> bytes;  // (slices, ranks)
};

// Steps first_step .. last_step, whose windows are one slice.
struct HeatSlice {
  int64_t first_step = 0, last_step = 0;
  double time = 0;  // of its end, seconds since 1970
};

struct RankHeat {
  RankMesh mesh;
  std::vector<HeatSlice> slices;
  std::vector<HeatQuantity> quantities;  // those that are not nothing everywhere
};

// From run.dir/ranks.h5: the windows of the attempts on the newest attempt's mesh, neighbours joined until all bytes
// are at most `most_bytes`. None: no window is there. Error: the file can't be read (os_error ENOENT: there is none).
Result<std::optional<RankHeat>> read_rank_heat(const std::string& run_dir, int64_t most_bytes);

}  // namespace tri
