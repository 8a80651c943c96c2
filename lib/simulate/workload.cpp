#include "lib/simulate/workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "io/base/json.h"
#include "lib/config/axis_fields.h"
#include "lib/config/layer_counts.h"
#include "lib/model/layer_division.h"
#include "lib/model/parameter.h"
#include "lib/model/stage_tensors.h"
#include "lib/optim/optimizers.h"
#include "lib/simulate/document_samples.h"

namespace tri {

namespace {

bool reduces_gradients(std::string_view axis) {
  for (size_t i = 0; i < kAxes.size(); ++i)
    if (kAxes[i].name == axis) return kBucketAxes.contains(AxisName::at(i));
  return false;
}

Numbers numbers_of(const PrecisionConfig& precision) {
  if (precision.compute != Dtype::kBF16) return Numbers::kFp32;
  return precision.gemm == GemmFormat::kFp8 ? Numbers::kFp8 : Numbers::kBf16;
}

}  // namespace

double Workload::fullest_rank() const {
  constexpr double kSpread = 0.1;  // of the experts' rows
  if (imbalance > 0 || ep == 1) return std::max(imbalance, 1.0);
  // Ranks are sums of independent experts, of which all together have the same rows.
  const double spread = kSpread * std::sqrt((ep - 1.0) / model.experts);
  return 1 + spread * std::sqrt(2 * std::log(ep));
}

int Workload::ranks_of_others(AxisSet axes) const {
  int ranks = 1;
  for (const AxisSize& other : others)
    if (axes.contains(other.axis)) ranks *= other.size;
  return ranks;
}

RankGrid Workload::grid() const {
  RankGrid grid;
  const auto add = [&](std::string_view name, int size, bool always_named) {
    if (always_named || size > 1) grid.axes.push_back({std::string(name), size});
  };
  for (size_t i = 0; i < kAxes.size(); ++i) {
    const AxisName axis = AxisName::at(i);
    const int size = axis == "tp"   ? tp
                     : axis == "cp" ? cp
                     : axis == "dp" ? dp
                     : axis == "pp" ? pp
                                    : ranks_of_others(AxisSet{axis});
    add(axis.text(), size, kAxes[i].always_named);
  }
  return grid;
}

int Workload::reducing(ReducedOver over) const {
  switch (over) {
    case ReducedOver::kBuckets:
      return dp * cp * ranks_of_others(kBucketAxes);
    case ReducedOver::kStage:
      return ranks_of_stage();
    case ReducedOver::kExperts:
      return ranks_of_stage() / ep;
  }
  return 1;
}

int Workload::reducing_stride(ReducedOver over) const {
  if (over != ReducedOver::kBuckets) return over == ReducedOver::kExperts ? ep : 1;
  int stride = 1;
  for (const GridAxis& axis : grid().axes) {
    if (reduces_gradients(axis.name)) break;
    stride *= axis.size;
  }
  return stride;
}

Layers Workload::layers() const {
  const int inside = numbers == Numbers::kFp8 ? model.layers - fp8_first_layers - fp8_last_layers : 0;
  Layers layers = layers_of_model(model, {fp8_first_layers, inside});
  for (LayerSpec& kind : layers.kinds) kind.attention.documents = document_mask;
  return layers;
}

Workload workload_of_layer(Workload workload, const LayerSpec& layer) {
  if (workload.numbers == Numbers::kFp8 && !layer.fp8) workload.numbers = Numbers::kBf16;
  return workload;
}

nlohmann::ordered_json axes_json(const Workload& workload) {
  nlohmann::ordered_json json;
  for (const GridAxis& axis : workload.grid().axes) json[axis.name] = axis.size;
  return json;
}

Workload workload_of(const Config& config) {
  TRI_REQUIRE(config.parallel.recompute != Recompute::kAuto, "parallel.recompute is still auto");
  const ParallelConfig& p = config.parallel;
  std::vector<AxisSize> others = named_axes(p);
  std::erase_if(others, [](const AxisSize& named) { return !kOtherAxes.contains(named.axis); });
  return {.model = config.model,
          .numbers = numbers_of(config.precision),
          .fp8_first_layers = config.precision.fp8_first_layers,
          .fp8_last_layers = config.precision.fp8_last_layers,
          .fp8_weights = true,  // the rule of keeps_fp8_weights (lib/model/fp8_tensors.h)
          .tp = p.tp,
          .cp = p.cp,
          .dp = p.dp,
          .pp = p.pp,
          .chunks = p.chunks,
          .others = std::move(others),
          .ep = p.ep,
          .ep_capacity = p.ep_capacity,
          .schedule = p.schedule,
          .layers_per_chunk = divides_evenly(config) ? std::vector<int>{} : layer_counts(config),
          .micro_batch = config.data.micro_batch,
          .global_batch = config.data.global_batch,
          .zero = p.zero,
          .recompute = p.recompute,
          .overlap_tp = p.overlap_tp,
          .overlap_pp = p.overlap_pp,
          .overlap_dp = p.overlap_dp,
          .stage_buffers = true,
          .tp_copies = p.tp > 1 && p.tp_transfers == Transfers::kCopies,
          .dp_copies = ranks_along(kBucketAxes, p) > 1 && p.dp_transfers == Transfers::kCopies,
          .ep_copies = ep_by_copies(config),
          .own_experts = true,
          .gathers_kv = true,
          .overlap_cp = p.overlap_cp,
          .rank_tflops = config.cluster.rank_tflops,
          .node_gb_per_s = config.cluster.node_gb_per_s,
          .network_gb_per_s = config.cluster.network_gb_per_s,
          .bucket_elements = p.bucket_elements,
          .optimizer_bytes = static_cast<int>(optimizer_state_bytes(config.optimizer)),
          .matrix_bytes = static_cast<int>(matrix_state_bytes(config.optimizer)),
          .muon = config.optimizer.name == OptimizerKind::kMuon,
          .averages_weights = config.optimizer.ema > 0,
          .document_mask = config.data.document_mask,
          .resets_positions = resets_positions(config)};
}

ParallelLayout layout_of(const Workload& w) {
  return {.tp = w.tp,
          .cp = w.cp,
          .pp = w.pp,
          .dp = w.dp,
          .chunks = w.chunks,
          .schedule = w.schedule,
          .zero = w.zero,
          .micro_batch = w.micro_batch,
          .recompute = w.recompute,
          .layers_per_chunk =
              w.layers_per_chunk.empty() ? std::string(kEvenLayers) : layer_counts_text(w.layers_per_chunk)};
}

std::string problem_of(const Workload& w) {
  if (w.tp < 1 || w.cp < 1 || w.dp < 1 || w.pp < 1 || w.chunks < 1)
    return "every axis of the mesh needs at least one rank";
  if (w.micro_batch < 1 || w.global_batch % (w.micro_batch * w.dp) != 0)
    return fmt::format("data.global_batch {} is not a multiple of micro_batch {} x dp {}", w.global_batch,
                       w.micro_batch, w.dp);
  if (w.num_microbatches() > kMostMicrobatches)
    return fmt::format(
        "a step has {} microbatches, more than {}: lower data.global_batch {}, or raise data.micro_batch or "
        "parallel.dp",
        w.num_microbatches(), kMostMicrobatches, w.global_batch);
  if (w.chunks > 1 && !takes_chunks(w.schedule))
    return fmt::format("parallel.schedule {} does not support chunks; set parallel.chunks to 1", enum_name(w.schedule));
  if (!takes_chunks(w.schedule, w.chunks))
    return fmt::format("parallel.schedule {} needs two chunks; set parallel.chunks to 2", enum_name(w.schedule));
  if (!w.layers_per_chunk.empty() && std::ssize(w.layers_per_chunk) != w.pp * w.chunks)
    return fmt::format("parallel.layers_per_chunk has {} numbers for pp {} x chunks {}", w.layers_per_chunk.size(),
                       w.pp, w.chunks);
  if (w.model.layers < w.pp * w.chunks)
    return fmt::format("model.layers {} is fewer than pp {} x chunks {}", w.model.layers, w.pp, w.chunks);
  if (w.ep < 1 || w.ranks_of_stage() % w.ep != 0 || w.model.experts % w.ep != 0)
    return fmt::format("parallel.ep {} does not divide the {} ranks of a stage and model.experts {}", w.ep,
                       w.ranks_of_stage(), w.model.experts);
  if (w.model.experts > 0 && w.muon)
    return "optimizer.name: muon: steps of models with experts can't be predicted; run trireme bench step instead";
  if (w.model.experts > 0 && w.zero > 2)
    return "steps of models with experts can't be predicted with sharded weights; omit --as fsdp";
  return "";
}

LayerRange layers_of_stage(const Workload& w, int virtual_stage) {
  if (const std::vector<int>& counts = w.layers_per_chunk; !counts.empty())
    return {.first = std::accumulate(counts.begin(), counts.begin() + virtual_stage, 0),
            .count = counts.at(static_cast<size_t>(virtual_stage))};
  const int stages = w.pp * w.chunks, layers = w.model.layers;
  const bool ends_count = layers % stages != 0 && (layers + 2) % stages == 0 && stages > 1;
  const auto first_of = [&](int stage) {
    if (ends_count) return stage * ((layers + 2) / stages) - (stage > 0 ? 1 : 0) - (stage == stages ? 1 : 0);
    return stage * (layers / stages) + std::min(stage, layers % stages);
  };
  return {.first = first_of(virtual_stage), .count = first_of(virtual_stage + 1) - first_of(virtual_stage)};
}

std::vector<StageCost> plan_costs(const Workload& w) {
  if (!folds(w.schedule)) return {};
  StageWork work{.model = w.model,
                 .layers = w.layers(),
                 .layer_counts = {},
                 .schedule = w.schedule,
                 .tp = w.tp,
                 .cp = w.cp,
                 .micro_batch = w.micro_batch,
                 .recompute = w.recompute,
                 .rank_tflops = w.rank_tflops,
                 .node_gb_per_s = w.node_gb_per_s,
                 .stages_gb_per_s = w.network_gb_per_s};
  for (int stage = 0; stage < w.pp * w.chunks; ++stage) work.layer_counts.push_back(layers_of_stage(w, stage).count);
  return stage_costs(work);
}

ReducedOver reduced_over(const LinearSpec& linear) {
  if (linear.experts > 0) return ReducedOver::kExperts;
  return linear.whole ? ReducedOver::kStage : ReducedOver::kBuckets;
}

double local_weights(const Workload& w, const LinearSpec& linear) {
  const int parts = linear.experts > 0 ? w.ep : linear.whole ? 1 : w.tp;
  return static_cast<double>(linear.weights()) / parts;
}

Elements local_weights(const Workload& w, const LayerSpec& layer) {
  Elements elements;
  for (const LinearSpec& linear : layer.linears()) elements[reduced_over(linear)] += local_weights(w, linear);
  return elements;
}

namespace {

Elements layer_elements(const Workload& w, const Layers& layers, int virtual_stage) {
  Elements elements;
  layers.for_kinds(layers_of_stage(w, virtual_stage),
                   [&](const LayerSpec& layer, int count) { elements.add(local_weights(w, layer), count); });
  return elements;
}

}  // namespace

Elements elements_of_virtual_stage(const Workload& w, const Layers& layers, int virtual_stage) {
  Elements elements = layer_elements(w, layers, virtual_stage);
  double& tables = elements[ReducedOver::kBuckets];
  if (virtual_stage == 0) tables += embedding_parameters(w) / w.tp;
  if (virtual_stage + 1 == w.pp * w.chunks && (w.end_rank() > 0 || !w.model.tie_embeddings))
    tables += embedding_parameters(w) / w.tp;
  return elements;
}

double fp8_layer_parameters(const Workload& w, const Layers& layers, int virtual_stage) {
  return layers.sum(layers_of_stage(w, virtual_stage),
                    [&](const LayerSpec& layer) { return layer.fp8 ? local_weights(w, layer).total() : 0; });
}

double largest_layer_parameters(const Layers& layers) {
  double most = 0;
  for (const LayerSpec& layer : layers.kinds) most = std::max(most, layer.weights());
  return most;
}

double embedding_parameters(const Workload& w) { return static_cast<double>(padded_vocab(w.model)) * w.model.hidden; }

Elements matrices_of_stage(const Workload& w, const Layers& layers, int stage) {
  Elements elements;
  for (int chunk = 0; chunk < w.chunks; ++chunk) elements.add(layer_elements(w, layers, w.virtual_stage(stage, chunk)));
  return elements;
}

Elements elements_of_stage(const Workload& w, const Layers& layers, int stage) {
  Elements elements;
  for (int chunk = 0; chunk < w.chunks; ++chunk)
    elements.add(elements_of_virtual_stage(w, layers, w.virtual_stage(stage, chunk)));
  return elements;
}

double parameters_of_stage(const Workload& w, const Layers& layers, int stage) {
  return elements_of_stage(w, layers, stage).total();
}

double checkpoint_bytes(const Workload& w) {
  const Layers layers = w.layers();
  const auto of_all_ranks = [&](const Elements& elements) {
    return elements[ReducedOver::kBuckets] * w.tp + elements[ReducedOver::kStage] +
           elements[ReducedOver::kExperts] * w.ep;
  };
  double parameters = 0, matrices = 0;
  for (int stage = 0; stage < w.pp; ++stage) {
    parameters += of_all_ranks(elements_of_stage(w, layers, stage));
    matrices += of_all_ranks(matrices_of_stage(w, layers, stage));
  }
  return parameters * (4 + w.optimizer_bytes) - matrices * (w.optimizer_bytes - w.matrix_bytes);
}

double model_flops_per_token(const Workload& w, AttentionWork work) {
  Config config;
  config.model = w.model;
  if (!w.documents) return model_flops_per_token(config, work);
  std::vector<double> keys;
  for (const int window : attention_windows(config)) keys.push_back(w.documents->keys_per_query(work, window));
  return model_flops(config, 1, keys);
}

}  // namespace tri
