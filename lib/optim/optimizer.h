// The sharded optimizer step: global gradient norm, clipping, update of this rank's slices, gathering of parameters.
// Everything is enqueued on the compute stream; nothing waits on the host.
//
// A new optimizer is one update function and one row of the table in optimizer.cpp.
#pragma once

#include "lib/optim/parameter_store.h"

namespace tri {

struct OptimizerTensors {
  Tensor sumsq;            // (S) f32: squares of the slices' gradients, this rank's part
  Tensor stats;            // (kNumStats) f32; this rank's part, then the sum over the world
  Tensor norm;             // (1) f32
  Tensor grad_scale;       // (1) f32
  Tensor weight_sumsq;     // (S) f32; LAMB
  Tensor direction_sumsq;  // (S) f32; LAMB
};
// kStatStop and those behind it: sums of the ranks' RankFlags: agreement for which no collective is added.
inline constexpr int kStatNormSq = 0, kStatLoss = 1, kStatStop = 2, kStatSaved = 3, kStatFailed = 4, kStatStopAge = 5,
                     kStatTimeNeeded = 6, kNumStats = 7;

// What the ranks tell each other with every step.
struct RankFlags {
  bool stop = false;      // a signal asks this rank to stop
  bool saved = false;     // this rank's part of the checkpoint under way is done
  bool failed = false;    // ... or could not be
  float stop_age = 0;     // seconds since that signal
  float time_needed = 0;  // rank 0: seconds until the state after this step would be saved, by what was measured before
};

OptimizerTensors allocate_optimizer(const Config& config, int num_tensors, Arena& arena);

struct OptimizerGroups {
  GroupOnStream& tp;
  GroupOnStream& dp;
  GroupOnStream* embedding;  // first and last stage of a tied model with pp > 1; else null
  GroupOnStream& world;
};

class Optimizer {
 public:
  Optimizer(const Config& config, ParameterStore& store, OptimizerTensors tensors, OptimizerGroups groups,
            Stream& compute);

  // Completes the gradients and tensors().stats: the squared norm, and whatever loss `stats` was given.
  void reduce();
  // Clips, updates, gathers. `step` counts from 0.
  void update(int64_t step, double learning_rate);

  const OptimizerTensors& tensors() const { return tensors_; }

 private:
  const Config& config_;
  ParameterStore& store_;
  OptimizerTensors tensors_;
  OptimizerGroups groups_;
  Stream& compute_;
};

}  // namespace tri
