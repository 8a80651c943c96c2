// Shows the mesh as text: every rank's value of one quantity, coloured by its distance from its role's median
// (lib/observe/ranks/stragglers.h), so that different stages are not compared with each other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"
#include "io/ranks/rank_times.h"

namespace tri {

// The quantities: every RankQuantity by its name, and
//   waits        exposed waits of all kinds: tp, pp, dp, bubble, data
//   rate         TFLOP/s of the model while the rank computes
//   launch_skew  how much later than the first of its role the rank launches the reduction of its gradients
std::vector<std::string> heat_quantities();

struct Heat {
  std::string quantity;
  bool is_rate = false;         // TFLOP/s, lower is slower; else seconds per step
  bool is_work = false;         // the rank's own work, in which longer is slower; else a wait or a point in time
  std::vector<double> values;   // by world rank
  std::vector<double> slower;   // by world rank: for work, over the role's median minus 1; for others, over the step
  std::vector<double> medians;  // (pp), per stage
};
// Fails with kUsage if there is no such quantity; the message lists all.
Result<Heat> heat_of(const RankMesh& mesh, const RankWindow& window, std::string_view quantity);

// The newest window of a run and its ranks. Reading fails if there is no such folder (kUsage), if there is no window
// (kFile) or if it can't be read.
struct NewestWindow {
  RankMesh mesh;
  RankWindow window;
};
Result<NewestWindow> newest_window(const std::string& run_dir);

inline constexpr double kStandsOut = 0.1;  // a rank that is this much slower than its role stands out

// Returns the world ranks that stand out, slowest first; none for quantities that are not work.
std::vector<int> standing_out(const Heat& heat);

struct HeatScreen {
  int columns = 80, lines = 24;  // size of the picture
  bool colours = false;          // 256 colours, from blue to orange, which are distinguishable for colour-blind readers
};
// Prints one number per rank if they fit; else one character per rank or per group of ranks, for the slowest of them.
std::string heat_map_text(const RankMesh& mesh, const RankWindow& window, const Heat& heat, const HeatScreen& screen);

// Returns one JSON object:
//   quantity, unit ("ms" or "TFLOP/s"), attempt, first_step, last_step, mesh {axis: size}, slowest axis first
//   values [[[..]]] (by axis, as in mesh: pp, dp, tp), slower [[[..]]] (of 1), stage_medians [..]
//   standing_out [{rank, place {axis: position}, host, gpu, value, slower}]
std::string heat_map_json(const RankMesh& mesh, const RankWindow& window, const Heat& heat);

}  // namespace tri
