#include "lib/observe/check_report.h"

#include <algorithm>

#include "io/base/format.h"
#include "lib/checkpoint/load.h"
#include "lib/checkpoint/state.h"
#include "lib/engine/rank_tensors.h"
#include "lib/model/flops.h"
#include "lib/observe/report.h"
#include "lib/simulate/pipeline.h"

namespace tri {
namespace {

std::string topology(const Config& config, const Mesh& mesh) {
  std::string text =
      fmt::format("topology: {} ranks = tp {} x dp {} x pp {}, {} ranks a node (tp fastest, pp slowest)\n",
                  mesh.world_size(), mesh.tp.size, mesh.dp.size, mesh.pp.size, config.cluster.ranks_per_node);
  const int groups = mesh.world_size() / mesh.tp.size;
  constexpr int kShown = 16;
  for (int group = 0; group < groups; ++group) {
    if (groups > kShown && group == kShown / 2) {
      group = groups - kShown / 2;
      text += "  …\n";
    }
    const int first = group * mesh.tp.size, last = first + mesh.tp.size - 1;
    const Mesh place = make_mesh(first, mesh.tp.size, mesh.dp.size, mesh.pp.size);
    const int node = first / config.cluster.ranks_per_node;
    const bool inside = node == last / config.cluster.ranks_per_node;
    text += fmt::format(
        "  pp {:>2}  dp {:>3}  ranks {}  {}\n", place.pp.rank, place.dp.rank,
        first == last ? fmt::format("{}", first) : fmt::format("{}-{} (tp 0-{})", first, last, mesh.tp.size - 1),
        inside ? fmt::format("node {}", node) : "ACROSS NODES: slow; choose a tp that divides the node");
  }
  return text;
}

std::string layers(const Config& config, const Mesh& mesh) {
  const int chunks = config.parallel.chunks;
  std::string text =
      fmt::format("stages: {} layers over {} stage(s) x {} chunk(s)\n", config.model.layers, mesh.pp.size, chunks);
  for (int stage = 0; stage < mesh.pp.size; ++stage) {
    const Axis pp{stage, mesh.pp.size};
    std::string line;
    int64_t parameters = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const LayerRange range = layers_of(config, pp, chunk);
      line += fmt::format("{}{}{}-{}{}", chunk == 0 ? "" : ", ",
                          is_first_virtual_stage(pp, chunk) ? "embedding + " : "", range.first,
                          range.first + range.count - 1, is_last_virtual_stage(pp, chunk, chunks) ? " + head" : "");
      for (const ParamSpec& spec : chunk_parameters(config, pp, chunk)) parameters += spec.local_numel(mesh.tp.size);
    }
    text += fmt::format("  stage {:>2}: layers {}; {} parameters a rank ({})\n", stage, line,
                        format_count(static_cast<double>(parameters)), parameters);
  }
  return text;
}

// What parallel.recompute: auto chooses from: the fullest rank's memory.
std::string recompute_choices(Config config, const Mesh& mesh) {
  std::string text = "parallel.recompute: auto takes the first that fits on every rank; bytes of the fullest:\n";
  for (const Recompute level : {Recompute::kNone, Recompute::kNorms, Recompute::kSelective, Recompute::kFull}) {
    config.parallel.recompute = level;
    int64_t most = 0;
    for (int stage = 0; stage < mesh.pp.size; ++stage) {
      Mesh place = mesh;
      place.pp.rank = stage;
      Arena arena;
      allocate_rank(config, place, arena);
      most = std::max(most, arena.used());
    }
    text += fmt::format("  {:<22}{:>14}  {:>15} bytes\n", enum_name(level), format_bytes(most), most);
  }
  return text + "as none:\n";
}

std::string memory(Config config, const Mesh& mesh) {
  std::string text;
  if (config.parallel.recompute == Recompute::kAuto) {
    text = recompute_choices(config, mesh);
    config.parallel.recompute = Recompute::kNone;
  }
  for (int stage = 0; stage < mesh.pp.size; ++stage) {
    // Stages between the first two and the last are alike but for the microbatches in flight, which fall.
    if (stage > 1 && stage < mesh.pp.size - 1) continue;
    Mesh place = mesh;
    place.pp.rank = stage;
    Arena arena;
    const RankTensors tensors = allocate_rank(config, place, arena);
    const int64_t host = state_buffer(state_pieces(config, place, tensors.store)).bytes;
    text += fmt::format("memory of each rank of stage {}:\n{}\n", stage, bytes_table(arena));
    text += fmt::format("  {:<22}{:>14}  {:>15} bytes\n", "host: checkpoints", format_bytes(host), host);
    text += fmt::format("  {:<22}{:>14}  {:>15} bytes, at most\n", "host: while loading", format_bytes(load_bytes()),
                        load_bytes());
  }
  return text;
}

std::string bubble(const Config& config, const Mesh& mesh) {
  const int num_microbatches = microbatches(config), chunks = config.parallel.chunks;
  const std::vector<StageCost> costs(static_cast<size_t>(mesh.pp.size * chunks));
  const PipelineRun run =
      simulate_pipeline(plans_of_all_stages(config.parallel.schedule, mesh.pp.size, num_microbatches, chunks), chunks,
                        costs, Overlap::kOn);
  TRI_REQUIRE(run.deadlock.empty(), "the plan deadlocks: {}", run.deadlock);
  return fmt::format(
      "pipeline: {}, {} microbatches; bubble {:.1f} % of the work, simulated; (pp-1)/(chunks·microbatches) = {:.1f} "
      "%\n",
      enum_name(config.parallel.schedule), num_microbatches, 100 * run.bubble,
      100 * ideal_bubble(mesh.pp.size, num_microbatches, chunks));
}

}  // namespace

std::string check_report(const Config& asked, const JobPlan& plan, int ranks) {
  const Config config = with_plan(asked, plan);
  const Mesh mesh = make_mesh(0, config.parallel.tp, config.parallel.dp, config.parallel.pp);
  TRI_REQUIRE(mesh.world_size() == ranks, "config resolved for {} ranks, asked about {}", mesh.world_size(), ranks);
  int64_t parameters = 0;
  for (const ParamSpec& spec : model_parameters(config)) parameters += spec.numel();
  const double flops = model_flops_per_token(config);
  const double causal = model_flops_per_token(config, AttentionWork::kCausal);
  const double step_tokens = static_cast<double>(config.data.global_batch) * config.model.seq_len;

  std::string text =
      fmt::format("{}: {} parameters ({}), {}\n", config.run.name, format_count(static_cast<double>(parameters)),
                  parameters, enum_name(config.precision.compute));
  text += topology(config, mesh);
  text += to_string(plan) + "\n";
  text += fmt::format(
      "batch: {} samples a step = micro_batch {} x {} microbatches x dp {}; {} tokens a sample, {} tokens a step\n",
      config.data.global_batch, config.data.micro_batch, microbatches(config), mesh.dp.size, config.model.seq_len,
      format_count(step_tokens));
  text += layers(config, mesh);
  text += memory(config, mesh);
  text += fmt::format(
      "FLOPs: {} a token, {} a step, {} a rank and step (forward + backward, attention over the {}); {} a token where "
      "attention counts what the causal mask leaves\n",
      format_count(flops), format_count(flops * step_tokens), format_count(flops * step_tokens / mesh.world_size()),
      config.model.window > 0 ? "window's band" : "full square", format_count(causal));
  return text + bubble(config, mesh);
}

}  // namespace tri
