#include "lib/simulate/programs.h"

#include <algorithm>

namespace tri {
namespace {

bool is_megatron_before_2023(Program program) {
  return program == Program::kMegatron2021 || program == Program::kMegatron2022 || program == Program::kDeepspeed;
}

}  // namespace

void set_sequence_parallel(Program program, bool on, Workload& w) {
  w.sequence_parallel = on;
  w.gathers_again = on && is_megatron_before_2023(program);
}

void run_as(Program program, Workload& w) {
  if (program == Program::kTrireme) return;
  w.stage_buffers = w.tp_copies = w.dp_copies = w.ep_copies = w.own_experts = w.gathers_kv = w.fp8_weights = false;
  w.overlap_tp = w.overlap_pp = w.overlap_dp = true;
  switch (program) {
    case Program::kTrireme:
      return;
    case Program::kMegatron:  // Megatron-LM of 2023: the baseline of MegaScale's paper
      w.overlap_tp = w.overlap_pp = w.overlap_dp = false;
      [[fallthrough]];
    case Program::kMegascale:
      w.bucket_elements = 1'000'000'000;  // one per chunk
      return;
    case Program::kMegatron2021:
    case Program::kMegatron2022:
    case Program::kDeepspeed:  // Megatron-DeepSpeed of 2021 and 2022
      w.overlap_tp = w.overlap_pp = w.overlap_dp = false;
      w.scores_kept = true;
      w.selective = SelectiveRecompute::kAttentionCore;
      w.zero = 0;
      w.async_sums = program == Program::kMegatron2022;
      if (program == Program::kDeepspeed) w.gradient_bytes = 2;  // in fp16, gradients are accumulated in fp16
      set_sequence_parallel(program, program == Program::kMegatron2022, w);
      return;
    case Program::kNemo:  // NeMo and Megatron Core: gradients in bf16, Megatron Core's default of buckets
      w.gradient_bytes = 2;
      w.bucket_elements = std::max<int64_t>(40'000'000, int64_t{1'000'000} * w.dp * w.cp);
      return;
    case Program::kFsdp:  // PyTorch's FSDP as torchtitan uses it
      w.zero = 3;
      w.selective = SelectiveRecompute::kEverySecondGemm;
      w.eager_loss = w.cudnn_attention = true;
      w.overlap_tp = false;
      return;
  }
}

}  // namespace tri
