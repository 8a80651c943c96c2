// The dump of one node: it writes the records and stacks of its ranks into the dump's folder and, on the first node,
// the verdict on the whole job.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/flight_recorder/image.h"
#include "lib/fault/hang_locator.h"

namespace tri {

struct DumpingNode {
  std::string run_dir, attempt, host;  // run_dir: "": there is none, and nothing is written
  int world_rank = 0, world_size = 1;  // of the rank that dumps
  std::vector<std::string> recorders;  // files of this node's ranks
  std::vector<flight::Image*> images;  // and their mappings; null: the rank has none
  bool uses_nccl = false;
};

struct DumpOrder {
  int number = 0;               // of the attempt's dumps, from 1
  HangTrigger trigger;          // of this node
  double answer_seconds = 2;    // for ranks to answer with their stacks and streams
  double timeout_seconds = 30;  // for the records of other nodes
};

struct DumpOutcome {
  std::string folder;         // "": there is none
  std::string problem;        // of storage; "": none
  HangTrigger trigger;        // the first one's of all nodes
  double taken = 0;           // when, in seconds since 1970
  bool opened = false;        // this node was the first
  bool wrote_report = false;  // ... and this one wrote the verdict
  HangVerdict verdict;        // on the node that writes it; on others only its headline
};

// Called with the outcome so far whenever more is known: the headline (for a job on one node before any file is read or
// written, and possibly a better one once the stacks have names), the folder, and that the report is written.
using DumpProgress = std::function<void(const DumpOutcome&)>;

// May hang if storage does.
DumpOutcome dump_node(const DumpingNode& node, const DumpOrder& order, const DumpProgress& progress);

}  // namespace tri
