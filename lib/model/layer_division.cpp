#include "lib/model/layer_division.h"

#include <numeric>
#include <tuple>

#include "lib/config/layer_counts.h"
#include "lib/model/flops.h"
#include "lib/schedule/plan.h"

namespace tri {
namespace {

// Work per token in FLOPs of bf16 GEMMs. FP8 GEMMs take this share of their time, and a byte as long as so many FLOPs,
// on H100 and H200.
constexpr double kFp8Share = 0.6, kFlopsPerByte = 250;

struct Work {
  double layer = 0, embedding = 0, head = 0;
};

Work work_of(const Config& config) {
  const Layers layers = layers_of_model(config);
  double all = layers.sum(layers.all(), [](const LayerSpec& layer) {
    return layer.flops_per_token(AttentionWork::kCausal) * (layer.fp8 ? kFp8Share : 1);
  });
  if (config.parallel.recompute == Recompute::kFull) all *= 4.0 / 3;
  // The rows are read and written in bf16, their gradient is read, and added to f32.
  constexpr double kEmbeddingBytes = 3 * 2 + 2 * 4;
  return {.layer = all / config.model.layers,
          .embedding = kFlopsPerByte * kEmbeddingBytes * config.model.hidden,
          .head = head_flops_per_token(config.model)};
}

std::vector<int> balanced_counts(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const int stages = p.pp * p.chunks;
  const Work work = work_of(config);
  std::vector<int> counts(static_cast<size_t>(stages), 1);
  std::vector<double> stage_work(static_cast<size_t>(stages), work.layer), rank_work(static_cast<size_t>(p.pp), 0);
  stage_work.front() += work.embedding;
  stage_work.back() += work.head;
  const auto rank_of = [&](int stage) { return static_cast<size_t>(rank_of_stage(p.schedule, p.pp, stage)); };
  for (int stage = 0; stage < stages; ++stage) rank_work[rank_of(stage)] += stage_work[static_cast<size_t>(stage)];
  for (int layer = stages; layer < config.model.layers; ++layer) {
    // Of equal ones the last: earlier stages keep more microbatches.
    const auto load = [&](int stage) {
      return std::tuple(rank_work[rank_of(stage)], stage_work[static_cast<size_t>(stage)], -stage);
    };
    int least = 0;
    for (int stage = 1; stage < stages; ++stage)
      if (load(stage) < load(least)) least = stage;
    ++counts[static_cast<size_t>(least)];
    stage_work[static_cast<size_t>(least)] += work.layer;
    rank_work[rank_of(least)] += work.layer;
  }
  return counts;
}

}  // namespace

bool divides_evenly(const Config& config) { return config.parallel.layers_per_chunk == kEvenLayers; }

std::vector<int> layer_counts(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const int stages = p.pp * p.chunks;
  if (divides_evenly(config)) return std::vector<int>(static_cast<size_t>(stages), config.model.layers / stages);
  if (p.layers_per_chunk == kAutoLayers) return balanced_counts(config);
  const auto counts = parse_layer_counts(p.layers_per_chunk);
  TRI_REQUIRE(counts && static_cast<int>(counts->size()) == stages &&
                  std::accumulate(counts->begin(), counts->end(), 0) == config.model.layers,
              "parallel.layers_per_chunk {} for {} layers and {} virtual stages", p.layers_per_chunk,
              config.model.layers, stages);
  return *counts;
}

LayerRange layers_of(const Config& config, Axis pp, int chunk) {
  const int stage = virtual_stage(config.parallel.schedule, pp, chunk);
  if (divides_evenly(config)) {
    const int count = config.model.layers / (pp.size * config.parallel.chunks);
    return {.first = stage * count, .count = count};
  }
  const std::vector<int> counts = layer_counts(config);
  return {.first = std::accumulate(counts.begin(), counts.begin() + stage, 0),
          .count = counts[static_cast<size_t>(stage)]};
}

}  // namespace tri
