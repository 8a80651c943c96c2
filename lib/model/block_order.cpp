#include "lib/model/block_order.h"

namespace tri {
namespace {

using Regions = std::vector<TransferRegion>;
using enum BlockStep;

// A weight gradient runs beside each transfer of a backward pass, the one of qkv beside the first transfer of the layer
// below. What a weight gradient reads is overwritten after its transfer at the earliest.
const Regions kSequentialForward = {
    {Linear::kQkv, Pass::kForward, {kQkvForward, kAttentionForward}},
    {Linear::kProj, Pass::kForward, {kProjForward}},
    {Linear::kFc1, Pass::kForward, {kFc1Forward, kActivationForward}},
    {Linear::kFc2, Pass::kForward, {kFc2Forward}},
};
const Regions kSequentialBackward = {
    {Linear::kFc2, Pass::kBackward, {kDeferredQkvWeight, kRecompute, kFc2Input, kActivationBackward}},
    {Linear::kFc1, Pass::kBackward, {kFc1Input, kFc2Weight}},
    {Linear::kProj, Pass::kBackward, {kFc1Weight, kRecomputeNorm1, kProjInput, kAttentionBackward}},
    {Linear::kQkv, Pass::kBackward, {kQkvInput, kProjWeight, kDeferQkvWeight}},
};

// Both branches share a gather and a reduce: the second GEMM adds to the sums of the first, and sends them.
const Regions kParallelForward = {
    {Linear::kQkv, Pass::kForward, {kQkvForward, kAttentionForward, kFc1Forward, kActivationForward}},
    {Linear::kFc2, Pass::kForward, {kProjForward, kFc2Forward}},
};
const Regions kParallelBackward = {
    {Linear::kFc2, Pass::kBackward, {kDeferredQkvWeight, kRecompute, kFc2Input, kActivationBackward}},
    {Linear::kQkv,
     Pass::kBackward,
     {kFc1Input, kProjInput, kAttentionBackward, kQkvInput, kFc2Weight, kFc1Weight, kProjWeight, kDeferQkvWeight}},
};

const char* gemm_name(BlockStep step) {
  switch (step) {
    case kQkvForward:
      return "qkv forward";
    case kProjForward:
      return "proj forward";
    case kFc1Forward:
      return "fc1 forward";
    case kFc2Forward:
      return "fc2 forward";
    case kQkvInput:
      return "qkv backward";
    case kProjInput:
      return "proj backward";
    case kFc1Input:
      return "fc1 backward";
    case kFc2Input:
      return "fc2 backward";
    case kDeferredQkvWeight:
      return "qkv weight";
    case kProjWeight:
      return "proj weight";
    case kFc1Weight:
      return "fc1 weight";
    case kFc2Weight:
      return "fc2 weight";
    default:
      return nullptr;
  }
}

}  // namespace

bool is_gemm(BlockStep step) { return gemm_name(step) != nullptr; }

Tensor TransferRegion::rows(const LayerWorkspace& work, const LayerTensors& t) const {
  if (reduces()) return pass == Pass::kForward ? work.partial : work.dnormed;
  if (pass == Pass::kBackward) return t.kept == GemmFormat::kFp8 ? work.fp8.dstream : work.dstream;
  return linear == Linear::kQkv ? t.normed1 : t.normed2;
}

const std::vector<TransferRegion>& block_order(Block block, Pass pass) {
  if (block == Block::kParallel) return pass == Pass::kForward ? kParallelForward : kParallelBackward;
  return pass == Pass::kForward ? kSequentialForward : kSequentialBackward;
}

std::string gemm_names(const TransferRegion& region) {
  std::string names;
  for (const BlockStep step : region.steps)
    if (is_gemm(step)) names += fmt::format("{}{}", names.empty() ? "" : ", ", gemm_name(step));
  return names;
}

}  // namespace tri
