// Locks a run's folders, so that only one job uses them and no other process removes checkpoints meanwhile. The run
// folder and the folder of its checkpoints, which another run may share, have a lock file each: RUN_DIR/run.lock and
// CHECKPOINT_DIR/checkpoint.lock.
//
// A lock file is locked by flock and names its holder: host, process, attempt, start, run folder. The kernel releases
// the lock when the holder dies, so a dead holder's file is taken over, with a log line. On file systems without flock
// only the text decides: a holder that is dead on this host is replaced, others are respected. A starting run waits up
// to five minutes for a holder that is not a run; everything else is refused at once.
//
// A requeued batch job takes over from its earlier starts, whose processes may survive if the scheduler lost their
// node: it replaces the files, which those processes notice before they publish anything. Errors have code kFile.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/base/file.h"

namespace tri {

struct BatchStart {
  std::string job;  // the scheduler's name of the job, one word; "": no job
  int restart = 0;  // how often it was started before
};

struct RunFolders {
  std::string run;          // run.dir; "": none, the holder of the checkpoints is not a run
  std::string checkpoints;  // checkpoint.dir, created if it is missing; "": none
};

class RunLock {
 public:
  enum class How { kFlock, kTextAlone };  // kFlock falls back to kTextAlone on file systems without flock

  // Takes the locks. Fails, holding neither, if there is another holder; the error names the folder, the holder and the
  // remedy.
  static Result<RunLock> take(const RunFolders& folders, const std::string& attempt, const BatchStart& start = {},
                              How how = How::kFlock);

  // Takes the lock of the process that supervises the run in `run_dir` and starts its ranks: RUN_DIR/supervise.lock.
  // The ranks take their own locks. The rules and errors are the same.
  static Result<RunLock> take_for_driver(const std::string& run_dir, const std::string& attempt,
                                         const BatchStart& start = {}, How how = How::kFlock);

  // Fails if a file is no longer this process's: removed, or taken by another attempt; or, with its errno, if storage
  // does not answer. Call it before publishing.
  Result<void> check() const;

 private:
  // One lock file, released by the destructor.
  class File {
   public:
    // `field`: the config field that names its folder, for messages.
    static Result<File> take(const std::string& path, const std::string& field, const std::string& run,
                             const std::string& attempt, const BatchStart& start, How how);
    File(File&&) noexcept = default;
    File& operator=(File&&) noexcept = default;
    ~File();
    Result<void> check() const;

   private:
    File() = default;
    std::string path_, text_;
    Descriptor file_;
  };

  RunLock() = default;
  std::vector<File> files_;
};

// The holder of a lock file, as seen by a process that does not take it.
struct LockHolder {
  std::string attempt, job;
  std::string text;      // "process 5 on node7 (attempt x, since y)"
  bool by_text = false;  // only by the file's text: on a file system without flock, the holder may have ended
};
// Returns the holder of RUN_DIR/run.lock or RUN_DIR/supervise.lock. None: the file is free, or `start` is a later start
// of the holder's job, which would take it over. Fails if storage does not answer.
Result<std::optional<LockHolder>> holder_of_lock(const std::string& path, const BatchStart& start = {},
                                                 RunLock::How how = RunLock::How::kFlock);
// Returns what a refusal adds to its remedies if `holder` may have ended: "; if ..., remove the file", else "".
std::string stale_lock_remedy(const LockHolder& holder);

// Checks that this machine sees that `attempt`, a process of another machine, holds the folder's lock. Fails with an
// error that is transient with Missing::kTransient otherwise: the machines then have different file systems under that
// name.
Result<void> see_lock(const std::string& checkpoints, const std::string& attempt);

}  // namespace tri
