#include "lib/simulate/simulation.h"

#include <fmt/ranges.h>

#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/config/axis_fields.h"
#include "lib/config/layer_counts.h"
#include "lib/simulate/planner.h"
#include "lib/simulate/step_memory.h"

namespace tri {
namespace {

std::string place_text(const Workload& w) {
  const std::string ep = w.model.experts > 0 ? fmt::format(" (ep {})", w.ep) : "";
  return fmt::format("{}{}, {}{}, {} of {}, zero {}, recompute {}, {}", w.grid().sizes(), ep, enum_name(w.schedule),
                     (w.chunks > 1 ? fmt::format(" with {} chunks", w.chunks) : "") +
                         (w.layers_per_chunk.empty() ? "" : " of " + layer_counts_text(w.layers_per_chunk) + " layers"),
                     counted(w.num_microbatches(), "microbatch"), w.micro_batch, w.zero, enum_name(w.recompute),
                     enum_name(w.numbers));
}

std::string seconds_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

Recompute least_estimated_recompute(Workload w, const GpuProperties& gpu, double room) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kSelective}) {
    w.recompute = recompute;
    if (estimate_memory(w, gpu).total() <= room) return recompute;
  }
  return Recompute::kFull;
}

// Says what larger buckets would save, from 2 % of the step on; "" otherwise.
std::string bucket_note(const Simulation& s) {
  constexpr double kWorthSaying = 0.98;
  Workload larger = s.workload;
  const StepPrediction step = predict_with_buckets(larger, s.cluster, RingTimes(s.cluster));
  if (step.seconds > kWorthSaying * s.step.seconds) return "";
  return fmt::format(
      "with parallel.bucket_elements {} instead of {} a step would take {} instead of {}, since the latency of each "
      "bucket's ring grows with dp; `trireme plan` chooses the buckets",
      larger.bucket_elements, s.workload.bucket_elements, seconds_text(step.seconds), seconds_text(s.step.seconds));
}

// Returns `config` with some value in place of auto. problem_of() does not depend on which.
Config without_auto(Config config) {
  ParallelConfig& p = config.parallel;
  if (p.recompute == Recompute::kAuto) p.recompute = Recompute::kNone;
  if (p.schedule == Schedule::kAuto) p.schedule = p.chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  if (p.ep_transfers == Transfers::kAuto) p.ep_transfers = Transfers::kCollectives;
  return config;
}

std::vector<std::string> notes_of(const Simulation& s, const WorkloadOptions& options) {
  std::vector<std::string> notes;
  if (options.program == Program::kFsdp)
    notes.push_back(
        "--as fsdp: for published steps of PyTorch's FSDP to which no constant was fitted, predictions are off by 7 to "
        "18 % on average, and by up to 41 % (`trireme simulate --rows configs/published/never_fitted.csv`): an "
        "allocator that runs out of memory and retries is not modelled");
  const int node = s.cluster.node.ranks, tp = s.workload.tp;
  if (tp < node && node % tp != 0 && s.workload.ranks() > node)
    notes.push_back(fmt::format(
        "parallel.tp {} does not divide the {} ranks of a node: some tp groups span two nodes, but the step "
        "is predicted as if each were on one",
        tp, node));
  if (s.memory_estimated)
    notes.push_back("the memory is an estimate: only this program's own can be planned byte for byte");
  if (std::string note = experts_note(s.workload); !note.empty()) notes.push_back(std::move(note));
  if (std::string note = documents_note(s.workload, s.cluster); !note.empty()) notes.push_back(std::move(note));
  if (std::string note = attention_note(s.workload, s.cluster); !note.empty()) notes.push_back(std::move(note));
  if (options.program == Program::kTrireme && options.stragglers == Stragglers::kOn)
    if (std::string note = bucket_note(s); !note.empty()) notes.push_back(std::move(note));
  return notes;
}

}  // namespace

Result<Config> resolve_for(Program program, Config parsed, int ranks) {
  if (program == Program::kTrireme) return resolve_config(std::move(parsed), ranks);
  const ParallelConfig asked = parsed.parallel;
  const int micro_batch = parsed.data.micro_batch;
  auto resolved = without_layout(std::move(parsed));
  if (!resolved) return resolved;
  Config& config = resolved.value();
  ParallelConfig& p = config.parallel;
  const int64_t stages = int64_t{asked.tp} * asked.cp * asked.pp * ranks_along(kOtherAxes, p);
  if (ranks % stages != 0 || (asked.dp > 0 && stages * asked.dp != ranks))
    return usage_error("{} ranks do not equal parallel.tp {} x cp {} x pp {} x dp {}; change --ranks or parallel",
                       ranks, asked.tp, asked.cp, asked.pp, asked.dp > 0 ? fmt::to_string(asked.dp) : "N");
  p.tp = asked.tp;
  p.cp = asked.cp;
  p.pp = asked.pp;
  p.dp = static_cast<int>(ranks / stages);
  p.ep = asked.ep;
  p.chunks = asked.chunks;
  p.schedule = asked.schedule != Schedule::kAuto ? asked.schedule
               : asked.chunks > 1                ? Schedule::kInterleaved
                                                 : Schedule::k1F1B;
  p.layers_per_chunk = asked.layers_per_chunk;
  if (const std::string problem = problem_with_layer_counts(p.layers_per_chunk, p.pp, p.chunks, config.model.layers);
      !problem.empty())
    return usage_error("{}", problem);
  config.data.micro_batch = micro_batch;
  return resolved;
}

Result<Simulation> simulate(const Config& asked, const Cluster& cluster, const WorkloadOptions& options) {
  const bool is_program = options.program != Program::kTrireme;
  if (auto known = check_numbers(asked, cluster); !known) return known.error();
  // Checked before the job is planned, which lists the actions of all microbatches.
  if (const std::string problem = problem_of(workload_of(without_auto(asked))); !problem.empty())
    return usage_error("{}", problem);
  auto planned = is_program ? Result<Config>(asked) : planned_for(asked, cluster);
  if (!planned) return planned.error();
  Config config = std::move(planned).value();
  const GpuProperties gpu = gpu_of(cluster);
  Simulation simulation;
  simulation.name = config.run.name;
  simulation.cluster = cluster;
  simulation.program = options.program;
  simulation.room_bytes = room_of(cluster);
  const bool is_other = is_program || options.cp > 1;  // only this program can plan its memory
  const bool is_auto = asked.parallel.recompute == Recompute::kAuto;
  if (is_auto && is_other) config.parallel.recompute = Recompute::kNone;
  if (config.parallel.recompute == Recompute::kAuto)
    config.parallel.recompute = planned_recompute(config, gpu, simulation.room_bytes);
  simulation.workload = workload_of(config);
  simulation.workload.documents = options.documents;
  Workload& w = simulation.workload;
  if (options.cp > 1) {
    if (w.cp > 1) return usage_error("--cp {}: the config sets parallel.cp {}; omit one of them", options.cp, w.cp);
    if (w.dp % options.cp != 0)
      return usage_error("--cp {} does not divide parallel.dp {}, whose ranks it uses", options.cp, w.dp);
    w.cp = options.cp;
    w.gathers_kv = false;
    w.dp /= options.cp;
  }
  run_as(options.program, w);
  if (const std::string problem = problem_of(w); !problem.empty()) return usage_error("{}", problem);
  simulation.memory_estimated = is_other;
  if (is_other) {
    w.dp_copies = false;
    if (is_auto) w.recompute = least_estimated_recompute(w, gpu, simulation.room_bytes);
    simulation.memory_bytes = static_cast<int64_t>(estimate_memory(w, gpu).total());
  } else {
    simulation.memory_bytes = planned_bytes(config, gpu);
  }
  simulation.step = predict_step(w, cluster, RingTimes(cluster), options.stragglers);
  simulation.goodput = goodput(cluster, w.ranks(), checkpoint_bytes(w) / (cluster.network.storage_gb_per_s * 1e9));
  simulation.notes = notes_of(simulation, options);
  const bool chose_by_memory =
      asked.parallel.schedule == Schedule::kAuto && w.pp > 1 && !is_other && config.run.device == DeviceChoice::kCuda;
  if (chose_by_memory && static_cast<double>(simulation.memory_bytes) > simulation.room_bytes) {
    const bool may_recompute =
        asked.parallel.recompute != Recompute::kAuto && asked.parallel.recompute != Recompute::kFull;
    simulation.notes.push_back(
        fmt::format("parallel.schedule: auto: no schedule fits; {} needs the least memory; use more ranks{}",
                    enum_name(w.schedule), may_recompute ? ", or more recompute" : ""));
  }
  return simulation;
}

bool is_own(const Cluster& cluster) {
  return cluster.software.name == "Trireme" || cluster.software.name == ClusterSoftware{}.name;
}

std::string plus_minus(const Cluster& cluster) {
  return cluster.uncertainty > 0 ? fmt::format(" ± {:.1f} %", 100 * cluster.uncertainty) : "";
}

std::string software_note(const Cluster& cluster, bool memory_estimated) {
  const std::string unknown =
      cluster.uncertainty > 0 ? "" : "; the cluster file states no uncertainty, so that of the step is unknown";
  if (is_own(cluster) && !memory_estimated) return "the speeds and the memory are Trireme's" + unknown;
  const std::string speeds = fmt::format("the speeds are those of {} on {}, the memory is ",
                                         is_own(cluster) ? "Trireme" : cluster.software.name, cluster.device.name);
  if (memory_estimated) return speeds + "an estimate" + unknown;
  return speeds + "Trireme's own plan" + unknown +
         "; Trireme's steps may differ by more than the uncertainty: configs/clusters/h100.yaml and "
         "h200.yaml have its own speeds";
}

std::string mfu_peak(const Workload& w, const Cluster& cluster) {
  return fmt::format("{:.0f} TFLOP/s",
                     w.numbers == Numbers::kFp32 ? cluster.device.fp32_tflops : cluster.device.bf16_tflops);
}

bool is_tight(double bytes, double room_bytes) { return bytes <= room_bytes && bytes > 0.95 * room_bytes; }

std::string to_text(const Simulation& s) {
  const StepPrediction& step = s.step;
  const Cluster& c = s.cluster;
  std::string text = fmt::format("{} on {} of {} with {}{}, {} per node\n  {}\n", s.name,
                                 counted(s.workload.ranks(), "rank"), c.device.name, c.software.name,
                                 s.program == Program::kTrireme ? "" : fmt::format(" as {}", enum_name(s.program)),
                                 c.node.ranks, place_text(s.workload));
  text += fmt::format(
      "step: {}{}; {} tokens/s, {:.1f} TFLOP/s per rank, MFU {:.1f} % of {}, {:.1f} % with causal "
      "attention{}\n",
      seconds_text(step.seconds), plus_minus(c), format_count(step.tokens_per_second), step.tflops_per_rank,
      100 * step.mfu, mfu_peak(s.workload, c), 100 * step.mfu_causal,
      step.mfu_fp8 > 0 ? fmt::format(", {:.1f} % of the FP8 peak", 100 * step.mfu_fp8) : "");
  const double memory = static_cast<double>(s.memory_bytes);
  text += fmt::format(
      "memory of the fullest rank{}: {} of {:.0f} GiB{}\n", s.memory_estimated ? ", estimated" : "",
      format_bytes(s.memory_bytes), c.device.memory_gib,
      is_tight(memory, s.room_bytes) ? fmt::format(": a tight fit, {:.1f} GiB can be used", s.room_bytes / kGib)
      : memory <= s.room_bytes
          ? ""
          : fmt::format(": DOES NOT FIT, {:.1f} GiB are left after communicators and libraries", s.room_bytes / kGib));
  text += fmt::format("time of a step on stage {}, the busiest one:\n", step.busiest_stage);
  for (const auto& [name, seconds] : named_parts(step.parts))
    if (seconds > 0)
      text += fmt::format("  {:<22}{:>10}  {:>5.1f} %\n", part_title(name), seconds_text(seconds),
                          100 * seconds / step.seconds);
  const Goodput& g = s.goodput;
  text += fmt::format(
      "faults: one stops the job every {} on average, and recovery takes {}; with a checkpoint every {} (best: {}), "
      "{:.1f} % of the time is training; {} suffice{} 99 % of the time while failed ones are repaired\n",
      format_duration(g.rates.mtbf_s), format_duration(g.rates.recovery_s), format_duration(g.interval_s),
      format_duration(g.best_interval_s), 100 * g.effective, counted(g.spares, "spare machine"),
      g.spares == 1 ? "s" : "");
  text += software_note(c, s.memory_estimated) + "\n";
  for (const std::string& note : s.notes) text += note + "\n";
  if (!c.defaults.empty())
    text += fmt::format("the cluster file omits these constants, so their defaults apply: {}\n",
                        fmt::join(c.defaults, ", "));
  return text;
}

std::string to_json(const Simulation& s) {
  nlohmann::ordered_json parts;
  for (const auto& [name, seconds] : named_parts(s.step.parts)) parts[name] = seconds;
  const Workload& w = s.workload;
  const Goodput& g = s.goodput;
  nlohmann::ordered_json layout = axes_json(w);
  layout.update({{"cp", w.cp},
                 {"ep", w.ep},
                 {"chunks", w.chunks},
                 {"schedule", enum_name(w.schedule)},
                 {"micro_batch", w.micro_batch},
                 {"num_microbatches", w.num_microbatches()},
                 {"zero", w.zero},
                 {"recompute", enum_name(w.recompute)},
                 {"numbers", enum_name(w.numbers)}});
  if (!w.layers_per_chunk.empty()) layout["layers_per_chunk"] = w.layers_per_chunk;
  const nlohmann::ordered_json json{
      {"name", s.name},
      {"ranks", w.ranks()},
      // Schema 1 has fixed_s, a constant time per step, which no cluster has any more.
      {"cluster", {{"device", s.cluster.device.name}, {"software", s.cluster.software.name}, {"fixed_s", 0.0}}},
      {"layout", layout},
      {"step_s", s.step.seconds},
      {"uncertainty", s.cluster.uncertainty > 0 ? nlohmann::ordered_json(s.cluster.uncertainty) : nullptr},
      {"tokens_per_s", s.step.tokens_per_second},
      {"tflops_per_rank", s.step.tflops_per_rank},
      {"mfu", s.step.mfu},
      {"mfu_peak_tflops", w.numbers == Numbers::kFp32 ? s.cluster.device.fp32_tflops : s.cluster.device.bf16_tflops},
      {"mfu_causal", s.step.mfu_causal},
      {"mfu_fp8", s.step.mfu_fp8 > 0 ? nlohmann::ordered_json(s.step.mfu_fp8) : nullptr},
      {"memory_bytes", s.memory_bytes},
      {"memory_estimated", s.memory_estimated},
      {"fits", static_cast<double>(s.memory_bytes) <= s.room_bytes},
      {"tight", is_tight(static_cast<double>(s.memory_bytes), s.room_bytes)},
      {"busiest_stage", s.step.busiest_stage},
      {"parts_s", parts},
      {"faults",
       {{"mtbf_s", g.rates.mtbf_s},
        {"recovery_s", g.rates.recovery_s},
        {"checkpoint_interval_s", g.interval_s},
        {"best_interval_s", g.best_interval_s},
        {"effective", g.effective},
        {"best_effective", g.best_effective},
        {"spares", g.spares}}},
      {"notes", s.notes}};
  return json.dump() + "\n";
}

}  // namespace tri
