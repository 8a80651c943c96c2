// The dump of one node: records and stacks of its ranks go into the dump's folder, and, on the node that comes first,
// the verdict on the whole job alongside them.
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
  std::vector<flight::Image*> images;  // and where they lie in memory; null: the rank keeps none
  bool uses_nccl = false;
};

struct DumpOrder {
  int number = 0;                // of the attempt's dumps, from 1
  HangTrigger trigger;           // of this node
  double answer_seconds = 2;     // for ranks to answer with their stacks and streams
  double timeout_seconds = 30;   // for the records of other nodes
};

struct DumpOutcome {
  std::string folder;         // "": there is none
  std::string problem;        // of storage; "": none
  HangTrigger trigger;        // the first one's of all nodes
  double taken = 0;           // when, in seconds since 1970
  bool opened = false;        // this node was the first
  bool wrote_report = false;  // ... and this one wrote the verdict
  HangVerdict verdict;        // where it did or will; elsewhere its headline alone
};

// Called with what is known so far, each time that it is more: the headline, of a job on one node before anything is
// read or written, and perhaps another one once the stacks have names; the folder; that the report is there.
using DumpProgress = std::function<void(const DumpOutcome&)>;

// May hang where storage does.
DumpOutcome dump_node(const DumpingNode& node, const DumpOrder& order, const DumpProgress& progress);

}  // namespace tri
