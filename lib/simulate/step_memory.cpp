#include "lib/simulate/step_memory.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "kernels/workspace.h"
#include "lib/config/axis_fields.h"
#include "lib/engine/job_plan.h"
#include "lib/engine/rank_tensors.h"
#include "lib/model/layer_division.h"
#include "lib/model/parameter.h"
#include "lib/schedule/buffer_rules.h"
#include "lib/simulate/muon_costs.h"

namespace tri {
namespace {

// Rows, in addition to those that a rank's tokens would have with balanced experts, for which its experts have memory.
double spare_rows(const Workload& w, const LayerSpec& layer) {
  if (!layer.has_experts()) return 0;
  const int64_t local = int64_t{w.micro_batch} * w.model.seq_len / w.cp / w.tp;
  return static_cast<double>(expert_rows(layer.moe, local, w.ep, w.ep_capacity) - local * layer.moe.per_token);
}

// Bytes that one layer saves for one microbatch between forward and backward (lib/model/stage_tensors.h).
double kept_bytes(const Workload& w, const LayerSpec& layer) {
  const double bytes = w.numbers == Numbers::kFp32 ? 4 : 2;
  const double rows = static_cast<double>(w.micro_batch) * w.model.seq_len / w.cp;
  const double local = w.sequence_parallel ? rows / w.tp : rows, share = rows / w.tp;
  const double input = local * w.model.hidden * bytes;
  if (w.recompute == Recompute::kFull) return input;
  if (w.selective == SelectiveRecompute::kEverySecondGemm && w.recompute == Recompute::kSelective) {
    // Saves block input, queries, attention, values, w1 and w2 (torchtitan/parallelisms/parallelize_llama.py of 2024).
    const AttentionSpec& attention = layer.attention;
    const auto heads = static_cast<double>(attention.width()), values = static_cast<double>(attention.kv_width());
    return input + share * (2 * heads + values + layer.activated_elements()) * bytes + (w.compiled ? 0 : input);
  }
  const double stream = (layer.stream_values() + layer.output_norms()) * input;  // and outputs that norms read
  // Rows that only FP8 GEMMs read are saved in FP8.
  const double read = w.numbers == Numbers::kFp8 ? 1 / bytes : 1;
  const double spare = spare_rows(w, layer), pairs = share * static_cast<double>(layer.moe.per_token);
  const double activated =
      (share * layer.activated_elements() + spare * static_cast<double>(layer.moe.expert_hidden)) * bytes * read;
  const auto norms = static_cast<double>(layer.norms.size());
  const double normed =
      (layer.has_experts() ? rows + share : layer.gathered_rows() * rows) * w.model.hidden * bytes * read;
  const double statistics =
      share * layer.kept_statistics() * 4 + 2 * norms * local * 4 + rows * layer.attention.unsplit_statistics() * 4;
  double kept = stream + statistics + share * layer.kept_elements() * bytes;
  kept += spare * static_cast<double>(layer.moe.hidden + layer.moe.width_of(layer.moe.expert_hidden)) * bytes;
  // Places of the rows that arrive, or where they came from.
  if (layer.has_experts() && w.ep > 1) kept += (w.ep_copies ? 1 : 2) * (pairs + spare) * 4;
  if (w.recompute == Recompute::kNone) kept += normed + activated;
  if (w.recompute == Recompute::kNorms) kept += activated;
  return kept;
}

// Bytes that one layer keeps for one microbatch whose weight gradients are due (DueLayer in lib/model/stage_tensors.h).
double due_bytes(const Workload& w, const LayerSpec& layer) {
  const double bytes = w.numbers == Numbers::kFp32 ? 4 : 2, element = layer.fp8 ? 1 : bytes;
  const double rows = static_cast<double>(w.micro_batch) * w.model.seq_len / w.cp, share = rows / w.tp;
  const double spare = spare_rows(w, layer), hidden = w.model.hidden;
  const MoeSpec& moe = layer.moe;
  const auto pairs = static_cast<double>(moe.per_token), width = static_cast<double>(moe.width_of(moe.expert_hidden));
  // The gradients of the linears' outputs.
  double due = (layer.has_middle() && !layer.has_experts() ? 2 : 1) * rows * hidden * element +
               share * static_cast<double>(layer.attention.qkv_width()) * element;
  if (layer.has_experts()) {
    due += ((share * pairs + spare) * width + share * static_cast<double>(moe.width_of(moe.shared_hidden))) * element +
           share * static_cast<double>(moe.experts) * bytes;
    // The gradient of a shared expert's output, or its cast.
    if (moe.shared_hidden > 0) due += (layer.fp8 ? share : rows * bytes) * hidden;
  } else
    due += share * static_cast<double>(layer.mlp.fc1_width()) * element;
  if (w.recompute == Recompute::kNone) return due;
  // Recomputed inputs.
  due += (layer.has_experts() ? rows + share : layer.gathered_rows() * rows) * hidden * element;
  if (w.recompute == Recompute::kNorms) return due;
  const double activated =
      (share * layer.activated_elements() + spare * static_cast<double>(moe.expert_hidden)) * element;
  if (w.recompute == Recompute::kSelective)
    return due + (layer.has_experts() ? share * static_cast<double>(moe.shared_hidden) * element : activated);
  due += share * static_cast<double>(layer.attention.width()) * bytes + activated;
  if (layer.has_experts())
    due += ((share * pairs + spare) * (hidden + width) + share * pairs * hidden +
            share * static_cast<double>(moe.width_of(moe.shared_hidden))) *
           bytes;
  return due;
}

// Sums over the microbatches that are alive at once on a stage.
struct InFlight {
  double kept = 0;     // bytes that layers save, and keep for weight gradients that are due
  double inputs = 0;   // rows received ahead of use
  double outputs = 0;  // outputs of the model's last layer
};

// Microbatches of one chunk of a stage that are alive at once (lib/schedule/plan.h).
struct Peaks {
  int in_flight, due, inputs;  // max_in_flight, max_weights_due, max_inputs
};

// Returns those of each chunk. The plan of a folded pipeline needs no transfers for this.
std::vector<Peaks> peaks_of(const Plan& plan, Axis pp, int chunks) {
  std::vector<Peaks> peaks;
  for (int chunk = 0; chunk < chunks; ++chunk)
    peaks.push_back({max_in_flight(plan, chunk), max_weights_due(plan, chunk), max_inputs(plan, pp, chunk)});
  return peaks;
}

using StagePeaks = std::vector<std::vector<Peaks>>;  // [stage][chunk]; empty: not yet known

// Returns those of a pipeline, of which a folded one's are all known. This thread's last ones are kept: a search for
// layouts asks for the same ones with other sizes.
StagePeaks& kept_peaks(const Workload& w, int num_microbatches) {
  constexpr size_t kMostKept = 256;
  thread_local std::map<std::tuple<Schedule, int, int, int, std::vector<double>>, StagePeaks> kept;
  const std::vector<StageCost> costs = plan_costs(w);
  std::vector<double> times;
  for (const StageCost& cost : costs) times.insert(times.end(), {cost.forward, cost.backward, cost.weight});
  const std::tuple key(w.schedule, w.pp, num_microbatches, w.chunks, std::move(times));
  if (const auto known = kept.find(key); known != kept.end()) return known->second;
  if (kept.size() == kMostKept) kept.clear();
  StagePeaks& peaks = kept.try_emplace(key, static_cast<size_t>(w.pp)).first->second;
  if (!folds(w.schedule)) return peaks;
  const std::vector<Plan> plans = make_plans(w.schedule, w.pp, num_microbatches, w.chunks, costs);
  for (int stage = 0; stage < w.pp; ++stage) {
    const auto i = static_cast<size_t>(stage);
    peaks[i] = peaks_of(plans[i], pipeline_axis(w.schedule, stage, w.pp), w.chunks);
  }
  return peaks;
}

// Returns the microbatches that the plan repeats, or all if it does not repeat exactly.
int distinct_microbatches(const Workload& w) {
  return folds(w.schedule) ? w.num_microbatches() : std::min(w.num_microbatches(), 4 * w.pp);
}

InFlight in_flight(const Workload& w, const Layers& layers, int stage, std::vector<Peaks>& peaks) {
  if (peaks.empty()) {
    const Axis pp = pipeline_axis(w.schedule, stage, w.pp);
    const Plan plan = make_plan(w.schedule, pp, distinct_microbatches(w), w.chunks);
    peaks = peaks_of(with_transfers(plan, pp, w.chunks), pp, w.chunks);
  }
  InFlight most;
  for (int chunk = 0; chunk < w.chunks; ++chunk) {
    const int microbatches = peaks[static_cast<size_t>(chunk)].in_flight, due = peaks[static_cast<size_t>(chunk)].due;
    layers.for_kinds(layers_of_stage(w, w.virtual_stage(stage, chunk)), [&](const LayerSpec& layer, int count) {
      most.kept += static_cast<double>(microbatches) * count * kept_bytes(workload_of_layer(w, layer), layer);
      if (due > 0) most.kept += static_cast<double>(due) * count * due_bytes(w, layer);
    });
    most.inputs += peaks[static_cast<size_t>(chunk)].inputs - microbatches;
    if (w.virtual_stage(stage, chunk) == w.pp * w.chunks - 1) most.outputs = microbatches;
  }
  return most;
}

// Elements of the largest gradient buckets of a stage: of matrices, which zero 2 keeps whole in a pool, and of any
// kind, for whose parts peer copies have a buffer. See lib/optim/flat_layout.h: tensors are never divided over buckets,
// and FP8 weights have separate buckets.
struct LargestBuckets {
  double matrices = 0, any = 0;
  int count = 0;    // of matrices
  double tied = 0;  // the tied table, which has its own bucket between stages
};

LargestBuckets largest_buckets(const Workload& w, const Layers& layers, int stage) {
  const ModelConfig& m = w.model;
  const double table = embedding_parameters(w) / w.tp;
  const bool tied = m.tie_embeddings && w.end_rank() > 0;             // the table has its own bucket
  const bool separates = w.zero == 2 && splits_backward(w.schedule);  // ParamSpec::undelayed
  LargestBuckets largest;
  const auto close = [&](double& open) {
    if (open == 0) return;
    largest.matrices = std::max(largest.matrices, open);
    ++largest.count;
    open = 0;
  };
  const auto add = [&](double& open, double elements) {
    open += elements;
    if (open >= static_cast<double>(w.bucket_elements)) close(open);
  };
  for (int chunk = 0; chunk < w.chunks; ++chunk) {
    const int virtual_stage = w.virtual_stage(stage, chunk);
    double open = 0, open_quantized = 0, open_stage = 0, open_experts = 0, open_undelayed = 0;
    if (virtual_stage == w.pp * w.chunks - 1 && !m.tie_embeddings) add(open, table);
    if (w.muon || separates) close(open);  // Muon's matrices have separate buckets
    layers.for_kinds(layers_of_stage(w, virtual_stage), [&](const LayerSpec& layer, int count) {
      const std::vector<LinearSpec> linears = layer.linears();
      for (int i = 0; i < count; ++i)
        for (auto linear = linears.rbegin(); linear != linears.rend(); ++linear)
          add(separates && linear->module == modules::kExpertsFc2 ? open_undelayed
              : reduced_over(*linear) == ReducedOver::kExperts    ? open_experts
              : reduced_over(*linear) == ReducedOver::kStage      ? open_stage
              : layer.fp8 && w.fp8_weights                        ? open_quantized
                                                                  : open,
              local_weights(w, *linear));
    });
    if (w.fp8_weights && fp8_layer_parameters(w, layers, virtual_stage) > 0)
      close(open);  // else the head's bucket would stay open until the embedding
    if (w.muon || separates) close(open);
    if (virtual_stage == 0 && !tied) add(open, table);
    for (double* last : {&open, &open_quantized, &open_stage, &open_experts, &open_undelayed}) close(*last);
  }
  if (tied && (stage == 0 || stage == w.pp - 1)) largest.tied = table;
  largest.any = std::max(largest.matrices, largest.tied);
  return largest;
}

// Order of the rows that attention reads (lib/model/stage_tensors.h).
QkvOrder order_of(const Workload& w, const LayerSpec& layer) {
  return w.cudnn_attention ? QkvOrder::kGrouped : attention_order(layer.attention, w.tp);
}

// Scratch of this program's kernels.
double kernel_workspace(const Workload& w, const LayerSpec& layer, const GpuProperties& gpu) {
  WorkspaceDims dims = layer.kernel_workspace(w.tp);
  dims.dtype = w.numbers == Numbers::kFp32 ? Dtype::kF32 : Dtype::kBF16;
  dims.attention = w.cudnn_attention ? AttentionKernel::kCudnn : w.model.attention;
  dims.batch = w.micro_batch;
  if (w.cp > 1 && w.gathers_kv) dims.key_len = dims.seq_len;
  dims.seq_len /= w.cp;
  dims.order = order_of(w, layer);
  return static_cast<double>(workspace_bytes(DeviceKind::kCuda, dims, gpu));
}

// Elements of the workspace of experts (allocate_workspace in lib/model/moe.cpp) beyond workspace_elements() per token:
// rows before and after transfers, and the spare rows of all.
double experts_workspace(const Workload& w, const LayerSpec& layer) {
  const MoeSpec& moe = layer.moe;
  const double share = static_cast<double>(w.micro_batch) * w.model.seq_len / w.cp / w.tp;
  const double pairs = share * static_cast<double>(moe.per_token), rows = pairs + spare_rows(w, layer);
  const auto hidden = static_cast<double>(moe.hidden), ffn = static_cast<double>(moe.expert_hidden),
             width = static_cast<double>(moe.width_of(moe.expert_hidden));
  const auto shared = static_cast<double>(moe.shared_hidden + moe.width_of(moe.shared_hidden));
  const double arriving = w.ep_copies ? w.ep * share : rows;
  const double all = (w.ep > 1 ? 2 * pairs + 3 * rows + arriving : 2 * pairs) * hidden + rows * (ffn + width) +
                     share * (shared + static_cast<double>(moe.experts));
  return all - share * moe.workspace_elements(QkvOrder{});
}

// Scratch that a layer uses while it runs: gathered rows and gradients, FP8 casts, and recomputed tensors.
double layer_workspace(const Workload& w, const LayerSpec& layer, const GpuProperties& gpu) {
  const double bytes = w.numbers == Numbers::kFp32 ? 4 : 2;
  const double rows = static_cast<double>(w.micro_batch) * w.model.seq_len / w.cp, width = rows * w.model.hidden;
  const double share = rows / w.tp;
  double workspace = (4 * width + share * layer.workspace_elements(order_of(w, layer))) * bytes;
  if (layer.has_experts()) workspace += experts_workspace(w, layer) * bytes;
  if (w.cp > 1 && w.gathers_kv)  // keys and values of whole samples, and their gradients
    workspace += 2 * rows * w.cp * 2 * static_cast<double>(layer.attention.kv_width()) / w.tp * bytes;
  if (w.resets_positions && layer.attention.rope) {  // angles and positions of each row
    const int tables = w.model.rope_theta_local > 0 ? 2 : 1;
    workspace += rows * 4 * (1.0 + tables * layer.attention.head_dim);
  }
  if (layer.output_norms() > 0)  // the gradient of a branch's output, and its norm
    workspace += (width + (w.sequence_parallel ? width / w.tp : width)) * bytes;
  Workload whole = workload_of_layer(w, layer);
  whole.recompute = Recompute::kNone;
  if (w.recompute == Recompute::kFull)
    workspace += kept_bytes(whole, layer) + (layer.has_experts() ? width - share * w.model.hidden : 0) * bytes;
  if (!w.scores_kept) workspace += kernel_workspace(w, layer, gpu);
  // Softmax in bf16, the dropout's mask, and the dropout's result.
  if (w.scores_kept) workspace += 5.0 * rows * layer.attention.seq_len * layer.attention.heads / w.tp;
  if (w.recompute == Recompute::kSelective)
    workspace +=
        (share * layer.activated_elements() + spare_rows(w, layer) * static_cast<double>(layer.moe.expert_hidden)) *
        bytes;
  if (w.numbers == Numbers::kFp8)  // in all layers, which share it (lib/model/fp8_tensors.cpp)
    workspace += 2 * width + share * layer.cast_bytes() + rows * static_cast<double>(layer.widest_input(w.tp));
  return workspace;
}

StepMemory memory_of_stage(const Workload& w, const Layers& layers, int stage, std::vector<Peaks>& peaks,
                           const GpuProperties& gpu) {
  const ModelConfig& m = w.model;
  const double bytes = w.numbers == Numbers::kFp32 ? 4 : 2;
  const double rows = static_cast<double>(w.micro_batch) * m.seq_len / w.cp;
  const Elements of_stage = elements_of_stage(w, layers, stage), matrices = matrices_of_stage(w, layers, stage);
  const double elements = of_stage.total(), shards = w.reducing();
  StepMemory memory;
  const auto sharded = [&](const Elements& of) {
    double sum = 0;
    for (const ReducedOver over : kReducedOver) sum += of[over] / w.reducing(over);
    return sum;
  };
  const double weights = w.numbers == Numbers::kFp32 ? 0 : 2;  // in fp32 the master weights are the weights
  memory.parameters = elements * weights;
  if (w.zero >= 3) {
    // The master weights are the weights, and gradients are sharded too. Stored whole are the embedding and the head,
    // the head's gradient before and after its reduction, the layer in use and the next one.
    const double ends = embedding_parameters(w) / w.tp;
    const double whole =
        (stage == 0 ? ends : 0) + (stage == w.end_rank() ? ends : 0) + 2 * largest_layer_parameters(layers) / w.tp;
    memory.parameters = elements * w.gradient_bytes / shards + weights * whole +
                        (stage == w.end_rank() ? (weights + w.gradient_bytes) * ends : 0);
  }
  if (w.zero < 2) memory.parameters += elements * 4;
  if (w.zero == 2 || w.dp_copies) {
    const LargestBuckets largest = largest_buckets(w, layers, stage);
    if (w.zero == 2) {  // slices, the pool of whole buckets, and the tied table, whose bucket stays open for a pass
      // lib/optim/store_tensors.cpp
      const int pool = 4 + (m.experts > 0 ? 3 : 0);
      memory.parameters +=
          sharded(of_stage) * 4 + 4 * (std::min(pool, largest.count) * largest.matrices + largest.tied);
    }
    if (w.dp_copies) memory.workspace += 4 * largest.any;
  }
  // GEMM weights in both FP8 orientations: either in addition to the parameter, or as quantized values (one byte
  // instead of two) and their transposes.
  if (!w.fp8_weights && w.zero < 3)
    for (int chunk = 0; chunk < w.chunks; ++chunk)
      memory.parameters += 2 * fp8_layer_parameters(w, layers, w.virtual_stage(stage, chunk));
  const auto held = [&](const Elements& of) { return w.zero == 0 ? of.total() : sharded(of); };
  memory.optimizer = held(of_stage) * (4 + w.optimizer_bytes) - held(matrices) * (w.optimizer_bytes - w.matrix_bytes);
  memory.workspace += muon_workspace_bytes(w, layers, stage);
  const InFlight alive = in_flight(w, layers, stage, peaks);
  const double boundary = (w.sequence_parallel ? rows / w.tp : rows) * m.hidden * bytes;
  memory.activations = alive.kept;
  if (w.stage_buffers) memory.activations += (alive.inputs + alive.outputs) * boundary;
  // The workspace is that of the layer that needs most. The boundary's buffers and the head's logits are added.
  double most = 0;
  for (const LayerSpec& layer : layers.kinds) most = std::max(most, layer_workspace(w, layer, gpu));
  memory.workspace += most;
  if (w.tp_copies) memory.workspace += 2 * rows * m.hidden * bytes;
  // Rows in transfer between stages: outputs, their gradients, and the inputs' gradients.
  if (w.stage_buffers)
    memory.workspace += boundary_buffers(pipeline_axis(w.schedule, stage, w.pp), w.chunks) * boundary;
  if (w.document_mask) memory.workspace += 4.0 * w.num_microbatches() * w.micro_batch * m.seq_len;  // their starts
  // Logits; PyTorch's loss adds their fp32 copy, its logarithms of probabilities, and their gradient.
  const double logit = w.eager_loss ? bytes + 3 * 4 : bytes;
  const double logits = stage == w.end_rank() ? rows * static_cast<double>(padded_vocab(m)) / w.tp * logit : 0;
  // PyTorch frees tensors after their last use, so a layer and the loss use the same memory one after the other.
  memory.workspace = w.eager_loss ? std::max(memory.workspace, logits) : memory.workspace + logits;
  return memory;
}

// One rank of each stage, except that stages between the second and the last may be alike.
std::vector<Mesh> places_of(const Config& config) {
  const Mesh mesh = mesh_of(config, 0);
  std::vector<Mesh> places;
  for (int stage = 0; stage < mesh.axis("pp").size; ++stage) {
    if (inner_stages_are_alike(config.parallel.schedule, divides_evenly(config)) && stage > 1 &&
        stage < mesh.axis("pp").size - 1)
      continue;
    places.push_back(mesh.moved("pp", stage));
  }
  return places;
}

}  // namespace

GpuProperties gpu_of(const Cluster& cluster) {
  GpuProperties gpu;
  if (cluster.device.fp8_tflops == 0)
    gpu = {.capability = 80,
           .max_shared_bytes = 163 * 1024,
           .has_hopper_attention = false,  // an A100 can't run it
           .has_clusters = false};
  gpu.num_multiprocessors = cluster.device.multiprocessors;
  return gpu;
}

StepMemory estimate_memory(const Workload& w, const GpuProperties& gpu) {
  const Layers layers = w.layers();
  StagePeaks& peaks = kept_peaks(w, distinct_microbatches(w));
  StepMemory most;
  for (int stage = 0; stage < w.pp; ++stage) {
    // Stages in between hold fewer microbatches than the first.
    if (inner_stages_are_alike(w.schedule, w.layers_per_chunk.empty()) && stage > 0 && stage < w.pp - 1) continue;
    const StepMemory memory = memory_of_stage(w, layers, stage, peaks[static_cast<size_t>(stage)], gpu);
    if (memory.total() > most.total()) most = memory;
  }
  return most;
}

int64_t planned_bytes(const Config& config, const GpuProperties& gpu) {
  int64_t most = 0;
  for (const Mesh& mesh : places_of(config)) {
    Arena arena(gpu);
    allocate_rank(config, mesh, arena);
    most = std::max(most, arena.used());
  }
  return most;
}

Recompute planned_recompute(const Config& config, const GpuProperties& gpu, double room) {
  Recompute most = Recompute::kNone;
  for (const Mesh& mesh : places_of(config))
    most = std::max(most, least_recompute(config, mesh, static_cast<int64_t>(room), gpu));
  return most;
}

Result<void> check_numbers(const Config& config, const Cluster& cluster) {
  const PrecisionConfig& p = config.precision;
  if (p.gemm != GemmFormat::kFp8 || p.compute != Dtype::kBF16 || cluster.device.fp8_tflops > 0) return {};
  return usage_error(
      "precision.gemm: fp8: the device {} has no FP8 GEMMs (device.fp8_tflops is 0); omit --fp8, or set "
      "precision.gemm to compute",
      cluster.device.name);
}

Config on_machines_of(const Cluster& cluster, Config config) {
  config.cluster.ranks_per_node = cluster.node.ranks;
  if (config.run.device == DeviceChoice::kAuto) config.run.device = DeviceChoice::kCuda;
  return config;
}

std::string ranks_note(const Cluster& cluster, const Config& config) {
  if (config.cluster.ranks_per_node == cluster.node.ranks) return "";
  return fmt::format("cluster.ranks_per_node: the config's {} is replaced by {}, node.ranks of the cluster file",
                     config.cluster.ranks_per_node, cluster.node.ranks);
}

Result<Config> planned_for(Config config, const Cluster& cluster) {
  if (auto known = check_numbers(config, cluster); !known) return known.error();
  config = on_machines_of(cluster, std::move(config));
  const auto ranks = static_cast<int>(ranks_along(AxisSet::outside({}), config.parallel));
  return plan_on_paper(config, ranks, gpu_of(cluster), free_bytes_of(cluster));
}

int64_t free_bytes_of(const Cluster& cluster) { return static_cast<int64_t>(cluster.device.memory_gib * kGib); }

double room_of(const Cluster& cluster) {
  return static_cast<double>(room_for_arena(DeviceKind::kCuda, free_bytes_of(cluster), cluster.node.ranks));
}

}  // namespace tri
