// The dumps of one node during a run: which of its ranks makes a dump, and the threads that do so.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/fault/node_dump.h"

namespace tri {

// Safe for concurrent use. No call waits for storage: calls that may hang run on threads that may outlive this object.
class NodeDumps {
 public:
  static constexpr std::chrono::milliseconds kListenInterval{5000};

  // `own_record`: this rank's file; `node_ranks`: world ranks of this node, ascending. If the job has several nodes,
  // the node's first rank checks every `listen_interval` whether another node has begun a dump, and joins it.
  // `on_report` is called on the rank that has written the report, or has failed to.
  NodeDumps(DumpingNode node, const std::string& own_record, const std::vector<int>& node_ranks,
            std::function<void(const DumpOutcome&)> on_report,
            std::chrono::milliseconds listen_interval = kListenInterval);
  // Waits at most a second for a dump in progress, and logs a warning if it has not ended by then.
  ~NodeDumps();
  NodeDumps(const NodeDumps&) = delete;
  NodeDumps& operator=(const NodeDumps&) = delete;

  // Claims the node's dump, and returns whether this rank now has it: no other rank of the node has claimed one since
  // `since` (FlightRecorder::now()). Requested dumps (trigger.world_rank is -1) count separately from those of hangs.
  // The dump waits at most `answer_seconds` for the node's ranks and `timeout_seconds` for other nodes' records.
  bool claim(int64_t since, const HangTrigger& trigger, double answer_seconds, double timeout_seconds);

  // What is known about the last dump that this rank performs.
  struct Known {
    int64_t claimed = 0;   // when; 0: never
    std::string headline;  // "": not known yet
    std::string folder;    // "": none yet
    std::string problem;   // of storage
    bool speaks = true;    // no other node was first
    bool done = false;     // this rank has written its files, or has failed to
  };
  Known known() const;

 private:
  struct State;
  static void work(const std::shared_ptr<State>& state);
  static void listen(const std::shared_ptr<State>& state, std::chrono::milliseconds interval);

  const std::shared_ptr<State> state_;
};

}  // namespace tri
