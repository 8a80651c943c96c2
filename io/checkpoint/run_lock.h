// One job at a time in a run's folders, and nobody who removes checkpoints alongside it. The run folder and the folder
// of its checkpoints, which another run may name too, have a lock file each: RUN_DIR/run.lock and
// CHECKPOINT_DIR/checkpoint.lock. A lock file is locked by flock and says who holds it: host, process, attempt, start,
// run folder. The kernel gives the lock up when its holder dies, so what a dead one left is taken over, with a log
// line. On file systems without flock the text alone decides: a holder that is dead on this host is replaced, others
// refuse. A run that begins waits for a holder that is no run, five minutes at most; all others refuse at once.
// A batch job that was started again is the heir of its earlier starts, whose processes may live on where their node
// was lost to the scheduler: it replaces the files, and they find out before they publish anything.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/base/file.h"

namespace tri {

struct BatchStart {
  std::string job;  // the scheduler's name of the job, a word; "": not in one
  int restart = 0;  // how often it was started before
};

struct RunFolders {
  std::string run;          // run.dir; "": none, the checkpoints are held by one that is no run
  std::string checkpoints;  // checkpoint.dir, which is made when it is missing; "": none
};

class RunLock {
 public:
  enum class How { kFlock, kTextAlone };  // kFlock falls back by itself where the file system has none

  // Error naming the folder and its holder when there is one, and what to do; then neither folder is held.
  static Result<RunLock> take(const RunFolders& folders, const std::string& attempt, const BatchStart& start = {},
                              How how = How::kFlock);

  // The lock of the process that supervises the run in `run_dir` and starts its ranks: RUN_DIR/supervise.lock. The
  // ranks have their own. Same rules, same errors.
  static Result<RunLock> take_for_driver(const std::string& run_dir, const std::string& attempt,
                                         const BatchStart& start = {}, How how = How::kFlock);

  // Error when a file is no longer ours: removed, or taken by another attempt; or, with its errno, where storage does
  // not say. To be asked before publishing.
  Result<void> check() const;

 private:
  // One lock file, given up at the end.
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

// Who holds a lock file, as another process finds out that does not want it.
struct LockHolder {
  std::string attempt, job;
  std::string text;      // "process 5 on node7 (attempt x, since y)"
  bool by_text = false;  // by the file's text alone: on a file system without flock, its holder may have ended
};
// The holder of RUN_DIR/run.lock or RUN_DIR/supervise.lock. Nothing: the file is free, or `start` is a later start of
// the holder's job, which would take it over. Error: storage does not say.
Result<std::optional<LockHolder>> holder_of_lock(const std::string& path, const BatchStart& start = {},
                                                 RunLock::How how = RunLock::How::kFlock);
// What a refusal adds to its remedies where `holder` may have ended: "; if ..., remove the file", or "".
std::string stale_lock_remedy(const LockHolder& holder);

// Whether this machine sees that `attempt` holds the folder's lock, which another machine's process has taken: a
// transient error with Missing::kTransient where it does not. Both then have different file systems under that name.
Result<void> see_lock(const std::string& checkpoints, const std::string& attempt);

}  // namespace tri
