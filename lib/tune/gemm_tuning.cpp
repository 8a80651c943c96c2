#include "lib/tune/gemm_tuning.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "io/base/file.h"
#include "io/base/log.h"
#include "kernels/gemm_search.h"
#include "lib/comm/job.h"
#include "lib/tune/kept_choices.h"
#include "lib/tune/null_objects.h"

namespace tri {
namespace {

// Each GEMM is asked for as a first and as a later addition to its gradient.
std::vector<AnyGemm> gemms_of_a_step(Engine& engine, const AxisTransfers& tp, const OverlapSplits& splits) {
  const Config& config = engine.config();
  const Mesh& mesh = engine.mesh();
  Device& device = engine.device();
  const StageTensors& tensors = engine.tensors().stage;
  GemmRecorder recorder;
  NullGroup group(mesh.axis("tp"));
  const auto null_tp = tp.null_twin(GroupOnStream(group, recorder, device, TimeCategory::kTp), device);
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
                 .splits = splits});
    stage.begin(Stage::Mode::kTrain);
    for (int chunk = 0; chunk < config.parallel.chunks; ++chunk) {
      stage.forward(chunk, 0, rows, rows);
      stage.backward(chunk, 0, rows, rows, rows);
    }
  }
  return recorder.gemms();
}

// The lines of several exports, each shape once: the first text that has it decides. Comment lines name the library;
// only texts of the first one's count.
std::string merge(const std::vector<std::string>& texts) {
  std::string library;
  std::map<std::string, std::string> lines;  // by shape
  for (const std::string& text : texts) {
    std::istringstream stream(text);
    bool counts = false;
    for (std::string line; std::getline(stream, line);) {
      if (line.starts_with("# ")) {
        if (library.empty()) library = line;
        counts = line == library;
      } else if (counts) {
        lines.emplace(line.substr(0, line.find(' ')), line);
      }
    }
  }
  std::string merged = library + "\n";
  for (const auto& [shape, line] : lines) merged += line + "\n";
  return merged;
}

// Of the GEMMs that this rank lacks a choice for, those that it times: ranks that lack the same on the same `library`
// (GPU and version) divide them. Collective.
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

void search_gemms(Engine& engine, const AxisTransfers& tp, const OverlapSplits& splits, const std::string& file) {
  GemmSearch* search = engine.device().gemm_search();
  if (search == nullptr || !engine.config().run.gemm_search) return;
  Job* const job = engine.job();
  const bool writes = engine.mesh().world_rank == 0;
  std::string kept = writes && !file.empty() ? value_or_throw(read_choices(file)) : "";
  if (job != nullptr) kept = job->broadcast(kept);
  search->import_choices(kept);
  const auto missing = search->without_choice(gemms_of_a_step(engine, tp, splits));
  const std::string choices = search->export_choices();
  const std::string library = choices.substr(0, choices.find('\n'));
  search->search(share_of_search(missing, library, job), engine.runtime().compute());
  std::vector<std::string> exports{search->export_choices()};
  if (job != nullptr) exports = job->gather(exports.front());
  std::string merged = writes ? merge(exports) : "";
  if (job != nullptr) merged = job->broadcast(merged);
  search->import_choices(merged);

  const std::filesystem::path path(file);
  std::error_code ignored;  // writing says what is wrong
  if (!writes || file.empty() || !std::filesystem::is_directory(path.parent_path(), ignored)) return;
  const std::string all = merge({merged, kept});
  if (all == kept) return;
  // Whole or not at all: choices that were lost would be made anew, and perhaps otherwise.
  if (const auto written = write_file(file, all); !written)
    log_warn("{}: the next start searches again", written.error().message);
}

}  // namespace tri
