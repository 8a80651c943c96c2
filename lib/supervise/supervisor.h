// The driver's course: gathers agents, starts an attempt, watches it, ends what is left of it, decides, and begins
// again. It knows neither processes nor sockets nor clocks: those are behind three interfaces, and its caller passes
// the time.
//
//   gather --> (examine) --> run --> end --> (doctor) --> decide --> gather ...
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/supervise/agent_messages.h"
#include "lib/supervise/causes.h"
#include "lib/supervise/decisions.h"
#include "lib/supervise/history.h"
#include "lib/supervise/thresholds.h"

namespace tri {

// A moment by both clocks of the driver's machine.
struct Moment {
  double monotonic = 0;  // seconds; more than 0. All durations are measured by it
  double wall = 0;       // seconds since 1970: dates in the run folder, which somebody or NTP may set at any time
};

struct RanksStart {
  std::string attempt;
  int64_t number = 0;
  std::vector<std::string> nodes;
};

// What starts processes on nodes. Nothing here waits.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual void start_agents(const std::vector<std::string>& nodes) = 0;
  // Nodes whose agent could not be started, or has failed, since this was asked last; where nodes were started together
  // it is not known of which. Of two starts of a node the later one counts.
  virtual std::vector<std::string> failed_agents() = 0;
  virtual void start_ranks(const RanksStart& start) = 0;
  virtual std::optional<int> ranks_status() = 0;  // of the ranks started last; none: they run
  virtual void drain_ranks() = 0;                 // they are to save a checkpoint and leave with 75
  enum class End { kAsk, kKill };
  virtual void end_ranks(End how) = 0;  // of the launcher's own process
};

class AgentLink {
 public:
  virtual ~AgentLink() = default;
  virtual bool send(const std::string& node, const AgentOrder& order) = 0;
};

// The run folder. Storage that hangs costs each call a second or two.
class RunBook {
 public:
  virtual ~RunBook() = default;
  virtual RunHistory history(double wall) = 0;  // exclusions that hold at `wall`, seconds since 1970
  virtual void append(RunEvent event, const std::string& attempt) = 0;
  virtual int64_t newest_checkpoint() = 0;
  virtual int64_t reached_step(const std::string& attempt) = 0;  // by its ranks' own events; 0: they name none
  virtual bool has_begun(const std::string& attempt) = 0;  // its ranks hold the run folder; true where nobody can say
  virtual std::optional<RunEvent> first_cause(const std::string& attempt) = 0;
  // Of the ranks that are much slower than their peers, and have been for long: the newest events that say so.
  virtual std::vector<RunEvent> stragglers(const std::string& attempt) = 0;
  virtual std::vector<std::string> suspects(const std::string& attempt) = 0;  // hosts
  virtual Thresholds thresholds() = 0;
};

// Between two calls of Supervisor::tick, which looks at all nodes: less would cost more, and see no more.
inline constexpr double kTickSeconds = 0.1;

class Supervisor {
 public:
  struct Setup {
    std::vector<std::string> nodes;  // of the allocation, in the order in which they are taken
    int nodes_needed = 1;
    std::string run_dir;     // for messages
    std::string job;         // of the attempts
    bool examine = false;    // the doctor looks at all nodes before the first attempt
    std::string host;        // the driver's own
    int ranks_per_node = 0;  // 0: not known
  };
  Supervisor(Setup setup, Launcher& launcher, AgentLink& agents, RunBook& book);

  void take(const AgentReport& report, Moment now);
  // An agent of `node` proved that it knows the token, and is of another build: it can't be understood.
  void agent_of_another_build(const std::string& node, Moment now);
  void stop_requested(Moment now);  // by a signal
  void tick(Moment now);            // a few times a second

  std::optional<int> status() const { return status_; }  // the driver's, once it is over
  const std::vector<std::string>& nodes_in_use() const { return current_.nodes; }

 private:
  enum class Phase { kGather, kExamine, kRun, kEnd, kDoctor, kOver };
  struct Node {
    bool lost = false;
    double heard = 0;     // 0: never
    double foreign = 0;   // when an agent of another build was last heard; 0: never
    int64_t outdated = -1;  // agents of this start or an earlier one do not count: a newer one has to report
    double asked = 0;     // since when its agent is awaited
    double excluded = 0;  // when this driver last excluded it; 0: never
    double probed = 0;
    int probes = 0;
    int failed = 0;      // starts of its agent since it is awaited
    int64_t number = 0;  // of the attempt that uses it, or used it last
    AgentReport report;
    AgentOrder order;
    std::map<std::string, GpuSight> gpus_before;  // by pci, as they were seen last
    std::map<std::string, int64_t> changes;       // of carriers, by port
    std::map<std::string, int64_t> bytes_before;  // that ports had moved when the attempt began
    std::vector<double> flaps;
    std::map<std::string, int64_t> errors;                // by port
    std::vector<std::pair<double, int64_t>> error_times;  // when so many more were seen
    struct RankSince {
      int world_rank = -1;
      double since = 0;
    };
    std::map<int, RankSince> stopped, gone;  // by process: since when it is seen so
    double behind = 0;                       // since when its ranks have not begun, though others have; 0: they have
    bool few = false;                        // ... since fewer processes than its share are there
  };

  void enter(Phase phase, double now);
  void order(Node& node, OrderKind kind, const std::string& attempt = "");
  void order_all(OrderKind kind, const std::string& attempt = "");
  static bool has_come(const Node& node) { return node.heard > node.asked; }  // the agent that is awaited
  bool heard_since_order(const Node& node) const;
  void probe(const std::string& name, Node& node, double now);
  bool is_lost(const std::string& name, Node& node, double now);
  bool starts_agents(double since) const;
  bool is_cut_off(double now) const;
  bool is_foreign(const Node& node, double now) const;
  bool is_ready(const Node& node, double now) const;
  std::vector<std::string> usable(double now) const;
  bool excluded(const std::string& node) const;
  void exclude(const std::string& node, const std::string& why, double now) {
    exclude(node, why, now, thresholds_.exclusion_hours);
  }
  void exclude(const std::string& node, const std::string& why, double now, double hours);
  bool lacks_daemon(const Node& node, double now) const;
  int num_without_daemon(double now) const;
  std::vector<std::string> preferred(double now) const;
  void await_daemon(const std::string& name, double now);
  void read_history(double now);

  void gather(double now);
  void start_attempt(std::vector<std::string> names, double now);
  void run(double now);
  void watch_ranks(const std::string& name, Node& node, double now);
  void watch_beginning(double now);
  std::optional<AttemptCause> late_beginning(double now) const;
  std::optional<AttemptCause> spinning_at_start(double now);
  void watch_failure(const AgentReport& report);
  void watch_hardware(const std::string& name, Node& node, double now);
  void watch_port_errors(const std::string& name, Node& node, double now);
  bool is_used(const Node& node, const PortSight& port) const;
  void watch_stragglers(double now);
  void found(AttemptCause finding, double now);
  Decision decide_at_work_now(const AttemptCause& finding, double now) const;
  void watch_step(double now);
  void watch_spares(double now);
  void end_attempt(double now);
  void finish_ending(double now);
  void conclude(double now);
  std::string blind_node() const;
  void decide_now(std::optional<Diagnosis> diagnosis, double now);
  void examine(double now);
  void await_examination(double now);
  bool doctor_has_answered(const Node& node) const;
  void await_doctor(double now);
  void renew_agents(double now);
  void leave(int status, double now);
  double date_of(double time) const { return current_.began + (time - began_); }  // within the attempt
  std::string node_of_host(const std::string& host) const;

  Setup setup_;
  Launcher& launcher_;
  AgentLink& agents_;
  RunBook& book_;
  Thresholds thresholds_;
  RunHistory history_;
  std::map<std::string, Node> nodes_;

  Phase phase_ = Phase::kGather;
  double since_ = 0;  // of the phase
  double wall_ = 0;   // the wall clock now
  double began_ = 0;  // of the attempt
  bool begun_ = false, asked_to_stop_ = false, killed_ = false;
  double next_drain_ = 0, drain_pause_ = 0, relieved_ = 0, looked_ = 0, pulsed_ = 0, read_ = 0;
  uint64_t next_order_ = 1;
  std::set<std::string> reported_;  // findings of this attempt that people have been told of
  PastAttempt current_;
  EndFacts facts_;
  std::optional<std::pair<std::string, FailureSight>> first_failed_;  // host; of this attempt, by the ranks' boxes
  double spin_since_ = 0;                                             // the window of spinning_at_start
  std::map<std::pair<std::string, int>, double> cpu_before_;          // ... and what each process had computed then
  bool knows_stranger_ = false;                                       // an agent of another build, of no known node
  std::string suspect_;                                               // whom the doctor looks at
  std::vector<std::string> examined_;                                 // ... before the first attempt
  double examination_seconds_ = 0;                                    // until the book has them
  std::optional<int> status_;
};

}  // namespace tri
