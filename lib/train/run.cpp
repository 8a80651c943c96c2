#include "lib/train/run.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "io/base/file.h"
#include "io/base/file_writer.h"
#include "io/base/host.h"
#include "io/base/log.h"
#include "io/base/text_file.h"
#include "io/base/within.h"
#include "io/checkpoint/folder.h"
#include "lib/checkpoint/memory.h"
#include "lib/checkpoint/weights.h"
#include "lib/config/batch_sizes.h"
#include "lib/config/divisors.h"
#include "lib/config/flat.h"
#include "lib/fault/events.h"
#include "lib/fault/watchdog.h"
#include "lib/observe/metrics/metrics.h"
#include "lib/observe/status/effective_time.h"
#include "lib/observe/status/estimates.h"
#include "lib/observe/status/run_summary.h"
#include "lib/train/loop.h"
#include "lib/train/rank_recorder.h"
#include "lib/train/run_folder.h"

namespace tri {
namespace {

constexpr const char* kDataOrder = "data_order";  // key of a checkpoint's text: to_text(OrderFields)

// Returns hosts by world rank: "0-7 on node01, 8-15 on node02".
std::string ranks_by_host(const std::vector<std::string>& hosts) {
  std::string list;
  for (size_t first = 0; first < hosts.size();) {
    size_t end = first;
    while (end < hosts.size() && hosts[end] == hosts[first]) ++end;
    list += fmt::format("{}{}{} on {}", first == 0 ? "" : ", ", first,
                        end == first + 1 ? "" : fmt::format("-{}", end - 1), hosts[first]);
    first = end;
  }
  return list;
}

// Returns the header that each start writes to log.txt.
std::string log_head(const RunStart& start, const std::vector<std::string>& hosts) {
  std::string head =
      fmt::format("trireme {}\n  command: {}\n  ranks: {}", start.version, start.command_line, ranks_by_host(hosts));
  if (const BatchStart batch = batch_start(); !batch.job.empty())
    head += fmt::format("\n  Slurm job: {}, restart {}", batch.job, batch.restart);
  return head;
}

// Before the first step there is nothing to save. The collective checks of the start distribute this error to all
// ranks.
Result<void> unless_stopped(const StopSignals& signals) {
  if (signals.received() == 0) return {};
  return Error{fmt::format("stopped by signal {} ({}) before the first step; nothing is lost: re-run the job",
                           signals.received(), ::strsignal(signals.received())),
               ExitCode::kDrained};
}

// World rank 0 opens the folder and holds its lock; the other ranks get none. Only a run that can start creates a
// folder. The agreement is also the barrier after which all ranks may write into it.
Result<std::optional<RunLock>> open_folder(const Config& config, const RunStart& start, Job& job,
                                           const std::string& attempt) {
  std::optional<RunLock> lock;
  Result<void> mine = unless_stopped(start.signals);
  if (mine && job.world_rank() == 0) {
    auto opened = retried({}, [&] { return open_run_folder(config, attempt); });
    if (opened)
      lock.emplace(std::move(opened).value());
    else
      mine = opened.error();
  }
  if (auto agreed = agree(job, mine); !agreed) return load_error(agreed.error());
  // Without this check, a node that lacks the mount would be noticed only at the first checkpoint, or never if it is
  // world rank 0's node: the run would start again from step 0.
  mine = unless_stopped(start.signals);
  if (mine && job.world_rank() != 0 && job.world_rank() == job.node_ranks().front())
    if (auto seen = retried({.missing = Missing::kTransient}, [&] { return see_lock(config.checkpoint.dir, attempt); });
        !seen)
      mine = Error{fmt::format("checkpoint.dir: {} does not see the folder that world rank 0 has locked: {}; the same "
                               "file system must be mounted on all nodes",
                               job.host(), seen.error().message),
                   ExitCode::kFile, seen.error().os_error};
  if (auto agreed = agree(job, mine); !agreed) return load_error(agreed.error());
  const std::vector<std::string> hosts = job.gather(host_name());
  log_open(config.run.dir + "/log.txt", job.world_rank() == 0 ? log_head(start, hosts) : "");
  if (config.metrics.log_ranks) log_open_rank(fmt::format("{}/log/rank_{:05}.txt", config.run.dir, job.world_rank()));
  return lock;
}

// Returns the batch sizes nearest to data.global_batch that divide the consumed samples and fit the layout: "8 or 12".
std::string batch_remedy(int64_t consumed, const Config& config) {
  const int64_t configured = config.data.global_batch, least = int64_t{config.data.micro_batch} * config.parallel.dp;
  int64_t below = 0, above = 0;
  for (const int64_t size : divisors(consumed)) {
    if (size % least != 0) continue;
    if (size < configured) below = size;
    if (size > configured && above == 0) above = size;
  }
  if (below == 0 && above == 0)
    return fmt::format("a divisor of that number, with a smaller data.micro_batch or parallel.dp");
  if (below == 0 || above == 0) return std::to_string(below + above);
  return fmt::format("{} or {}", below, above);
}

// Checks whether the run may resume from a checkpoint: the model and the order of the samples must be unchanged.
Result<void> may_load(const PlannedJob& planned, const Inputs& inputs, const std::string& folder,
                      const Manifest& manifest) {
  const Config& config = planned.config;
  if (auto accepted = accept_checkpoint(planned.requested, folder, manifest); !accepted) return accepted;
  if (holds_weights_alone(manifest)) return {};
  const auto& texts = manifest.info.texts;
  const auto& numbers = manifest.info.numbers;
  const auto samples = numbers.find("samples");
  const int64_t consumed = samples == numbers.end() ? 0 : samples->second;
  const bool counts_tokens = config.run.tokens > 0 || config.lr.by == LrBy::kTokens ||
                             !config.data.batch_ramp.empty() || !config.data.stages.empty();
  if (const auto saved = checkpoint_config(folder, manifest);
      counts_tokens && consumed > 0 && saved && saved.value().model.seq_len != config.model.seq_len)
    return usage_error(
        "model.seq_len: {}, but the checkpoint's samples have {} tokens, and run.tokens, lr.by, data.batch_ramp and "
        "data.stages count tokens from the start of the run; start a new run from the weights: trireme checkpoint "
        "export, then import",
        config.model.seq_len, saved.value().model.seq_len);
  // With a ramp, steps may begin at any sample.
  if (batch_sizes(config).is_constant() && consumed % config.data.global_batch != 0)
    return usage_error("data.global_batch: {} does not divide the {} samples that the run has consumed; set it to {}",
                       config.data.global_batch, consumed, batch_remedy(consumed, config));
  const auto order = texts.find(kDataOrder);
  return check_order(config, inputs.order, order == texts.end() ? std::nullopt : std::optional(order->second), folder,
                     consumed);
}

// The history of a run's generations in memory, from its event log.
MemoryHistory memory_history(const std::string& run_dir) {
  const std::string path = run_dir + "/events.jsonl";
  const auto events = retried({}, [&] { return read_events(path); });
  MemoryHistory history;
  if (!events) return history;  // without its history, a generation might be another run's
  for (const RunEvent& event : events.value())
    if (event.kind == RunEventKind::kStart)
      history = {.attempt = event.attempt,
                 .from_attempt = event.string("from_attempt"),
                 .from_step = static_cast<int64_t>(event.number("step", 0))};
  return history;
}

std::string absolute_folder(const std::string& folder) {
  std::error_code problem;
  const auto path = std::filesystem::absolute(folder, problem);
  return problem ? folder : path.lexically_normal().string();
}

// The state from which a start begins, and where it came from: fields of the event log's `start`.
struct BegunState {
  RunProgress progress;
  std::optional<MemoryGeneration> memory;
  std::map<std::string, EventField> origin;
};

// Looks for a generation in memory that is as new as the checkpoint on storage. Collective.
std::optional<MemoryGeneration> search_memory(const PlannedJob& planned, const CheckpointSearch& search,
                                              const CheckpointSearch::MayLoad& may, Job& job, Verify verify,
                                              std::string& why) {
  const Config& config = planned.config;
  MemorySearch memory{.folder = segment_folder(),
                      .run_dir = absolute_folder(config.run.dir),
                      .layout = segment_layout(config, planned.mesh),
                      .after = search.found() ? search.found()->progress.steps - 1 : 0,
                      .may_load = may,
                      .verify = verify};
  if (job.world_rank() == 0) memory.history = memory_history(config.run.dir);
  auto found = find_in_memory(memory, job, why);
  // A run that is complete ends with a checkpoint on storage.
  if (found) {
    const RunProgress& progress = found->found.progress;
    if (last_step(config, progress.steps, progress.samples) > progress.steps) return found;
    why = "the state in memory is that after the last step";
  }
  return std::nullopt;
}

// A generation in memory that a thread reads into host memory while the training thread connects the ranks.
struct MemoryLoad {
  std::optional<MemoryGeneration> generation;  // none: nothing is read
  std::unique_ptr<StateLoad> load;
  std::string why;      // none was chosen; "": no node holds a segment of the run
  bool failed = false;  // one was chosen, but cannot be read
};

// Fails, the same on all ranks, if checkpoints in memory do not fit. Collective.
Result<MemoryLoad> begin_memory_load(const PlannedJob& planned, const CheckpointSearch& search,
                                     const CheckpointSearch::MayLoad& may, Job& job, Device& device) {
  const Config& config = planned.config;
  Arena measuring(device);
  const RankTensors tensors = allocate_rank(config, planned.mesh, measuring);
  std::vector<StateShard> shards = state_shards(config, planned.mesh, tensors.store);
  int64_t others = state_buffer(shards).bytes;
  if (device.kind() == DeviceKind::kCpu) others += measuring.used();
  if (auto fits =
          agree(job, check_memory_budget(job, absolute_folder(config.run.dir), memory_segment_bytes(shards), others));
      !fits)
    return fits.error();
  MemoryLoad begun;
  begun.generation = search_memory(planned, search, may, job, Verify::kWhileLoading, begun.why);
  if (!begun.generation) return begun;
  const MemoryGeneration& generation = *begun.generation;
  std::unique_ptr<HostBuffer<char>> none;
  auto load = StateLoad::begin({.from = generation.found,
                                .manifest = job.world_rank() == 0 ? &generation.manifest : nullptr,
                                .readers = generation.readers,
                                .job = job,
                                .device = device},
                               std::move(shards), none);
  if (load) {
    begun.load = std::move(load).value();
  } else {
    begun.why = load.error().message;
    begun.failed = true;
    begun.generation.reset();
  }
  return begun;
}

// Loads the newest state, from memory or storage, or makes start values. `checkpoints` holds the load of `memory`.
Result<BegunState> begin_state(const PlannedJob& planned, CheckpointSearch& search,
                               const CheckpointSearch::MayLoad& may, MemoryLoad memory, Checkpointer& checkpoints,
                               Trainer& trainer, Job& job, StartupClock& startup) {
  const PhaseScope phase(RunPhase::kLoad);
  BegunState begun;
  std::string why = std::move(memory.why);
  if (planned.config.checkpoint.memory_every > 0) {
    const int64_t saved = search.found() ? search.found()->progress.steps : 0;
    if (memory.generation) {
      if (auto loaded = checkpoints.finish_begun(*memory.generation, saved); loaded)
        begun.memory = std::move(memory.generation);
      else
        why = loaded.error().message, memory.failed = true;
    }
    if (memory.failed) {  // a copy of what is damaged, or an older generation, may be good
      if (job.world_rank() == 0) log_warn("checkpoint in memory skipped: {}", why);
      begun.memory = search_memory(planned, search, may, job, Verify::kFirst, why);
      if (begun.memory) {
        if (auto loaded = checkpoints.load(*begun.memory, saved); !loaded) {
          why = loaded.error().message;
          begun.memory.reset();
        }
      }
    }
    if (!why.empty() && job.world_rank() == 0) log_warn("checkpoints in memory are not used: {}", why);
  }
  if (begun.memory) {
    const MemoryGeneration& memory = *begun.memory;
    begun.progress = memory.found.progress;
    begun.origin = {{"from", std::string(memory.buddy_ranks > 0 ? "buddy" : "memory")},
                    {"from_attempt", memory.attempt},
                    {"own_ranks", int64_t{memory.own_ranks}},
                    {"buddy_ranks", int64_t{memory.buddy_ranks}}};
  } else {
    const auto loaded = checkpoints.load(search);
    if (!loaded) return loaded.error();
    if (planned.config.checkpoint.memory_every > 0)
      begun.origin = {{"from", std::string(loaded.value() ? "storage" : "nothing")}, {"memory_why", why}};
    if (!loaded.value()) {
      trainer.make_start_values();
      startup.phase_done("start values");
      return begun;
    }
    begun.progress = *loaded.value();
  }
  if (auto done = trainer.state_loaded(begun.progress.fp8_history, begun.progress.router_bias); !done)
    return done.error();
  startup.phase_done(begun.memory ? "checkpoint in memory" : "checkpoint");
  return begun;
}

// The changes of the config since the previous start, as fields before.NAME and after.NAME of the event log. Empty at
// the first start.
std::map<std::string, EventField> changes_since_last_start(const Config& decided) {
  std::map<std::string, EventField> changes;
  const std::string path = decided.run.dir + "/resolved.yaml";
  const auto text = retried({}, [&]() -> Result<std::string> { return read_text(path); });
  if (!text && text.error().os_error != ENOENT)
    log_warn("{}; so events.jsonl does not record what this start has changed", text.error().message);
  if (!text) return changes;
  const auto before = flat_config(text.value()), after = flat_config(to_yaml(decided));
  if (!before || !after) return changes;
  for (const FlatChange& change : flat_changes(before.value(), after.value()))
    changes["before." + change.name] = change.before, changes["after." + change.name] = change.after;
  return changes;
}

// World rank 0: records a start that continues after `completed` steps, until step `last`, in the run's files.
Result<void> begin_files(const PlannedJob& planned, const RunStart& start, int64_t completed, int64_t last) {
  const std::string& dir = planned.config.run.dir;
  if (auto done = write_configs(dir, start.config_path, planned.written, planned.config); !done) return done;
  return completed < last ? begin_metrics(dir + "/metrics.jsonl", completed) : Result<void>{};
}

// The watchdog queries the runtime's streams while this lives.
class ShownStreams {
 public:
  ShownStreams(std::optional<Watchdog>& watchdog, Runtime& runtime) : watchdog_(watchdog) {
    if (watchdog_)
      watchdog_->set_streams([&runtime] {
        runtime.read_progress();
        return runtime.activities();
      });
  }
  ~ShownStreams() {
    if (watchdog_) watchdog_->set_streams(nullptr);
  }
  ShownStreams(const ShownStreams&) = delete;
  ShownStreams& operator=(const ShownStreams&) = delete;

 private:
  std::optional<Watchdog>& watchdog_;
};

RunEvent hang_event(const DumpOutcome& dump) {
  const auto& suspects = dump.verdict.suspects;
  RunEvent event{.kind = RunEventKind::kHang,
                 .world_rank = suspects.empty() ? -1 : suspects.front().world_rank,
                 .text = dump.verdict.headline};
  event.fields = {{"kind", std::string(enum_name(dump.verdict.kind))},
                  {"dump", dump.folder},
                  {"began", dump.taken - dump.trigger.seconds}};
  return event;
}

// World rank 0: appends the event that this start holds the run folder.
void log_begin(const EventLog& events, const StartupClock& startup) {
  std::map<std::string, EventField> fields{
      {"began", startup.began()}, {"boot", boot_id()}, {"uptime", startup.began_monotonic()}};
  const JobTimes times = job_times();
  if (times.submitted > 0) fields["submitted"] = times.submitted;
  if (times.allocated > 0) fields["allocated"] = times.allocated;
  events.append(RunEventKind::kBegin, "", std::move(fields));
}

// World rank 0: appends the event that its steps begin after `completed` steps and end with step `last`, when
// `tokens` are trained. `fields`: additional fields of it.
void log_start(const EventLog& events, const PlannedJob& planned, const RunStart& start, int64_t completed,
               int64_t last, int64_t tokens, const StartupClock& startup, std::map<std::string, EventField> fields) {
  const RunConfig& run = planned.config.run;
  std::error_code absent;
  const auto metrics = std::filesystem::file_size(run.dir + "/metrics.jsonl", absent);
  fields["version"] = start.version;
  fields["ranks"] = int64_t{planned.mesh.world_size()};
  fields["step"] = completed;
  fields["steps"] = last;
  if (tokens > 0) fields["tokens"] = tokens;
  fields["metrics_bytes"] = absent ? int64_t{0} : static_cast<int64_t>(metrics);
  for (const auto& [phase, seconds] : startup.phases()) fields["startup." + phase] = seconds;
  events.append(RunEventKind::kStart, "", std::move(fields));
}

// World rank 0, at the end of an attempt: logs how the time since the first submission was spent. The other ranks wait
// for this one in MPI_Finalize, for at most fault.setup_seconds; if storage does not respond within a part of that, the
// line is omitted.
void log_effective_time(const std::string& run_dir, const FaultConfig& fault) {
  constexpr double kLongestSeconds = 30, kShareOfDeadline = 0.25;
  const auto seconds = std::chrono::duration<double>(std::min(kLongestSeconds, kShareOfDeadline * fault.setup_seconds));
  const auto read = [run_dir]() -> std::string {
    const auto history = read_events_and_steps(run_dir);
    const auto time = history ? effective_time(history.value()) : std::nullopt;
    return time ? effective_time_line(*time) : "";
  };
  const std::string line = within(run_dir + " (effective time)",
                                  std::chrono::duration_cast<std::chrono::milliseconds>(seconds), read, std::string());
  if (!line.empty()) log_info("{}", line);
}

// The recorded part of a run; the flight recorder outlives it. `event_log` is set once this start holds the run folder.
Result<void> run_recorded(const PlannedJob& planned, const RunStart& start, Job& job, StartupClock startup,
                          const std::string& attempt, RankRecorder& recorder, std::optional<EventLog>& event_log) {
  const Config& config = planned.config;
  const Mesh& mesh = planned.mesh;
  auto device = open_planned_device(planned.plan.device, job);
  if (!device) return device.error();
  const MappedRecorder mapped(recorder, *device.value());
  const EventLog events({.path = config.run.dir + "/events.jsonl",
                         .attempt = attempt,
                         .job = batch_start().job,
                         .world_rank = job.world_rank(),
                         .host = job.host(),
                         .gpu = device.value()->bus_id()});
  std::optional<Watchdog> watchdog;
  if (FlightRecorder* const flight = recorder.flight())
    watchdog.emplace(Watchdog::Context{
        .recorder = *flight,
        .job = job,
        .fault = config.fault,
        .attempt = attempt,
        .run_dir = flight->image().run_dir,
        .uses_nccl = device.value()->kind() == DeviceKind::kCuda,
        .step_growth = static_cast<double>(batch_sizes(config).largest()) / batch_sizes(config).smallest(),
        .on_report = [events](const DumpOutcome& dump) { events.append(hang_event(dump)); }});
  if (start.on_watched) start.on_watched();
  Inputs inputs;
  if (auto opened = open_inputs(config, mesh, job, inputs); !opened) return opened;
  const auto lock = open_folder(planned.requested, start, job, attempt);
  if (!lock) return lock.error();
  event_log = events;
  if (mesh.world_rank == 0) log_begin(events, startup);
  job.set_failure_hook(events.failure_hook());
  log_info("{}", to_string(planned.plan));
  if (mesh.world_rank == 0)
    for (const std::string& warning : planned.plan.warnings) log_warn("{}", warning);
  startup.phase_done("data and device");
  if (job.node_rank() == 0) {
    constexpr double kOrphanSeconds = 600;  // a supervised run starts its ranks again within that time
    remove_orphaned_segments(segment_folder(), absolute_folder(config.run.dir), kOrphanSeconds);
    if (config.checkpoint.memory_every == 0)
      remove_segments(segment_folder(), absolute_folder(config.run.dir), job.host());
  }
  const CheckpointSearch::MayLoad may = [&](const std::string& folder, const Manifest& manifest) {
    return may_load(planned, inputs, folder, manifest);
  };
  CheckpointSearch search(config.checkpoint.dir, attempt, job, may);
  {
    const PhaseScope phase(RunPhase::kLoad);
    if (auto found = search.next(); !found) return found;
  }
  MemoryLoad memory_load;
  if (config.checkpoint.memory_every > 0) {
    const PhaseScope phase(RunPhase::kLoad);
    auto begun = begin_memory_load(planned, search, may, job, *device.value());
    if (!begun) return begun.error();
    memory_load = std::move(begun).value();
  }
  startup.phase_done("search for a checkpoint");

  Arena arena(*device.value(), rank_bytes(config, mesh, *device.value()));
  startup.phase_done("arena");
  Trainer trainer({.config = config, .mesh = mesh, .job = &job, .device = *device.value(), .arena = arena},
                  {.startup = &startup, .tuning_dir = config.run.dir, .update = UpdateEnd::kNextStep});
  const ShownStreams shown(watchdog, trainer.runtime());
  log_run(config, mesh, inputs.order, arena);
  for (const std::string& warning : {memory_every_warning(config.checkpoint), no_checkpoints_warning(config.checkpoint),
                                     epochs_warning(config, inputs.order)})
    if (!warning.empty()) log_warn_alike("{}", warning);

  const CheckpointContext checkpoint_context{.config = config,
                                             .requested = planned.requested,
                                             .mesh = mesh,
                                             .job = job,
                                             .device = *device.value(),
                                             .compute = trainer.runtime().compute(),
                                             .store = trainer.store().memory.tensors(),
                                             .attempt = attempt,
                                             .texts = {{kDataOrder, to_text(inputs.order)}}};
  Checkpointer checkpoints(checkpoint_context, std::move(memory_load.load));
  startup.phase_done("checkpoint memory");
  checkpoints.set_may_publish([&] {
    flush_required_files();  // metrics.jsonl always contains every step that a checkpoint contains
    return lock.value() ? lock.value()->check() : Result<void>{};
  });
  const auto state = begin_state(planned, search, may, std::move(memory_load), checkpoints, trainer, job, startup);
  if (!state) return state.error();
  const RunProgress& begun = state.value().progress;
  auto changes = mesh.world_rank == 0 ? changes_since_last_start(config) : std::map<std::string, EventField>();
  const int64_t last = last_step(config, begun.steps, begun.samples);
  const BatchSizes sizes = batch_sizes(config);
  int64_t tokens = 0;
  if (!sizes.is_constant())
    tokens = config.model.seq_len * sizes.after(begun.samples, std::max<int64_t>(0, last - begun.steps));
  const bool is_complete = begun.steps >= last;
  Result<void> files = is_complete ? Result<void>{} : unless_stopped(start.signals);
  if (files && !is_complete && mesh.world_rank == 0) files = checkpoints.check_manifest(begun);
  if (files && mesh.world_rank == 0) files = begin_files(planned, start, begun.steps, last);
  if (auto agreed = agree(job, files); !agreed) return agreed;
  if (!is_complete && trainer.must_load_kernels()) {
    trainer.load_kernels();
    startup.phase_done("first kernels");
  }
  changes.insert(state.value().origin.begin(), state.value().origin.end());
  if (mesh.world_rank == 0) log_start(events, planned, start, begun.steps, last, tokens, startup, std::move(changes));
  if (is_complete) {
    log_info("step {} of {}: the run is complete", begun.steps, last);
    return {};
  }
  std::unique_ptr<MemoryCheckpoints> memory;
  if (config.checkpoint.memory_every > 0) {
    auto made = MemoryCheckpoints::create({.checkpoint = checkpoint_context,
                                           .checkpoints = checkpoints,
                                           .run_dir = absolute_folder(config.run.dir),
                                           .loaded = state.value().memory ? &*state.value().memory : nullptr});
    if (!made) return made.error();
    memory = std::move(made).value();
  }
  const Result<void> trained = TrainingLoop({.inputs = inputs,
                                             .trainer = trainer,
                                             .checkpoints = checkpoints,
                                             .memory = memory.get(),
                                             .begun = begun,
                                             .startup = startup,
                                             .events = events,
                                             .signals = start.signals,
                                             .stop_deadline = start.stop_deadline})
                                   .run();
  if (memory && trained) memory->remove();
  return trained;
}

}  // namespace

Result<void> run_training(const PlannedJob& planned, const RunStart& start, Job& job, StartupClock startup) {
  const Config& config = planned.config;
  const Mesh& mesh = planned.mesh;
  start.stop_deadline.set_grace(config.fault.grace_seconds);
  const std::string attempt = job.broadcast(own_attempt());
  RankRecorder recorder(config, mesh, attempt, job, config.run.dir);
  std::optional<EventLog> event_log;
  const Result<void> done = run_recorded(planned, start, job, std::move(startup), attempt, recorder, event_log);
  start.stop_deadline.cancel();
  job.set_failure_hook({});
  if (event_log && job.world_rank() == 0) {
    std::map<std::string, EventField> fields{{"code", static_cast<int64_t>(done ? ExitCode::kOk : done.error().code)}};
    if (FlightRecorder* const flight = recorder.flight(); flight != nullptr && flight->image().step > 0)
      fields["step"] = flight->image().step.load();
    event_log->append(RunEventKind::kEnd, done ? "" : done.error().message, std::move(fields));
    // Reading the run's files may take long; after a stop signal the scheduler may end the processes soon.
    const bool stopped = start.signals.received() != 0 || (!done && done.error().code == ExitCode::kDrained);
    if (!stopped) log_effective_time(config.run.dir, config.fault);
  }
  // Errors agreed on by all ranks are already reported, so the flight record is discarded.
  if (FlightRecorder* const flight = recorder.flight()) flight->end_well();
  return done;
}

}  // namespace tri
