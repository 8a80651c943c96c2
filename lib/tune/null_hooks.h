// Gradients where they lie in a step, without the store's bookkeeping and its transfers: nobody collects them.
#pragma once

#include "lib/optim/parameter_store.h"

namespace tri {

class NullHooks final : public ParameterHooks {
 public:
  // GEMMs overwrite their gradients (beta 0) or add to them (1).
  NullHooks(ParameterStore& store, float beta) : store_(store), beta_(beta) {}
  void begin_backward(int, int) override {}
  void before_use(const Parameter&) override {}
  Tensor gradient(const Parameter& parameter) override { return store_.any_gradient_place(parameter); }
  GradientTarget gradient_target(const Parameter& parameter) override {
    return {store_.any_gradient_place(parameter), beta_};
  }
  void gradient_ready(const Parameter&) override {}

 private:
  ParameterStore& store_;
  const float beta_;
};

}  // namespace tri
