// The sharded optimizer step: global gradient norm, clipping, update of this rank's slices (lib/optim/optimizers.h),
// gathering of parameters. Everything is enqueued on the compute stream, except for updates that overlap with the next
// step; no call waits on the host. Call only from the training thread.
#pragma once

#include <limits>
#include <memory>

#include "lib/optim/muon.h"
#include "lib/optim/optimizers.h"
#include "lib/optim/parameter_store.h"

namespace tri {

struct OptimizerTensors {
  Tensor sumsq;                     // (S) f32: squared gradients of this rank's slices
  Tensor norm;                      // (1) f32: of all gradients, before clipping
  Tensor grad_scale;                // (1) f32: the clipping factor
  std::vector<Tensor> tensor_sums;  // [OptimizerRow::num_tensor_sums] (S) f32
  MuonTensors muon;
};

OptimizerTensors allocate_optimizer(const Config& config, const Mesh& mesh, const StoreTensors& store, Arena& arena);

// Above these limits a step is a spike, whose update changes nothing.
struct StepLimits {
  float loss = std::numeric_limits<float>::infinity(), grad_norm = std::numeric_limits<float>::infinity();

  bool exceeded_by(float a_loss, float a_grad_norm) const { return a_loss > loss || a_grad_norm > grad_norm; }
};

// kNow: the compute stream waits for the update. kOverlapped: it waits for each bucket's when it first reads the bucket
// (ParameterGathers), if the context has a stream for that.
enum class UpdateOrder { kNow, kOverlapped };

struct OptimizerContext {
  const Config& config;
  ParameterStore& store;
  OptimizerTensors tensors;
  Tensor sums;                    // (n) f32: numbers that reduce() sums over all ranks, among them norm_sq
  Tensor norm_sq;                 // (1) f32, an element of `sums`, which reduce() writes
  Tensor loss;                    // (1) f32, an element of `sums`
  std::vector<AxisGroup> groups;  // at least one for each axis of ParameterMemory::axes_to_sum()
  GroupOnStream& dp;
  GroupOnStream& world;
  Stream& compute;
  Stream* updates = nullptr;  // for updates that overlap with the next step; null: there are none
  // For muon: the ranks that hold parts of the same matrices (Runtime::matrices), and the streams' device.
  GroupOnStream* matrices = nullptr;
  Device* device = nullptr;
  std::vector<ExpertTransfers> experts = {};  // as in BucketTransfers
};

class Optimizer {
 public:
  // All references in the context outlive the optimizer.
  explicit Optimizer(OptimizerContext context);

  // Completes the gradients and the squared norm; `sums` become the sums over all ranks. Collective.
  void reduce();
  // Computes the clipping factor from the norm of reduce().
  void clip(const StepLimits& limits);
  // Updates and gathers the parameters, and updates the average of the weights. `step` counts from 0. Gradients that
  // are not finite, and spikes, change nothing. Collective.
  void update(int64_t step, double learning_rate, UpdateOrder order = UpdateOrder::kNow);

  const OptimizerTensors& tensors() const { return context_.tensors; }

 private:
  OptimizerContext context_;
  std::unique_ptr<Muon> muon_;
  std::unique_ptr<Event> clipped_;  // only with a stream for updates
};

}  // namespace tri
