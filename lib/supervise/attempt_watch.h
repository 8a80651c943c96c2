// The attempt in progress, or the last one: what its ranks and nodes show, and the facts from which the cause of its
// end is derived (causes.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/supervise/causes.h"
#include "lib/supervise/node_pool.h"

namespace tri {

class AttemptWatch {
 public:
  explicit AttemptWatch(int ranks_per_node) : ranks_per_node_(ranks_per_node) {}  // 0: unknown

  // Begins another attempt, on nodes whose newest reports are in `pool`.
  void begin(PastAttempt attempt, const NodePool& pool, double now);

  const PastAttempt& attempt() const { return attempt_; }
  PastAttempt& attempt() { return attempt_; }
  EndFacts& facts() { return facts_; }
  const EndFacts& facts() const { return facts_; }
  bool uses(const std::string& node) const;  // in the current or the last attempt
  double seconds(double now) const { return now - began_; }
  double date_of(double time) const { return attempt_.began + (time - began_); }  // seconds since 1970

  // Takes the report of a node of this attempt. Returns the hardware faults in it; a fault that has ended the attempt
  // may be reported after its end.
  std::vector<AttemptCause> take(const AgentReport& report, const Thresholds& thresholds, double now);
  // ... and, while the attempt continues, what it reports about the ranks.
  void take_ranks(const AgentReport& report, double now);

  // Whether ranks have ended, are stopped, or do not start: then the attempt must be ended, and facts() has the reason.
  // `has_begun`: whether the ranks hold the run folder.
  bool must_end(const NodePool& pool, const Thresholds& thresholds, const std::function<bool()>& has_begun, double now);

  // Records a finding. The first of a kind keeps its position, so that the first cause wins; a repetition updates its
  // time.
  void add(AttemptCause finding);
  bool is_first_report_of(const AttemptCause& finding) { return reported_.insert(finding.text).second; }
  // Does nothing if the attempt already has such a finding for this node.
  void add_once(CauseKind kind, const std::string& node, const std::string& text);

  // Returns the failure in a rank's flight recorder, for use if the run's events do not name the rank.
  std::optional<RunEvent> recorded_failure() const;
  // Returns the only node of the attempt that does not see the run folder, or "" if there are none or several. Needed
  // because an error agreed on by all ranks does not show where it occurred.
  std::string blind_node(const NodePool& pool) const;

 private:
  struct RankSince {
    int world_rank = -1;
    double since = 0;
  };
  using RanksSince = std::map<int, RankSince>;  // by process
  struct NodeSight {
    int64_t attempt = 0;  // number of the attempt that uses it, or used it last
    // of the current attempt
    RanksSince stopped, gone;                     // since when a rank was seen so
    double behind = 0;                            // since when its ranks are late to begin; 0: they are not
    bool few = false;                             // ... because it has fewer processes than its share
    std::map<std::string, GpuSight> gpus;         // by pci, as last seen
    std::map<std::string, int64_t> bytes_before;  // that ports had transferred when the attempt began
    // of all attempts
    std::map<std::string, int64_t> changes, errors;       // by port
    std::vector<double> flaps;                            // when a port in use lost its link
    std::vector<std::pair<double, int64_t>> error_times;  // when so many errors were added
  };

  bool is_used(const NodeSight& sight, const AgentReport& report, const PortSight& port) const;
  void watch_gpus(const AgentReport& report, NodeSight& sight, std::vector<AttemptCause>& found) const;
  void watch_ports(const AgentReport& report, NodeSight& sight, const Thresholds& thresholds, double now,
                   std::vector<AttemptCause>& found) const;
  void watch_beginning(const NodePool& pool, double now);
  std::optional<AttemptCause> late_beginning(const NodePool& pool, const Thresholds& thresholds, double now) const;
  std::optional<AttemptCause> spinning_at_start(const NodePool& pool, const Thresholds& thresholds,
                                                const std::function<bool()>& has_begun, double now);

  int ranks_per_node_;
  PastAttempt attempt_;
  EndFacts facts_;
  double began_ = 0;
  std::map<std::string, NodeSight> nodes_;
  std::set<std::string> reported_;                                    // findings already logged
  std::optional<std::pair<std::string, FailureSight>> first_failed_;  // host; from the ranks' flight recorders
  double spin_since_ = 0;                                             // the window of spinning_at_start
  std::map<std::pair<std::string, int>, double> cpu_before_;          // CPU seconds of each process at the window's
                                                                      // beginning
};

}  // namespace tri
