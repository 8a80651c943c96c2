// The router of a mixture of experts: which experts compute a token, and with which weights. Arithmetic is fp32.
//   scores   s = softmax(logits) over the E experts, or sigmoid(logits)
//   choice   c = logits (softmax), or s + bias (sigmoid): the K experts of largest c, largest first. With groups > 1
//            the experts are `groups` runs of E / groups; only the top_groups groups with the largest sums of their
//            two largest c (one, if a group has one expert) are candidates. Of equal values the lower index is first
//   weights  w_k = scale · s_k, or renormalized scale · s_k / (sum of the K chosen s + 1e-20)
//   shares   p = s (softmax), or s / (sum of the E s + 1e-20) (sigmoid): what the auxiliary loss counts
// Two losses may be added to the objective (Fedus et al. 2021; Zoph et al. 2022, ST-MoE):
//   aux      sum over rows and experts of aux_scale · counts_e · p_e, with counts of the whole microbatch as constants
//   z        sum over rows of z_scale · z²,  z = log(sum over e of exp(logits_e))
// Letters: kernels/core/dims.h; E experts, K experts per token.
#pragma once

#include "io/base/enum_names.h"
#include "kernels/core/tensor.h"

namespace tri {

enum class Router { kSoftmax, kSigmoid };

template <>
struct EnumNames<Router> {
  static constexpr std::array table{std::pair{Router::kSoftmax, std::string_view("softmax")},
                                    std::pair{Router::kSigmoid, std::string_view("sigmoid")}};
};

inline constexpr int kMaxRouterExperts = 512, kMaxExpertsPerToken = 32;

struct RouterRule {
  Router kind = Router::kSoftmax;
  bool renormalize = true;
  float scale = 1.0f;
  int groups = 1, top_groups = 1;  // groups > 1 only with kSigmoid

  bool operator==(const RouterRule&) const = default;
};

struct RouterForward {
  Tensor experts;     // (R, K) i32: overwritten
  Tensor weights;     // (R, K) f32: overwritten
  Tensor counts;      // (E) f32: overwritten with the number of rows that chose an expert (whole numbers)
  Tensor share_sums;  // (E + 1) f32: overwritten with the sums over rows of p_e, then of z²; in a fixed order
  Tensor logits;      // (R, E) f32
  Tensor bias;        // (E) f32, optional; only with kSigmoid
  RouterRule rule;
};
void check(const RouterForward&);

// The choice of experts is a constant.
struct RouterBackward {
  Tensor dlogits;   // (R, E) f32|bf16: overwritten
  Tensor dweights;  // (R, K) f32
  Tensor logits;    // (R, E) f32
  Tensor experts;   // (R, K) i32: as RouterForward wrote them
  Tensor counts;    // (E) f32, optional: of the microbatch; absent if aux_scale is 0
  RouterRule rule;
  float aux_scale = 0.0f, z_scale = 0.0f;
};
void check(const RouterBackward&);

// Adds a microbatch to the statistics of a step:
//   load[e] += counts[e];  losses[0] += aux_scale · sum over e of all_counts[e] · share_sums[e];
//   losses[1] += z_scale · share_sums[E]
struct RouterTotals {
  Tensor load;        // (E) f32
  Tensor losses;      // (2) f32
  Tensor counts;      // (E) f32: of the rank's rows
  Tensor all_counts;  // (E) f32: of the microbatch
  Tensor share_sums;  // (E + 1) f32
  float aux_scale = 0.0f, z_scale = 0.0f;
};
void check(const RouterTotals&);

// After a step (arXiv 2408.15664): bias[e] += rate · sign(mean of load - load[e]). If grad_scale is NaN, nothing
// changes.
struct RouterBiasUpdate {
  Tensor bias;        // (E) f32
  Tensor load;        // (E) f32: rows that chose an expert in the whole step
  Tensor grad_scale;  // (1) f32: the clipping factor
  float rate = 0.0f;
};
void check(const RouterBiasUpdate&);

}  // namespace tri
