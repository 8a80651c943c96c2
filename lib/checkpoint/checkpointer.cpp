#include "lib/checkpoint/checkpointer.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "io/base/clock.h"
#include "io/base/format.h"
#include "io/base/log.h"
#include "io/base/within.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/index.h"
#include "io/checkpoint/shard_reader.h"
#include "io/checkpoint/shard_writer.h"
#include "io/flight_recorder/flight_recorder.h"
#include "lib/checkpoint/record_fields.h"

namespace tri {
namespace {

constexpr int kNice = 10;  // if cores are scarce, the writer gets a tenth of a step's share

// Why the checkpoint in progress failed, on the ranks where it did.
struct FailureReport {
  std::string text;  // one line per rank
  bool transient = true;
};
template <class Archive>
void fields(Archive& archive, FailureReport& report) {
  archive(report.text, report.transient);
}

// Durations of a rank's part of a checkpoint.
struct WriteFigures {
  int64_t bytes;
  double stall_seconds, copy_seconds, write_seconds;
};

}  // namespace

Checkpointer::Checkpointer(const CheckpointContext& context, std::unique_ptr<StateLoad> begun)
    : config_(context.config),
      config_text_(to_yaml(context.requested)),
      mesh_(context.mesh),
      job_(context.job),
      device_(context.device),
      compute_(context.compute),
      dir_(config_.checkpoint.dir),
      attempt_(context.attempt),
      texts_(context.texts),
      shards_(state_shards(config_, mesh_, context.store)),
      buffer_(state_buffer(shards_)),
      host_(begun ? nullptr : host_memory(buffer_, device_)),
      stream_(device_.make_stream("checkpoint")),
      state_ready_(device_.make_event()),
      copied_(device_.make_event()),
      begun_load_(std::move(begun)) {
  TRI_REQUIRE(
      !begun_load_ || (begun_load_->buffer().offset == buffer_.offset && begun_load_->buffer().bytes == buffer_.bytes),
      "a load has begun into memory of another layout");
}

Checkpointer::~Checkpointer() = default;  // the destructor of a future from std::async waits for its thread

Result<void> Checkpointer::load_from(const FoundCheckpoint& from, const Manifest* manifest,
                                     const std::function<void()>& planned, const std::vector<int>& readers) {
  auto load = StateLoad::begin({.from = from, .manifest = manifest, .readers = readers, .job = job_, .device = device_},
                               shards_, host_);
  if (!load) return load.error();
  planned();
  return finish_load(from, *load.value());
}

Result<void> Checkpointer::finish_load(const FoundCheckpoint& from, StateLoad& load) {
  const auto bytes_read = load.finish(host_);
  if (!bytes_read) return bytes_read.error();
  const auto start = Clock::now();
  for (const size_t i : load.wanted())
    compute_.copy(shards_[i].memory.data, host_->data() + buffer_.offset[i], shards_[i].memory.bytes());
  compute_.synchronize();
  const std::string what =
      fmt::format("{}: step {}, {}{}{}", from.folder, from.progress.steps,
                  from.weights_alone ? "weights only (the optimizer starts from zero), " : "", load.conversion(),
                  config_.optimizer.ema > 0 && !from.has_average ? "the EMA starts from the weights, " : "");
  report_load(what, bytes_read.value(), load.stored_bytes(), load.seconds() + seconds_between(start, Clock::now()));
  return {};
}

Result<std::optional<RunProgress>> Checkpointer::load(CheckpointSearch& search) {
  while (search.found()) {
    const FoundCheckpoint from = *search.found();
    bool is_planned = false;
    const auto planned = [&] {
      is_planned = true;
      search.forget_manifest();
    };
    const auto loaded = load_from(from, search.manifest(), planned, {});
    if (!loaded && !is_planned) return loaded.error();
    // If storage can't return a checkpoint at present, it is not damaged, and loading an older one would lose work.
    if (!loaded && is_transient(loaded.error().os_error, Missing::kTransient)) return load_error(loaded.error());
    if (!loaded) {
      if (job_.world_rank() == 0) log_warn("checkpoint skipped: {}", loaded.error().message);
      if (auto found = search.next(); !found) return found.error();
      continue;
    }
    saved_step_ = from.progress.steps;
    return std::optional(from.progress);
  }
  return std::optional<RunProgress>();
}

Result<void> Checkpointer::load(const MemoryGeneration& generation, int64_t saved_step) {
  const Manifest* manifest = job_.world_rank() == 0 ? &generation.manifest : nullptr;
  if (auto loaded = load_from(
          generation.found, manifest, [] {}, generation.readers);
      !loaded)
    return loaded;
  saved_step_ = saved_step;
  return {};
}

Result<void> Checkpointer::finish_begun(const MemoryGeneration& generation, int64_t saved_step) {
  const std::unique_ptr<StateLoad> load = std::move(begun_load_);
  if (auto loaded = finish_load(generation.found, *load); !loaded) return loaded;
  saved_step_ = saved_step;
  return {};
}

// Logs how many bytes were read from storage and how many are stored; they are equal unless something was read twice.
// `stored` counts on rank 0 only.
void Checkpointer::report_load(const std::string& what, int64_t bytes_read, int64_t stored, double seconds) {
  const std::vector<int64_t> of_ranks = job_.gather(bytes_read);
  const std::vector<double> times = job_.gather(seconds);
  if (job_.world_rank() != 0) return;
  seconds = *std::ranges::max_element(times);
  const int64_t read = std::accumulate(of_ranks.begin(), of_ranks.end(), int64_t{0});
  log_info("resumed from {}{} of {} bytes read by {} in {} ({}/s)", what, read, stored,
           counted(job_.world_size(), "rank"), format_duration(seconds),
           format_bytes(static_cast<int64_t>(static_cast<double>(read) / std::max(seconds, 1e-9))));
}

Result<void> Checkpointer::begin(RunProgress completed) {
  const auto start = Clock::now();
  const bool behind = phase_ != Phase::kIdle;
  if (behind)
    if (auto done = finish(); !done && failures_ >= config_.checkpoint.max_failures) return done;
  behind_ = behind;
  progress_ = completed;
  begun_ = start;
  // Other ranks wait for this answer before they write into the folder.
  Result<std::string> folder = std::string();
  if (job_.world_rank() == 0) folder = retried({}, [&] { return begin_attempt(dir_, completed.steps, attempt_); });
  folder_.clear();  // folder of the previous attempt, which must not be removed any more
  const Result<void> mine = folder ? Result<void>{} : Result<void>(folder.error());  // other ranks did nothing
  folder = job_.broadcast(folder);
  if (!folder) return failure(mine);
  folder_ = folder.value();

  compute_.record(*state_ready_);
  stream_->wait(*state_ready_);
  for (const StateBuffer::Run& run : buffer_.runs) stream_->copy(host_->data() + run.offset, run.from, run.bytes);
  stream_->record(*copied_);
  copying_ = true;
  phase_ = Phase::kWriting;
  outcome_.reset();
  writing_ = std::async(std::launch::async, [this, folder = folder_]() -> Result<ShardRecord> {
    ::setpriority(PRIO_PROCESS, 0, kNice);  // of this thread only; steps have priority
    device_.use_on_this_thread();
    writer_is(WriterState::kCopies);
    copied_->synchronize();
    writer_is(WriterState::kWrites);
    const auto copied = Clock::now();
    copy_seconds_ = seconds_between(begun_, copied);
    auto record = retried({}, [&] { return write_shard(folder); });
    write_seconds_ = seconds_between(copied, Clock::now());
    writer_is(WriterState::kIdle);
    return record;
  });
  stall_seconds_ = seconds_between(start, Clock::now());
  return {};
}

void Checkpointer::writer_is(WriterState state) const {
  if (FlightRecorder* const recorder = flight_recorder()) recorder->enter(state, progress_.steps);
}

void Checkpointer::before_update() {
  if (copying_) compute_.wait(*copied_);
  copying_ = false;
}

Result<ShardRecord> Checkpointer::write_shard(const std::string& folder) const {
  auto writer = ShardWriter::create(folder + "/" + shard_name(job_.world_rank()), attempt_);
  if (!writer) return writer.error();
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!shards_[i].writes) continue;
    if (auto added = writer.value().add(shards_[i].shard, host_->data() + buffer_.offset[i]); !added)
      return added.error();
    if (FlightRecorder* const recorder = flight_recorder()) recorder->writer_goes_on();
  }
  return writer.value().finish();
}

bool Checkpointer::phase_done() const {
  if (outcome_) return true;
  const auto ready = [](const auto& future) {
    return !future.valid() || future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  return phase_ == Phase::kWriting ? ready(writing_) : phase_ == Phase::kPublishing && ready(publishing_);
}

// Stores the result of the phase's thread.
void Checkpointer::collect() {
  if (outcome_ || phase_ == Phase::kIdle) return;
  const HostScope waits(HostState::kAwaitsCheckpoint);
  if (phase_ == Phase::kWriting) {
    auto record = writing_.get();
    outcome_ = record ? Result<void>{} : Result<void>(record.error());
    if (record) record_ = to_bytes(record.value());
  } else {
    outcome_ = publishing_.valid() ? publishing_.get() : Result<void>{};
  }
}

PartOutcome Checkpointer::part_outcome() {
  if (phase_ == Phase::kIdle || !phase_done()) return PartOutcome::kNone;
  collect();
  return outcome_->ok() ? PartOutcome::kSaved : PartOutcome::kFailed;
}

Result<void> Checkpointer::advance(int saved, int failed) {
  if (phase_ == Phase::kIdle || saved + failed < job_.world_size()) return {};
  return next_phase(failed == 0);
}

// Waits until the phase is done on all ranks. They exchange a message every few seconds, so each shows that it is
// alive, however long the slowest takes. Its file operations have their own deadline (lib/fault/hang_clock.h).
void Checkpointer::await_all_parts() {
  constexpr std::chrono::seconds kRound{5};
  const auto await = [&](const auto& future) {
    const HostScope waits(HostState::kAwaitsCheckpoint);
    if (future.valid()) future.wait_for(kRound);
  };
  for (bool done = false; !done; tick_flight_recorder()) {
    if (!outcome_ && phase_ == Phase::kWriting) await(writing_);
    if (!outcome_ && phase_ == Phase::kPublishing) await(publishing_);
    done = job_.all_of(phase_done());
  }
}

Result<void> Checkpointer::finish() {
  while (phase_ != Phase::kIdle) {
    await_all_parts();
    collect();
    if (auto done = next_phase(job_.all_of(outcome_->ok())); !done) return done;
  }
  return last_;
}

// Starts the next phase, given this rank's outcome. Collective.
Result<void> Checkpointer::next_phase(bool all_well) {
  const Result<void> mine = *outcome_;
  outcome_.reset();
  if (!all_well) {
    phase_ = Phase::kIdle;
    return failure(mine);
  }
  if (phase_ == Phase::kPublishing) {
    phase_ = Phase::kIdle;
    failures_ = 0;
    last_ = {};
    saved_step_ = progress_.steps;
    if (job_.world_rank() == 0) {
      work_seconds_ = stats_.slowest_seconds + publish_seconds_;
      stats_.seconds = seconds_between(begun_, Clock::now());
      published_.push_back(stats_);
    }
    return {};
  }
  int64_t bytes = 0;
  for (const StateBuffer::Run& run : buffer_.runs) bytes += run.bytes;
  const std::vector<WriteFigures> figures =
      job_.gather(WriteFigures{bytes, stall_seconds_, copy_seconds_, write_seconds_});
  std::vector<std::string> records = job_.gather(record_);  // serialized: rank 0's writer thread parses them, not its
                                                            // step
  phase_ = Phase::kPublishing;
  if (job_.world_rank() != 0) return {};
  stats_ = {.step = progress_.steps, .behind = behind_};
  for (size_t rank = 0; rank < figures.size(); ++rank) {
    const WriteFigures& of_rank = figures[rank];
    stats_.bytes += of_rank.bytes;
    stats_.stall_seconds = std::max(stats_.stall_seconds, of_rank.stall_seconds);
    stats_.copy_seconds = std::max(stats_.copy_seconds, of_rank.copy_seconds);
    if (of_rank.write_seconds > stats_.slowest_seconds) {
      stats_.slowest_seconds = of_rank.write_seconds;
      stats_.slowest_rank = static_cast<int>(rank);
    }
  }
  publishing_ =
      std::async(std::launch::async, [this, records = std::move(records), folder = folder_, progress = progress_] {
        const auto begun = Clock::now();
        writer_is(WriterState::kPublishes);
        auto published = publish(records, folder, progress);
        writer_is(WriterState::kIdle);
        publish_seconds_ = seconds_between(begun, Clock::now());
        return published;
      });
  return {};
}

std::string layout_text(const Config& config, const Mesh& mesh) {
  return fmt::format("{}, {} chunk(s), zero {}", mesh.grid.sizes(), config.parallel.chunks, config.parallel.zero);
}

// Returns the manifest without tensors and files.
Manifest Checkpointer::manifest_head(const RunProgress& progress) const {
  Manifest manifest{.attempt = attempt_, .step = progress.steps};
  manifest.info.texts = texts_;
  manifest.info.texts["config"] = config_text_;
  manifest.info.texts["layout"] = layout_text(config_, mesh_);
  manifest.info.numbers = {{"samples", progress.samples}};
  if (!progress.fp8_history.empty()) manifest.info.lists[kFp8History] = progress.fp8_history;
  if (!progress.recent_steps.empty()) manifest.info.lists[kRecentSteps] = progress.recent_steps;
  if (!progress.router_bias.empty()) manifest.info.lists[kRouterBias] = progress.router_bias;
  return manifest;
}

Result<void> Checkpointer::check_manifest(const RunProgress& progress) const {
  const auto text = manifest_text(manifest_head(progress));
  if (!text) return file_error("checkpoints of this run could not be written: {}", text.error().message);
  return {};
}

Result<void> Checkpointer::publish(const std::vector<std::string>& records, const std::string& folder,
                                   RunProgress progress) {
  if (may_publish_)
    if (auto may = retried({}, may_publish_); !may) return may;
  Manifest manifest = manifest_head(progress);
  for (const std::string& record : records)
    if (auto added = manifest.add(from_bytes<ShardRecord>(record)); !added) return added;
  auto index = retried({}, [&] { return write_index(folder, manifest); });
  if (!index) return index.error();
  manifest.files.push_back(index.value());
  if (auto written = retried({}, [&] { return write_manifest(folder, manifest); }); !written) return written;
  if (auto done = retried({}, [&] { return tri::publish(dir_, progress.steps, attempt_); }); !done) return done;
  // The checkpoint is valid even if an old file can't be removed.
  valid_.insert(step_name(progress.steps));
  const auto removed = prune(dir_, config_.checkpoint.keep_last, config_.checkpoint.keep_every, attempt_, {}, &valid_);
  if (!removed) log_warn("{}", removed.error().message);
  return {};
}

// Aborts the checkpoint in progress. Returns the same on all ranks. Collective.
Result<void> Checkpointer::failure(const Result<void>& mine) {
  FailureReport report;
  const std::vector<Result<void>> of_ranks = job_.gather(mine);
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (of_ranks[rank]) continue;
    report.text += fmt::format("\n  rank {}: {}", rank, of_ranks[rank].error().message);
    report.transient &= is_transient(of_ranks[rank].error().os_error);
  }
  report = job_.broadcast(report);
  ++failures_;
  const std::string text = fmt::format("checkpoint of step {} failed ({}):{}", progress_.steps,
                                       counted(failures_, "consecutive failure"), report.text);
  if (report.transient && saved_step_ > 0)
    last_ = Error{
        fmt::format("{}\nStorage may recover: re-run the job; it resumes from the checkpoint of step {}, and the steps "
                    "after that ARE LOST",
                    text, saved_step_),
        ExitCode::kDrained};
  else
    last_ = Error{text, ExitCode::kFile};
  if (job_.world_rank() == 0) {
    // The next steps must not wait for storage that hangs; remaining files are removed at the next attempt.
    constexpr std::chrono::seconds kTimeout{1};
    const auto remove = [folder = folder_] {
      std::error_code ignored;
      return std::filesystem::remove_all(folder, ignored) > 0;
    };
    if (!folder_.empty()) within(folder_, kTimeout, remove, false);
    log_warn("{}", text);
  }
  folder_.clear();
  return failures_ < config_.checkpoint.max_failures ? Result<void>{} : last_;
}

double Checkpointer::seconds_needed() const {
  if (phase_ == Phase::kIdle) return work_seconds_;
  return work_seconds_ + std::max(0.0, work_seconds_ - seconds_between(begun_, Clock::now()));
}

std::vector<CheckpointStats> Checkpointer::published() { return std::exchange(published_, {}); }

}  // namespace tri
