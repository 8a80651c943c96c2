// The nodes of the allocation from the driver's view: their agents' reports, their orders, which of them respond, and
// which can be used.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/supervise/interfaces.h"

namespace tri {

// The state of contact with a node. Each state has a silence limit after which the node is lost (node_pool.cpp).
enum class Contact {
  kNeverHeard,  // its first agent was started and has not reported yet
  kAwaited,     // another agent was started there and has not reported yet
  kHeard,       // its agent has reported since its start
  kNoneStarts,  // it is awaited, and no agent started with it or later has reported: the launcher fails
  kRefuses,     // starts of its agent have failed, although agents of other nodes start
  kForeign,     // its agent has another build; never lost, and not used
  kLost,
};

class NodePool {
 public:
  struct Node {
    AgentReport report;        // the newest
    AgentOrder order;          // the newest; repeated until the agent reports its number
    double heard = 0;          // when an agent last reported; 0: never
    double awaited_since = 0;  // when its agent was last started by an order

   private:
    friend class NodePool;
    double foreign = 0;     // when an agent of another build last reported; 0: never
    int64_t outdated = -1;  // agents of this start or earlier ones do not count: a newer one must report
    double excluded = 0;    // when this driver last excluded it; 0: never
    double probed = 0;      // when its agent was last started
    int probes = 0;         // starts of its agent by probe(), since its last report
    int failed = 0;         // failed starts of its agent while it is awaited
    bool lost = false;
  };

  // `host`: the driver's own.
  NodePool(std::vector<std::string> names, std::string host, Launcher& launcher, AgentLink& agents);

  // Call before each tick, with the current thresholds and the wall clock, by which exclusions end.
  void set_thresholds(const Thresholds& thresholds) { thresholds_ = thresholds; }
  void set_wall(double wall) { wall_ = wall; }

  const std::vector<std::string>& names() const { return names_; }
  bool has(const std::string& name) const { return nodes_.contains(name); }
  const Node& at(const std::string& name) const { return nodes_.at(name); }
  // Returns the node that has this host name, or "".
  std::string node_of_host(const std::string& host) const;

  // Agents.
  void start_all(double now);      // the first start, on all usable nodes
  void note_failed_starts();       // reads failures from the launcher
  void keep_alive();               // sends each agent a message that shows that the driver is alive
  void await_reports(double now);  // silence before this call no longer counts towards probes
  void start_again(const std::vector<std::string>& names, double now);
  // The current agents no longer count: each of these nodes must show that an agent can still be started there.
  void renew_agents(const std::vector<std::string>& names, double now);
  // Returns the node of the report, or null if it is not in this pool or its agent no longer counts.
  const Node* take(const AgentReport& report, double now);
  // Returns false if that was already known. Reports a node that is not in this pool once.
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
  bool has_reported(const Node& node) const { return node.heard > node.awaited_since; }  // by the awaited agent
  // Whether an agent that was started at that time or later has reported.
  bool starts_agents(double since) const;
  // Whether the driver's own node is cut off: none of several other nodes responds, so none of them is at fault.
  bool is_cut_off(double now) const;
  // Whether its agent has reported since its last order, and no process of an earlier attempt remains there.
  bool is_ready(const Node& node, double now) const;
  bool lacks_daemon(const Node& node, double now) const;  // its agent reports that slurmd is gone
  // Counts nodes whose slurmd is gone, including those that were excluded for it since `since`.
  int num_without_daemon(double since, double now) const;

  // Exclusions.
  std::vector<std::string> usable(double now) const;  // in order of preference
  bool is_excluded(const std::string& name) const;
  void exclude(const Exclusion& exclusion, double now);
  const std::vector<Exclusion>& exclusions() const { return exclusions_; }
  // Sets the exclusions of the run's history. Agents are started again on nodes whose exclusion has ended or was
  // cleared.
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
  bool knows_other_build_ = false;  // an agent of another build on an unknown node
};

}  // namespace tri
