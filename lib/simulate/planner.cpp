#include "lib/simulate/planner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "io/base/clock.h"
#include "kernels/peer_rows.h"
#include "lib/config/axis_fields.h"
#include "lib/config/batch_sizes.h"
#include "lib/config/layer_counts.h"
#include "lib/config/layouts.h"
#include "lib/engine/wanted_copies.h"
#include "lib/model/layer_division.h"
#include "lib/model/parameter.h"
#include "lib/simulate/step_memory.h"

namespace tri {
namespace {

constexpr std::array kRecomputes{Recompute::kNone, Recompute::kNorms, Recompute::kSelective, Recompute::kFull};

// A layout whose time is known only as a lower bound and whose memory only as an estimate.
struct Candidate {
  Workload workload;
  double bound = 0;  // seconds; a step takes at least about this long
  int64_t order = 0;
};
// Orders a heap whose first candidate may be the fastest.
bool may_be_slower(const Candidate& a, const Candidate& b) {
  return std::tie(a.bound, a.order) > std::tie(b.bound, b.order);
}

// Names the number `batch` that dp and micro-batches must divide.
const char* batch_text(const Workload& base, int batch) {
  return batch == base.global_batch ? "data.global_batch" : "the sizes of data.batch_ramp, multiples of";
}

// Returns "" or the problem with a pinned number.
// `batch`: the number that dp must divide. `may_divide_samples`: the search may choose a cp above 1.
std::string problem_of(const PinnedLayout& pinned, const Workload& base, const Cluster& cluster, int ranks, int batch,
                       bool may_divide_samples) {
  const ModelConfig& m = base.model;
  const auto check = [](const char* field, const std::optional<int>& value, const char* what, int64_t number) {
    return value && number % *value != 0
               ? fmt::format("parallel.{} {} does not divide {} {}", field, *value, what, number)
               : "";
  };
  if (pinned.ep.value_or(1) > 1 && m.experts == 0)
    return fmt::format("parallel.ep {} divides experts, but model.experts is 0", *pinned.ep);
  for (const SizeOverTp& divided : sizes_over_tp(m))
    if (pinned.tp && divided.size % *pinned.tp != 0)
      return fmt::format("parallel.tp {} does not divide {}", *pinned.tp, divided.text);
  const int tp = pinned.tp.value_or(1), cp = pinned.cp.value_or(1), pp = pinned.pp.value_or(1),
            dp = pinned.dp.value_or(1);
  if (cp > 1 && m.seq_len % (2 * int64_t{cp}) != 0)
    return fmt::format("parallel.cp: 2 x {} does not divide model.seq_len {}", cp, m.seq_len);
  for (const std::string& problem :
       {check("tp", pinned.tp, "model.seq_len", m.seq_len), check("tp", pinned.tp, "node.ranks", cluster.node.ranks),
        check("ep", pinned.ep, "model.experts", m.experts), check("dp", pinned.dp, batch_text(base, batch), batch)})
    if (!problem.empty()) return problem;
  const int64_t together = int64_t{tp} * cp * pp * dp * base.ranks_of_others(kOtherAxes);
  const bool all = pinned.tp && pinned.pp && pinned.dp && (pinned.cp || !may_divide_samples);
  if (ranks % together != 0 || (all && ranks != together))
    return fmt::format(
        "the product of parallel.tp, cp, pp and dp, as far as they are set, is {}, which does not match {} ranks; "
        "change one of them, or --ranks",
        together, ranks);
  if (pinned.schedule && pinned.chunks.value_or(1) > 1 && !takes_chunks(*pinned.schedule))
    return fmt::format("parallel.schedule {} does not support chunks, but parallel.chunks is {}",
                       enum_name(*pinned.schedule), *pinned.chunks);
  if (pinned.schedule && pinned.chunks && !takes_chunks(*pinned.schedule, *pinned.chunks))
    return fmt::format("parallel.schedule {} needs two chunks, but parallel.chunks is {}", enum_name(*pinned.schedule),
                       *pinned.chunks);
  if (int64_t{pp} * pinned.chunks.value_or(1) > m.layers)
    return fmt::format("parallel.pp {} x parallel.chunks {} exceeds model.layers {}", pp, pinned.chunks.value_or(1),
                       m.layers);
  if (const auto counts = parse_layer_counts(pinned.layers_per_chunk.value_or(""))) {
    if (const int64_t sum = std::accumulate(counts->begin(), counts->end(), int64_t{0}); sum != m.layers)
      return fmt::format("parallel.layers_per_chunk {} has the sum {}, but model.layers is {}",
                         *pinned.layers_per_chunk, sum, m.layers);
    const auto count = static_cast<int>(counts->size());
    const auto fits = [&](int stages) {
      return count % stages == 0 && ranks % stages == 0 && count / stages == pinned.chunks.value_or(count / stages) &&
             stages == pinned.pp.value_or(stages) && (stages > 1 || count == 1);
    };
    const std::vector<int> all = divisors_up_to(count, count);
    if (std::ranges::none_of(all, fits))
      return fmt::format(
          "parallel.layers_per_chunk {} has {} numbers, but {} ranks allow no parallel.pp x parallel.chunks of {}{}",
          *pinned.layers_per_chunk, count, ranks, count,
          pinned.pp || pinned.chunks ? " with the chosen parallel.pp or parallel.chunks" : "");
  }
  if (pinned.chunks.value_or(1) > 1 && pinned.pp == 1)
    return "parallel.chunks above 1 requires parallel.pp of at least 2";
  return "";
}

// Enumerates all layouts that the config's rules allow.
class Search {
 public:
  Search(const Config& config, const Cluster& cluster, const PlanOptions& options)
      : config_(config),
        cluster_(cluster),
        options_(options),
        space_(with_pinned(config, options.pinned), cluster.node.ranks),
        times_(cluster),
        gpu_(gpu_of(cluster)),
        room_(room_of(cluster)) {
    Config planned = config;
    planned.parallel = {};
    for (const auto& [axis, size] : kAxisFields)
      if (kOtherAxes.contains(axis)) planned.parallel.*size = config.parallel.*size;
    planned.parallel.overlap_tp = config.parallel.overlap_tp;
    planned.parallel.overlap_cp = config.parallel.overlap_cp;
    planned.parallel.overlap_pp = config.parallel.overlap_pp;
    planned.parallel.overlap_dp = config.parallel.overlap_dp;
    planned.parallel.overlap_update = config.parallel.overlap_update;
    planned.parallel.tp_transfers = config.parallel.tp_transfers;
    planned.parallel.dp_transfers = config.parallel.dp_transfers;
    planned.parallel.bucket_elements = config.parallel.bucket_elements;
    planned.parallel.ep_capacity = config.parallel.ep_capacity;
    planned.parallel.ep_transfers = config.parallel.ep_transfers;
    base_ = workload_of(planned);
    base_.documents = options.documents;
    kept_ranks_ = base_.ranks_of_others(kOtherAxes);
  }

  // Returns a remedy if no layout of so many ranks obeys the rules: "use 2 or 4 ranks, or ...". Each rank count that
  // has a layout is a product of a few divisors.
  std::string remedy() const {
    std::vector<int> stages(static_cast<size_t>(base_.model.layers));
    std::iota(stages.begin(), stages.end(), 1);
    const std::vector<int> replicas = divisors_up_to(kMostRanks, batch_sizes(config_).divisor());
    int64_t below = 0, above = std::numeric_limits<int64_t>::max();
    for (const int tp : space_.tensor_degrees())
      for (const int cp : space_.context_degrees())
        for (const int pp : stages)
          for (const int dp : replicas) {
            const ParallelLayout mesh{.tp = tp, .cp = cp, .pp = pp, .dp = dp};
            if (!simulates(mesh) || !leaves(mesh)) continue;
            const int64_t ranks = int64_t{tp} * cp * pp * dp * kept_ranks_;
            const bool is_nearer = ranks > options_.ranks ? ranks < above : ranks > below;
            if (!is_nearer || ranks > kMostRanks || !has_layout(mesh)) continue;
            (ranks > options_.ranks ? above : below) = ranks;
          }
    const bool has_below = below > 0, has_above = above <= kMostRanks;
    std::string take;
    if (has_below || has_above)
      take = fmt::format("use {}{}{} ranks, or ", has_below ? fmt::to_string(below) : "",
                         has_below && has_above ? " or " : "", has_above ? fmt::to_string(above) : "");
    // Whether the batch is too large, or only its divisors do not fit.
    const int64_t most = int64_t{kMostMicrobatches} * largest_microbatch() * options_.ranks;
    const bool is_named = options_.micro_batch > 0;
    const bool is_large = base_.global_batch > most || (take.empty() && !is_named);
    return take + (is_large ? "lower" : "change") + " data.global_batch" + (is_named ? " or data.micro_batch" : "");
  }

  double least_bytes() const { return least_bytes_; }
  // Returns the problem with a pinned number, or "".
  std::string problem() const {
    const int batch = batch_sizes(config_).divisor();
    if (const int size = options_.micro_batch; size > 0 && batch % size != 0)
      return fmt::format("data.micro_batch {} does not divide {} {}", size, batch_text(base_, batch), batch);
    return problem_of(options_.pinned, base_, cluster_, options_.ranks, batch, space_.context_degrees().size() > 1);
  }

  // Whether some mesh of so many ranks obeys the rules, so that only its pipeline does not match what is pinned.
  bool has_mesh() const {
    return std::ranges::any_of(space_.meshes(options_.ranks, Division::kAny), [&](const ParallelLayout& mesh) {
      return simulates(mesh) && leaves(mesh) && has_layout(mesh);
    });
  }

  // Times the layout with the least bound next, until the least bound is above the times of all kept layouts: then no
  // remaining layout can be among the best.
  PlanSearch run() {
    // Scales the bound, which assumes equal stages: a pipeline with longer end stages may be slightly faster.
    constexpr double kSlack = 0.97;
    for (const ParallelLayout& mesh : space_.meshes(options_.ranks, Division::kAny))
      if (simulates(mesh) && leaves(mesh)) add_mesh(mesh);
    const auto keep = static_cast<size_t>(options_.keep);
    std::vector<PlannedLayout>& best = result_.best;
    while (!candidates_.empty()) {
      std::ranges::pop_heap(candidates_, may_be_slower);
      const Candidate next = std::move(candidates_.back());
      candidates_.pop_back();
      if (best.size() >= keep && kSlack * next.bound >= best.back().step.seconds) break;
      Workload w = next.workload;
      StepPrediction step = predict(w);
      const auto is_slower = [&] { return best.size() >= keep && step.seconds >= best.back().step.seconds; };
      if (is_slower()) continue;
      int64_t bytes = bytes_of(w);
      while (static_cast<double>(bytes) > room_ && w.bucket_elements > base_.bucket_elements) {
        w.bucket_elements /= 2;  // smaller buckets may take less memory
        bytes = bytes_of(w);
        step = predict_step(w, cluster_, times_);
      }
      if (static_cast<double>(bytes) > room_) {
        add_level(next.workload, static_cast<size_t>(next.workload.recompute) + 1);
        continue;
      }
      if (is_slower()) continue;
      best.insert(
          std::ranges::upper_bound(best, step.seconds, {}, [](const auto& layout) { return layout.step.seconds; }),
          {w, step, bytes});
      if (best.size() > keep) best.pop_back();
    }
    return std::move(result_);
  }

 private:
  // The degrees that LayoutSpace lists in addition to its own.
  static Config with_pinned(Config config, const PinnedLayout& pinned) {
    config.parallel.cp = pinned.cp.value_or(1);
    config.parallel.chunks = pinned.chunks.value_or(1);
    config.parallel.schedule = pinned.schedule.value_or(Schedule::k1F1B);
    return config;
  }

  void add_mesh(const ParallelLayout& mesh) {
    Workload w = base_;
    w.tp = mesh.tp;
    w.cp = mesh.cp;
    w.pp = mesh.pp;
    w.dp = mesh.dp;
    const int64_t most =
        base_.model.experts == 0 ? 1 : std::gcd(int64_t{w.ranks_of_stage()}, int64_t{base_.model.experts});
    for (const int ep : divisors_up_to(most, most)) {
      if (ep != options_.pinned.ep.value_or(ep)) continue;
      w.ep = ep;
      add_mesh(mesh, w);
    }
  }

  void add_mesh(const ParallelLayout& mesh, Workload w) {
    const PinnedLayout& pinned = options_.pinned;
    w.zero = 1;
    Config config = with_layout(config_, mesh);
    config.parallel.ep = w.ep;
    const int span = w.reducing_stride() * w.reducing();  // from the first to the last rank of a dp group
    w.tp_copies = wants_tp_copies(config);
    const bool one_node = cluster_.node.ranks % w.ep == 0 || w.ranks() <= cluster_.node.ranks;  // has each ep group
    w.ep_copies = wants_ep_copies(config) && w.ep <= PeerPlaces::kMost && one_node;
    copies_of_mesh_ = wants_dp_copies(config) && span <= cluster_.node.ranks &&
                      (span == w.ranks() || cluster_.node.ranks % span == 0);
    const int most_chunks = std::max(options_.max_chunks, pinned.chunks.value_or(1));
    for (const PipelineKind& kind : space_.pipelines(w.pp, most_chunks, Division::kAny)) {
      w.chunks = kind.chunks;
      // gpipe is tried only if it is pinned, in place of 1f1b.
      const bool is_gpipe = pinned.schedule == Schedule::kGpipe && kind.schedule == Schedule::k1F1B;
      w.schedule = is_gpipe ? Schedule::kGpipe : kind.schedule;
      if (w.chunks != pinned.chunks.value_or(w.chunks) || w.schedule != pinned.schedule.value_or(w.schedule)) continue;
      if (!divide_layers(kind, w)) continue;
      each_microbatch(w, [&] { add_levels(w); });
    }
  }

  // Sets the layers of the virtual stages. Returns whether the pinned division allows that.
  bool divide_layers(const PipelineKind& kind, Workload& w) const {
    const std::optional<std::string>& pinned = options_.pinned.layers_per_chunk;
    const bool is_list = pinned && *pinned != kEvenLayers && *pinned != kAutoLayers;
    const auto list = is_list ? parse_layer_counts(*pinned) : std::nullopt;
    w.layers_per_chunk.clear();
    if (list) {
      if (w.pp == 1) return std::ssize(*list) == 1;
      if (kind.layers_per_chunk != kAutoLayers || std::ssize(*list) != w.pp * w.chunks) return false;
      w.layers_per_chunk = *list;
      return true;
    }
    if (pinned && *pinned != kind.layers_per_chunk && !(w.pp == 1 && *pinned == kAutoLayers)) return false;
    if (kind.layers_per_chunk == kEvenLayers) return true;
    Config config = with_layout(config_, layout_of(w));
    config.parallel.layers_per_chunk = kAutoLayers;
    w.layers_per_chunk = layer_counts(config);
    // Equal numbers are tried as such.
    const bool equal =
        std::ranges::count(w.layers_per_chunk, w.layers_per_chunk.front()) == std::ssize(w.layers_per_chunk);
    return !equal || pinned;
  }

  // Whether the pinned numbers allow this mesh.
  bool leaves(const ParallelLayout& mesh) const {
    const PinnedLayout& pinned = options_.pinned;
    return mesh.tp == pinned.tp.value_or(mesh.tp) && mesh.cp == pinned.cp.value_or(mesh.cp) &&
           mesh.pp == pinned.pp.value_or(mesh.pp) && mesh.dp == pinned.dp.value_or(mesh.dp);
  }

  // The time model assumes that nodes hold whole tp groups and that tp divides each sample's rows evenly.
  bool simulates(const ParallelLayout& mesh) const {
    return cluster_.node.ranks % mesh.tp == 0 && base_.model.seq_len / mesh.cp % mesh.tp == 0;
  }

  // Calls visit() for each microbatch size that the rules allow, with that size set in `w`.
  template <class Visit>
  void each_microbatch(Workload& w, Visit visit) const {
    for (const int micro_batch : space_.micro_batches(layout_of(w), std::numeric_limits<int>::max())) {
      const bool is_asked = options_.micro_batch > 0
                                ? micro_batch == options_.micro_batch
                                : micro_batch <= options_.max_micro_batch || micro_batch == base_.micro_batch;
      if (!is_asked) continue;
      w.micro_batch = micro_batch;
      if (w.num_microbatches() > kMostMicrobatches) continue;
      if (w.numbers != Numbers::kFp8 || fp8_obstacles(w.model, micro_batch, w.tp, w.cp).empty()) visit();
    }
  }

  int largest_microbatch() const {
    return options_.micro_batch > 0 ? options_.micro_batch : std::max(options_.max_micro_batch, base_.micro_batch);
  }

  bool has_layout(const ParallelLayout& mesh) const {
    Workload w = base_;
    w.tp = mesh.tp;
    w.cp = mesh.cp;
    w.pp = mesh.pp;
    w.dp = mesh.dp;
    bool has = false;
    each_microbatch(w, [&] { has = true; });
    return has;
  }

  // Adds the layout with the least recompute that fits, with zero 1, and also with zero 2 if that allows less
  // recompute.
  void add_levels(Workload& w) {
    ++result_.tried;
    const std::optional<int> pinned = options_.pinned.zero;
    Fit first{.level = kRecomputes.size()};
    for (const int zero : pinned ? std::vector{*pinned} : std::vector{1, 2}) {
      if (zero == 2 && (w.model.experts == 0 ? w.dp == 1 : !w.reduces()) && !pinned) continue;
      w.zero = zero;
      w.dp_copies = copies_of_mesh_ && zero > 0;
      if (zero == 2 && !pinned && first.level == 0 && first.surely) continue;
      const Fit fit = add_level(w, 0, first.surely ? first.level : kRecomputes.size());
      if (!pinned && zero == 1) first = fit;
    }
    result_.fitted += fits_;
    fits_ = false;
  }

  struct Fit {
    size_t level = 0;     // in kRecomputes; its size if none fits
    bool surely = false;  // the estimate fits with a margin
  };

  // Adds the layout with the first recompute from `level` to before `end` that may fit.
  Fit add_level(Workload w, size_t level, size_t end = kRecomputes.size()) {
    constexpr double kError = 0.03;  // of the estimate
    for (; level < end; ++level) {
      w.recompute = kRecomputes[level];
      if (w.recompute != options_.pinned.recompute.value_or(w.recompute)) continue;
      const double bytes = estimate_memory(w, gpu_).total();
      least_bytes_ = std::min(least_bytes_, bytes);
      if (bytes > (1 + kError) * room_) continue;
      fits_ |= bytes <= room_;
      candidates_.push_back({w, bound_of(w), num_candidates_++});
      std::ranges::push_heap(candidates_, may_be_slower);
      return {level, bytes <= (1 - kError) * room_};
    }
    return {kRecomputes.size(), false};
  }

  // Predicts the step, with the best buckets unless they are pinned.
  StepPrediction predict(Workload& w) const {
    return options_.pinned.buckets ? predict_step(w, cluster_, times_) : predict_with_buckets(w, cluster_, times_);
  }

  // Bounds the step with any buckets.
  double bound_of(Workload w) const {
    if (!options_.pinned.buckets) w.bucket_elements = std::numeric_limits<int64_t>::max();
    return bound_step(w, cluster_, times_);
  }

  // Returns the memory of the program's own plan.
  int64_t bytes_of(const Workload& w) const {
    Config config = with_planned(config_, w);
    config.run.device = config.run.device == DeviceChoice::kAuto ? DeviceChoice::kCuda : config.run.device;
    config.parallel.tp_transfers = w.tp_copies ? Transfers::kCopies : Transfers::kCollectives;
    config.parallel.dp_transfers = w.dp_copies ? Transfers::kCopies : Transfers::kCollectives;
    config.parallel.ep_transfers = w.ep_copies ? Transfers::kCopies : Transfers::kCollectives;
    return planned_bytes(config, gpu_);
  }

  const Config& config_;
  const Cluster& cluster_;
  const PlanOptions& options_;
  const LayoutSpace space_;
  RingTimes times_;
  GpuProperties gpu_;
  double room_;
  Workload base_;
  int kept_ranks_ = 1;                 // along kOtherAxes, whose sizes are fixed by the config
  std::vector<Candidate> candidates_;  // a heap
  int64_t num_candidates_ = 0;
  bool copies_of_mesh_ = false;                                   // each dp group is on one machine
  bool fits_ = false;                                             // the current layout fits, by the estimate
  double least_bytes_ = std::numeric_limits<double>::infinity();  // per rank, over all layouts tried
  PlanSearch result_;
};

}  // namespace

Result<Config> without_layout(Config parsed) {
  ParallelConfig& p = parsed.parallel;
  p.tp = p.cp = p.pp = p.dp = p.ep = p.chunks = 1;
  p.schedule = Schedule::k1F1B;
  p.layers_per_chunk = kEvenLayers;
  if (batch_sizes(parsed).divisor() % parsed.data.micro_batch != 0) parsed.data.micro_batch = 1;
  const auto ranks = static_cast<int>(ranks_along(kOtherAxes, p));
  return resolve_config(std::move(parsed), ranks);
}

bool chosen_by_search(std::string_view field) {
  constexpr std::string_view kChosen[] = {
      "parallel.tp",     "parallel.cp",       "parallel.pp",   "parallel.dp",        "parallel.ep",
      "parallel.chunks", "parallel.schedule", "parallel.zero", "parallel.recompute", "parallel.layers_per_chunk"};
  return std::ranges::find(kChosen, field) != std::end(kChosen);
}

PinnedLayout pinned_by(const std::vector<std::string>& overrides, const Config& config) {
  const ParallelConfig& p = config.parallel;
  PinnedLayout pinned;
  for (const std::string& text : overrides) {
    const std::string field = text.substr(0, text.find('='));
    if (field == "parallel.tp") pinned.tp = p.tp;
    if (field == "parallel.cp") pinned.cp = p.cp;
    if (field == "parallel.pp") pinned.pp = p.pp;
    if (field == "parallel.dp" && p.dp > 0) pinned.dp = p.dp;
    if (field == "parallel.ep") pinned.ep = p.ep;
    if (field == "parallel.chunks") pinned.chunks = p.chunks;
    if (field == "parallel.bucket_elements") pinned.buckets = true;
    if (field == "parallel.zero") pinned.zero = p.zero;
    if (field == "parallel.schedule" && p.schedule != Schedule::kAuto) pinned.schedule = p.schedule;
    if (field == "parallel.layers_per_chunk") pinned.layers_per_chunk = p.layers_per_chunk;
    if (field == "parallel.recompute" && p.recompute != Recompute::kAuto) pinned.recompute = p.recompute;
  }
  return pinned;
}

Result<PlanSearch> search_layouts(const Config& config, const Cluster& cluster, const PlanOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  if (auto known = check_numbers(config, cluster); !known) return known.error();
  Search walk(config, cluster, options);
  if (const std::string problem = walk.problem(); !problem.empty()) return usage_error("{}", problem);
  PlanSearch search = walk.run();
  search.seconds = seconds_since(begin);
  if (search.tried == 0 && walk.has_mesh())
    return usage_error("no layout of {} ranks agrees with all fields of parallel that --set names; omit one of them",
                       options.ranks);
  if (search.tried == 0)
    return usage_error(
        "no layout of {} ranks divides model.heads {}, model.layers {} and data.global_batch {} into at most {} "
        "microbatches; {}",
        options.ranks, config.model.heads, config.model.layers, config.data.global_batch, kMostMicrobatches,
        walk.remedy());
  if (search.best.empty())
    return usage_error(
        "none of {} layouts fits into {:.1f} GiB per rank; the smallest takes {:.1f} GiB; use more ranks", search.tried,
        room_of(cluster) / kGib, walk.least_bytes() / kGib);
  // A start rejects some configs in every layout; report that here.
  if (auto planned = planned_for(with_planned(config, search.best.front().workload), cluster); !planned)
    return planned.error();
  return search;
}

Config with_planned(Config config, const Workload& layout) {
  config = with_layout(std::move(config), layout_of(layout));
  config.parallel.bucket_elements = layout.bucket_elements;
  config.parallel.ep = layout.ep;
  return config;
}

Config on_cluster(Config config, const Cluster& cluster, const StepPrediction& step,
                  const std::vector<std::string>& overrides) {
  const auto set = [&](double& field, const char* name, double value, const char* constant) {
    if (!names_field(overrides, name) && std::ranges::count(cluster.defaults, constant) == 0) field = value;
  };
  ClusterConfig& c = config.cluster;
  c.ranks_per_node = cluster.node.ranks;
  set(c.rank_tflops, "cluster.rank_tflops", std::max(1.0, std::round(step.tflops_per_rank)), "device.bf16_tflops");
  set(c.node_gb_per_s, "cluster.node_gb_per_s", cluster.node.gb_per_s, "node.gb_per_s");
  set(c.network_gb_per_s, "cluster.network_gb_per_s", rank_gb_per_s(cluster), "network.gb_per_s");
  set(c.storage_gb_per_s, "cluster.storage_gb_per_s", cluster.network.storage_gb_per_s, "network.storage_gb_per_s");
  set(c.rank_mtbf_hours, "cluster.rank_mtbf_hours", cluster.faults.device_mtbf_hours, "faults.device_mtbf_hours");
  return config;
}

}  // namespace tri
