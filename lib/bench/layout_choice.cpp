#include "lib/bench/layout_choice.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "kernels/core/dims.h"
#include "lib/config/axis_fields.h"
#include "lib/engine/job_plan.h"
#include "lib/engine/rank_tensors.h"
#include "lib/model/layer_division.h"

namespace tri {
namespace {

constexpr int kMicroBatches = 3;  // tried for each mesh and schedule
constexpr int kMostChunks = 4;

struct Guess {
  ParallelLayout layout;
  double slowness = 1;
};

bool better(const Guess& a, const Guess& b) {
  const auto key = [](const Guess& g) {
    const ParallelLayout& l = g.layout;
    return std::tuple(g.slowness, l.recompute, l.zero, -l.micro_batch, l.tp, l.pp, l.chunks);
  };
  return key(a) < key(b);
}

// An option that saves memory at the price of time; later ones cost more.
struct Saving {
  int zero;
  Recompute recompute;
};
bool spares_more(const Saving& a, const Saving& b) { return a.zero >= b.zero && a.recompute >= b.recompute; }

class Chooser {
 public:
  Chooser(const Config& config, int world, int64_t most_bytes, const std::function<int64_t(const Config&)>& bytes)
      : config_(config),
        world_(world),
        space_(config, config.cluster.ranks_per_node),
        most_bytes_(most_bytes),
        bytes_(bytes) {}

  LayoutChoice choose(const Result<Config>& own, int limit) && {
    std::optional<ParallelLayout> first;
    if (!own) {
      choice_.own_problem = own.error().message;
    } else if (bytes_(own.value()) > most_bytes_) {
      choice_.own_problem = fmt::format("it needs {} bytes per rank, more than there are", bytes_(own.value()));
    } else {
      first = layout_of(own.value());
      choice_.layouts.push_back(*first);
      choice_.own_first = true;
    }
    for (const ParallelLayout& mesh : space_.meshes(world_)) add_mesh(mesh);
    in_rounds(first);
    const size_t all = choice_.layouts.size();
    choice_.layouts.resize(std::min(all, static_cast<size_t>(limit)));
    choice_.beyond_limit = static_cast<int>(all - choice_.layouts.size());
    return std::move(choice_);
  }

 private:
  void add_mesh(ParallelLayout layout) {
    std::vector<Guess> mesh;
    for (const PipelineKind& kind : space_.pipelines(layout.pp, kMostChunks)) {
      layout.schedule = kind.schedule;
      layout.chunks = kind.chunks;
      add_schedule(layout, mesh);
    }
    std::sort(mesh.begin(), mesh.end(), better);
    if (!mesh.empty()) meshes_.push_back(std::move(mesh));
  }

  // Adds the microbatch sizes of one mesh and schedule.
  void add_schedule(ParallelLayout layout, std::vector<Guess>& mesh) {
    std::vector<Guess> sizes;
    for (const int size : space_.micro_batches(layout, config_.data.global_batch)) {
      layout.micro_batch = size;
      const auto resolved = resolve_config(with_layout(config_, layout), world_);
      if (!resolved) {
        ++choice_.refused;
        continue;
      }
      sizes.push_back({layout, guessed_slowness(resolved.value())});
    }
    std::sort(sizes.begin(), sizes.end(), better);
    int taken = 0;
    for (const Guess& size : sizes) {
      if (taken == kMicroBatches) break;
      const auto fitting = with_savings(size.layout);
      taken += !fitting.empty();
      choice_.too_large += fitting.empty();
      mesh.insert(mesh.end(), fitting.begin(), fitting.end());
    }
  }

  // Returns the layout with those savings that fit, without any that saves more in both respects than one that fits.
  std::vector<Guess> with_savings(ParallelLayout layout) const {
    std::vector<Guess> fitting;
    for (const Saving saving :
         {Saving{1, Recompute::kNone}, Saving{2, Recompute::kNone}, Saving{1, Recompute::kNorms},
          Saving{2, Recompute::kNorms}, Saving{1, Recompute::kSelective}, Saving{2, Recompute::kSelective},
          Saving{1, Recompute::kFull}, Saving{2, Recompute::kFull}}) {
      if (saving.zero == 2 && layout.dp == 1) continue;
      if (std::any_of(fitting.begin(), fitting.end(), [&](const Guess& g) {
            return spares_more(saving, {g.layout.zero, g.layout.recompute});
          }))
        continue;
      layout.zero = saving.zero;
      layout.recompute = saving.recompute;
      const Config resolved = value_or_throw(resolve_config(with_layout(config_, layout), world_));
      if (bytes_(resolved) <= most_bytes_) fitting.push_back({layout, guessed_slowness(resolved)});
    }
    return fitting;
  }

  // Interleaves the meshes: the first layout of each, then the second of each, and so on.
  void in_rounds(const std::optional<ParallelLayout>& first) {
    for (size_t round = 0;; ++round) {
      std::vector<Guess> next;
      for (const auto& mesh : meshes_)
        if (round < mesh.size()) next.push_back(mesh[round]);
      if (next.empty()) return;
      std::sort(next.begin(), next.end(), better);
      for (const Guess& guess : next)
        if (guess.layout != first) choice_.layouts.push_back(guess.layout);
    }
  }

  const Config& config_;
  const int world_;
  const LayoutSpace space_;
  const int64_t most_bytes_;
  const std::function<int64_t(const Config&)>& bytes_;
  std::vector<std::vector<Guess>> meshes_;  // best guess first
  LayoutChoice choice_;
};

}  // namespace

double guessed_slowness(const Config& c) {
  const int num_microbatches = microbatches(c), pp = c.parallel.pp, chunks = c.parallel.chunks;
  // interleaved processes groups of pp microbatches
  const int64_t rounds = chunks > 1 ? round_up(num_microbatches, pp) : num_microbatches;
  const double pipeline =
      (static_cast<double>(rounds) * chunks + pp - 1) / (static_cast<double>(num_microbatches) * chunks);
  // A forward pass is a third of the work; norms and activations are a few percent of it.
  const std::map<Recompute, double> again = {
      {Recompute::kNone, 1.0}, {Recompute::kNorms, 1.02}, {Recompute::kSelective, 1.04}, {Recompute::kFull, 4.0 / 3}};
  // GEMMs with few rows leave a GPU partly idle; under tp they may be split.
  constexpr double kFewRows = 128;
  const double rows = static_cast<double>(c.data.micro_batch) * c.model.seq_len / c.parallel.cp / c.parallel.tp;
  return pipeline * again.at(c.parallel.recompute) * (1 + kFewRows / rows);
}

int64_t predicted_bytes(const Config& resolved) {
  const auto ranks = static_cast<int>(ranks_along(AxisSet::outside({}), resolved.parallel));
  // There every axis can copy to its peers, which takes the most memory, except for ep.
  Config on_one_machine = resolved;
  on_one_machine.cluster.ranks_per_node = ranks;
  const bool asks = resolved.parallel.ep > 1 && resolved.parallel.ep_transfers == Transfers::kAuto;
  int64_t most = 0;
  for (const Transfers ep_transfers :
       asks ? std::vector{Transfers::kCopies, Transfers::kCollectives} : std::vector{resolved.parallel.ep_transfers}) {
    on_one_machine.parallel.ep_transfers = ep_transfers;
    const Config c = value_or_throw(plan_on_paper(on_one_machine, ranks));
    const bool alike = inner_stages_are_alike(c.parallel.schedule, divides_evenly(c));
    for (int stage = 0; stage < c.parallel.pp; ++stage) {
      if (alike && stage > 1 && stage < c.parallel.pp - 1) continue;
      Arena arena;
      allocate_rank(c, mesh_of(c, 0).moved("pp", stage), arena);
      most = std::max(most, arena.used());
    }
  }
  return most;
}

Result<LayoutChoice> choose_layouts(const Config& config, int world, int64_t most_bytes, int limit,
                                    const std::function<int64_t(const Config&)>& bytes) {
  TRI_REQUIRE(limit >= 1, "the limit is {}, expected at least 1", limit);
  const auto own = resolve_config(config, world);
  Chooser chooser(config, world, most_bytes, bytes);
  LayoutChoice choice = std::move(chooser).choose(own, limit);
  // If no layout resolves, the rest of the config is invalid.
  if (!own && choice.layouts.empty() && choice.too_large == 0) return own.error();
  return choice;
}

}  // namespace tri
