#include "lib/observe/status/estimates.h"

#include <algorithm>

#include "io/base/format.h"
#include "kernels/attention.h"
#include "lib/checkpoint/state.h"
#include "lib/config/axis_fields.h"
#include "lib/config/batch_sizes.h"
#include "lib/data/order.h"
#include "lib/engine/rank_tensors.h"
#include "lib/model/flops.h"
#include "lib/model/layer_division.h"
#include "lib/optim/flat_layout.h"
#include "lib/optim/optimizers.h"
#include "lib/parallel/sequence_chunks.h"
#include "lib/schedule/pipeline.h"
#include "lib/simulate/goodput.h"
#include "lib/simulate/new_config.h"

namespace tri {
namespace {

// Forward and backward of a microbatch on a rank, without recompute.
double compute_seconds(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const double tokens = static_cast<double>(config.data.micro_batch) * config.model.seq_len;
  return model_flops_per_token(config) * tokens / (p.tp * p.cp * p.pp) / (config.cluster.rank_tflops * 1e12);
}

// Members of a group whose ranks ascend evenly that share a machine with the first one.
int members_on_node(const std::vector<int>& group, const ClusterConfig& cluster) {
  const int stride = group.size() > 1 ? group[1] - group[0] : 1;
  return std::max(1, std::min(static_cast<int>(group.size()), cluster.ranks_per_node / stride));
}

// Bytes that a rank has for the other members of a group in a layer and microbatch.
double bytes_of_layer(const Config& config, const LayerSpec& layer, const std::string& axis) {
  const ParallelConfig& p = config.parallel;
  const double rows = static_cast<double>(config.data.micro_batch) * config.model.seq_len / p.cp;
  const double element = config.precision.compute == Dtype::kBF16 ? 2 : 4;
  if (axis == "cp") {  // two gathers and the gradients' sums
    const double own = rows * 2 * static_cast<double>(layer.attention.kv_width()) / p.tp * element;
    const SequenceChunks chunks{layer.attention.seq_len, {0, p.cp}};
    return 3 * own * (p.cp - 1) * chunks.share_of_foreign_keys(layer.attention.window, kKeyTile);
  }
  if (!layer.has_experts()) return 0;
  const double forwards = p.recompute == Recompute::kFull ? 2 : 1, tokens = rows / p.tp;
  const double pairs = tokens * static_cast<double>(layer.moe.per_token) * (p.ep - 1) / p.ep;
  // To the experts copies bring all tokens, and their gradients before the cast; messages carry FP8 both ways.
  const bool copies = ep_by_copies(config);
  const double there = copies ? tokens * (p.ep - 1) : pairs, cast = layer.fp8 ? 1 : element;
  const double there_bytes = there * (forwards * cast + (copies ? element : cast)),
               back_bytes = pairs * (forwards + 1) * element;
  return (there_bytes + back_bytes) * static_cast<double>(layer.moe.hidden);
}

LayerTraffic layer_traffic(const Config& config, const std::string& axis, const std::vector<int>& group) {
  const ParallelConfig& p = config.parallel;
  const Layers layers = layers_of_model(config);
  double most = 0;
  for (int stage = 0; stage < p.pp; ++stage) {
    double sent = 0;
    for (int chunk = 0; chunk < p.chunks; ++chunk)
      sent += layers.sum(layers_of(config, {stage, p.pp}, chunk),
                         [&](const LayerSpec& layer) { return bytes_of_layer(config, layer, axis); });
    most = std::max(most, microbatches(config) * sent);
  }
  LayerTraffic traffic{.axis = axis,
                       .ranks = static_cast<int>(group.size()),
                       .on_node = members_on_node(group, config.cluster),
                       .compute_seconds = microbatches(config) * compute_seconds(config)};
  const double across = most * (traffic.ranks - traffic.on_node) / (traffic.ranks - 1);
  traffic.step_bytes = static_cast<int64_t>(most);
  traffic.network_bytes = static_cast<int64_t>(across);
  traffic.seconds =
      std::max(across / config.cluster.network_gb_per_s, (most - across) / config.cluster.node_gb_per_s) / 1e9;
  return traffic;
}

}  // namespace

std::vector<LayerTraffic> layer_traffic(const Config& config) {
  const Mesh mesh = mesh_of(config, 0);
  std::vector<LayerTraffic> all;
  if (config.parallel.cp > 1) all.push_back(layer_traffic(config, "cp", mesh.group({"cp"})));
  if (config.parallel.ep > 1) all.push_back(layer_traffic(config, "ep", mesh.group({"ep"})));
  return all;
}

double simulated_bubble(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const bool even = divides_evenly(config);
  std::vector<StageCost> costs(static_cast<size_t>(p.pp * p.chunks), equal_parts(p.schedule));
  if (!even) costs = stage_costs(config);
  for (StageCost& cost : costs) cost.transfer = 0;
  const PipelineRun run = simulate_pipeline(plans_of_all_stages(p.schedule, p.pp, microbatches(config), p.chunks,
                                                                even ? std::vector<StageCost>{} : plan_costs(config)),
                                            p.chunks, costs, Overlap::kOn, placement_of(p.schedule));
  TRI_REQUIRE(run.deadlock.empty(), "the plan deadlocks: {}", run.deadlock);
  return run.bubble;
}

DpTraffic dp_traffic(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const ClusterConfig& cluster = config.cluster;
  const Mesh mesh = mesh_of(config, 0);
  // In a ring each rank sends (ranks - 1) / ranks of a bucket to reduce-scatter it, and the same to gather it. These
  // are the elements of the stage with the largest buffers, and those of FP8 weights among them.
  int64_t most = 0, slices = 0, slices_of_fp8 = 0;
  for (int stage = 0; stage < p.pp; ++stage) {
    int64_t elements = 0, sent = 0, sent_fp8 = 0;
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const FlatLayout layout =
          make_flat_layout(chunk_parameters(config, {stage, p.pp}, chunk), mesh, p.bucket_elements);
      elements += layout.size;
      for (const Bucket& bucket : layout.buckets) {
        const int64_t members = mesh.joint_axis(bucket.sharded_over()).size;
        sent += bucket.size / members * (members - 1);
        if (bucket.quantized) sent_fp8 += bucket.size / members * (members - 1);
      }
    }
    if (elements <= most) continue;
    most = elements;
    slices = sent;
    slices_of_fp8 = sent_fp8;
  }
  const std::vector<int> group = mesh.group(kBucketAxes);
  const auto ranks = static_cast<int>(group.size());
  const int64_t element = config.precision.compute == Dtype::kBF16 ? 2 : 4;
  const int64_t gradients = slices * 4, parameters = (slices - slices_of_fp8) * element + slices_of_fp8;
  const int64_t num_microbatches = config.data.global_batch / config.data.micro_batch / p.dp;
  DpTraffic traffic{.ranks = ranks};
  if (p.zero == 2) traffic.microbatch_bytes = gradients;
  traffic.step_bytes = p.zero == 0   ? 2 * gradients  // an all-reduce
                       : p.zero == 1 ? gradients + parameters
                                     : num_microbatches * gradients + parameters;
  // If a machine holds n members of a group, n adapters carry its ring.
  traffic.on_node = members_on_node(group, cluster);
  traffic.crosses_nodes = traffic.on_node < ranks;
  const double inside = cluster.node_gb_per_s * 1e9, across = traffic.on_node * cluster.network_gb_per_s * 1e9;
  traffic.network_bound = traffic.crosses_nodes && across < inside;
  traffic.bytes_per_second = traffic.network_bound ? across : inside;
  traffic.compute_seconds = compute_seconds(config);
  return traffic;
}

CheckpointEstimate checkpoint_estimate(const Config& config, int ranks) {
  int64_t parameters = 0;
  for (const ParamSpec& spec : model_parameters(config)) parameters += spec.numel();
  CheckpointEstimate estimate{.bytes = (4 + optimizer_state_bytes(config.optimizer)) * parameters};
  estimate.write_seconds = static_cast<double>(estimate.bytes) / (config.cluster.storage_gb_per_s * 1e9);
  estimate.stall_seconds = ClusterFaults{}.stall_s;
  estimate.mtbf_seconds = 3600 * config.cluster.rank_mtbf_hours / ranks;
  const FaultRates rates{.mtbf_s = estimate.mtbf_seconds, .stall_s = estimate.stall_seconds};
  estimate.interval_seconds = std::max(best_interval(rates), estimate.write_seconds);
  return estimate;
}

MemoryCheckpointEstimate memory_checkpoint_estimate(Config config) {
  if (config.checkpoint.memory_every == 0) return {};
  if (config.parallel.recompute == Recompute::kAuto) config.parallel.recompute = Recompute::kNone;
  const Mesh mesh = mesh_of(config, 0);
  const int world = mesh.world_size(), on_node = config.cluster.ranks_per_node;
  const int nodes = (world + on_node - 1) / on_node;
  std::vector<int64_t> segments, others;  // by stage: the first rank of a stage writes no less than its others
  for (int stage = 0; stage < mesh.axis("pp").size; ++stage) {
    const Mesh place = mesh.moved("pp", stage);
    Arena arena;
    const auto shards = state_shards(config, place, allocate_rank(config, place, arena).store);
    segments.push_back(memory_checkpoint_bytes(memory_segment_bytes(shards), nodes));
    others.push_back(state_buffer(shards).bytes);
  }
  MemoryCheckpointEstimate most{.rank_bytes = *std::ranges::max_element(segments)};
  for (int node = 0; node < nodes; ++node) {
    MemoryCheckpointEstimate here;
    for (int rank = node * on_node; rank < std::min(world, (node + 1) * on_node); ++rank, ++here.ranks) {
      const auto stage = static_cast<size_t>(mesh.grid.rank_on("pp", rank));
      here.node_bytes += segments[stage];
      here.node_others += others[stage];
    }
    here.rank_bytes = most.rank_bytes;
    if (here.node_bytes > most.node_bytes) most = here;
  }
  return most;
}

std::string memory_checkpoint_warning(const MemoryCheckpointEstimate& estimate, const NodeMemory& memory) {
  if (estimate.node_bytes == 0) return "";
  const auto fits =
      check_memory_budget("of this kind", estimate.ranks, estimate.node_bytes, estimate.node_others, memory);
  return fits ? "" : "if nodes are like this machine, the run will not start: " + fits.error().message;
}

std::string dp_warning(const Config& config, const DpTraffic& traffic) {
  if (traffic.ranks == 1 || !traffic.exceeds_compute()) return "";
  return fmt::format(
      "parallel.zero: 2 sends {} after each of {}, which takes {:.1f} ms, longer than the {:.1f} ms of compute "
      "(cluster.rank_tflops {:g}); set parallel.zero to 1, or increase data.micro_batch",
      format_bytes(traffic.microbatch_bytes), counted(microbatches(config), "microbatch"),
      1e3 * traffic.microbatch_seconds(), 1e3 * traffic.compute_seconds, config.cluster.rank_tflops);
}

std::string layer_warning(const Config& config, const LayerTraffic& traffic) {
  constexpr double kNoticeable = 0.1;  // of compute
  if (!traffic.crosses_nodes() || traffic.seconds < kNoticeable * traffic.compute_seconds) return "";
  return fmt::format(
      "parallel.{}: its groups of {} ranks span nodes of {}, so a rank sends {} a step over the network inside the "
      "layers, which takes {:.1f} ms of a step with {:.1f} ms of compute (cluster.network_gb_per_s {:g}, rank_tflops "
      "{:g}); {}",
      traffic.axis, traffic.ranks, config.cluster.ranks_per_node, format_bytes(traffic.network_bytes),
      1e3 * traffic.seconds, 1e3 * traffic.compute_seconds, config.cluster.network_gb_per_s, config.cluster.rank_tflops,
      traffic.axis == "cp" ? "lower parallel.cp or parallel.tp if memory allows it"
                           : "lower parallel.ep to at most the ranks of a node if memory allows it");
}

std::string checkpoint_warning(const Config& config, const CheckpointEstimate& estimate) {
  if (std::string warning = no_checkpoints_warning(config.checkpoint); !warning.empty()) return warning;
  const double interval = 60 * config.checkpoint.every_minutes;
  if (interval == 0 || interval >= estimate.write_seconds) return "";
  return fmt::format(
      "checkpoint.every_minutes: {:g} is less than the time in which a checkpoint is written; increase it",
      config.checkpoint.every_minutes);
}

std::string vocab_warning(const Config& config, int tokens) {
  if (config.model.vocab / tokens < kOtherVocab) return "";
  return fmt::format("model.vocab: {}, of which {} are unused: data.tokenizer {} has {} tokens; set model.vocab to {}",
                     config.model.vocab, config.model.vocab - tokens, config.data.tokenizer, tokens, tokens);
}

std::string epochs_warning(const Config& config, const OrderFields& order) {
  constexpr double kManyEpochs = 10;
  const SampleOrder samples(order);
  double weights = 0, most = 0;
  for (const OrderedSource& source : order.sources) weights += source.weight;
  const auto run_samples = static_cast<double>(samples_of_run(config));
  size_t worst = 0;
  for (size_t i = 0; i < order.sources.size(); ++i) {
    const auto there =
        static_cast<double>(std::max<int64_t>(1, samples.num_samples(Split::kTrain, static_cast<int>(i))));
    const double read = order.stages.empty()
                            ? run_samples * order.sources[i].weight / weights
                            : static_cast<double>(samples.consumed(static_cast<int>(i), samples_of_run(config)));
    const double epochs = read / there;
    if (epochs > most) most = epochs, worst = i;
  }
  if (most <= kManyEpochs) return "";
  const OrderedSource& source = order.sources[worst];
  const std::string field = config.run.tokens > 0 ? "run.tokens" : "run.steps";
  return fmt::format(
      "{}: {} steps read each token of {} {} times: the run needs {} tokens, but {} has {}; lower {} or add data",
      field, config.run.steps, source.path, format_count(most), format_count(run_samples * config.model.seq_len),
      source.path, format_count(static_cast<double>(source.tokens)), field);
}

std::string no_checkpoints_warning(const CheckpointConfig& checkpoint) {
  if (checkpoint.every > 0 || checkpoint.every_minutes > 0) return "";
  return "checkpoint.every_minutes and checkpoint.every are 0: the run saves a checkpoint only when it ends or "
         "receives a stop signal, and a crash loses all steps; set checkpoint.every_minutes";
}

std::string memory_every_warning(const CheckpointConfig& checkpoint) {
  if (checkpoint.memory_every == 0 || checkpoint.every == 0 || checkpoint.memory_every < checkpoint.every) return "";
  return fmt::format(
      "checkpoint.memory_every: {} saves nothing, since checkpoint.every {} saves to storage as often; set it to less, "
      "or to 0",
      checkpoint.memory_every, checkpoint.every);
}

}  // namespace tri
