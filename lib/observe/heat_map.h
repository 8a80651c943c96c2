// The mesh as a picture of text: every rank's value of one quantity, coloured by how far it is from its role's median
// (lib/observe/stragglers.h), so that no stage is blamed for being another stage than its neighbours.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"
#include "io/ranks/rank_times.h"

namespace tri {

// What can be shown: every RankQuantity by its name, and
//   waits        exposed waits of all kinds: tp, pp, dp, bubble, data
//   rate         TFLOP/s of the model while the rank computes
//   launch_skew  by how much later than the first of its role the rank hands its gradients over
std::vector<std::string> heat_quantities();

struct Heat {
  std::string quantity;
  bool is_rate = false;         // TFLOP/s, and less is slower; else seconds a step
  bool is_work = false;         // the rank's own work: who takes longer is slow. Else: a wait, a time of day
  std::vector<double> values;   // by world rank
  std::vector<double> slower;   // by world rank: of work, over the role's median less 1; of others, over the step
  std::vector<double> medians;  // (pp) of each stage
};
// Error (kUsage): there is no such quantity; the message names them all.
Result<Heat> heat_of(const RankMesh& mesh, const RankWindow& window, std::string_view quantity);

// The newest window of a run, and its ranks. Error: no window is there (kFile), or it can't be read.
struct NewestWindow {
  RankMesh mesh;
  RankWindow window;
};
Result<NewestWindow> newest_window(const std::string& run_dir);

inline constexpr double kStandsOut = 0.1;  // a rank that is so much slower than its role

// World ranks that stand out, the slowest first; of quantities that are no work, none.
std::vector<int> standing_out(const Heat& heat);

struct HeatScreen {
  int columns = 80, lines = 24;  // the picture fits in
  bool colours = false;          // 256 of them; blue to orange, which the colour-blind tell apart
};
// A number a rank where there is room; else a character a rank, or for several of them, of which the slowest is shown.
std::string heat_map_text(const RankMesh& mesh, const RankWindow& window, const Heat& heat, const HeatScreen& screen);

// For machines, one object:
//   quantity, unit ("ms" or "TFLOP/s"), attempt, first_step, last_step, mesh {pp, dp, tp}
//   values [[[..]]] (pp, dp, tp), slower [[[..]]] (of 1), stage_medians [..]
//   standing_out [{rank, place {pp, dp, tp}, host, gpu, value, slower}]
std::string heat_map_json(const RankMesh& mesh, const RankWindow& window, const Heat& heat);

}  // namespace tri
