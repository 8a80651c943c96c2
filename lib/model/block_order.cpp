#include "lib/model/block_order.h"

#include <algorithm>

namespace tri {
namespace {

using Regions = std::vector<TransferRegion>;
using enum Branch;
using enum LinearSplit;
using enum Step;
using enum Pass;

// Each row is a transfer over tp and the steps that run concurrently with it, below the formulas that they compute.
// Norms and residual additions process local rows (Rl, C): a forward gather begins with its norm, and a backward reduce
// ends with that of its norm (TransformerBlock::gather_rows, rows_backward). A norm of a branch's output ends a forward
// reduce and begins a backward gather (stream_after, gather_gradient). Weights W (N, K) are tp shards: W_qkv and W_fc1
// of N, W_proj and W_fc2 of K. A bias b exists if the model has it; its gradient sums the rows of its output's.
//
// A weight gradient runs concurrently with each transfer of a backward pass; that of qkv runs alongside the first
// transfer of the layer below. The inputs of a weight gradient are not overwritten before its transfer has ended.

// m = x + attention(norm1(x)), y = m + mlp(norm2(m)).
const Regions kSequentialForward = {
    // n1 = gather(norm1(x)) (R, C);  qkv = n1 W_qkv^T + b (R, (NHl + 2 NKVl) HS)
    // q, k = rope(qk_norm(q, k)), if the model has these;  a = softmax(mask(q k^T / sqrt(HS))) v (R, NHl HS)
    {{kAttention, kColumn}, kForward, {{kAttention, kColumnForward}, {kAttention, kInnerForward}}},
    // m = x + reduce(a W_proj^T) + b (Rl, C); norm2 adds and stores it
    {{kAttention, kRow}, kForward, {{kAttention, kRowForward}}},
    // n2 = gather(norm2(m)) (R, C);  f = n2 W_fc1^T + b (R, Fl), or (R, 2 Fl) with a gate;  g = activation(f) (R, Fl)
    {{kMlp, kColumn}, kForward, {{kMlp, kColumnForward}, {kMlp, kInnerForward}}},
    // y = m + reduce(g W_fc2^T) + b (Rl, C); norm1 of the next layer adds and stores it
    {{kMlp, kRow}, kForward, {{kMlp, kRowForward}}},
};
const Regions kSequentialBackward = {
    // dy = gather(dy) (R, C);  dW_qkv of the layer above;  dg = dy W_fc2 (R, Fl)
    // df = activation'(f) dg (R, Fl | 2 Fl)
    {{kMlp, kRow},
     kBackward,
     {{kAttention, kDeferred}, {kMlp, kRecompute}, {kMlp, kRowGradient}, {kMlp, kInnerBackward}}},
    // dn2 = reduce(df W_fc1) (Rl, C);  dW_fc2 += dy^T g (C, Fl);  dm = dy + norm2'(dn2) (Rl, C)
    {{kMlp, kColumn}, kBackward, {{kMlp, kColumnGradient}, {kMlp, kRowWeight}}},
    // dm = gather(dm) (R, C);  dW_fc1 += df^T n2 (Fl | 2 Fl, C);  da = dm W_proj (R, NHl HS)
    // dqkv = qk_norm'(rope'(attention'(da))) (R, (NHl + 2 NKVl) HS)
    {{kAttention, kRow},
     kBackward,
     {{kMlp, kColumnWeight}, {kAttention, kRecomputeNorm}, {kAttention, kRowGradient}, {kAttention, kInnerBackward}}},
    // dn1 = reduce(dqkv W_qkv) (Rl, C);  dW_proj += dm^T a (C, NHl HS);  dx = dm + norm1'(dn1) (Rl, C)
    // dW_qkv += dqkv^T n1 ((NHl + 2 NKVl) HS, C), later
    {{kAttention, kColumn}, kBackward, {{kAttention, kColumnGradient}, {kAttention, kRowWeight}, {kAttention, kDefer}}},
};

// n = norm1(x), y = x + attention(n) + mlp(n). Both branches share a gather and a reduce: the second GEMM adds to the
// partial sums of the first and sends them.
const Regions kParallelForward = {
    // n = gather(norm1(x)) (R, C);  qkv, a, f and g from n as above
    {{kAttention, kColumn},
     kForward,
     {{kAttention, kColumnForward}, {kAttention, kInnerForward}, {kMlp, kColumnForward}, {kMlp, kInnerForward}}},
    // y = x + reduce(a W_proj^T + g W_fc2^T) + b (Rl, C)
    {{kMlp, kRow}, kForward, {{kAttention, kRowForward}, {kMlp, kRowForward}}},
};
const Regions kParallelBackward = {
    // dy = gather(dy) (R, C);  dW_qkv of the layer above;  dg, df
    {{kMlp, kRow},
     kBackward,
     {{kAttention, kDeferred}, {kMlp, kRecompute}, {kMlp, kRowGradient}, {kMlp, kInnerBackward}}},
    // da, dqkv;  dn = reduce(df W_fc1 + dqkv W_qkv) (Rl, C);  the weights' gradients;  dx = dy + norm1'(dn) (Rl, C)
    {{kAttention, kColumn},
     kBackward,
     {{kMlp, kColumnGradient},
      {kAttention, kRowGradient},
      {kAttention, kInnerBackward},
      {kAttention, kColumnGradient},
      {kMlp, kRowWeight},
      {kMlp, kColumnWeight},
      {kAttention, kRowWeight},
      {kAttention, kDefer}}},
};

// n1 = norm1(x), n2 = norm2(x), y = x + attention(n1) + mlp(n2). The branches share the forward reduce and the backward
// gather.
const Regions kTwoNormsForward = {
    // n1 = gather(norm1(x)) (R, C);  qkv, a from n1 as above
    {{kAttention, kColumn}, kForward, {{kAttention, kColumnForward}, {kAttention, kInnerForward}}},
    // n2 = gather(norm2(x)) (R, C);  f, g from n2 as above
    {{kMlp, kColumn}, kForward, {{kMlp, kColumnForward}, {kMlp, kInnerForward}}},
    // y = x + reduce(a W_proj^T + g W_fc2^T) + b (Rl, C)
    {{kMlp, kRow}, kForward, {{kAttention, kRowForward}, {kMlp, kRowForward}}},
};
const Regions kTwoNormsBackward = {
    // dy = gather(dy) (R, C);  dW_qkv of the layer above;  dg, df
    {{kMlp, kRow},
     kBackward,
     {{kAttention, kDeferred}, {kMlp, kRecompute}, {kMlp, kRowGradient}, {kMlp, kInnerBackward}}},
    // dn2 = reduce(df W_fc1) (Rl, C);  all that reads dy, before dx = dy + norm2'(dn2) (Rl, C) replaces it
    {{kMlp, kColumn},
     kBackward,
     {{kMlp, kColumnGradient},
      {kMlp, kRowWeight},
      {kMlp, kColumnWeight},
      {kAttention, kRowGradient},
      {kAttention, kInnerBackward},
      {kAttention, kRowWeight}}},
    // dn1 = reduce(dqkv W_qkv) (Rl, C);  dx += norm1'(dn1) (Rl, C)
    {{kAttention, kColumn},
     kBackward,
     {{kAttention, kColumnGradient}, {kAttention, kRecomputeNorm}, {kAttention, kDefer}}},
};

std::string gemm_name(const BlockStep& at, const LayerSpec& layer) {
  const auto name = [&](LinearSplit split, const char* what) {
    return fmt::format("{} {}", layer.linear({at.branch, split}).name, what);
  };
  switch (at.step) {
    case kColumnForward:
      return name(kColumn, "forward");
    case kRowForward:
      return name(kRow, "forward");
    case kColumnGradient:
      return name(kColumn, "backward");
    case kRowGradient:
      return name(kRow, "backward");
    case kColumnWeight:
    case kDeferred:
      return name(kColumn, "weight");
    case kRowWeight:
      return name(kRow, "weight");
    default:
      return "";
  }
}

}  // namespace

bool is_gemm(Step step) {
  switch (step) {
    case kInnerForward:
    case kInnerBackward:
    case kDefer:
    case kRecompute:
    case kRecomputeNorm:
      return false;
    default:
      return true;
  }
}

bool TransferRegion::has_one_summand() const {
  return std::ranges::count_if(
             steps, [](const BlockStep& at) { return at.step == kRowForward || at.step == kColumnGradient; }) == 1;
}

Tensor TransferRegion::rows(const LayerWorkspace& work, const LayerTensors& t) const {
  if (reduces()) return pass == kForward ? work.partial : work.dnormed;
  if (pass == kBackward) return is_fp8(t.normed[0].dtype) ? work.fp8.dstream : work.dbranch;
  return t.normed_for(linear.branch);
}

const std::vector<TransferRegion>& block_order(const LayerSpec& layer, Pass pass) {
  if (layer.block == Block::kParallel && layer.gathered_rows() == 2)
    return pass == kForward ? kTwoNormsForward : kTwoNormsBackward;
  if (layer.block == Block::kParallel) return pass == kForward ? kParallelForward : kParallelBackward;
  return pass == kForward ? kSequentialForward : kSequentialBackward;
}

std::string gemm_names(const TransferRegion& region, const LayerSpec& layer) {
  std::string names;
  for (const BlockStep& step : region.steps)
    if (is_gemm(step.step)) names += fmt::format("{}{}", names.empty() ? "" : ", ", gemm_name(step, layer));
  return names;
}

}  // namespace tri
