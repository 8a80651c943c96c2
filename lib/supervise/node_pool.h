// The nodes of the allocation as the driver sees them: what their agents report, the orders that they have, which of
// them answer, and which can be used.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/supervise/interfaces.h"

namespace tri {

// The state of a node's contact with the driver. Each state has a limit of silence, after which the node is lost
// (node_pool.cpp).
enum class Contact {
  kNeverHeard,  // its first agent was started, and has not reported yet
  kAwaited,     // another agent was started there, and has not reported yet
  kHeard,       // its agent has reported since it was started
  kNoneStarts,  // it is awaited, and no agent that was started with it or later has reported: the launcher fails
  kRefuses,     // starts of its agent have failed, and agents of other nodes can be started
  kForeign,     // its agent is of another build; never lost, and not used
  kLost,
};

class NodePool {
 public:
  struct Node {
    AgentReport report;  // the newest
    AgentOrder order;    // the newest; it is repeated until the agent reports its number
    double heard = 0;    // when an agent last reported; 0: never
    double asked = 0;    // since when its agent is awaited

   private:
    friend class NodePool;
    double foreign = 0;     // when an agent of another build was last heard; 0: never
    int64_t outdated = -1;  // agents of this start or an earlier one do not count: a newer one has to report
    double excluded = 0;    // when this driver last excluded it; 0: never
    double probed = 0;      // when its agent was last started
    int probes = 0;         // starts of its agent by probe(), since it was last heard
    int failed = 0;         // starts of its agent that have failed, since it is awaited
    bool lost = false;
  };

  // `host`: the driver's own.
  NodePool(std::vector<std::string> names, std::string host, Launcher& launcher, AgentLink& agents);

  // Before each turn: the thresholds of now, and the wall clock, by which exclusions end.
  void set_thresholds(const Thresholds& thresholds) { thresholds_ = thresholds; }
  void set_wall(double wall) { wall_ = wall; }

  const std::vector<std::string>& names() const { return names_; }
  bool has(const std::string& name) const { return nodes_.contains(name); }
  const Node& at(const std::string& name) const { return nodes_.at(name); }
  // The node that has this host name; "": none.
  std::string node_of_host(const std::string& host) const;

  // Agents.
  void start_all(double now);      // the first start, of all usable nodes
  void note_failed_starts();       // what the launcher reports
  void keep_alive();               // a message to all, which shows that the driver lives
  void await_reports(double now);  // silence before this call no longer counts towards probes
  void start_again(const std::vector<std::string>& names, double now);
  // Their present agents no longer count: each of these nodes has to show that an agent can still be started there.
  void renew_agents(const std::vector<std::string>& names, double now);
  // Returns the node of the report; null: it is none of this pool, or of an agent that no longer counts.
  const Node* take(const AgentReport& report, double now);
  // Returns false where it was known. A node that is not in this pool is reported once.
  bool note_foreign(const std::string& name, double now);

  // Orders.
  void order(const std::string& name, OrderKind kind, const std::string& attempt = "");
  void order_all(OrderKind kind, const std::string& attempt = "");
  bool has_heard_order(const Node& node) const { return node.report.order >= node.order.number; }

  // States.
  Contact contact(const Node& node, double now) const;
  bool is_foreign(const Node& node, double now) const;
  // Also starts the agent of a silent node again, up to three times before the node is lost.
  bool is_lost(const std::string& name, double now);
  bool has_reported(const Node& node) const { return node.heard > node.asked; }  // the agent that is awaited
  // Whether an agent that was started at that time or later has reported.
  bool starts_agents(double since) const;
  // Whether the driver's own node is cut off: none of several other nodes responds. None of them is at fault then.
  bool is_cut_off(double now) const;
  // Whether its agent has reported since its last order, and nothing of an earlier attempt is left there.
  bool is_ready(const Node& node, double now) const;
  bool lacks_daemon(const Node& node, double now) const;  // its slurmd is gone, and its agent reports
  // Nodes whose slurmd is gone, including those that were excluded for it since `since`.
  int num_without_daemon(double since, double now) const;

  // Exclusions.
  std::vector<std::string> usable(double now) const;  // in the order in which they are taken
  bool is_excluded(const std::string& name) const;
  void exclude(const Exclusion& exclusion, double now);
  const std::vector<Exclusion>& exclusions() const { return exclusions_; }
  // Those of the run's history. Nodes whose exclusion has ended, or was cleared, are started again.
  void set_exclusions(std::vector<Exclusion> exclusions, double now);

 private:
  bool is_fresh(const Node& node, double now) const { return now - node.heard < thresholds_.silent_seconds; }
  void probe(const std::string& name, Node& node, double now);

  std::vector<std::string> names_;
  std::string host_;
  Launcher& launcher_;
  AgentLink& agents_;
  Thresholds thresholds_;
  double wall_ = 0;
  std::map<std::string, Node> nodes_;
  std::vector<Exclusion> exclusions_;
  uint64_t next_order_ = 1;
  bool knows_other_build_ = false;  // an agent of another build, of no known node
};

}  // namespace tri
