#include "lib/engine/job_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "io/base/format.h"
#include "kernels/attention.h"
#include "kernels/core/arena.h"
#include "kernels/core/dims.h"
#include "kernels/peer_rows.h"
#include "lib/config/axis_fields.h"
#include "lib/engine/wanted_copies.h"
#include "lib/model/layer_division.h"
#include "lib/model/parameter.h"
#include "lib/optim/flat_layout.h"

namespace tri {

namespace {

constexpr const char* kSeveralMachines = "the group's ranks are on several machines";

// Returns the first rank of the group along `axes` to which `rank` belongs.
int first_of_group(const Config& config, int rank, AxisSet axes) {
  Mesh first = mesh_of(config, rank);
  for (const AxisField& field : kAxisFields)
    if (axes.contains(field.axis)) first = first.moved(field.axis, 0);
  return first.world_rank;
}

// Returns why the ranks of some group along `axes` can't open each other's memory, or "".
std::string problem_of_axes(const Config& config, const JobFacts& facts, AxisSet axes,
                            std::string RankFacts::*problem) {
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    const int first = first_of_group(config, static_cast<int>(rank), axes);
    if (facts[rank].machine != facts[static_cast<size_t>(first)].machine) return kSeveralMachines;
    if (!(facts[rank].*problem).empty()) return facts[rank].*problem;
  }
  return "";
}

// Returns why some rank's arena, as `plan` lays it out, can't be shared, or "". Compares the smallest limit of all
// ranks with the largest arena, so that all groups of an axis make the same choice.
std::string problem_of_sharing(const Config& config, const JobFacts& facts, const JobPlan& plan, EngineKind kind) {
  std::optional<size_t> lowest;
  for (size_t rank = 0; rank < facts.size(); ++rank)
    if (const auto& most = facts[rank].most_shared_bytes; most)
      if (!lowest || *most < *facts[*lowest].most_shared_bytes) lowest = rank;
  if (!lowest) return "";
  const Config planned = with_plan(config, plan);
  int64_t largest = 0;
  for (int stage = 0; stage < config.parallel.pp; ++stage) {  // all ranks of a stage need the same
    Arena measuring;
    allocate_rank(planned, mesh_of(planned, 0).moved("pp", stage), measuring, kind);
    largest = std::max(largest, measuring.used());
  }
  const RankFacts& rank = facts[*lowest];
  if (largest <= *rank.most_shared_bytes) return "";
  return fmt::format(
      "{} bytes of a rank's memory cannot be shared, since rank {} on node {} is limited to files of {} "
      "bytes (ulimit -f)",
      largest, *lowest, rank.node, *rank.most_shared_bytes);
}

bool any_copies(const JobPlan& plan) {
  return plan.tp == Transfers::kCopies || plan.dp == Transfers::kCopies || plan.ep == Transfers::kCopies ||
         std::find(plan.pp.begin(), plan.pp.end(), PpTransfers::kCopies) != plan.pp.end();
}

Error copies_refused(AxisName axis, const std::string& why) {
  return usage_error("parallel.{}_transfers: copies: {}; set auto", axis.text(), why);
}

// " (parallel.tp_transfers: auto: why)"
template <class E>
std::string origin(const char* field, E configured, const std::string& why) {
  return fmt::format(" ({}: {}{}{})", field, enum_name(configured), why.empty() ? "" : ": ", why);
}

class Planner {
 public:
  Planner(const Config& config, const JobFacts& facts, EngineKind kind) : config_(config), facts_(facts), kind_(kind) {}

  Result<JobPlan> run() && {
    const ParallelConfig& p = config_.parallel;
    auto device = plan_device(config_.run.device, facts_);
    if (!device) return device.error();
    plan_.device = std::move(device).value();
    std::set<std::string> machines;
    for (const RankFacts& rank : facts_) machines.insert(rank.machine);
    add(fmt::format("{} on {}, {}", counted(static_cast<int64_t>(facts_.size()), "rank"),
                    counted(static_cast<int64_t>(machines.size()), "machine"),
                    plan_.device.kind == DeviceKind::kCuda ? "one GPU per rank" : "on the CPU") +
        origin("run.device", config_.run.device, ""));
    if (auto done = plan_axis("tp", {"tp"}, p.overlap_tp, p.tp_transfers, wants_tp_copies(config_),
                              &RankFacts::tp_problem, plan_.tp);
        !done)
      return done.error();
    if (auto done = plan_cp(); !done) return done.error();
    if (auto done = plan_axis("dp", kBucketAxes, p.overlap_dp, p.dp_transfers, wants_dp_copies(config_),
                              &RankFacts::dp_problem, plan_.dp);
        !done)
      return done.error();
    if (auto done = plan_experts(); !done) return done.error();
    if (auto done = plan_stages(); !done) return done.error();
    if (auto done = plan_attention(); !done) return done.error();
    if (auto done = plan_gemms(); !done) return done.error();
    plan_schedule();
    plan_recompute();
    return std::move(plan_);
  }

 private:
  void add(std::string line) { plan_.lines.push_back(std::move(line)); }

  // Chooses the transfers of axis `axis`, whose groups extend along `axes`.
  Result<void> plan_axis(AxisName axis, AxisSet axes, bool overlap, Transfers configured, bool wants_copies,
                         std::string RankFacts::*problem, Transfers& choice) {
    choice = Transfers::kCollectives;
    if (ranks_along(axes, config_.parallel) == 1) return {};
    std::string why;
    if (wants_copies) {
      why = problem_of_axes(config_, facts_, axes, problem);
      if (why.empty()) choice = Transfers::kCopies;
      if (!why.empty() && configured == Transfers::kCopies) return copies_refused(axis, why);
    } else if (configured == Transfers::kAuto && overlap) {
      why = "copies over dp are slower alongside copies over tp and with parallel.zero 0";
    }
    add(fmt::format("{}: {}{}", axis.text(),
                    choice == Transfers::kCopies ? "copies into the peers' memory" : "collectives",
                    overlap ? ", alongside compute" : ", compute waits for them") +
        origin(fmt::format("parallel.{}_transfers", axis.text()).c_str(), configured, why));
    return {};
  }

  Result<void> plan_cp() {
    const int cp = config_.parallel.cp, length = config_.model.seq_len;
    if (cp == 1) return {};
    constexpr int64_t kTile = 128;  // a tile of queries lies within one chunk (kernels/attention.h)
    const int64_t chunks = 2 * int64_t{cp};
    if (plan_.device.kind == DeviceKind::kCuda && length % (chunks * kTile) != 0)
      return usage_error(
          "parallel.cp: {}: on GPUs the {} chunks of a sequence must be multiples of {} tokens, but model.seq_len is "
          "{}; set model.seq_len to {}",
          cp, chunks, kTile, length, round_up(length, chunks * kTile));
    const int groups = kv_head_groups(layers_of_model(config_).kinds.front().attention, config_.parallel.tp, cp,
                                      config_.cluster.ranks_per_node, config_.parallel.overlap_cp);
    add(fmt::format("cp: exchanges of keys and values{}{} (parallel.overlap_cp: {})",
                    config_.parallel.overlap_cp ? ", alongside compute" : ", compute waits for them",
                    groups > 1 ? fmt::format(", in {} groups of heads between machines", groups) : "",
                    config_.parallel.overlap_cp));
    return {};
  }

  // The rows of experts.
  Result<void> plan_experts() {
    const int ep = config_.parallel.ep;
    if (ep == 1) return {};
    std::string why;
    if (wants_ep_copies(config_)) {
      if (ep > PeerPlaces::kMost) why = fmt::format("parallel.ep {} exceeds {}", ep, PeerPlaces::kMost);
      for (size_t rank = 0; rank < facts_.size() && why.empty(); ++rank) {
        const std::vector<int> group = mesh_of(config_, static_cast<int>(rank)).group({"ep"});
        why = on_one_machine(group, facts_) ? facts_[rank].ep_problem : kSeveralMachines;
      }
      if (why.empty()) plan_.ep = Transfers::kCopies;
      if (!why.empty() && config_.parallel.ep_transfers == Transfers::kCopies) return copies_refused("ep", why);
    }
    add(fmt::format("ep: {}", plan_.ep == Transfers::kCopies
                                  ? "kernels write rows into the peers' memory"
                                  : "messages, for whose sizes the host waits once a layer") +
        origin("parallel.ep_transfers", config_.parallel.ep_transfers, why));
    return {};
  }

  Result<void> plan_stages() {
    plan_.pp.assign(facts_.size(), PpTransfers::kMessages);
    if (config_.parallel.pp == 1) return {};
    int edges = 0, copies = 0;
    std::string why;
    for (size_t rank = 0; rank < facts_.size(); ++rank) {
      const Mesh mesh = mesh_of(config_, static_cast<int>(rank));
      const Axis stages = mesh.axis("pp");
      if (!has_edge(stages, ring_end(config_), stages.rank)) continue;
      ++edges;
      if (!wants_pp_copies(config_)) continue;
      const bool one = on_one_machine(stage_edge(mesh, stages.rank).pair(), facts_);
      const std::string problem = one ? facts_[rank].pp_problem : kSeveralMachines;
      if (problem.empty()) {
        plan_.pp[rank] = PpTransfers::kCopies;
        ++copies;
      } else {
        why = problem;
      }
    }
    if (config_.parallel.pp_transfers == PpTransfers::kCopies && !why.empty()) return copies_refused("pp", why);
    const std::string how = copies == edges ? "copies into the neighbour's memory"
                            : copies == 0   ? "messages"
                                            : fmt::format(
                                                  "copies into the neighbour's memory for {} of {} pairs, "
                                                    "messages for the others",
                                                  copies, edges);
    add(fmt::format("pp: {}{}", how, config_.parallel.overlap_pp ? ", alongside compute" : ", compute waits for them") +
        origin("parallel.pp_transfers", config_.parallel.pp_transfers, why));
    return {};
  }

  // Each rank's kernels choose an attention path by shape. This reports the paths, or rejects the config, before any
  // memory is allocated.
  Result<void> plan_attention() {
    if (plan_.device.kind != DeviceKind::kCuda) return {};
    const ModelConfig& m = config_.model;
    std::vector<AttentionShape> shapes;  // one per kind of layer
    for (const LayerSpec& layer : layers_of_model(config_).kinds)
      shapes.push_back(kernel_shape(layer.attention, config_.parallel.tp, config_.parallel.cp,
                                    config_.precision.compute, config_.data.micro_batch));
    std::vector<Pass> passes{Pass::kForward};
    if (kind_ == EngineKind::kTraining) passes.push_back(Pass::kBackward);
    std::map<Pass, AttentionPath> slowest;
    bool any_order = false;
    std::string warning;
    for (size_t rank = 0; rank < facts_.size(); ++rank) {
      const RankFacts& f = facts_[rank];
      if (!f.gpu) continue;
      // Names the rank, unless the problem is already visible on rank 0.
      const std::string where = rank == 0 ? "" : fmt::format(" (the GPU of rank {} on node {})", rank, f.node);
      for (const AttentionShape& shape : shapes) {
        for (const Pass pass : passes) {
          const auto path = attention_path(m.attention, pass, shape, *f.gpu);
          if (!path) return usage_error("{}{}", path.error().message, where);
          if (pass == Pass::kBackward && path.value() == AttentionPath::kCudnn) any_order = !config_.run.deterministic;
          const auto [known, is_new] = slowest.try_emplace(pass, path.value());
          if (!is_new) known->second = std::min(known->second, path.value());
        }
        if (!warning.empty()) continue;
        warning = scalar_attention_warning(m.attention, shape, *f.gpu);
        if (!warning.empty()) plan_.warnings.push_back(warning + where);
      }
    }
    if (slowest.empty()) return {};
    std::string text = "attention:";
    for (const auto& [pass, path] : slowest)
      text += fmt::format("{} {} {}", pass == Pass::kForward ? "" : ",",
                          pass == Pass::kForward ? "forward" : "backward", enum_name(path));
    if (any_order) text += ", sums in any order (run.deterministic: false)";
    add(text + origin("model.attention", m.attention, ""));
    return {};
  }

  // Returns why this job's GPUs do not multiply FP8, or "". The CPU emulates FP8.
  std::string fp8_problem() const {
    if (plan_.device.kind != DeviceKind::kCuda) return "";
    const PrecisionConfig& p = config_.precision;
    if (p.compute != Dtype::kBF16)  // cuBLASLt has no fp32 bias for FP8 operands
      return fmt::format("on GPUs it requires precision.compute: bf16, but that is {}", enum_name(p.compute));
    for (size_t rank = 0; rank < facts_.size(); ++rank) {
      const auto& gpu = facts_[rank].gpu;
      if (gpu && gpu->capability < kFp8Capability)
        return fmt::format(
            "it needs GPUs of compute capability 8.9 or later, but the GPU of rank {} on node {} has {}.{}", rank,
            facts_[rank].node, gpu->capability / 10, gpu->capability % 10);
    }
    return "";
  }

  Result<void> plan_gemms() {
    const PrecisionConfig& p = config_.precision;
    if (kind_ != EngineKind::kTraining || p.gemm != GemmFormat::kFp8) return {};
    if (const std::string problem = fp8_problem(); !problem.empty())
      return usage_error("precision.gemm: fp8: {}; set precision.gemm to compute", problem);
    const Layers layers = layers_of_model(config_);
    const double num_fp8 = layers.sum(layers.all(), [](const LayerSpec& layer) { return layer.fp8 ? 1 : 0; });
    add(fmt::format("gemms: fp8 in {} of {} layers, gradients {}, {}", num_fp8, config_.model.layers,
                    enum_name(p.fp8_gradients),
                    plan_.device.kind == DeviceKind::kCpu
                        ? "emulated"
                        : fmt::format("fast accumulation: {}", enum_name(p.fp8_fast_accumulation))) +
        origin("precision.gemm", p.gemm, ""));
    return {};
  }

  // auto: chooses the schedule whose pipeline is the fastest by the simulator, of those that fit into every rank's
  // memory and need no more recompute.
  void plan_schedule() {
    plan_.recompute = config_.parallel.recompute;
    const ParallelConfig& p = config_.parallel;
    if (p.schedule != Schedule::kAuto) return;
    const Schedule whole = p.chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B,
                   split = p.chunks > 1 ? Schedule::kZbV : Schedule::kZbH1;
    const auto choose = [&](Schedule schedule, const std::string& why) {
      plan_.schedule = schedule;
      add(fmt::format("schedule: {} (parallel.schedule: auto: {})", enum_name(schedule), why));
    };
    if (p.pp == 1 || !takes_chunks(split, p.chunks) || kind_ != EngineKind::kTraining)
      return choose(whole, "the only one for this number of stages and chunks");
    const auto seconds_of = [&](Schedule schedule) {
      Config tried = config_;
      tried.parallel.schedule = schedule;
      return step_seconds(tried, microbatches(config_));
    };
    const double seconds = seconds_of(whole), split_seconds = seconds_of(split);
    const std::string times =
        fmt::format("pipelines of a step take an estimated {:.4g} ms with {} and {:.4g} ms with {}", 1e3 * seconds,
                    enum_name(whole), 1e3 * split_seconds, enum_name(split));
    Config tried = with_plan(config_, plan_);
    tried.parallel.schedule = whole;
    const auto available = available_bytes(tried);
    if (!available)
      return split_seconds < seconds ? choose(split, times + "; the free memory is unknown") : choose(whole, times);
    const MemoryNeed need = need_of(whole, *available), split_need = need_of(split, *available);
    const auto needs = [](const MemoryNeed& of) {
      return fmt::format("needs {} of {} per rank", format_bytes(of.bytes), format_bytes(of.available));
    };
    if (!need.recompute && !split_need.recompute) {
      const std::string why =
          fmt::format("neither fits: {} {}, {} {}", enum_name(whole), needs(need), enum_name(split), needs(split_need));
      const bool may_recompute = p.recompute != Recompute::kAuto && p.recompute != Recompute::kFull;
      plan_.warnings.push_back("parallel.schedule: auto: " + why + "; use more ranks" +
                               (may_recompute ? ", or more recompute" : ""));
      return choose(need.bytes <= split_need.bytes ? whole : split, times + "; " + why);
    }
    if (!need.recompute) return choose(split, times + ", and the former " + needs(need));
    if (split_seconds >= seconds) return choose(whole, times);
    if (!split_need.recompute) return choose(whole, times + ", but the latter " + needs(split_need));
    if (*split_need.recompute > *need.recompute)
      return choose(whole, times + ", but the latter fits only with parallel.recompute: " +
                               std::string(enum_name(*split_need.recompute)));
    choose(split, times);
  }

  // The memory that a schedule needs.
  struct MemoryNeed {
    std::optional<Recompute> recompute;  // the first level, of those that the config allows, that fits on every rank
    int64_t bytes = 0, available = 0;    // of the rank with the least to spare, with that level, else with the last
  };

  // `available`: as of available_bytes().
  MemoryNeed need_of(Schedule schedule, const std::map<int, int64_t>& available) const {
    Config tried = with_plan(config_, plan_);
    tried.parallel.schedule = schedule;
    MemoryNeed need;
    for (const Recompute level : {Recompute::kNone, Recompute::kNorms, Recompute::kSelective, Recompute::kFull}) {
      if (config_.parallel.recompute != Recompute::kAuto && config_.parallel.recompute != level) continue;
      tried.parallel.recompute = level;
      need = {.recompute = level, .bytes = 0, .available = std::numeric_limits<int64_t>::max()};
      for (const auto& [stage, bytes] : available) {
        Arena measuring;
        allocate_rank(tried, mesh_of(tried, 0).moved("pp", stage), measuring);
        if (bytes - measuring.used() < need.available - need.bytes) {
          need.bytes = measuring.used();
          need.available = bytes;
        }
      }
      if (need.bytes <= need.available) return need;
    }
    need.recompute.reset();
    return need;
  }

  // auto: chooses the first level that fits into every rank's memory.
  void plan_recompute() {
    if (plan_.recompute != Recompute::kAuto) return;
    const Schedule schedule = plan_.schedule.value_or(config_.parallel.schedule);
    const auto level = recompute_that_fits(schedule);
    if (!level) return;
    plan_.recompute = *level;
    const std::map<int, int64_t> available = available_bytes(with_plan(config_, plan_)).value();
    int64_t least = available.begin()->second;
    for (const auto& [stage, bytes] : available) least = std::min(least, bytes);
    add(fmt::format("recompute: {}, with {} per rank (parallel.recompute: auto)", enum_name(plan_.recompute),
                    format_bytes(least)));
  }

  // Returns the first level of recompute that fits into every rank's memory, else full; none if the free memory is
  // unknown.
  std::optional<Recompute> recompute_that_fits(Schedule schedule) const {
    Config tried = with_plan(config_, plan_);
    tried.parallel.schedule = schedule;
    const auto available = available_bytes(tried);
    if (!available) return std::nullopt;
    Recompute level = Recompute::kNone;
    for (const auto& [stage, bytes] : *available)
      level = std::max(level, least_recompute(tried, mesh_of(tried, 0).moved("pp", stage), bytes));
    return level;
  }

  // Returns the bytes of each stage's ranks, the minimum over them, since they need the same amount; none if they are
  // unknown.
  std::optional<std::map<int, int64_t>> available_bytes(const Config& tried) const {
    Arena on_paper;
    take_kernel_workspace(tried, mesh_of(tried, 0), on_paper);
    const int64_t paper_workspace = on_paper.used();
    std::map<int, int64_t> available;
    for (size_t rank = 0; rank < facts_.size(); ++rank) {
      if (!facts_[rank].free_bytes) return std::nullopt;
      const Mesh mesh = mesh_of(config_, static_cast<int>(rank));
      int64_t mine = room_for_arena(plan_.device.kind, *facts_[rank].free_bytes, facts_[rank].node_size);
      // The levels are measured with the workspace of the simulated device, so replace this rank's by that.
      if (facts_[rank].workspace_bytes) mine += paper_workspace - *facts_[rank].workspace_bytes;
      const auto [known, is_new] = available.try_emplace(mesh.axis("pp").rank, mine);
      if (!is_new) known->second = std::min(known->second, mine);
    }
    return available;
  }

  const Config& config_;
  const JobFacts& facts_;
  const EngineKind kind_;
  JobPlan plan_;
};

}  // namespace

Result<DevicePlan> plan_device(DeviceChoice choice, const JobFacts& facts) {
  DevicePlan plan{.kind = DeviceKind::kCpu, .ordinals = std::vector<int>(facts.size(), 0)};
  const bool any = std::any_of(facts.begin(), facts.end(), [](const RankFacts& rank) { return !rank.gpus.empty(); });
  if (choice == DeviceChoice::kCpu || (choice == DeviceChoice::kAuto && !any)) return plan;
  plan.kind = DeviceKind::kCuda;
  std::set<std::string> taken;
  std::vector<size_t> without;
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    const auto& gpus = facts[rank].gpus;
    const auto free = std::find_if(gpus.begin(), gpus.end(), [&](const std::string& gpu) { return !taken.count(gpu); });
    if (free == gpus.end()) {
      without.push_back(rank);
      continue;
    }
    taken.insert(*free);
    plan.ordinals[rank] = static_cast<int>(free - gpus.begin());
  }
  if (without.empty()) return plan;
  const RankFacts& first = facts[without.front()];
  const std::string why = first.gpus.empty() ? "sees none: " + first.no_gpu_because
                                             : fmt::format("sees {}, which other ranks use", first.gpus.size());
  const std::string others =
      without.size() == 1 ? "" : fmt::format(" ({} more ranks lack one too)", without.size() - 1);
  return Error{
      fmt::format("run.device: {}: rank {} on node {} needs a GPU of its own but {}{}; start as many ranks per "
                  "node as it has working GPUs, exclude the node, or set run.device: cpu",
                  enum_name(choice), without.front(), first.node, why, others),
      ExitCode::kDevice};
}

Result<JobPlan> plan_job(const Config& config, const JobFacts& facts, EngineKind kind) {
  const int64_t ranks = ranks_along(AxisSet::outside({}), config.parallel);
  TRI_REQUIRE(ranks == static_cast<int64_t>(facts.size()),
              "the config has {} = {} ranks, but there are facts of {} ranks",
              sizes_along(AxisSet::outside({}), config.parallel), ranks, facts.size());
  auto plan = Planner(config, facts, kind).run();
  if (!plan || !any_copies(plan.value())) return plan;
  const std::string problem = problem_of_sharing(config, facts, plan.value(), kind);
  if (problem.empty()) return plan;
  JobFacts unshared = facts;
  for (RankFacts& rank : unshared) rank.tp_problem = rank.dp_problem = rank.pp_problem = rank.ep_problem = problem;
  return Planner(config, unshared, kind).run();
}

Config with_plan(Config config, const JobPlan& plan) {
  ParallelConfig& p = config.parallel;
  config.run.device = device_choice(plan.device.kind);
  if (plan.schedule) p.schedule = *plan.schedule;
  p.tp_transfers = plan.tp;
  p.dp_transfers = plan.dp;
  p.ep_transfers = plan.ep;
  int edges = 0, copies = 0;
  for (size_t rank = 0; rank < plan.pp.size(); ++rank) {
    const Axis stages = mesh_of(config, static_cast<int>(rank)).axis("pp");
    if (!has_edge(stages, ring_end(config), stages.rank)) continue;  // as planned before the schedule was chosen
    ++edges;
    copies += plan.pp[rank] == PpTransfers::kCopies;
  }
  p.pp_transfers = copies == 0 ? PpTransfers::kMessages : copies == edges ? PpTransfers::kCopies : PpTransfers::kAuto;
  p.recompute = plan.recompute;
  return config;
}

std::string to_string(const JobPlan& plan) {
  std::string text = "plan of the job:";
  for (const std::string& line : plan.lines) text += "\n  " + line;
  return text;
}

Result<Config> plan_on_paper(const Config& config, int ranks, const GpuProperties& gpu,
                             std::optional<int64_t> free_bytes) {
  const auto plan = plan_job(config, facts_on_paper(config, ranks, gpu, free_bytes));
  if (!plan) return plan.error();
  return with_plan(config, plan.value());
}

Result<PlannedJob> plan_for_job(const Config& config, Job& job, EngineKind kind) {
  const Mesh mesh = mesh_of(config, job.world_rank());
  JobFacts facts = gather_host_facts(config.run.device, job);
  const auto chosen = plan_device(config.run.device, facts);
  if (!chosen) return chosen.error();
  auto device = open_planned_device(chosen.value(), job);
  if (!device) return device.error();
  add_device_facts(config, mesh, job, *device.value(), facts);
  auto plan = plan_job(config, facts, kind);
  if (!plan) return plan.error();
  Config planned = with_plan(config, plan.value());
  const Mesh planned_mesh = mesh_of(planned, job.world_rank());  // the schedule decides whether the pipeline is folded
  return PlannedJob{.written = {},
                    .requested = config,
                    .config = std::move(planned),
                    .mesh = planned_mesh,
                    .plan = std::move(plan).value()};
}

Result<std::unique_ptr<Device>> open_planned_device(const DevicePlan& plan, Job& job) {
  return agree(job, open_device(plan.kind, plan.ordinals[static_cast<size_t>(job.world_rank())]));
}

}  // namespace tri
