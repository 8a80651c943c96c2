// The driver of a supervised run: the Supervisor on real sockets, processes, clocks and the run folder.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/checkpoint/run_lock.h"
#include "lib/supervise/process_launcher.h"
#include "lib/supervise/supervisor.h"

namespace tri {

struct DriverOptions {
  std::string run_dir, checkpoint_dir;  // absolute
  std::string program;                  // this executable
  std::vector<std::string> ranks;       // a rank's command
  std::vector<std::string> marks;       // "NAME=value" in its environment
  LaunchCommands commands;
  Supervisor::Setup setup;
  BatchStart start;          // of the scheduler's job; its name is "" without one
  bool one_machine = false;  // all agents are processes of this machine
};

// Supervises the run until it is over. Returns the exit status. Fails with kFile, without touching anything, if another
// driver, or ranks that no driver has started, use the run folder. Call only from the main thread of a process with one
// driver: it handles stop signals.
Result<int> run_driver(const DriverOptions& options);

// The Supervisor's access to the run folder.
class RunFolderLog : public RunLog {
 public:
  // `checkpoint_timeout`: how long newest_checkpoint() waits; a checkpoint may have thousands of files.
  RunFolderLog(std::string run_dir, std::string checkpoint_dir, std::string job,
               std::chrono::milliseconds checkpoint_timeout = std::chrono::seconds(10));
  RunHistory history(double wall) override;
  void append(RunEvent event, const std::string& attempt) override;
  int64_t newest_checkpoint() override;
  int64_t reached_step(const std::string& attempt) override;
  bool has_begun(const std::string& attempt) override;
  std::optional<RunEvent> first_cause(const std::string& attempt) override;
  std::vector<RunEvent> stragglers(const std::string& attempt) override;
  std::vector<std::string> suspects(const std::string& attempt) override;
  Thresholds thresholds() override;

 private:
  std::string run_dir_, checkpoint_dir_;
  const std::chrono::milliseconds checkpoint_timeout_;
  // Returns the time of an event of `attempt`. Times within an attempt do not depend on changes of the wall clock.
  double date_for(const std::string& attempt);

  EventLog event_log_;
  std::vector<RunEvent> events_;  // as last read
  struct Unwritten {
    size_t after = 0;  // number of events before it
    RunEvent event;
  };
  std::vector<Unwritten> unwritten_;  // events not known to be written
  std::string dated_attempt_;         // the attempt of the newest event
  double date_offset_ = 0;            // ... and the offset that was added to the monotonic time for its first event
  Thresholds known_;
  std::string complaint_;  // the last one about the thresholds
  // The step of the newest checkpoint found valid; 0: none. Shared with a search that may outlive its time limit.
  std::shared_ptr<std::atomic<int64_t>> checkpoint_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace tri
