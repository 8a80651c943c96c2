// A rank's parameters and gradients as the layers see them: the hooks that tell where a gradient goes and wait for
// parameters, in front of the memory, the buckets of gradients and the gathers of parameters.
#pragma once

#include "lib/optim/gradient_buckets.h"
#include "lib/optim/parameter_gathers.h"
#include "lib/optim/parameter_memory.h"

namespace tri {

struct ParameterStoreContext {
  const Config& config;
  const Mesh& mesh;
  StoreTensors tensors;
  Fp8Tensors fp8;        // where FP8 codes are kept
  int num_microbatches;  // of a step
  Device& device;
  Stream& compute;
  AxisTransfers& dp;
};

class ParameterStore final : public ParameterHooks {
 public:
  // What the context refers to outlives the store.
  explicit ParameterStore(const ParameterStoreContext& context);

  const ParameterMemory& memory() const { return memory_; }
  const std::vector<std::vector<Parameter>>& parameters() const { return memory_.parameters(); }
  const StoreTensors& tensors() const { return memory_.tensors(); }
  GradientBuckets& gradients() { return gradients_; }
  ParameterGathers& gathers() { return gathers_; }

  // Parameters and master weights from `config.run.seed`; moments stay as they are. Waits until they are there.
  // Parameters that are kept as FP8 codes are left to cast_codes() and publish_codes().
  void make_start_values();
  // After master weights and moments were overwritten, each by the dp rank that owns it: completes those of the other
  // dp ranks (zero 0), and the parameters, but for those that are kept as FP8 codes.
  void state_loaded();
  // FP8 codes of this rank's slices from the master weights, with the scales that stand; then all ranks get all codes.
  void cast_codes();
  void publish_codes();

  void begin_step() { gradients_.begin_step(); }
  void begin_backward(int chunk, int microbatch) override { gradients_.begin_backward(chunk, microbatch); }
  void before_use(const Parameter& parameter) override { gathers_.before_use(parameter); }
  Tensor gradient(const Parameter& parameter) override;
  GradientTarget gradient_target(const Parameter& parameter) override { return gradients_.gradient_target(parameter); }
  void gradient_ready(const Parameter& parameter) override { gradients_.gradient_ready(parameter); }

 private:
  const Config& config_;
  const Mesh mesh_;
  Stream& compute_;
  ParameterMemory memory_;
  GradientBuckets gradients_;
  ParameterGathers gathers_;
};

}  // namespace tri
