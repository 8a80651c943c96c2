// synthetic_run DIR STEPS PP DP TP WINDOWS [SEED [hang [X [LAYERS EXPERTS]]]]: writes the folder of a synthetic run.
// X: the ranks of another axis. LAYERS, EXPERTS: the layers with experts, and the experts of each.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tests/report/synthetic/synthetic_run.h"

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr, "usage: %s DIR STEPS PP DP TP WINDOWS [SEED [hang [X [LAYERS EXPERTS]]]]\n", argv[0]);
    return 2;
  }
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  tri::SyntheticRun run{.steps = number(2), .pp = number(3), .dp = number(4), .tp = number(5), .windows = number(6)};
  run.checkpoint_every = std::max<int64_t>(1, run.steps / 100);
  run.evaluate_every = std::max<int64_t>(1, run.steps / 50);
  run.lost_steps = run.checkpoint_every / 2;
  run.restarts = 5;
  if (argc > 7) run.seed = static_cast<uint64_t>(number(7));
  run.hang = argc > 8;
  if (argc > 9) run.x = number(9);
  if (argc > 11) run.expert_layers = number(10), run.experts = number(11);
  try {
    tri::write_synthetic_run(argv[1], run);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 1;
  }
  return 0;
}
