#include "lib/bench/step.h"

#include <algorithm>
#include <chrono>

#include "io/base/clock.h"
#include "io/base/median.h"
#include "io/base/random.h"
#include "lib/bench/load_watch.h"
#include "lib/data/documents.h"
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
    for (double* value : {&t.compute, &t.tp, &t.cp, &t.ep, &t.pp, &t.dp, &t.bubble, &t.optimizer, &t.data, &t.other})
      *value /= steps;
  }
  return times;
}

// Writes token t + `shift` of each sample from `first` on, for the positions t that this rank processes. Samples are
// counted over the global batch, so they are the same on every layout.
void fill_samples(const Config& config, const SequenceChunks& chunks, int64_t first, const HostBuffer<int32_t>& out,
                  int64_t shift) {
  const int64_t samples = static_cast<int64_t>(out.size()) / chunks.local_len();
  for (int64_t sample = 0; sample < samples; ++sample)
    for (const SequencePiece& piece : chunks.pieces())
      for (int64_t i = 0; i < piece.count; ++i)
        out.data()[sample * chunks.local_len() + piece.local + i] = static_cast<int32_t>(
            random_u64(static_cast<uint64_t>(first + sample), static_cast<uint64_t>(piece.global + i + shift)) %
            static_cast<uint64_t>(config.model.vocab));
}

// Returns where the documents of samples [first, first + count) start: each has T/16 to T/2 tokens.
std::vector<int32_t> document_starts(const Config& config, int64_t first, int64_t count) {
  const int length = config.model.seq_len, least = std::max(1, length / 16), most = std::max(least, length / 2);
  std::vector<int32_t> starts;
  for (int64_t sample = first; sample < first + count; ++sample) {
    int end = 0;
    for (int t = 0, start = 0; t < length; ++t) {
      if (t == end) {
        start = t;
        const uint64_t draw =
            random_u64(derive_key(static_cast<uint64_t>(sample), "documents"), static_cast<uint64_t>(t));
        end = t + least + static_cast<int>(draw % static_cast<uint64_t>(most - least + 1));
      }
      starts.push_back(start);
    }
  }
  return starts;
}

// Returns the FLOPs of samples [first, first + count).
double flops_of(const Config& config, AttentionWork work, int64_t first, int64_t count) {
  const double tokens = static_cast<double>(count) * config.model.seq_len;
  if (!config.data.document_mask) return model_flops_per_token(config, work) * tokens;
  const std::vector<int32_t> starts = document_starts(config, first, count);
  std::vector<double> pairs;
  for (const int window : attention_windows(config)) {
    const AttentionPairs of_window = attention_pairs(starts, config.model.seq_len, window);
    pairs.push_back(static_cast<double>(work == AttentionWork::kBand ? of_window.band : of_window.causal));
  }
  return model_flops(config, tokens, pairs);
}

// Returns StepMetrics::imbalance of the dp ranks, with `samples` each.
double imbalance_of(const Config& config, int dp_size, int64_t samples) {
  double most = 0, all = 0;
  for (int rank = 0; rank < dp_size; ++rank) {
    const double flops = flops_of(config, AttentionWork::kCausal, rank * samples, samples);
    most = std::max(most, flops);
    all += flops;
  }
  return most * dp_size / all - 1;
}

}  // namespace

StepBenchResult bench_step(const Config& config, const Mesh& mesh, Job& job, Device& device, const StepBench& bench) {
  Arena arena(device, rank_bytes(config, mesh, device));
  return bench_step(config, mesh, job, device, arena, bench);
}

StepBenchResult bench_step(const Config& config, const Mesh& mesh, Job& job, Device& device, Arena& arena,
                           const StepBench& bench) {
  Trainer trainer({.config = config, .mesh = mesh, .job = &job, .device = device, .arena = arena},
                  {.timing = bench.timed ? StepTiming::kOn : StepTiming::kOff, .update = UpdateEnd::kNextStep});
  trainer.make_start_values();
  if (trainer.must_load_kernels()) trainer.load_kernels();

  const int64_t samples = int64_t{microbatches(config)} * config.data.micro_batch;  // of this dp rank
  const SequenceChunks chunks{config.model.seq_len, mesh.axis("cp")};
  const auto count = static_cast<size_t>(samples * chunks.local_len());
  const HostBuffer<int32_t> h_inputs(device, count), h_targets(device, count);
  const int64_t first_sample = mesh.joint_axis(kSampleAxes).rank * samples;
  fill_samples(config, chunks, first_sample, h_inputs, 0);
  fill_samples(config, chunks, first_sample, h_targets, 1);  // the next tokens
  const std::span<const int32_t> inputs(h_inputs.data(), count), targets(h_targets.data(), count);
  const auto starts = static_cast<size_t>(samples * config.model.seq_len);  // of whole samples
  const HostBuffer<int32_t> h_starts(device, config.data.document_mask ? starts : 1);
  if (config.data.document_mask) std::ranges::copy(document_starts(config, first_sample, samples), h_starts.data());
  const auto train_step = [&](int64_t step) {
    if (!config.data.document_mask) return trainer.step(step, inputs, targets);
    int64_t full = 0;  // the sample from which data.batch_ramp has its largest size
    const BatchSizes sizes = batch_sizes(config);
    for (const BatchSizes::Phase& phase : sizes.phases())
      if (phase.size == config.data.global_batch) full = phase.first_sample;
    return trainer.step({.step = step, .first_sample = full, .document_starts = {h_starts.data(), starts}}, inputs,
                        targets);
  };
  std::vector<double> milliseconds;
  StepTimes times;
  StepBenchResult result;
  std::optional<LoadWatch> watch;
  for (int step = 0; step < bench.warmup + bench.steps; ++step) {
    if (step == bench.warmup) watch.emplace([&] { return device.gpu_load(); });
    const auto start = std::chrono::steady_clock::now();
    const StepResult answer = train_step(step);
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
    return flops_of(config, work, 0, config.data.global_batch) / result.median_ms * 1e3 / mesh.world_size() / 1e12;
  };
  result.tflops_per_rank = tflops_per_rank(AttentionWork::kBand);
  if (config.data.document_mask) result.imbalance = imbalance_of(config, mesh.joint_axis(kSampleAxes).size, samples);
  if (const auto peak = device.peak_tflops(config.precision.compute)) {
    result.mfu = result.tflops_per_rank / *peak;
    result.mfu_causal = tflops_per_rank(AttentionWork::kCausal) / *peak;
  }
  if (const auto peak = device.peak_tflops(Dtype::kE4M3); peak && any_fp8_layer(config))
    result.mfu_fp8 = result.tflops_per_rank / *peak;
  if (bench.profiled > 0) {
    OpProfile profile(device, trainer.runtime().compute());
    for (int step = 0; step < bench.profiled; ++step) train_step(bench.warmup + bench.steps + step);
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
