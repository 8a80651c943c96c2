#include "kernels/router.h"

#include "kernels/core/checks.h"

namespace tri {
namespace {

void check_rule(const char* op, const RouterRule& rule, int64_t experts, int64_t per_token) {
  TRI_REQUIRE(experts > 0 && experts <= kMaxRouterExperts && per_token > 0 && per_token <= kMaxExpertsPerToken,
              "{}: {} of {} experts", op, per_token, experts);
  TRI_REQUIRE(rule.groups > 0 && experts % rule.groups == 0 && rule.top_groups > 0 && rule.top_groups <= rule.groups &&
                  per_token <= experts / rule.groups * rule.top_groups,
              "{}: {} of {} experts from {} of {} groups", op, per_token, experts, rule.top_groups, rule.groups);
  TRI_REQUIRE(rule.groups == 1 || rule.kind == Router::kSigmoid, "{}: {} groups of a softmax router", op, rule.groups);
}

}  // namespace

void check(const RouterForward& a) {
  require_matrix("router_forward", "logits", a.logits);
  const int64_t rows = a.logits[0], experts = a.logits[1];
  require_tensor("router_forward", "logits", a.logits, Dtype::kF32, {rows, experts});
  const int64_t per_token = a.experts[1];
  require_tensor("router_forward", "experts", a.experts, Dtype::kI32, {rows, per_token});
  require_tensor("router_forward", "weights", a.weights, Dtype::kF32, {rows, per_token});
  require_tensor("router_forward", "counts", a.counts, Dtype::kF32, {experts});
  require_tensor("router_forward", "share_sums", a.share_sums, Dtype::kF32, {experts + 1});
  require_optional("router_forward", "bias", a.bias, Dtype::kF32, {experts});
  TRI_REQUIRE(a.bias.empty() || a.rule.kind == Router::kSigmoid, "router_forward: a bias of a softmax router");
  check_rule("router_forward", a.rule, experts, per_token);
}

void check(const RouterBackward& a) {
  require_matrix("router_backward", "logits", a.logits);
  const int64_t rows = a.logits[0], experts = a.logits[1], per_token = a.experts[1];
  require_tensor("router_backward", "logits", a.logits, Dtype::kF32, {rows, experts});
  require_float("router_backward", "dlogits", a.dlogits);
  require_tensor("router_backward", "dlogits", a.dlogits, a.dlogits.dtype, {rows, experts});
  require_tensor("router_backward", "experts", a.experts, Dtype::kI32, {rows, per_token});
  require_tensor("router_backward", "dweights", a.dweights, Dtype::kF32, {rows, per_token});
  require_optional("router_backward", "counts", a.counts, Dtype::kF32, {experts});
  TRI_REQUIRE(!a.counts.empty() || a.aux_scale == 0.0f, "router_backward: aux_scale {} without counts", a.aux_scale);
  check_rule("router_backward", a.rule, experts, per_token);
}

void check(const RouterTotals& a) {
  const int64_t experts = a.counts.numel();
  require_tensor("router_totals", "counts", a.counts, Dtype::kF32, {experts});
  require_tensor("router_totals", "all_counts", a.all_counts, Dtype::kF32, {experts});
  require_tensor("router_totals", "load", a.load, Dtype::kF32, {experts});
  require_tensor("router_totals", "losses", a.losses, Dtype::kF32, {2});
  require_tensor("router_totals", "share_sums", a.share_sums, Dtype::kF32, {experts + 1});
}

void check(const RouterBiasUpdate& a) {
  const int64_t experts = a.bias.numel();
  require_tensor("router_bias_update", "bias", a.bias, Dtype::kF32, {experts});
  require_tensor("router_bias_update", "load", a.load, Dtype::kF32, {experts});
  require_tensor("router_bias_update", "grad_scale", a.grad_scale, Dtype::kF32, {1});
}

}  // namespace tri
