#include "lib/bench/step.h"

#include <algorithm>
#include <chrono>

#include "io/base/clock.h"
#include "io/base/median.h"
#include "io/base/random.h"
#include "lib/bench/load_watch.h"
#include "lib/model/flops.h"
#include "lib/train/trainer.h"

namespace tri {
namespace {

// Returns the mean times of each stage's first rank, from `sums` over `steps` steps.
std::vector<StepTimes> times_of_stages(const Mesh& mesh, Job& job, const StepTimes& sums, int steps) {
  const std::vector<StepTimes> of_ranks = job.all_gather(sums);
  std::vector<StepTimes> times;
  for (int stage = 0; stage < mesh.axis("pp").size; ++stage) {
    StepTimes& t = times.emplace_back(of_ranks[static_cast<size_t>(mesh.grid.rank_at({{"pp", stage}}))]);
    for (double* value : {&t.compute, &t.tp, &t.pp, &t.dp, &t.bubble, &t.optimizer, &t.data, &t.other}) *value /= steps;
  }
  return times;
}

// Writes token t + `shift` of each sample from `first` on. Samples are counted over the global batch, so they are the
// same on every layout.
void fill_samples(const Config& config, int64_t first, const HostBuffer<int32_t>& out, size_t shift) {
  const auto length = static_cast<size_t>(config.model.seq_len);
  for (size_t i = 0; i < out.size(); ++i)
    out.data()[i] = static_cast<int32_t>(random_u64(static_cast<uint64_t>(first) + i / length, i % length + shift) %
                                         static_cast<uint64_t>(config.model.vocab));
}

}  // namespace

StepBenchResult bench_step(const Config& config, const Mesh& mesh, Job& job, Device& device, const StepBench& bench) {
  Arena arena(device, rank_bytes(config, mesh, device));
  return bench_step(config, mesh, job, device, arena, bench);
}

StepBenchResult bench_step(const Config& config, const Mesh& mesh, Job& job, Device& device, Arena& arena,
                           const StepBench& bench) {
  Trainer trainer({.config = config, .mesh = mesh, .job = &job, .device = device, .arena = arena},
                  {.timing = bench.timed ? StepTiming::kOn : StepTiming::kOff});
  trainer.make_start_values();

  const int64_t samples = int64_t{microbatches(config)} * config.data.micro_batch;  // of this dp rank
  const size_t length = static_cast<size_t>(config.model.seq_len), count = static_cast<size_t>(samples) * length;
  const HostBuffer<int32_t> h_inputs(device, count), h_targets(device, count);
  const int64_t first_sample = mesh.joint_axis(kSampleAxes).rank * samples;
  fill_samples(config, first_sample, h_inputs, 0);
  fill_samples(config, first_sample, h_targets, 1);  // the next tokens
  const std::span<const int32_t> inputs(h_inputs.data(), count), targets(h_targets.data(), count);
  std::vector<double> milliseconds;
  StepTimes times;
  StepBenchResult result;
  std::optional<LoadWatch> watch;
  for (int step = 0; step < bench.warmup + bench.steps; ++step) {
    if (step == bench.warmup) watch.emplace([&] { return device.gpu_load(); });
    const auto start = std::chrono::steady_clock::now();
    const StepResult answer = trainer.step(step, inputs, targets);
    const double seconds = seconds_since(start);
    result.last_loss = answer.loss;
    if (step < bench.warmup) continue;
    milliseconds.push_back(1e3 * seconds);
    times += step_times(answer.timeline, answer.pp_transfer_seconds, seconds, 0);
  }
  if (watch) result.gpu_load = watch->finish();
  result.times = times_of_stages(mesh, job, times, std::max(1, bench.steps));
  if (device.gemm_search() != nullptr)
    for (const GemmSearch::Row& row : device.gemm_search()->rows()) {
      const auto peak = device.peak_tflops(row.operands);
      result.gemms.push_back({row, peak ? row.flops / *peak * 1e-6 : 0.0});
    }
  result.memory_bytes = arena.used();
  if (milliseconds.empty()) return result;
  const auto [fastest, slowest] = std::minmax_element(milliseconds.begin(), milliseconds.end());
  result.median_ms = median(milliseconds);
  result.fastest_ms = *fastest;
  result.slowest_ms = *slowest;
  const double step_tokens = static_cast<double>(config.data.global_batch) * config.model.seq_len;
  result.tokens_per_s = step_tokens / result.median_ms * 1e3;
  const auto tflops_per_rank = [&](AttentionWork work) {
    return model_flops_per_token(config, work) * result.tokens_per_s / mesh.world_size() / 1e12;
  };
  result.tflops_per_rank = tflops_per_rank(AttentionWork::kBand);
  if (const auto peak = device.peak_tflops(config.precision.compute)) {
    result.mfu = result.tflops_per_rank / *peak;
    result.mfu_causal = tflops_per_rank(AttentionWork::kCausal) / *peak;
  }
  if (const auto peak = device.peak_tflops(Dtype::kE4M3); peak && any_fp8_layer(config))
    result.mfu_fp8 = result.tflops_per_rank / *peak;
  if (bench.profiled > 0) {
    OpProfile profile(device, trainer.runtime().compute());
    for (int step = 0; step < bench.profiled; ++step) trainer.step(bench.warmup + bench.steps + step, inputs, targets);
    trainer.runtime().synchronize();
    result.ops = profile.take();
    for (OpProfile::Row& row : result.ops) {
      row.calls /= bench.profiled;
      row.seconds /= bench.profiled;
    }
  }
  return result;
}

}  // namespace tri
