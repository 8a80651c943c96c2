#include "lib/tune/overlap_splits.h"

#include <algorithm>
#include <optional>

#include "io/base/median.h"
#include "kernels/gemm_search.h"
#include "lib/comm/job/job.h"
#include "lib/tune/aligned_timer.h"
#include "lib/tune/gemm_tuning.h"
#include "lib/tune/layer_transfers.h"
#include "lib/tune/null_objects.h"
#include "lib/tune/tuning_file.h"

namespace tri {
namespace {

constexpr int kRounds = 5, kRepeats = 2;

std::vector<OverlapSplit> candidates(int tp) {
  std::vector<OverlapSplit> splits;
  for (int count = 1; count <= tp; count = count < 4 ? count + 1 : count * 2) splits.push_back({.num_splits = count});
  splits.push_back({.num_splits = tp, .direct = true});
  return splits;
}

OverlapSplits splits_alike(OverlapSplit split) {
  OverlapSplits splits;
  for (const Pass pass : {Pass::kForward, Pass::kBackward})
    for (const LinearPlace linear : kLinearPlaces) splits.of(linear, pass) = split;
  return splits;
}

// Identifies everything that the choice depends on. Contains no blanks.
std::string shape_key(const Config& config, const Mesh& mesh, const std::string& library) {
  const StageDims d = stage_dims(config, mesh);
  std::string key = fmt::format("tp{}:{}x{}", d.tp, d.R, d.C);
  // N of a column-parallel linear, K of a row-parallel one.
  for (const LinearSpec& linear : layers_of_model(config)[0].linears())
    key += fmt::format(":{}", linear.split == LinearSplit::kColumn ? linear.n(d.tp) : linear.k(d.tp));
  key += fmt::format(":{}:{}:{}:{}", enum_name(d.dtype), enum_name(config.precision.gemm),
                     enum_name(config.model.block), library);
  std::replace(key.begin(), key.end(), ' ', '_');
  return key;
}

}  // namespace

OverlapSplits timed_overlap_splits(Engine& engine) {
  const Config& config = engine.config();
  const Mesh& mesh = engine.mesh();
  const RankTensors& tensors = engine.tensors();
  Runtime& runtime = engine.runtime();
  NullHooks hooks(engine.store().memory, microbatches(config) > 1 ? 1.0f : 0.0f);
  OverlapSplits tried;
  const LayerContext ctx{.config = config,
                         .dims = stage_dims(config, mesh),
                         .work = tensors.stage.work,
                         .compute = runtime.compute(),
                         .tp = runtime.tp(),
                         .splits = tried,
                         .hooks = hooks,
                         .fp8 = engine.stage().fp8()};
  const auto transfers = layer_transfers(config, mesh, tensors.stage, engine.parameters().front());
  AlignedTimer timer(engine, tensors.optimizer.norm);
  std::vector<double> seconds;  // [transfer][candidate], flattened
  for (const LayerTransfer& transfer : transfers)
    for (const OverlapSplit split : candidates(mesh.axis("tp").size)) {
      if (split.direct && !transfer.takes_direct) continue;
      tried.of(transfer.linear, transfer.pass) = split;
      std::vector<double> rounds;
      for (int round = -1; round < kRounds; ++round) {
        const double one = timer.sample([&] { transfer.together(ctx); }, kRepeats);
        if (round >= 0) rounds.push_back(one);
      }
      seconds.push_back(median(rounds));
    }
  seconds = timer.slowest(seconds);

  OverlapSplits best;
  size_t next = 0;
  for (const LayerTransfer& transfer : transfers) {
    double least = 0;
    for (const OverlapSplit split : candidates(mesh.axis("tp").size)) {
      if (split.direct && !transfer.takes_direct) continue;
      const double time = seconds[next++];
      if (least > 0 && time >= least) continue;
      least = time;
      best.of(transfer.linear, transfer.pass) = split;
    }
  }
  return best;
}

OverlapSplits find_overlap_splits(Engine& engine, const std::string& dir) {
  const Config& config = engine.config();
  const Mesh& mesh = engine.mesh();
  const AxisTransfers& tp = engine.runtime().tp();
  GemmSearch* const gemm_search = engine.device().gemm_search();
  const bool splits_matter = by_peer_copies(config.parallel.tp_transfers, mesh.axis("tp").size);
  if (!splits_matter || gemm_search == nullptr || !config.run.gemm_search) {
    const OverlapSplits standard;
    search_gemms(engine, tp, standard, dir);
    return standard;
  }
  const std::string key = shape_key(config, mesh, "# " + gemm_search->choices().library);
  std::optional<OverlapSplits> kept;  // rank 0's stored splits, broadcast to all
  if (mesh.world_rank == 0 && !dir.empty()) {
    const Tuning tuning = value_or_throw(read_tuning(dir));
    if (const auto of_key = tuning.splits.find(key); of_key != tuning.splits.end()) kept = of_key->second;
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      for (const LinearPlace linear : kLinearPlaces)
        if (kept && kept->of(linear, pass).num_splits > mesh.axis("tp").size)
          throw Fatal(
              ExitCode::kFile,
              fmt::format(
                  "{}/tuning.json: overlap_splits of {}: {} splits exceed tp {}; move the file away to autotune again",
                  dir, key, kept->of(linear, pass).num_splits, mesh.axis("tp").size));
  }
  kept = engine.job()->broadcast(kept);
  if (kept) {
    search_gemms(engine, tp, *kept, dir);
    return *kept;
  }
  for (const OverlapSplit split : candidates(mesh.axis("tp").size)) search_gemms(engine, tp, splits_alike(split), dir);
  const OverlapSplits best = timed_overlap_splits(engine);
  if (mesh.world_rank == 0 && !dir.empty()) {
    Tuning tuning = value_or_throw(read_tuning(dir));  // now includes the GEMMs written above
    tuning.splits[key] = best;
    write_tuning(dir, tuning);
  }
  return best;
}

}  // namespace tri
