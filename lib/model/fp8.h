// FP8 in the layers of a stage: scales, casts, weights in both orientations, GEMMs. The design: kernels/FP8.md.
//
// A tensor's scale comes from the steps before (delayed scaling): the largest number of each step, over all ranks and
// microbatches, is remembered as a maximum that decays. So a cast is one pass, all ranks agree on scales, and what tp
// gathers is already cast. The first step has no history: every cast first looks for the largest number of its operand,
// over the tp group, and the first microbatch's scales hold for the step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/comm/comm_group.h"
#include "lib/model/fp8_tensors.h"
#include "lib/model/parameter.h"

namespace tri {

// The GEMMs by one weight.
struct Fp8Linear {
  LinearId linear;
  const Parameter* weight = nullptr;
};

// The remembered maximum of a tensor is multiplied by this after each step: a maximum halves in seven steps.
inline constexpr float kFp8HistoryDecay = 0.9f;

// What a slot has seen in a step, over all ranks.
struct Fp8Numbers {
  float scale = 0;  // of this rank; in a first step without history 0 where other stages have the layer
  float amax = 0;
  float elements = 0, saturated = 0, underflowed = 0;  // that casts have met; recomputed ones again
};

class Fp8Layers {
 public:
  // Whatever is referred to outlives it.
  Fp8Layers(const Config& config, const Mesh& mesh, Fp8Tensors tensors, Stream& compute, GroupOnStream& tp,
            ParameterHooks& hooks);

  // Before a run of a plan, which casts its weights again, or transposes their quantized values. kStep: what casts meet
  // from here on belongs to a step; with what the casts of quantized values met before it.
  enum class Run { kStep, kForward };
  void begin(Run run);

  // Casts inp (R, C) with the slot's scale into `out` (R, C), `out_t` (C, R), or both. dbias (C), optional, added to:
  // sums over the rows.
  void cast(Fp8Operand operand, const LinearId& linear, Tensor inp, Tensor out, Tensor out_t = {}, Tensor dbias = {});
  // Cast as they are made: the rows of a norm, which `linear` reads; an activation, the input (R, K) of `linear`; the
  // gradient of the output (R, N) of `linear` through the activation after it. `scratch`, of the compute type, holds
  // them where there is no scale yet; activated's may be dactivated. `out` or `out_t`, the transpose, may be absent.
  void norm_forward(const LinearId& linear, NormForward norm, Tensor out, Tensor scratch);
  void activation_forward(const LinearId& linear, Tensor out, Tensor out_t, Tensor inp, Tensor scratch);
  void activation_backward(const LinearId& linear, Tensor out, Tensor out_t, Tensor dbias, Tensor dactivated,
                           Tensor inp, Tensor scratch);
  // An input that was cast before, once more, and transposed: (C, R) in `scratch`.
  Tensor cast_transposed(const LinearId& linear, Tensor inp, Tensor scratch);
  // rows^T (C, R) in `scratch`.
  Tensor transposed(Tensor rows, Tensor scratch);

  // out (R, N) = inp (R, K) · weight (N, K)^T + beta · out + bias
  void forward(const Fp8Linear& l, Tensor out, Tensor inp, float beta, Tensor bias);
  // dinp (R, K) = dout (R, N) · weight (N, K) + beta · dinp
  void backward_input(const Fp8Linear& l, Tensor dinp, Tensor dout, float beta);
  // dweight (N, K) = dout_t (N, R) · inp_t (K, R)^T + beta · dweight
  void backward_weight(const Fp8Linear& l, Tensor dweight, Tensor dout_t, Tensor inp_t, float beta);

  // After the last backward of a step: counts as numbers that are summed with the step's statistics, then the largest
  // numbers of all ranks.
  void count();
  void reduce(GroupOnStream& world);
  // The scales of the next step, unless grad_scale (1) is NaN. Where quantized values are kept (keeps_fp8_weights),
  // before the optimizer's update, which casts them with these scales; what it meets belongs to the next step.
  void update(Tensor grad_scale);
  // Where quantized values are kept and not made by an update, at a start or from a checkpoint: they are cast after
  // begin_quantized_weights(), with the scales of the history. Without one they are cast twice, with the scales that
  // make_weight_scales() makes of what the first cast, after begin_weight_scales(), has met on all ranks.
  void begin_quantized_weights();
  void begin_weight_scales();
  void make_weight_scales(GroupOnStream& world);
  // The host knows that the step's numbers were finite: the scales have a history.
  void step_was_finite() { has_history_ = true; }
  bool has_history() const { return has_history_; }

  const Fp8Tensors& tensors() const { return tensors_; }
  const Fp8Slots& slots() const { return slots_; }
  // What a checkpoint stores of the history of all slots: 0 for layers that do not multiply FP8. A later start may let
  // them multiply FP8 again, and their scales must not come from numbers that have only decayed since.
  std::vector<float> saved_history(std::span<const float> history) const;
  // What saved_history returned. Where layers that multiply FP8 have none, the next step makes it.
  void load_history(std::span<const float> history);

 private:
  int64_t slot(Fp8Operand operand, const LinearId& linear) const;
  Tensor of(const Tensor& all, int64_t slot) const { return all.flat(slot, 1); }
  Tensor inverse(int64_t slot) const { return tensors_.inverse.flat(slot * kFp8InverseStride, 1); }
  Fp8Cast cast_of(int64_t slot) const;  // without its tensors
  Dtype format(Fp8Operand operand) const;
  Fp8Accumulation accumulation(Pass pass) const;
  Fp8Weight weight(const Fp8Linear& l, Pass pass);
  // fp8_scales over the slots of each format.
  void make_scales(ScalesFrom from, Tensor grad_scale);

  const Config& config_;
  const Mesh mesh_;
  const Fp8Tensors tensors_;
  const Fp8Slots slots_;
  Stream& compute_;
  GroupOnStream& tp_;
  ParameterHooks& hooks_;
  const int64_t first_weight_, num_weights_;  // slots
  bool has_history_ = false;
  std::vector<bool> made_;  // [Fp8Slots::place]: the weight is cast or transposed, in this run of a plan
};

}  // namespace tri
