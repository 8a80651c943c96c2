// A rank's parameters and gradients in training.
#pragma once

#include "lib/optim/gradient_buckets.h"
#include "lib/optim/parameter_gathers.h"
#include "lib/optim/parameter_memory.h"

namespace tri {

struct ParameterStoreContext {
  const Config& config;
  const Mesh& mesh;
  StoreTensors tensors;
  Fp8Tensors fp8;        // if FP8 weights are stored
  int num_microbatches;  // of a step
  Device& device;
  Stream& compute;
  AxisTransfers& dp;
  std::vector<ExpertTransfers> experts = {};  // if the model has experts
  LocalSums sums = {};
};

// Owns the three parts; gradients and gathers refer to the memory. Users take the part that they need. Config, device,
// stream and transfers outlive it.
struct ParameterStore {
  explicit ParameterStore(const ParameterStoreContext& c)
      : memory(c.config, c.mesh, c.tensors, c.compute, c.fp8),
        gradients({.config = c.config,
                   .memory = memory,
                   .num_microbatches = c.num_microbatches,
                   .device = c.device,
                   .compute = c.compute,
                   .dp = {c.mesh.divided(kBucketAxes), c.dp, c.experts},
                   .sums = c.sums}),
        gathers({.memory = memory,
                 .device = c.device,
                 .compute = c.compute,
                 .dp = {c.mesh.divided(kBucketAxes), c.dp, c.experts}}) {}

  const ParameterMemory memory;  // the layout
  GradientBuckets gradients;     // where layers add gradients, and their sums over dp
  ParameterGathers gathers;      // how parameters are updated from the master weights
};

}  // namespace tri
