// The dump of one node: writes the records and stacks of its ranks into the dump's folder and, on the first node, the
// verdict on the whole job.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/flight_recorder/image.h"
#include "lib/fault/hang_locator.h"

namespace tri {

struct DumpingNode {
  std::string run_dir, attempt, host;  // run_dir "": nothing is written
  int world_rank = 0, world_size = 1;  // of the rank that makes the dump
  std::vector<std::string> recorders;  // files of this node's ranks
  std::vector<flight::Image*> images;  // their mappings; null: the rank has no file
  bool uses_nccl = false;
};

struct DumpOrder {
  int number = 0;               // number among the attempt's dumps, from 1
  HangTrigger trigger;          // of this node
  double answer_seconds = 2;    // limit for ranks to answer with their stacks and streams
  double timeout_seconds = 30;  // limit for the records of other nodes
};

struct DumpOutcome {
  std::string folder;         // "": none
  std::string problem;        // of storage; "": none
  HangTrigger trigger;        // the first one of all nodes
  double taken = 0;           // when, in seconds since 1970
  bool opened = false;        // this node was the first
  bool wrote_report = false;  // ... and has written the verdict
  HangVerdict verdict;        // on the node that writes it; other nodes have only its headline
};

// Called with the outcome so far whenever more is known: the headline (for a job on one node before any file is read or
// written, and possibly a better one once the stacks have names), the folder, and that the report is written.
using DumpProgress = std::function<void(const DumpOutcome&)>;

// Makes the dump. May hang if storage does.
DumpOutcome dump_node(const DumpingNode& node, const DumpOrder& order, const DumpProgress& progress);

}  // namespace tri
