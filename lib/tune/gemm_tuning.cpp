#include "lib/tune/gemm_tuning.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "kernels/gemm_search.h"
#include "lib/comm/job/job.h"
#include "lib/tune/null_objects.h"
#include "lib/tune/tuning_file.h"

namespace tri {
namespace {

// Each weight-gradient GEMM is timed twice: as the first and as a later addition to its gradient.
std::vector<AnyGemm> gemms_of_a_step(Engine& engine, const AxisTransfers& tp, const OverlapSplits& splits) {
  const Config& config = engine.config();
  const Mesh& mesh = engine.mesh();
  Device& device = engine.device();
  const StageTensors& tensors = engine.tensors().stage;
  GemmRecorder recorder;
  NullGroup group(mesh.axis("tp"));
  const auto null_tp = tp.null_transfers(GroupOnStream(group, recorder, device, TimeCategory::kTp), device);
  NullGroup cp_group(mesh.axis("cp"));
  GroupOnStream null_cp(cp_group, recorder, device, TimeCategory::kCp);
  const Tensor rows = tensors.work.partial.rows(0, stage_dims(config, mesh).Rl);
  const bool several = microbatches(config) > 1;
  for (const float beta : {0.0f, 1.0f}) {
    if (beta == 1.0f && !several) break;
    NullHooks hooks(engine.store().memory, beta);
    Stage stage({.config = config,
                 .mesh = mesh,
                 .tensors = tensors,
                 .parameters = engine.parameters(),
                 .hooks = hooks,
                 .compute = recorder,
                 .tp = *null_tp,
                 .splits = splits,
                 .cp = mesh.axis("cp").size > 1 ? &null_cp : nullptr});
    stage.begin(Stage::Mode::kTrain);
    for (int chunk = 0; chunk < config.parallel.chunks; ++chunk) {
      stage.forward(chunk, 0, rows, rows);
      stage.backward(chunk, 0, rows, rows, rows);
      if (!tensors.due.empty()) stage.weight_gradients(chunk, 0);
    }
  }
  record_muon_gemms(engine.tensors().optimizer.muon, recorder);
  return recorder.gemms();
}

// Returns those of the missing GEMMs that this rank times. Ranks that lack the same GEMM on the same `library` (GPU and
// version) share the work. Collective.
std::vector<AnyGemm> share_of_search(const std::map<std::string, AnyGemm>& missing, std::string library, Job* job) {
  std::vector<AnyGemm> share;
  if (job == nullptr) {
    for (const auto& [shape, gemm] : missing) share.push_back(gemm);
    return share;
  }
  std::replace(library.begin(), library.end(), ' ', '_');
  std::map<std::string, AnyGemm> by_word;
  std::string words;
  for (const auto& [shape, gemm] : missing) {
    words += library + ":" + shape + "\n";
    by_word.emplace(library + ":" + shape, gemm);
  }
  const std::vector<std::string> of_ranks = job->gather(words);
  const std::string owners = job->broadcast(job->world_rank() == 0 ? search_owners(of_ranks) : "");
  std::istringstream lines(owners);
  int owner = 0;
  for (std::string word; lines >> word >> owner;)
    if (owner == job->world_rank()) share.push_back(by_word.at(word));
  return share;
}

}  // namespace

std::string search_owners(const std::vector<std::string>& missing) {
  std::map<std::string, std::vector<size_t>> ranks;  // by shape
  for (size_t rank = 0; rank < missing.size(); ++rank) {
    std::istringstream shapes(missing[rank]);
    for (std::string shape; shapes >> shape;) ranks[shape].push_back(rank);
  }
  std::string owners;
  size_t n = 0;
  for (const auto& [shape, of_shape] : ranks) owners += fmt::format("{} {}\n", shape, of_shape[n++ % of_shape.size()]);
  return owners;
}

void search_gemms(Engine& engine, const AxisTransfers& tp, const OverlapSplits& splits, const std::string& dir) {
  GemmSearch* search = engine.device().gemm_search();
  if (search == nullptr || !engine.config().run.gemm_search) return;
  Job* const job = engine.job();
  const bool writes = engine.mesh().world_rank == 0;
  const Tuning kept = writes && !dir.empty() ? value_or_throw(read_tuning(dir)) : Tuning();
  const auto take = [&](std::vector<GemmChoices> all) {
    if (job != nullptr) all = job->broadcast(all);
    for (const GemmChoices& choices : all)
      if (auto taken = search->take_choices(choices); !taken)
        throw Fatal(taken.error().code,
                    fmt::format("{}/tuning.json: {}; move the file away to autotune again, after which a run's results "
                                "may differ in their last bits",
                                dir, taken.error().message));
  };
  take(kept.gemms);
  const auto missing = search->without_choice(gemms_of_a_step(engine, tp, splits));
  search->search(share_of_search(missing, search->choices().library, job), engine.runtime().compute());
  std::vector<GemmChoices> of_ranks{search->choices()};
  if (job != nullptr) of_ranks = job->gather(of_ranks.front());
  Tuning found = kept;
  found.gemms.clear();
  for (const GemmChoices& choices : of_ranks) add_choices(choices, found.gemms);
  take(found.gemms);
  for (const GemmChoices& choices : kept.gemms) add_choices(choices, found.gemms);
  if (writes && !dir.empty() && found != kept) write_tuning(dir, found);
}

}  // namespace tri
