// The times that every rank measures of its steps, by window: the format of run.dir/ranks.h5 in memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/base/enum_names.h"
#include "io/base/rank_grid.h"

namespace tri {

// Seconds per step of a rank: the mean over the steps of a window, unless noted. kForward to kOther add up to kStep.
enum class RankQuantity {
  kStep,       // wall time, from requesting the batch to the end of the update
  kForward,    // the compute stream is busy: forward actions, including gaps between kernels, excluding waits
  kBackward,   // ... backward actions
  kOptimizer,  // ... norms, clipping, the update
  kTp,         // exposed waits of the compute stream for transfers of the tp axis
  kCp,         // ... for transfers of the cp axis
  kEp,         // ... for rows of experts
  kPp,         // ... for transfers between stages
  kDp,         // ... for transfers of the dp axis
  kBubble,     // ... for the work of other stages
  kData,       // waits for the batch
  kStolen,     // CPU: the compute stream had work, but its thread no core. GPU: 0
  kOther,      // the host's, between and concurrently with the device's work
  // kForward + kBackward of a step: the lower quartile over the steps. Noise only slows single steps down, whereas a
  // slow rank is slow in every step
  kCompute,
  kSend,  // one send to a neighbour stage: the fastest of a step, the median over the steps; 0: it does not send
  // from the end of the previous step until the rank's gradients are ready to be reduced over dp, the mean over its
  // buckets; should be equal for ranks of a role. 0: nothing is reduced
  kLaunch,
  kLaunchSpread,  // ... its standard deviation over the steps
};
inline constexpr int kNumRankQuantities = 17;
// What kept compute from working.
inline constexpr std::array kExposedWaits{RankQuantity::kTp,  RankQuantity::kCp, RankQuantity::kEp,
                                          RankQuantity::kPp,  RankQuantity::kDp, RankQuantity::kBubble,
                                          RankQuantity::kData};

template <>
struct EnumNames<RankQuantity> {
  static constexpr std::array table{std::pair{RankQuantity::kStep, std::string_view("step")},
                                    std::pair{RankQuantity::kForward, std::string_view("forward")},
                                    std::pair{RankQuantity::kBackward, std::string_view("backward")},
                                    std::pair{RankQuantity::kOptimizer, std::string_view("optimizer")},
                                    std::pair{RankQuantity::kTp, std::string_view("tp")},
                                    std::pair{RankQuantity::kCp, std::string_view("cp")},
                                    std::pair{RankQuantity::kEp, std::string_view("ep")},
                                    std::pair{RankQuantity::kPp, std::string_view("pp")},
                                    std::pair{RankQuantity::kDp, std::string_view("dp")},
                                    std::pair{RankQuantity::kBubble, std::string_view("bubble")},
                                    std::pair{RankQuantity::kData, std::string_view("data")},
                                    std::pair{RankQuantity::kStolen, std::string_view("stolen")},
                                    std::pair{RankQuantity::kOther, std::string_view("other")},
                                    std::pair{RankQuantity::kCompute, std::string_view("compute")},
                                    std::pair{RankQuantity::kSend, std::string_view("send")},
                                    std::pair{RankQuantity::kLaunch, std::string_view("launch")},
                                    std::pair{RankQuantity::kLaunchSpread, std::string_view("launch_spread")}};
};

struct RankTimes {
  std::array<float, kNumRankQuantities> seconds{};  // [RankQuantity]

  float& operator[](RankQuantity quantity) { return seconds[static_cast<size_t>(quantity)]; }
  float operator[](RankQuantity quantity) const { return seconds[static_cast<size_t>(quantity)]; }
  bool operator==(const RankTimes&) const = default;
};

// The times of all ranks in steps first_step .. last_step (1 is the first of the run).
struct RankWindow {
  int64_t first_step = 0, last_step = 0;
  double time = 0;               // end of the window, seconds since 1970
  std::vector<RankTimes> ranks;  // by world rank

  int64_t steps() const { return last_step - first_step + 1; }
};

// The ranks of one attempt of a run.
struct RankMesh {
  struct Place {
    std::string host;  // at most 63 bytes are stored
    std::string gpu;   // its PCI id; "": a CPU
    bool operator==(const Place&) const = default;
  };

  std::string attempt;  // its name (lib/fault/events.h)
  RankGrid grid = unnamed_grid(1, 1, 1);
  std::string schedule;                  // enum_name(Schedule)
  int num_microbatches = 1, chunks = 1;  // chunks: per stage
  std::vector<double> stage_flops;       // (pp) model FLOPs per step of a rank of each stage
  std::vector<Place> places;             // by world rank

  int world_size() const { return grid.world_size(); }
  int stages() const { return grid.size("pp"); }
  int in_stage() const { return world_size() / stages(); }  // ranks
  int tp() const { return grid.size("tp"); }
  int stage_of(int world_rank) const { return grid.rank_on("pp", world_rank); }
  // In ascending order.
  std::vector<int> ranks_of_stage(int stage) const { return grid.group_without(grid.rank_at({{"pp", stage}}), {"pp"}); }
  bool operator==(const RankMesh&) const = default;
};

// Returns "rank 13 [pp1 dp0 tp1] on node07 (GPU 0000:18:00.0)".
std::string to_string_place(const RankMesh& mesh, int world_rank);

}  // namespace tri
