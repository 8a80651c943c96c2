#include "lib/model/layer_division.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

#include "lib/config/axis_fields.h"
#include "lib/config/layer_counts.h"
#include "lib/model/flops.h"
#include "lib/schedule/pipeline.h"

namespace tri {
namespace {

// Work per token in FLOPs of bf16 GEMMs. FP8 GEMMs take this share of their time, and a byte as long as so many FLOPs,
// on H100 and H200.
constexpr double kFp8Share = 0.6, kFlopsPerByte = 250;
// Attention takes so many times as long as GEMMs with its FLOPs, and a norm processes so many elements per element of
// the stream (H100: configs/clusters/h100.yaml).
constexpr double kCoreForward = 1.1, kCoreBackward = 1.5, kNormElements = 4;

struct Work {
  double layer = 0, embedding = 0, head = 0;
};

Work work_of(const ModelConfig& model, const Layers& layers, Recompute recompute) {
  double all = layers.sum(layers.all(), [](const LayerSpec& layer) {
    return layer.flops_per_token(AttentionWork::kCausal) * (layer.fp8 ? kFp8Share : 1);
  });
  if (recompute == Recompute::kFull) all *= 4.0 / 3;
  // The rows are read and written in bf16, their gradient is read, and added to f32.
  constexpr double kEmbeddingBytes = 3 * 2 + 2 * 4;
  return {.layer = all / model.layers,
          .embedding = kFlopsPerByte * kEmbeddingBytes * model.hidden,
          .head = head_flops_per_token(model)};
}

StageWork stage_work(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const ClusterConfig& cluster = config.cluster;
  const bool one_node = ranks_along(AxisSet::outside({}), p) <= cluster.ranks_per_node;
  return {.model = config.model,
          .layers = layers_of_model(config),
          .layer_counts = layer_counts(config),
          .schedule = p.schedule,
          .tp = p.tp,
          .cp = p.cp,
          .micro_batch = config.data.micro_batch,
          .recompute = p.recompute,
          .rank_tflops = cluster.rank_tflops,
          .node_gb_per_s = cluster.node_gb_per_s,
          .stages_gb_per_s = one_node ? cluster.node_gb_per_s : cluster.network_gb_per_s};
}

}  // namespace

std::vector<int> balanced_layer_counts(const BalancedPipeline& p) {
  const int stages = p.pp * p.chunks;
  const Work work = work_of(p.model, p.layers, p.recompute);
  std::vector<int> counts(static_cast<size_t>(stages), 1);
  std::vector<double> stage_work(static_cast<size_t>(stages), work.layer), rank_work(static_cast<size_t>(p.pp), 0);
  stage_work.front() += work.embedding;
  stage_work.back() += work.head;
  const auto rank_of = [&](int stage) { return static_cast<size_t>(rank_of_stage(p.schedule, p.pp, stage)); };
  for (int stage = 0; stage < stages; ++stage) rank_work[rank_of(stage)] += stage_work[static_cast<size_t>(stage)];
  // Of equal ones the last: earlier stages keep more microbatches.
  using Load = std::tuple<double, double, int>;
  const auto load = [&](int stage) {
    return Load(rank_work[rank_of(stage)], stage_work[static_cast<size_t>(stage)], -stage);
  };
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int stage = 0; stage < stages; ++stage) loads.push(load(stage));
  for (int layer = stages; layer < p.model.layers; ++layer) {
    int least = -std::get<int>(loads.top());
    for (; loads.top() < load(least); least = -std::get<int>(loads.top())) {  // outdated: loads only grow
      loads.pop();
      loads.push(load(least));
    }
    ++counts[static_cast<size_t>(least)];
    stage_work[static_cast<size_t>(least)] += work.layer;
    rank_work[rank_of(least)] += work.layer;
  }
  return counts;
}

std::vector<StageCost> stage_costs(const StageWork& w) {
  const double tokens = static_cast<double>(w.micro_batch) * w.model.seq_len / w.cp;
  const double second = w.rank_tflops * 1e12 * w.tp / tokens;  // FLOPs per token in one second
  const double rows = tokens * w.model.hidden * 2;             // bytes
  // A layer's backward pass has two gathers and two reduces.
  const double tp_transfers = 4 * rows * (w.tp - 1) / w.tp / (w.node_gb_per_s * 1e9);
  std::vector<StageCost> costs;
  LayerRange range;
  for (const int count : w.layer_counts) {
    range = {.first = range.first + range.count, .count = count};
    double linear = 0, core = 0, elements = 0, recomputed = 0;
    w.layers.for_kinds(range, [&](const LayerSpec& layer, int alike) {
      const double attention = layer.attention.core_flops_per_token(AttentionWork::kCausal);
      linear += alike * (layer.flops_per_token(AttentionWork::kCausal) - attention) * (layer.fp8 ? kFp8Share : 1);
      core += alike * attention;
      elements += alike * (2 * kNormElements * w.model.hidden + layer.recomputed_elements());
      if (w.recompute != Recompute::kNone) recomputed += alike * 2 * kNormElements * w.model.hidden;
      if (w.recompute == Recompute::kSelective) recomputed += alike * layer.recomputed_elements();
    });
    // The forward pass has a third of these FLOPs, the weights' gradients have a third of the linears'. Norms and
    // activations process bf16 elements; backward processes one and a half times as many.
    const double flops_per_element = 2 * kFlopsPerByte;
    StageCost cost{.forward = (linear / 3 + kCoreForward * core / 3 + flops_per_element * elements) / second,
                   .transfer = rows / w.tp / (w.stages_gb_per_s * 1e9)};
    const double weight = linear / 3 / second, transfers = count * tp_transfers;
    cost.backward =
        (linear / 3 + kCoreBackward * core * 2 / 3 + flops_per_element * (1.5 * elements + recomputed)) / second;
    if (w.recompute == Recompute::kFull) cost.backward += cost.forward;
    if (splits_backward(w.schedule)) {
      cost.weight = weight;
      cost.backward += transfers;
    } else {
      cost.backward += std::max(weight, transfers);  // the weights' gradients hide the transfers
    }
    costs.push_back(cost);
  }
  const Work work = work_of(w.model, w.layers, w.recompute);
  costs.front().forward += work.embedding / 2 / second;
  costs.front().backward += work.embedding / 2 / second;
  costs.back().backward += work.head / second;
  return costs;
}

std::vector<StageCost> stage_costs(const Config& config) { return stage_costs(stage_work(config)); }

std::vector<StageCost> plan_costs(const Config& config) {
  return folds(config.parallel.schedule) ? stage_costs(config) : std::vector<StageCost>{};
}

double step_seconds(const Config& config, int num_microbatches) {
  const ParallelConfig& p = config.parallel;
  const std::vector<StageCost> costs = stage_costs(config);
  // A full pipeline takes the time of its slowest rank for each further microbatch.
  const int simulated = std::min(num_microbatches, 4 * p.pp);
  std::vector<double> work(static_cast<size_t>(p.pp), 0);
  for (size_t stage = 0; stage < costs.size(); ++stage)
    work[static_cast<size_t>(rank_of_stage(p.schedule, p.pp, static_cast<int>(stage)))] +=
        costs[stage].forward + costs[stage].backward + costs[stage].weight;
  const PipelineRun run =
      simulate_pipeline(plans_of_all_stages(p.schedule, p.pp, simulated, p.chunks, costs), p.chunks, costs,
                        p.overlap_pp ? Overlap::kOn : Overlap::kOff, placement_of(p.schedule));
  return run.makespan + (num_microbatches - simulated) * *std::ranges::max_element(work);
}

bool divides_evenly(const Config& config) { return config.parallel.layers_per_chunk == kEvenLayers; }

bool inner_stages_are_alike(Schedule schedule, bool even) { return even && !splits_backward(schedule); }

std::vector<int> layer_counts(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const int stages = p.pp * p.chunks;
  if (divides_evenly(config)) return std::vector<int>(static_cast<size_t>(stages), config.model.layers / stages);
  if (p.layers_per_chunk == kAutoLayers)
    return balanced_layer_counts({.model = config.model,
                                  .layers = layers_of_model(config),
                                  .schedule = p.schedule,
                                  .pp = p.pp,
                                  .chunks = p.chunks,
                                  .recompute = p.recompute});
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
