#include "lib/optim/optimizers.h"

#include <algorithm>
#include <cmath>

#include "io/base/error.h"
#include "io/base/random.h"
#include "lib/config/axis_fields.h"
#include "lib/model/fp8_tensors.h"

namespace tri {

void update_adamw(const Update&);  // adamw.cpp
void update_lamb(const Update&);   // lamb.cpp
void update_muon(const Update&);   // muon.cpp

bool may_overlap_updates(const Config& config) {
  const ParallelConfig& p = config.parallel;
  return p.overlap_update && config.optimizer.name == OptimizerKind::kAdamW && ranks_along(kBucketAxes, p) == 1 &&
         p.zero < 2 && config.model.experts == 0 && !keeps_fp8_weights(config);
}

// With a sixth of an H100's multiprocessors, a parameter's update takes as long as its forward GEMMs over 5300 tokens
// in bf16; with all of them, a 1.7th of that. FP8 GEMMs are about twice as fast.
bool should_leave_room(const Config& config) {
  const int64_t tokens = int64_t{config.data.micro_batch} * config.model.seq_len;
  return tokens >= (any_fp8_layer(config) ? 8192 : 4096);
}

// The parts of a tensor are its slices, on the dp ranks or on those of its bucket's other axes, and lie along the axes
// over which it is sharded. An expert is whole on its rank.
void Update::sum_over_parts(Tensor sums) const {
  const auto sum_slices = [&](GroupOnStream& group, Tensor of_run) {
    group.after(stream);
    group.all_reduce(of_run, ReduceOp::kSum);
    group.before(stream);
  };
  if (memory.sharded() && experts.empty()) sum_slices(dp, sums);
  if (memory.sharded() && !experts.empty())
    for (const TensorRun& run : memory.tensors().runs) {
      const Tensor of_run = sums.flat(run.first, run.count);
      const auto row = std::ranges::find(experts, run.sliced, &ExpertTransfers::axes);
      if (row != experts.end())
        sum_slices(row->transfers->collectives(), of_run);
      else if (!run.sliced.empty())
        sum_slices(dp, of_run);
    }
  for (const AxisGroup& sum : groups)
    for (const TensorRun& run : memory.tensors().runs) {
      if (!run.sharded.contains(sum.axis)) continue;
      sum.group->after(stream);
      sum.group->all_reduce(sums.flat(run.first, run.count), ReduceOp::kSum);
      sum.group->before(stream);
    }
}

Moments Update::adam_moments(const BucketSlice& slice) const {
  const auto count = static_cast<double>(step + 1);
  return {.master = slice.master,
          .exp_avg = slice.state[0],
          .exp_avg_sq = slice.state[1],
          .grad = slice.grad,
          .grad_scale = grad_scale,
          .block_tensor = slice.block_tensor,
          .decay = decay(),
          .beta1 = static_cast<float>(config.beta1),
          .beta2 = static_cast<float>(config.beta2),
          .eps = static_cast<float>(config.eps),
          .bias_correction1 = static_cast<float>(1.0 - std::pow(config.beta1, count)),
          .bias_correction2 = static_cast<float>(1.0 - std::pow(config.beta2, count)),
          .rounding = rounding(slice)};
}

MomentRounding Update::rounding(const BucketSlice& slice) const {
  return {.draws = memory.tensors().draws,
          .first_block = slice.first_block,
          .step_key = random_u64(derive_key(0, "optimizer step"), static_cast<uint64_t>(step))};
}

const std::vector<OptimizerRow>& optimizers() {
  static const std::vector<OptimizerRow> rows = {
      {OptimizerKind::kAdamW, {"exp_avg", "exp_avg_sq"}, 0, update_adamw},
      {OptimizerKind::kLamb, {"exp_avg", "exp_avg_sq"}, 2, update_lamb},
      {OptimizerKind::kMuon, {"exp_avg", "exp_avg_sq"}, 1, update_muon, {"momentum"}},
  };
  return rows;
}

const OptimizerRow& optimizer_row(OptimizerKind kind) {
  const auto row =
      std::find_if(optimizers().begin(), optimizers().end(), [&](const auto& r) { return r.kind == kind; });
  TRI_REQUIRE(row != optimizers().end(), "the table of optimizers has no optimizer {}", enum_name(kind));
  return *row;
}

namespace {

int64_t state_bytes(const OptimizerConfig& config, const std::vector<std::string>& state) {
  return static_cast<int64_t>(state.size() * dtype_bytes(config.moments) + (config.ema > 0 ? sizeof(float) : 0));
}

}  // namespace

int64_t matrix_state_bytes(const OptimizerConfig& config) {
  const OptimizerRow& row = optimizer_row(config.name);
  return state_bytes(config, row.matrix_state.empty() ? row.state : row.matrix_state);
}

int64_t optimizer_state_bytes(const OptimizerConfig& config) {
  return state_bytes(config, optimizer_row(config.name).state);
}

}  // namespace tri
