// FP8 in the layers of a stage: scales, casts, weights in both orientations, GEMMs. The design: kernels/FP8.md.
//
// A tensor's scale comes from earlier steps (delayed scaling): the amax of each step, over all ranks and microbatches,
// is remembered as a maximum that decays. So a cast is one pass, all ranks agree on scales, and tp gathers rows that
// are already cast. The first step has no history: every cast first finds the amax of its operand over the tp group,
// and the first microbatch's scales hold for the step.
//
// Threads: call only from the training thread. All work is enqueued on the compute stream.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/comm/groups/group_on_stream.h"
#include "lib/model/fp8_tensors.h"
#include "lib/model/parameter.h"

namespace tri {

// One weight, and the GEMMs that use it.
struct Fp8Linear {
  LinearId linear;
  const Parameter* weight = nullptr;
};

// The factor on the remembered maximum of a tensor after each step: a maximum halves in seven steps.
inline constexpr float kFp8HistoryDecay = 0.9f;

// Statistics of a slot in one step, over all ranks.
struct Fp8Numbers {
  float scale = 0;  // of this rank; 0 in a first step without history for layers of other stages
  float amax = 0;
  float elements = 0, saturated = 0, underflowed = 0;  // counted by casts, those of recomputation included
};

class Fp8Layers {
 public:
  // All references must outlive the object.
  Fp8Layers(const Config& config, const Mesh& mesh, Fp8Tensors tensors, Stream& compute, GroupOnStream& tp,
            ParameterHooks& hooks);

  // Call before a run of a plan, which casts its weights again or transposes the quantized ones. kStep starts the
  // statistics of a step; they include weight casts already made for it.
  enum class Run { kStep, kForward };
  void begin(Run run);

  // Casts inp (R, C) with the slot's scale into `out` (R, C), `out_t` (C, R), or both. Adds the sums over the rows to
  // dbias (C), if present. `used`: Fp8Cast's.
  void cast(Fp8Operand operand, const LinearId& linear, Tensor inp, Tensor out, Tensor out_t = {}, Tensor dbias = {},
            Tensor used = {});
  // Casts rows that are then sent to the ranks of `receivers` (null: to none), or came from them; they have the same
  // scale.
  void cast_for(GroupOnStream* receivers, Fp8Operand operand, const LinearId& linear, Tensor inp, Tensor out,
                Tensor used = {});
  // Cast while computing: the rows of a norm, which `linear` reads; an activation, the input (R, K) of `linear`; the
  // gradient of the output (R, N) of `linear` through the activation after it. `scratch`, of the compute type, holds
  // the uncast result while there is no scale yet; activated's may be dactivated. `out` or `out_t`, the transpose, may
  // be absent.
  void norm_forward(const LinearId& linear, NormForward norm, Tensor out, Tensor scratch);
  void activation_forward(Activation kind, const LinearId& linear, Tensor out, Tensor out_t, Tensor inp, Tensor scratch,
                          Tensor used = {});
  void activation_backward(Activation kind, const LinearId& linear, Tensor out, Tensor out_t, Tensor dbias,
                           Tensor dactivated, Tensor inp, Tensor scratch, Tensor used = {});
  // Casts an input that was cast before once more, transposed: (C, R) in `scratch`.
  Tensor cast_transposed(const LinearId& linear, Tensor inp, Tensor scratch);
  // Returns rows^T (C, R) in `scratch`; of the first `used` rows, if present.
  Tensor transposed(Tensor rows, Tensor scratch, Tensor used = {});

  // out (R, N) = inp (R, K) · weight (N, K)^T + beta · out + bias
  void forward(const Fp8Linear& l, Tensor out, Tensor inp, float beta, Tensor bias);
  // dinp (R, K) = dout (R, N) · weight (N, K) + beta · dinp
  void backward_input(const Fp8Linear& l, Tensor dinp, Tensor dout, float beta);
  // dweight (N, K) = dout_t (N, R) · inp_t (K, R)^T + beta · dweight
  void backward_weight(const Fp8Linear& l, Tensor dweight, Tensor dout_t, Tensor inp_t, float beta);
  // The same of experts, whose rows begin at `offsets` (E + 1): kernels/grouped_gemm.h. dweight (E, N, K).
  void experts_forward(const Fp8Linear& l, Tensor out, Tensor inp, Tensor offsets);
  void experts_backward_input(const Fp8Linear& l, Tensor dinp, Tensor dout, Tensor offsets);
  void experts_backward_weight(const Fp8Linear& l, Tensor dweight, Tensor dout_t, Tensor inp_t, Tensor offsets,
                               float beta);

  // After the last backward action of a step: count() converts the counts to floats, which are summed with the step's
  // statistics; reduce() takes the amax over all ranks (collective).
  void count();
  void reduce(GroupOnStream& world);
  // Sets the scales of the next step, unless grad_scale (1) is NaN. With keeps_fp8_weights, call it before the
  // optimizer's update, which casts with these scales; the update's casts count for the next step.
  void update(Tensor grad_scale);
  // With keeps_fp8_weights, for weights that no update has quantized (at a start, or from a checkpoint). With a
  // history: begin_quantized_weights(), then cast the weights. Without one, cast them twice: after
  // begin_weight_scales() for their amax on all ranks, from which make_weight_scales() sets the scales (collective),
  // and then again with these scales.
  void begin_quantized_weights();
  void begin_weight_scales();
  void make_weight_scales(GroupOnStream& world);
  // The host has seen that the step's numbers were finite, so the scales have a history.
  void step_was_finite() { has_history_ = true; }
  bool has_history() const { return has_history_; }
  // For runs whose numbers are not used: they have the kernels of steps with a history, or of those without one.
  void assume_history(bool has_history) { has_history_ = has_history; }

  const Fp8Tensors& tensors() const { return tensors_; }
  const Fp8Slots& slots() const { return slots_; }
  // Returns what a checkpoint stores of the history of all slots: 0 for layers that do not multiply FP8. If a later
  // start lets them multiply FP8 again, their scales must not come from values that have only decayed since.
  std::vector<float> saved_history(std::span<const float> history) const;
  // Loads what saved_history() returned. The next step creates the history of layers that have none.
  void load_history(std::span<const float> history);

 private:
  int64_t slot(Fp8Operand operand, const LinearId& linear) const;
  Tensor of(const Tensor& all, int64_t slot) const { return all.flat(slot, 1); }
  Tensor inverse(int64_t slot) const { return tensors_.inverse.flat(slot * kFp8InverseStride, 1); }
  Fp8Cast cast_of(int64_t slot) const;  // without its tensors
  Dtype format(Fp8Operand operand) const;
  Fp8Accumulation accumulation(Pass pass) const;
  // Without a history: sets the slot's scale from `inp`, unless an earlier microbatch has.
  void find_scale(Fp8Operand operand, int64_t slot, Tensor inp, Tensor used, GroupOnStream* receivers);
  Fp8Weight weight(const Fp8Linear& l, Pass pass);
  // fp8_scales over the slots of each format.
  void make_scales(ScalesFrom from, Tensor grad_scale);

  const Config& config_;
  const Fp8Tensors tensors_;
  const Fp8Slots slots_;
  Stream& compute_;
  GroupOnStream& tp_;
  ParameterHooks& hooks_;
  const int64_t first_weight_, num_weights_;  // slots
  std::vector<int> first_layer_;              // [chunk]
  bool has_history_ = false;
  std::vector<bool> made_;  // [Fp8Slots::place]: this run of a plan has cast or transposed the weight
};

}  // namespace tri
