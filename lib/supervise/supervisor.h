// The driver's phases: it gathers agents, starts an attempt, watches it, ends its remaining processes, decides, and
// starts again. It uses no processes, sockets or clocks directly: three interfaces (interfaces.h) hide them, and its
// caller passes the time. NodePool manages the nodes, AttemptWatch the attempt.
//
//   gather --> (examine) --> run --> end --> (doctor) --> decide --> gather ...
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/supervise/attempt_watch.h"
#include "lib/supervise/decisions.h"
#include "lib/supervise/interfaces.h"
#include "lib/supervise/node_pool.h"

namespace tri {

// Interval between calls of Supervisor::tick, which examines all nodes; a shorter one would cost more without benefit.
inline constexpr double kTickSeconds = 0.1;

class Supervisor {
 public:
  struct Setup {
    std::vector<std::string> nodes;  // of the allocation, in order of preference
    int nodes_needed = 1;
    std::string run_dir;     // for messages
    std::string job;         // of the attempts
    bool examine = false;    // the doctor examines all nodes before the first attempt
    std::string host;        // the driver's own
    int ranks_per_node = 0;  // 0: unknown
  };
  Supervisor(Setup setup, Launcher& launcher, AgentLink& agents, RunLog& event_log);

  void take(const AgentReport& report, Moment now);
  // An agent of `node` has proved that it knows the token, but its build differs, so its messages can't be read.
  void agent_of_another_build(const std::string& node, Moment now);
  void stop_requested(Moment now);  // called on a signal
  void tick(Moment now);            // called a few times per second

  std::optional<int> status() const { return status_; }  // the driver's exit status once it is over

 private:
  enum class Phase { kBegin, kGather, kExamine, kRun, kEnd, kDoctor, kOver };

  void enter(Phase phase, double now);
  void set_clocks(Moment now);
  void begin(double now);
  void do_chores(double now);
  void leave(int status, double now);

  // kGather
  void gather(double now);
  std::vector<std::string> preferred(double now) const;
  void await_daemon(const std::string& name, double now);
  void start_attempt(const std::vector<std::string>& names, double now);
  void read_history(double now);
  void exclude(const std::string& node, const std::string& why, double now) {
    exclude(node, why, now, thresholds_.exclusion_hours);
  }
  void exclude(const std::string& node, const std::string& why, double now, double hours);

  // kExamine, kDoctor
  void examine(double now);
  void await_examination(double now);
  void await_doctor(double now);
  bool doctor_has_answered(const NodePool::Node& node) const;

  // kRun
  void run(double now);
  void drain(double now);
  void found(AttemptCause finding, double now);
  Decision decide_at_work_now(const AttemptCause& finding, double now) const;
  void watch_stragglers(double now);
  void watch_spares(double now);
  void watch_step(double now);

  // kEnd
  void end_attempt(double now);
  void finish_ending(double now);
  bool is_clear(const std::string& name, double now);
  void conclude(double now);
  void decide_now(std::optional<Diagnosis> diagnosis, double now);

  Setup setup_;
  Launcher& launcher_;
  RunLog& event_log_;
  NodePool pool_;
  AttemptWatch attempt_;
  Thresholds thresholds_;
  std::vector<PastAttempt> past_;

  Phase phase_ = Phase::kBegin;
  double since_ = 0;  // of the phase
  double wall_ = 0;   // current wall clock
  bool stop_requested_ = false;
  std::optional<int> status_;
  struct Drain {
    double next = 0, pause = 0;
  } drain_;                                    // of the attempt
  double replace_requested_ = 0;               // when the attempt was requested to drain for a spare
  bool killed_ = false;                        // the launcher, since it did not end when requested
  double looked_ = 0, pulsed_ = 0, read_ = 0;  // when stragglers, agents and thresholds were last handled
  std::string suspect_;                        // the node that the doctor examines
  std::vector<std::string> examined_;          // the nodes that the doctor examines before the first attempt
  double examination_seconds_ = 0;             // duration of that, until it is recorded
};

}  // namespace tri
