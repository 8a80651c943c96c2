// The times of all ranks over a run, small enough for a page: one byte per rank, quantity and time slice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/ranks/rank_times.h"

namespace tri {

enum class HeatScale {
  kRatio,   // relative to the median of the rank's role (lib/observe/ranks/stragglers.h), whose work is the same:
            // byte = 128 + 127 · log2(slower); slower, in [1/2, 2], is the amount over the median, or for rates the
            // median over it
  kAmount,  // byte = 255 · amount / maximum over all ranks and slices
};

struct HeatQuantity {
  std::string name;  // as in heat_quantities() of lib/observe/ranks/heat_map.h
  HeatScale scale = HeatScale::kRatio;
  bool is_rate = false;                     // amounts are TFLOP/s; else seconds per step
  double most = 0;                          // over all ranks and slices
  std::vector<std::vector<float>> medians;  // (slices, pp · tp) of each role, by stage and tp rank; for kRatio
  std::vector<std::vector<uint8_t>> bytes;  // (slices, ranks)
};

// Steps first_step .. last_step, whose windows form one slice.
struct HeatSlice {
  int64_t first_step = 0, last_step = 0;
  double time = 0;  // of its end, seconds since 1970
};

struct RankHeat {
  RankMesh mesh;
  std::vector<HeatSlice> slices;
  std::vector<HeatQuantity> quantities;  // those that are not zero everywhere
};

// Reads run.dir/ranks.h5: the windows of attempts on the newest attempt's mesh, with neighbours joined until all bytes
// are at most `most_bytes`. None if there is no window. Fails if the file can't be read (os_error ENOENT: there is
// none).
Result<std::optional<RankHeat>> read_rank_heat(const std::string& run_dir, int64_t most_bytes);

}  // namespace tri
