// Null objects for a step's transfers and for the bookkeeping of its gradients, with which layers run as in a step.
#pragma once

#include "lib/comm/groups/comm_group.h"
#include "lib/optim/parameter_memory.h"
#include "lib/parallel/mesh.h"

namespace tri {

// A group that moves nothing.
class NullGroup final : public CommGroup {
 public:
  explicit NullGroup(Axis axis) : CommGroup("null", axis.rank, axis.size) {}

 private:
  void do_all_gather(Tensor, Tensor, Stream&) override {}
  void do_reduce_scatter(Tensor, Tensor, Stream&) override {}
  void do_all_reduce(Tensor, ReduceOp, Stream&) override {}
  void do_broadcast(Tensor, int, Stream&) override {}
  void do_send(Tensor, int, Stream&) override {}
  void do_recv(Tensor, int, Stream&) override {}
  void do_exchange(const std::vector<Message>&, const std::vector<Message>&, Stream&) override {}
};

// Provides gradients where a step stores them, without the store's bookkeeping and transfers.
class NullHooks final : public ParameterHooks {
 public:
  // GEMMs overwrite their gradients (beta 0) or add to them (1).
  NullHooks(const ParameterMemory& memory, float beta) : memory_(memory), beta_(beta) {}
  void before_use(const Parameter&) override {}
  Tensor gradient(const Parameter& parameter) override { return place(parameter); }
  GradientTarget gradient_target(const Parameter& parameter) override { return {place(parameter), beta_}; }
  void gradient_ready(const Parameter&) override {}

 private:
  // Returns memory of the gradient's shape and alignment, with arbitrary contents.
  Tensor place(const Parameter& parameter) const {
    const BucketMemory& bucket = memory_.buckets()[static_cast<size_t>(memory_.bucket_of(parameter))];
    const Tensor& full = bucket.gradients.empty() ? memory_.tensors().pool.front() : bucket.gradients;
    return memory_.gradient_in(full, parameter);
  }

  const ParameterMemory& memory_;
  const float beta_;
};

}  // namespace tri
