// Saves checkpoints of a run in two stages, so that training hardly waits.
//
//   begin()    every rank copies its shards from the device to host memory, on a separate stream, concurrently with
//              the next step (whose update waits for the copies); a thread then writes them to the rank's own file
//   advance()  called after every step with the numbers of ranks that are done, from the step's statistics: when all
//              are, rank 0 gathers the records of the files and publishes the checkpoint, in its thread
//   finish()   waits for the checkpoint in progress
//
// A checkpoint is published by a rename, after everything in it is on storage: io/checkpoint. Transient trouble of
// storage (io/base/retry.h) is retried in the background. A checkpoint that still fails is reported and counted;
// training continues until checkpoint.max_failures fail in a row. Fatal errors: kDrained (restartable) if all failures
// were transient and an older checkpoint exists; otherwise kFile.
//
// Threads: all calls are collective over the job, from the training thread, except part_outcome() and
// check_manifest().
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/flight_recorder/image.h"
#include "kernels/core/device.h"
#include "lib/checkpoint/memory_search.h"
#include "lib/checkpoint/search.h"
#include "lib/checkpoint/state.h"
#include "lib/checkpoint/state_load.h"
#include "lib/comm/job/job.h"

namespace tri {

struct CheckpointStats {
  int64_t step = 0;
  int64_t bytes = 0;  // of all ranks
  // training had to wait because the previous checkpoint was still in progress when this one was due
  bool behind = false;
  // time that the slowest rank's training waited, for the previous checkpoint and to start the copies
  double stall_seconds = 0;
  double seconds = 0;          // from begin() until it was published
  double copy_seconds = 0;     // from begin() until the slowest rank's copies were done
  double slowest_seconds = 0;  // the slowest rank's writing
  int slowest_rank = 0;
};

// The state of this rank's part of the checkpoint in progress; kNone: there is none, or it is still being written.
enum class PartOutcome { kNone, kSaved, kFailed };

// What a checkpointer needs. All references outlive it.
struct CheckpointContext {
  const Config& config;     // resolved and planned
  const Config& requested;  // stored in the checkpoint as the run's config, with auto kept (job_plan.h)
  const Mesh& mesh;
  Job& job;
  Device& device;
  Stream& compute;             // the stream that changes the state
  const StoreTensors& store;   // the state
  const std::string& attempt;  // name of this start of the job, the same on all ranks
  // Further texts in the checkpoint, by name. Rank 0's are stored.
  std::map<std::string, std::string> texts = {};
};

// Returns the layout as a checkpoint's text: "tp 2 x dp 4 x pp 1, 1 chunk(s), zero 1".
std::string layout_text(const Config& config, const Mesh& mesh);

class Checkpointer {
 public:
  // `begun`: a load of state_shards() of the same config and mesh, which finish_begun() ends.
  explicit Checkpointer(const CheckpointContext& context, std::unique_ptr<StateLoad> begun = nullptr);
  ~Checkpointer();

  // Loads the checkpoint that `search` has found into this rank's local shards (call ParameterGathers::state_loaded
  // next). If it turns out to be damaged, logs that and tries the next one that the search finds. Returns none, with
  // the state unchanged, if there is no checkpoint. Fails if it belongs to another model, with an error of the search,
  // or with kDrained if storage does not answer on some rank after several tries (a mount may be missing).
  Result<std::optional<RunProgress>> load(CheckpointSearch& search);

  // Loads a generation from memory. `saved_step`: of the newest checkpoint on storage; 0: none. Fails, with the same
  // error on all ranks and the device's state unchanged, if a segment is damaged or gone.
  Result<void> load(const MemoryGeneration& generation, int64_t saved_step);
  // The same for the load that has begun before. Call before any other function, if there is one.
  Result<void> finish_begun(const MemoryGeneration& generation, int64_t saved_step);

  // Returns what a checkpoint of the state after `progress` contains in addition to tensors.
  CheckpointInfo info(const RunProgress& progress) const { return manifest_head(progress).info; }

  int64_t host_bytes() const { return buffer_.bytes; }  // of this rank, for as long as this lives

  // Begins a checkpoint of the state after `completed`. Waits first for the previous one, if it is in progress.
  Result<void> begin(RunProgress completed);
  // Call before the compute stream changes the state: makes it wait for the copies.
  void before_update();

  // Returns the outcome for the next step's statistics. Not collective.
  PartOutcome part_outcome();
  // `saved`, `failed`: how many ranks reported so, the same on all ranks. Fails after too many failed checkpoints.
  Result<void> advance(int saved, int failed);
  // Waits for the checkpoint in progress. Fails if the last checkpoint could not be completed.
  Result<void> finish();

  // Returns the step of the newest checkpoint that this run saved or started from; 0: none.
  int64_t saved_step() const { return saved_step_; }
  // Returns the step of the checkpoint in progress, if any. Identical on all ranks.
  std::optional<int64_t> under_way() const {
    return phase_ == Phase::kIdle ? std::nullopt : std::optional(progress_.steps);
  }
  // Rank 0: returns the seconds that one more checkpoint would take from now, after the one in progress, if it takes as
  // long as the last one.
  double seconds_needed() const;

  // A dry run: formats the manifest of a checkpoint of the state after `progress`, so that a run whose checkpoints
  // could not be saved fails at its start. Rank 0 only.
  Result<void> check_manifest(const RunProgress& progress) const;

  // Sets a check that rank 0 makes, on another thread, before it publishes a checkpoint; an error makes the checkpoint
  // fail.
  void set_may_publish(std::function<Result<void>()> may) { may_publish_ = std::move(may); }
  // Returns what was published since the last call, on rank 0.
  std::vector<CheckpointStats> published();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kIdle, kWriting, kPublishing };

  Result<void> load_from(const FoundCheckpoint& from, const Manifest* manifest, const std::function<void()>& planned,
                         const std::vector<int>& readers);
  Result<void> finish_load(const FoundCheckpoint& from, StateLoad& load);
  void report_load(const std::string& what, int64_t bytes_read, int64_t stored, double seconds);
  Result<ShardRecord> write_shard(const std::string& folder) const;
  void writer_is(WriterState state) const;
  bool phase_done() const;
  void await_all_parts();
  void collect();
  Result<void> next_phase(bool all_well);
  Result<void> failure(const Result<void>& mine);
  Manifest manifest_head(const RunProgress& progress) const;
  Result<void> publish(const std::vector<std::string>& records, const std::string& folder, RunProgress progress);

  const Config& config_;
  const std::string config_text_;  // of the requested config
  const Mesh mesh_;
  Job& job_;
  Device& device_;
  Stream& compute_;
  std::string dir_, attempt_;
  const std::map<std::string, std::string> texts_;
  std::vector<StateShard> shards_;
  StateBuffer buffer_;
  std::unique_ptr<HostBuffer<char>> host_;  // laid out as buffer_ says; null until a load that has begun is finished
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> state_ready_, copied_;
  bool copying_ = false;  // the compute stream does not wait for the copies yet

  Phase phase_ = Phase::kIdle;
  RunProgress progress_;  // of the checkpoint in progress
  std::string folder_;
  Clock::time_point begun_;
  bool behind_ = false;
  // of the last checkpoint, on rank 0
  double stall_seconds_ = 0, copy_seconds_ = 0, write_seconds_ = 0, publish_seconds_ = 0;
  std::set<std::string> valid_;  // checkpoints that it has published or found intact; only publish() uses it
  std::function<Result<void>()> may_publish_;
  std::optional<Result<void>> outcome_;  // of this rank's part, once it is done
  std::string record_;                   // this rank's file: a ShardRecord, as bytes
  Result<void> last_;                    // result of the last checkpoint
  int failures_ = 0;                     // in a row
  int64_t saved_step_ = 0;
  double work_seconds_ = 0;  // rank 0: of the last checkpoint: copies, files and publishing, without training's waits
  CheckpointStats stats_;    // rank 0
  std::vector<CheckpointStats> published_;
  std::unique_ptr<StateLoad> begun_load_;
  // Last, since their destructors wait for threads that use the members above.
  std::future<Result<ShardRecord>> writing_;
  std::future<Result<void>> publishing_;  // rank 0
};

}  // namespace tri
