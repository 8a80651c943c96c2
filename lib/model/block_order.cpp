#include "lib/model/block_order.h"

namespace tri {
namespace {

using Regions = std::vector<TransferRegion>;
using enum Branch;
using enum LinearSplit;
using enum Step;
using enum Pass;

// Each row is a transfer and the steps that run concurrently with it. A weight gradient runs concurrently with each
// transfer of a backward pass; that of qkv runs alongside the first transfer of the layer below. The inputs of a weight
// gradient are not overwritten before its transfer has ended.

// m = x + attention(norm1(x)), y = m + mlp(norm2(m)).
const Regions kSequentialForward = {
    {{kAttention, kColumn}, kForward, {{kAttention, kColumnForward}, {kAttention, kInnerForward}}},  // qkv, attention
    {{kAttention, kRow}, kForward, {{kAttention, kRowForward}}},                                     // proj
    {{kMlp, kColumn}, kForward, {{kMlp, kColumnForward}, {kMlp, kInnerForward}}},                    // fc1, activation
    {{kMlp, kRow}, kForward, {{kMlp, kRowForward}}},                                                 // fc2
};
const Regions kSequentialBackward = {
    {{kMlp, kRow},  // dy, gathered, through fc2 and the activation
     kBackward,
     {{kAttention, kDeferred}, {kMlp, kRecompute}, {kMlp, kRowGradient}, {kMlp, kInnerBackward}}},
    {{kMlp, kColumn}, kBackward, {{kMlp, kColumnGradient}, {kMlp, kRowWeight}}},  // through fc1 to norm2's rows
    {{kAttention, kRow},  // dm, gathered, through proj and attention
     kBackward,
     {{kMlp, kColumnWeight}, {kAttention, kRecomputeNorm}, {kAttention, kRowGradient}, {kAttention, kInnerBackward}}},
    {{kAttention, kColumn},  // through qkv to norm1's rows
     kBackward,
     {{kAttention, kColumnGradient}, {kAttention, kRowWeight}, {kAttention, kDefer}}},
};

// n = norm1(x), y = x + attention(n) + mlp(n). Both branches share a gather and a reduce: the second GEMM adds to the
// partial sums of the first and sends them.
const Regions kParallelForward = {
    {{kAttention, kColumn},
     kForward,
     {{kAttention, kColumnForward}, {kAttention, kInnerForward}, {kMlp, kColumnForward}, {kMlp, kInnerForward}}},
    {{kMlp, kRow}, kForward, {{kAttention, kRowForward}, {kMlp, kRowForward}}},
};
const Regions kParallelBackward = {
    {{kMlp, kRow},
     kBackward,
     {{kAttention, kDeferred}, {kMlp, kRecompute}, {kMlp, kRowGradient}, {kMlp, kInnerBackward}}},
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

std::string gemm_name(const BlockStep& at, const LayerSpec& layer) {
  const auto [column, row] = layer.linears(at.branch);
  switch (at.step) {
    case kColumnForward:
      return fmt::format("{} forward", column.name);
    case kRowForward:
      return fmt::format("{} forward", row.name);
    case kColumnGradient:
      return fmt::format("{} backward", column.name);
    case kRowGradient:
      return fmt::format("{} backward", row.name);
    case kColumnWeight:
    case kDeferred:
      return fmt::format("{} weight", column.name);
    case kRowWeight:
      return fmt::format("{} weight", row.name);
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

Tensor TransferRegion::rows(const LayerWorkspace& work, const LayerTensors& t) const {
  if (reduces()) return pass == kForward ? work.partial : work.dnormed;
  if (pass == kBackward) return is_fp8(t.norms[0].rows.dtype) ? work.fp8.dstream : work.dstream;
  return t.norms[static_cast<size_t>(linear.branch)].rows;
}

const std::vector<TransferRegion>& block_order(Block block, Pass pass) {
  if (block == Block::kParallel) return pass == kForward ? kParallelForward : kParallelBackward;
  return pass == kForward ? kSequentialForward : kSequentialBackward;
}

std::string gemm_names(const TransferRegion& region, const LayerSpec& layer) {
  std::string names;
  for (const BlockStep& step : region.steps)
    if (is_gemm(step.step)) names += fmt::format("{}{}", names.empty() ? "" : ", ", gemm_name(step, layer));
  return names;
}

}  // namespace tri
