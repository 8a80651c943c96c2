// What attention computes in a step over documents (data.document_mask), and how it differs between replicas.
#pragma once

#include <memory>
#include <vector>

#include "lib/comm/groups/background_gather.h"
#include "lib/config/config.h"
#include "lib/data/documents.h"
#include "lib/parallel/mesh.h"

namespace tri {

class DocumentWork {
 public:
  struct OfStep {
    double band_flops = 0, causal_flops = 0;  // of all ranks, by AttentionWork
    std::vector<double> band_pairs;           // of all ranks, for each of attention_windows()
    // How many more FLOPs (causal) the samples of the busiest dp rank need than those of the mean one: 0.1 is 10 %.
    double imbalance = 0;
  };

  // Collective. `config` and `mesh` outlive the object.
  DocumentWork(const Config& config, const Mesh& mesh);

  // Begins to send the pairs of this rank's samples in a step, StepTokens::pairs of all attention_windows(), to world
  // rank 0. Does not wait. Collective.
  void begin(const std::vector<AttentionPairs>& pairs);
  // Returns the work of that step, of `tokens` tokens. Call it after the step, when all ranks have called begin(). On
  // ranks other than world rank 0, which have only their own numbers, as if all samples were like this rank's.
  OfStep end(double tokens);

 private:
  const Config& config_;
  const Mesh& mesh_;
  std::vector<size_t> replicas_;  // a world rank for each set of samples
  std::vector<AttentionPairs> pairs_;
  std::unique_ptr<BackgroundGather> gather_;  // null: one rank
};

}  // namespace tri
