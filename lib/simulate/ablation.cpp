#include "lib/simulate/ablation.h"

namespace tri {
namespace {

// One optimization: whether the workload uses it, and how to undo it.
struct Choice {
  const char* name;
  bool (*made)(const Workload& w);
  void (*undo)(Workload& w);
};

constexpr Choice kChoices[] = {
    {"without tp overlap", [](const Workload& w) { return w.tp > 1 && w.overlap_tp; },
     [](Workload& w) { w.overlap_tp = false; }},
    {"without pp overlap", [](const Workload& w) { return w.pp > 1 && w.overlap_pp; },
     [](Workload& w) { w.overlap_pp = false; }},
    {"without dp overlap", [](const Workload& w) { return w.reducing() > 1 && w.overlap_dp; },
     [](Workload& w) { w.overlap_dp = false; }},
    {"one chunk per stage", [](const Workload& w) { return w.chunks > 1; },
     [](Workload& w) {
       w.chunks = 1;
       w.schedule = Schedule::k1F1B;
       w.layers_per_chunk.clear();
     }},
    {"whole backward passes", [](const Workload& w) { return splits_backward(w.schedule); },
     [](Workload& w) { w.schedule = w.chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B; }},
    {"even stages", [](const Workload& w) { return !w.layers_per_chunk.empty(); },
     [](Workload& w) { w.layers_per_chunk.clear(); }},
    {"sequential block", [](const Workload& w) { return w.model.block == Block::kParallel; },
     [](Workload& w) { w.model.block = Block::kSequential; }},
    // Documents are counted for the config's windows alone.
    {"full attention", [](const Workload& w) { return w.model.window > 0 && !w.documents; },
     [](Workload& w) { w.model.window = 0; }},
    {"full recompute", [](const Workload& w) { return w.recompute != Recompute::kFull; },
     [](Workload& w) { w.recompute = Recompute::kFull; }},
    {"bf16 instead of FP8", [](const Workload& w) { return w.numbers == Numbers::kFp8; },
     [](Workload& w) { w.numbers = Numbers::kBf16; }},
};

}  // namespace

std::vector<AblationRow> ablation_rows(const Workload& workload, const Cluster& cluster, Stragglers stragglers) {
  const RingTimes times(cluster);
  std::vector<AblationRow> rows{{"as configured", predict_step(workload, cluster, times, stragglers)}};
  for (const Choice& choice : kChoices) {
    if (!choice.made(workload)) continue;
    Workload without = workload;
    choice.undo(without);
    if (problem_of(without).empty()) rows.push_back({choice.name, predict_step(without, cluster, times, stragglers)});
  }
  const bool slow = cluster.stragglers.share > 0 || cluster.stragglers.jitter > 0;
  if (slow && stragglers == Stragglers::kOn)
    rows.push_back({"no slow machines", predict_step(workload, cluster, times, Stragglers::kOff)});
  return rows;
}

}  // namespace tri
