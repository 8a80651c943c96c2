// Checkpoints of a run: two stages, so that training hardly waits.
//
//   begin()    every rank copies its shards from the device to host memory, on a stream of its own, alongside the next
//              step (whose update waits for the copies); a thread then writes them to a file of the rank's own
//   advance()  after every step, with the numbers of ranks that are done, which the step's statistics carry: when all
//              are, rank 0 gathers the records of the files and publishes the checkpoint, in its thread
//   finish()   waits for what is under way
//
// A checkpoint comes into being by a rename, after everything in it is on storage: io/checkpoint. Transient trouble of
// storage (io/base/retry.h) is tried again, in the background. What fails all the same is reported and counted;
// training goes on until checkpoint.max_failures in a row. Errors that end the run: kDrained, so that it is started
// again, where nothing but such trouble was met and an older checkpoint stands; else kFile.
// All calls are collective over the job, from the thread that enqueues, except part_outcome() and check_manifest().
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
#include "lib/checkpoint/search.h"
#include "lib/checkpoint/state.h"
#include "lib/comm/job.h"

namespace tri {

struct CheckpointStats {
  int64_t step = 0;
  int64_t bytes = 0;           // of all ranks
  bool behind = false;         // it was due while the one before was under way, for which training waited
  double stall_seconds = 0;    // the slowest rank's training waited, for the one before and to start the copies
  double seconds = 0;          // from begin() until it was published
  double copy_seconds = 0;     // ... until the slowest rank's copies were done
  double slowest_seconds = 0;  // of the ranks' writing
  int slowest_rank = 0;
};

// Of this rank's part of what is under way; kNone: there is nothing, or it is still being written.
enum class PartOutcome { kNone, kSaved, kFailed };

// What a checkpointer works with. What is referred to outlives it.
struct CheckpointContext {
  const Config& config;  // resolved and planned
  const Config& requested;  // what a checkpoint keeps as its run's config: what was auto still is (job_plan.h)
  const Mesh& mesh;
  Job& job;
  Device& device;
  Stream& compute;             // changes the state
  const StoreTensors& store;   // where it lies
  const std::string& attempt;  // of this start of the job, the same on all ranks
  // What a checkpoint says in addition to its config, by name. Rank 0's counts.
  std::map<std::string, std::string> texts = {};
};

class Checkpointer {
 public:
  explicit Checkpointer(const CheckpointContext& context);
  ~Checkpointer();

  // Loads what `search` has found into this rank's local shards (then ParameterGathers::state_loaded). What turns out
  // damaged is passed over, as the log says, for what it finds next. None: nothing was found; the state is as it was.
  // Error: it is of another model; an error of the search; kDrained: storage does not answer, also after several tries,
  // on some rank, which may lack a mount.
  Result<std::optional<RunProgress>> load(CheckpointSearch& search);

  int64_t host_bytes() const { return buffer_.bytes; }  // of this rank, for as long as this lives

  // Begins a checkpoint of the state after `completed`; first waits for the one before, if it is under way.
  Result<void> begin(RunProgress completed);
  // Before the compute stream changes the state: it waits for the copies.
  void before_update();

  // For the next step's statistics. Not collective.
  PartOutcome part_outcome();
  // `saved`, `failed`: numbers of ranks that said so, the same on all ranks. Error after too many failures.
  Result<void> advance(int saved, int failed);
  // Waits until nothing is under way. Error when the last checkpoint could not be completed.
  Result<void> finish();

  // The step of the newest checkpoint that this run saved or began from; 0: none.
  int64_t saved_step() const { return saved_step_; }
  // One is under way: of the step that it holds. The same on all ranks.
  std::optional<int64_t> under_way() const {
    return phase_ == Phase::kIdle ? std::nullopt : std::optional(progress_.steps);
  }
  // Rank 0: seconds that one more would take from now on, with what is under way before it, as long as the last one.
  double seconds_needed() const;

  // A dry run: the manifest of a checkpoint of the state after `progress` is made as text, so that a run whose
  // checkpoints could not be saved is refused at its start. Rank 0 alone.
  Result<void> check_manifest(const RunProgress& progress) const;

  // Asked on rank 0, from another thread, before a checkpoint gets its name; an error makes it fail.
  void set_may_publish(std::function<Result<void>()> may) { may_publish_ = std::move(may); }
  // What was published since the last call, on rank 0.
  std::vector<CheckpointStats> published();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kIdle, kWriting, kPublishing };

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
  const std::string config_text_;  // as asked
  const Mesh mesh_;
  Job& job_;
  Device& device_;
  Stream& compute_;
  std::string dir_, attempt_;
  const std::map<std::string, std::string> texts_;
  std::vector<StateShard> shards_;
  StateBuffer buffer_;
  HostBuffer<char> host_;  // laid out so
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> state_ready_, copied_;
  bool copying_ = false;  // the compute stream has not been told to wait yet

  Phase phase_ = Phase::kIdle;
  RunProgress progress_;  // of the checkpoint under way
  std::string folder_;
  Clock::time_point begun_;
  bool behind_ = false;
  double stall_seconds_ = 0, copy_seconds_ = 0, write_seconds_ = 0, publish_seconds_ = 0;  // the last on rank 0
  std::set<std::string> valid_;  // checkpoints that it has published or found whole; for publish() alone
  std::function<Result<void>()> may_publish_;
  std::optional<Result<void>> outcome_;  // of this rank's part, when it is done
  std::string record_;                   // its file: a ShardRecord, as bytes
  Result<void> last_;                    // of the last checkpoint
  int failures_ = 0;                     // in a row
  int64_t saved_step_ = 0;
  double work_seconds_ = 0;  // rank 0: of the last one, copies, files and publishing, without waits for training
  CheckpointStats stats_;    // rank 0
  std::vector<CheckpointStats> published_;
  // Last: their destructors wait for threads that use the members above.
  std::future<Result<ShardRecord>> writing_;
  std::future<Result<void>> publishing_;  // rank 0
};

}  // namespace tri
