// One start of a Slurm job that trains (slurm/train.sbatch): checks before the trainer starts, and handles its exit
// status. A job is requeued as long as its restarts produce newer checkpoints (job_record.h).
//
//   begin() --> the batch script starts `trireme supervise`, or srun, and waits --> end(status)
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/checkpoint/run_lock.h"
#include "lib/supervise/job_record.h"
#include "lib/supervise/slurm_job.h"

namespace tri {

// What the exit status of `trireme train`, `trireme supervise` or srun means for the job.
enum class JobOutcome { kFinished, kRequeue, kStop };
struct StatusMeaning {
  JobOutcome outcome = JobOutcome::kStop;
  std::string text;  // "drained"
};
StatusMeaning meaning_of(int status);

class BatchJob {
 public:
  struct Options {
    SlurmJob::Start start;
    RunFolders folders;
    int restart_budget = 3;           // restarts in a row that may produce no newer checkpoint
    double controller_seconds = 600;  // timeout for slurmctld
    double node_seconds = 600;        // ... for nodes that neither respond nor are DOWN
    double drain_seconds = 110;       // from the signal until the checkpoint is saved
    double storage_seconds = 60;      // ... for storage
    std::optional<int64_t> begun_at;  // for end(): the newest checkpoint when the trainer was started
  };
  explicit BatchJob(Options options);

  // Prepares the run folder and logs the run's progress; `what` names ranks and nodes. Returns false if the budget is
  // exhausted. Fails with kUsage if the run folder belongs to another job, and with kFile if the folder, or the files
  // of earlier starts of this job in it, are missing or cannot be read, which may be temporary.
  Result<bool> begin(const std::string& what);
  // Returns "NAME=value" entries, after begin(): TRIREME_BEGUN_AT, the step of the newest checkpoint, for end(), and
  // the times at which the job was submitted and allocated, for the trainer.
  std::vector<std::string> environment() const;

  struct Left {
    bool requeue = false;  // Slurm's commands are missing or fail, for example in a container: the caller must requeue
                           // the job
    int progress_restart = 0;
  };
  // Reports the trainer's end, and requeues the job if that helps and its budget allows it. Returns what the caller
  // still has to do. Call it while the signals that end a job are ignored.
  Left end(int status);

 private:
  void say(const std::string& text) const;
  void say_stalled(int count) const;
  // Returns "resumes from step 5", or "starts from step 0": without a checkpoint, or with one that was imported.
  std::string next_start() const;
  int restart() const { return options_.start.batch.restart; }
  int restarts_without_progress() const { return restart() - record_.progress_restart; }
  std::chrono::milliseconds limit() const {  // of a storage call
    return std::chrono::milliseconds(static_cast<int64_t>(1000 * options_.storage_seconds));
  }
  std::string state_path() const { return options_.folders.run + "/slurm.state"; }
  Result<std::string> state_text() const;
  Result<void> await_other_job() const;
  Result<void> load_record();
  void save_record() const;
  void note_progress(int of_restart);
  void take_noted_progress();
  void warn_of_short_limit() const;
  bool requeue();
  void await_nodes() const;
  void exclude_nodes();

  Options options_;
  SlurmJob slurm_;
  JobRecord record_;
  bool has_record_ = false;  // else the state file could not be read
  int64_t newest_ = 0;       // the step of the newest valid checkpoint
};

}  // namespace tri
