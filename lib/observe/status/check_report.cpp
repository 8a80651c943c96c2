#include "lib/observe/status/check_report.h"

#include <algorithm>
#include <cmath>

#include "io/base/format.h"
#include "io/flight_recorder/flight_recorder.h"
#include "lib/checkpoint/load.h"
#include "lib/checkpoint/state.h"
#include "lib/config/axis_fields.h"
#include "lib/config/batch_sizes.h"
#include "lib/engine/rank_tensors.h"
#include "lib/model/flops.h"
#include "lib/model/layer_division.h"
#include "lib/observe/status/estimates.h"
#include "lib/observe/status/order_report.h"
#include "lib/observe/status/run_summary.h"
#include "lib/optim/flat_layout.h"
#include "lib/schedule/pipeline.h"
#include "lib/simulate/document_samples.h"

namespace tri {
namespace {

std::string topology(const Config& config, const Mesh& mesh) {
  std::string text =
      fmt::format("topology: {} = {}, {} per node (tp fastest, pp slowest)\n", counted(mesh.world_size(), "rank"),
                  mesh.grid.sizes(), counted(config.cluster.ranks_per_node, "rank"));
  const int tp = mesh.axis("tp").size, groups = mesh.world_size() / tp;
  constexpr int kShown = 16;
  for (int group = 0; group < groups; ++group) {
    if (groups > kShown && group == kShown / 2) {
      group = groups - kShown / 2;
      text += "  …\n";
    }
    const int first = group * tp, last = first + tp - 1;
    std::string place;  // of the group, slowest axis first
    for (size_t i = mesh.grid.axes.size(); i-- > 0;)
      if (const std::string& axis = mesh.grid.axes[i].name; axis != "tp")
        place += fmt::format("  {} {:>{}}", axis, mesh.grid.rank_on(axis, first), axis == "pp" ? 2 : 3);
    const int node = first / config.cluster.ranks_per_node;
    const bool inside = node == last / config.cluster.ranks_per_node;
    text += fmt::format("{}  ranks {}  {}\n", place,
                        first == last ? fmt::format("{}", first) : fmt::format("{}-{} (tp 0-{})", first, last, tp - 1),
                        inside ? fmt::format("node {}", node)
                               : "ACROSS NODES: slow; set parallel.tp to a divisor of the ranks of a node");
  }
  return text;
}

std::string layers(const Config& config, const Mesh& mesh, CheckDetail detail) {
  const int chunks = config.parallel.chunks;
  std::string text = fmt::format("stages: {} over {} x {}\n", counted(config.model.layers, "layer"),
                                 counted(mesh.axis("pp").size, "stage"), counted(chunks, "chunk"));
  for (int stage = 0; stage < mesh.axis("pp").size; ++stage) {
    const Axis pp = mesh.moved("pp", stage).axis("pp");
    std::string line;
    int64_t parameters = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const LayerRange range = layers_of(config, pp, chunk);
      line += fmt::format("{}{}{}-{}{}", chunk == 0 ? "" : ", ",
                          is_first_virtual_stage(pp, chunk) ? "embedding + " : "", range.first,
                          range.first + range.count - 1, is_last_virtual_stage(pp, chunk, chunks) ? " + head" : "");
      for (const ParamSpec& spec : chunk_parameters(config, pp, chunk)) parameters += spec.local_numel(mesh);
    }
    text += fmt::format("  stage {:>2}: layers {}; {} parameters per rank{}\n", stage, line,
                        format_count(static_cast<double>(parameters)),
                        detail == CheckDetail::kAll ? fmt::format(" ({})", parameters) : "");
  }
  return text;
}

// Lists the choices of parallel.recompute: auto, with the memory of the fullest rank for each.
std::string recompute_choices(Config config, const Mesh& mesh) {
  std::string text =
      "parallel.recompute: auto uses the first level that fits on every rank; memory of the fullest rank:\n";
  for (const Recompute level : {Recompute::kNone, Recompute::kNorms, Recompute::kSelective, Recompute::kFull}) {
    config.parallel.recompute = level;
    int64_t most = 0;
    for (int stage = 0; stage < mesh.axis("pp").size; ++stage) {
      Arena arena;
      allocate_rank(config, mesh.moved("pp", stage), arena);
      most = std::max(most, arena.used());
    }
    text += fmt::format("  {:<22}{:>14}\n", enum_name(level), format_bytes(most));
  }
  return text + "with recompute none:\n";
}

// Of each stage, but of those between the first two and the last only if they are not alike.
std::string memory(Config config, const Mesh& mesh, CheckDetail detail) {
  std::string text;
  if (config.parallel.recompute == Recompute::kAuto) {
    text = recompute_choices(config, mesh);
    config.parallel.recompute = Recompute::kNone;
  }
  const bool alike = inner_stages_are_alike(config.parallel.schedule, divides_evenly(config));
  for (int stage = 0; stage < mesh.axis("pp").size; ++stage) {
    if (alike && stage > 1 && stage < mesh.axis("pp").size - 1) continue;
    const Mesh place = mesh.moved("pp", stage);
    Arena arena;
    const RankTensors tensors = allocate_rank(config, place, arena);
    const int64_t host = state_buffer(state_shards(config, place, tensors.store)).bytes;
    if (detail == CheckDetail::kSummary) {
      text += fmt::format("memory of each rank of stage {}: {}; of the host {} for checkpoints, {} while loading\n",
                          stage, format_bytes(arena.used()), format_bytes(host), format_bytes(load_bytes()));
      continue;
    }
    text += fmt::format("memory of each rank of stage {}:\n{}\n", stage, bytes_table(arena));
    text += fmt::format("  {:<22}{:>14}  {:>15} bytes\n", "host: checkpoints", format_bytes(host), host);
    text += fmt::format("  {:<22}{:>14}  {:>15} bytes, at most\n", "host: while loading", format_bytes(load_bytes()),
                        load_bytes());
  }
  return text;
}

std::string bubble_text(const Config& config, const Mesh& mesh) {
  const int num_microbatches = microbatches(config), chunks = config.parallel.chunks;
  const double whole = 100 * ideal_bubble(mesh.axis("pp").size, num_microbatches, chunks);
  return fmt::format("pipeline: {}, {}; the simulated bubble is {:.1f} % of the work; {} {:.1f} %\n",
                     enum_name(config.parallel.schedule), counted(num_microbatches, "microbatch"),
                     100 * simulated_bubble(config),
                     splits_backward(config.parallel.schedule) ? "with whole backward passes it would be"
                                                               : "(pp-1)/(chunks·microbatches) =",
                     whole);
}

// Lists the sizes of the steps, if they differ.
std::string ramp(const Config& config) {
  const BatchSizes sizes = batch_sizes(config);
  if (sizes.is_constant()) return "";
  std::string text = "batch ramp: memory, bubble and FLOPs of a step are those of the largest size\n";
  const int64_t end = samples_of_run(config);
  int64_t step = 0, sample = 0;
  for (size_t i = 0; i < sizes.phases().size() && sample < end; ++i) {
    const int64_t next = i + 1 < sizes.phases().size() ? std::min(end, sizes.phases()[i + 1].first_sample) : end;
    const int64_t steps = sizes.steps_until(sample, next);
    if (steps == 0) continue;
    const int size = sizes.at(sample);
    text += fmt::format("  steps {} to {}, from {} tokens on: {} per step in {}\n", step + 1, step + steps,
                        format_count(static_cast<double>(sample) * config.model.seq_len), counted(size, "sample"),
                        counted(microbatches(config, size), "microbatch"));
    step += steps;
    sample = sizes.after(sample, steps);
  }
  for (const BatchSizes::Phase& phase : sizes.phases())
    if (phase.first_sample >= end)
      text += fmt::format("  from {} tokens on, which the run does not reach: {} per step\n",
                          format_count(static_cast<double>(phase.first_sample) * config.model.seq_len),
                          counted(phase.size, "sample"));
  return text;
}

std::string warning_line(const std::string& warning) { return warning.empty() ? "" : "WARNING: " + warning + "\n"; }

// Names the config field that bytes_per_second is computed from.
std::string bandwidth_source(const Config& config, const DpTraffic& traffic) {
  if (!traffic.network_bound) return "cluster.node_gb_per_s";
  if (traffic.on_node == 1) return "cluster.network_gb_per_s";
  return fmt::format("cluster.network_gb_per_s {:g} for each of its {} ranks on a node",
                     config.cluster.network_gb_per_s, traffic.on_node);
}

std::string data_parallel(const Config& config, DeviceKind device) {
  const ParallelConfig& p = config.parallel;
  const DpTraffic traffic = dp_traffic(config);
  if (traffic.ranks == 1) return "";
  std::string text = fmt::format("data parallel: a rank sends {} per step over {} (zero {}: {})",
                                 format_bytes(traffic.step_bytes), sizes_along(kBucketAxes, p), p.zero,
                                 p.zero == 0   ? "gradients all-reduced once"
                                 : p.zero == 1 ? "gradients reduced once, parameters gathered once"
                                               : "gradients reduced after each microbatch, parameters gathered once");
  if (device == DeviceKind::kCpu) return text + "\n";  // the bandwidths of cluster.* are those of GPUs
  return text +
         fmt::format(", {:.1f} ms at {:.0f} GB/s ({}; {})\n", 1e3 * traffic.step_seconds(),
                     traffic.bytes_per_second / 1e9, bandwidth_source(config, traffic),
                     traffic.crosses_nodes ? "the dp group spans several nodes" : "the dp group is inside a node");
}

std::string inside_layers(const Config& config, DeviceKind device) {
  std::string text;
  for (const LayerTraffic& traffic : layer_traffic(config)) {
    text += fmt::format(
        "{} parallel: a rank sends {} a step over {} {}{}", traffic.axis == "cp" ? "context" : "expert",
        format_bytes(traffic.step_bytes), traffic.axis, traffic.ranks,
        traffic.axis == "cp" ? ": keys, values and their gradients" : ": rows to balanced experts and back");
    if (device != DeviceKind::kCpu)
      text += fmt::format(", {:.1f} ms ({})", 1e3 * traffic.seconds,
                          traffic.crosses_nodes()
                              ? fmt::format("{} of it between nodes, cluster.network_gb_per_s {:g}",
                                            format_bytes(traffic.network_bytes), config.cluster.network_gb_per_s)
                              : "inside a node, cluster.node_gb_per_s");
    text += "\n";
  }
  return text;
}

std::string checkpoints(const Config& config, int ranks) {
  const CheckpointEstimate estimate = checkpoint_estimate(config, ranks);
  std::string text = fmt::format(
      "checkpoints: {} each, written concurrently with training in {} (cluster.storage_gb_per_s {:g}); one of {} fails "
      "every {} (cluster.rank_mtbf_hours {:g}), so save every {}, the larger of the Young/Daly interval (sqrt(2 · "
      "stall · MTBF) with a stall of {:g} s) and the time of writing\n",
      format_bytes(estimate.bytes), format_duration(estimate.write_seconds), config.cluster.storage_gb_per_s,
      counted(ranks, "rank"), format_duration(estimate.mtbf_seconds), config.cluster.rank_mtbf_hours,
      format_duration(estimate.interval_seconds), estimate.stall_seconds);
  const double requested = 60 * config.checkpoint.every_minutes;
  const double lost_share = requested / 2 / estimate.mtbf_seconds;  // half an interval a failure
  if (checkpoint_warning(config, estimate).empty() && requested > estimate.interval_seconds && lost_share > 0.01 &&
      config.checkpoint.every == 0)
    text += fmt::format("hint: checkpoint.every_minutes: {:g} loses {:.1f} % of the time to crashes; set {:.2g}\n",
                        config.checkpoint.every_minutes, 100 * lost_share, estimate.interval_seconds / 60);
  const MemoryCheckpointEstimate in_memory = memory_checkpoint_estimate(config);
  if (in_memory.node_bytes > 0)
    text += fmt::format(
        "checkpoints in memory every {}: {} of a node's shared memory for {} (at most {} each), and {} of its memory "
        "for those in storage\n",
        counted(config.checkpoint.memory_every, "step"), format_bytes(in_memory.node_bytes),
        counted(in_memory.ranks, "rank"), format_bytes(in_memory.rank_bytes), format_bytes(in_memory.node_others));
  return text;
}

// Last, so that they are seen.
std::string warnings(const Config& config, const JobPlan& plan, int ranks) {
  std::string text;
  for (const std::string& warning : plan.warnings) text += warning_line(warning);
  if (plan.device.kind != DeviceKind::kCpu) {
    text += warning_line(dp_warning(config, dp_traffic(config)));
    for (const LayerTraffic& traffic : layer_traffic(config)) text += warning_line(layer_warning(config, traffic));
  }
  text += warning_line(memory_every_warning(config.checkpoint));
  text += warning_line(
      memory_checkpoint_warning(memory_checkpoint_estimate(config), node_memory(flight_record_folder(), 0)));
  return text + warning_line(checkpoint_warning(config, checkpoint_estimate(config, ranks)));
}

// Where the experts are, and the rows for which a rank has memory.
std::string experts(const Config& config, const Mesh& mesh) {
  const ModelConfig& m = config.model;
  if (m.experts == 0) return "";
  const int ep = config.parallel.ep;
  const Layers all = layers_of_model(config);
  const MoeSpec& moe = std::ranges::find(all.kinds, true, &LayerSpec::has_experts)->moe;
  const int64_t own = stage_dims(config, mesh).Rl, rows = expert_rows(moe, own, ep, config.parallel.ep_capacity);
  return fmt::format(
      "experts: {} in each of {}, {} per token; {} per rank (ep {}), with memory for {} rows of a microbatch{}\n",
      m.experts, counted(expert_layers(m), "layer"), m.experts_per_token, m.experts / ep, ep, rows,
      ep == 1 ? ", the most that the rank can have"
              : fmt::format(", {:.3g} times those of balanced experts; more rows end the run (parallel.ep_capacity)",
                            static_cast<double>(rows) / static_cast<double>(own * m.experts_per_token)));
}

}  // namespace

std::string check_report(const Config& requested, const JobPlan& plan, int ranks, CheckDetail detail) {
  const Config config = with_plan(requested, plan);
  const Mesh mesh = mesh_of(config, 0);
  TRI_REQUIRE(mesh.world_size() == ranks, "the config was resolved for {} ranks, but the report is for {}",
              mesh.world_size(), ranks);
  int64_t parameters = 0;
  for (const ParamSpec& spec : model_parameters(config)) parameters += spec.numel();
  const double flops = model_flops_per_token(config);
  const double causal = model_flops_per_token(config, AttentionWork::kCausal);
  const double step_tokens = static_cast<double>(config.data.global_batch) * config.model.seq_len;

  const Layers model_layers = layers_of_model(config);
  const double idle = model_layers.sum(model_layers.all(),
                                       [](const LayerSpec& layer) { return layer.weights() - layer.active_weights(); });
  std::string text = fmt::format(
      "{}: {} parameters{}{}, {}, on {} = {}\n", config.run.name, format_count(static_cast<double>(parameters)),
      detail == CheckDetail::kAll ? fmt::format(" ({})", parameters) : "",
      idle > 0 ? fmt::format(", of which each token uses {}", format_count(static_cast<double>(parameters) - idle))
               : "",
      enum_name(config.precision.compute), counted(ranks, "rank"), mesh.grid.sizes());
  text += memory(config, mesh, detail);
  text += experts(config, mesh);
  text += bubble_text(config, mesh);
  text += fmt::format("batch: {} per step = micro_batch {} x {} x dp {}; {} per sample, {} tokens per step\n",
                      counted(config.data.global_batch, "sample"), config.data.micro_batch,
                      counted(microbatches(config), "microbatch"), mesh.axis("dp").size,
                      counted(config.model.seq_len, "token"), format_count(step_tokens));
  text += ramp(config);
  // Of the largest step of a ramp, and before it of the smallest.
  const double smallest_tokens = static_cast<double>(batch_sizes(config).smallest()) * config.model.seq_len;
  const std::string from =
      smallest_tokens < step_tokens ? fmt::format("{} to ", format_count(flops * smallest_tokens)) : "";
  text += fmt::format(
      "FLOPs: {} per token, {}{} per step, {} per rank and step (forward + backward, attention over the {}); {} per "
      "token if masked attention is not counted\n",
      format_count(flops), from, format_count(flops * step_tokens),
      format_count(flops * step_tokens / mesh.world_size()), config.model.window > 0 ? "window's band" : "full square",
      format_count(causal));
  text += data_parallel(config, plan.device.kind) + inside_layers(config, plan.device.kind);
  text += checkpoints(config, ranks);
  text += topology(config, mesh) + layers(config, mesh, detail) + to_string(plan) + "\n";
  if (plan.device.kind == DeviceKind::kCuda) text += "  (kernels and memory are those of an H200 with cuDNN)\n";
  return text + warnings(config, plan, ranks);
}

namespace {

// Estimates from samples of the run what attention computes over documents.
std::string documents_text(const Config& config, const Dataset& dataset) {
  const DocumentSamples documents = documents_of_run(config, dataset);
  const int length = config.model.seq_len, count = documents.num_samples();
  std::vector<double> of_samples;  // FLOPs
  double causal = 0;
  for (int i = 0; i < count; ++i) {
    of_samples.push_back(model_flops(config, length, documents.pairs(AttentionWork::kCausal, i)));
    causal += of_samples.back();
  }
  const double samples = count, mean = causal / samples;
  double squares = 0;
  for (const double flops : of_samples) squares += (flops - mean) * (flops - mean);
  // The largest of dp sums of independent samples.
  const double dp = std::max(1, config.parallel.dp), per_rank = config.data.global_batch / dp;
  const double busiest = std::sqrt(2 * std::log(dp) * squares / samples / per_rank) / mean;
  return fmt::format(
      "  documents: parts within a sample have about {:.0f} tokens (estimated from {}); {} FLOPs per token, or {} if "
      "each sample were one document; the busiest of {} computes about {:.1f} % more than the mean one\n",
      documents.mean_length(), counted(count, "sample"), format_count(mean / length),
      format_count(model_flops_per_token(config, AttentionWork::kCausal)), counted(static_cast<int64_t>(dp), "dp rank"),
      100 * busiest);
}

}  // namespace

std::string data_report(const Config& config, const Tokenizer& tokenizer, const Dataset& dataset) {
  const int unused = config.model.vocab - tokenizer.vocab_size();
  std::string text =
      fmt::format("data: tokenizer {}, {} tokens; model.vocab {}{}\n", config.data.tokenizer, tokenizer.vocab_size(),
                  config.model.vocab, unused > 0 ? fmt::format(", of which {} are unused", unused) : "");
  text += warning_line(vocab_warning(config, tokenizer.vocab_size()));
  const SampleOrder& order = dataset.order();
  const std::vector<OrderedSource>& sources = dataset.order_fields().sources;
  size_t width = 6;
  double weights = 0;
  for (const OrderedSource& source : sources) {
    width = std::max(width, source.path.size());
    weights += source.weight;
  }
  text += fmt::format("  {:<{}}  {:>14}  {:>13}  {:>12}  {:>7}  {:>10}\n", "source", width, "tokens", "train samples",
                      "validation", "share", "epochs");
  const auto run_samples = static_cast<double>(samples_of_run(config));
  for (size_t i = 0; i < sources.size(); ++i) {
    const int64_t samples = order.num_samples(Split::kTrain, static_cast<int>(i));
    const auto number = static_cast<int>(i);
    const double share = dataset.order_fields().stages.empty()
                             ? sources[i].weight / weights
                             : static_cast<double>(order.consumed(number, samples_of_run(config))) / run_samples;
    text += fmt::format("  {:<{}}  {:>14}  {:>13}  {:>12}  {:>5.1f} %  {:>10.3g}{}\n", sources[i].path, width,
                        sources[i].tokens, samples, order.num_samples(Split::kValidation, static_cast<int>(i)),
                        100 * share, run_samples * share / static_cast<double>(samples),
                        sources[i].trained ? fmt::format("  loss mask: trains {}", trained_share(sources[i])) : "");
  }
  text += fmt::format("  {} {} {} samples, {} tokens\n", counted(config.run.steps, "step"),
                      config.run.steps == 1 ? "takes" : "take", format_count(run_samples),
                      format_count(run_samples * config.model.seq_len));
  if (config.data.document_mask) text += documents_text(config, dataset);
  if (!config.data.stages.empty()) text += order_report(config, dataset.order_fields());
  return text + warning_line(epochs_warning(config, dataset.order_fields()));
}

}  // namespace tri
