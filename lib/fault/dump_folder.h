// The folders of dumps: run.dir/hang/20261122T155959, one per dump, shared by all nodes of a job.
//
//   run.dir/hang/<attempt>.<n>    a link to the folder of the n-th dump of this start of the job. The node that is
//                                 first to create it chooses the folder's name: links are created atomically.
//     trigger.json                what triggered the dump
//     rank_00013.json             one record per rank (io/flight_recorder/record_json.h)
//     nccl_<host>.txt             NCCL's own report, if there is one
//     report.txt, report.json     the verdict, as text and as JSON; written once, by the first node
//
// Everything here is on storage, which may hang.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/base/error.h"
#include "io/flight_recorder/record.h"
#include "lib/fault/hang_locator.h"

namespace tri {

struct DumpFolder {
  std::string path;
  HangTrigger trigger;  // of the first node
  bool opened = false;  // by this call
};

// Number of dumps to keep per run, over all of its starts. Creating a dump removes older ones.
inline constexpr int kKeptDumps = 20;

// Returns the folder of dump `number` (from 1) of `attempt`; creates it unless another node has. Does not create
// run.dir: the run creates it once it holds its lock. Fails if storage refuses, or if there is no run.dir.
Result<DumpFolder> join_dump(const std::string& run_dir, const std::string& attempt, int number,
                             const HangTrigger& trigger);
// Returns the highest number of the attempt's dumps, or 0 if there are none or they can't be listed.
int newest_dump(const std::string& run_dir, const std::string& attempt);
// Folders of all dumps of the run, oldest first.
std::vector<std::string> list_dumps(const std::string& run_dir);

// Writes rank_00013.json into the folder, atomically. Fails with kFile if storage refuses.
Result<void> write_record(const std::string& folder, const RankRecord& record);
// World ranks whose records are in the folder, ascending.
std::vector<int> recorded_ranks(const std::string& folder);
// Returns the records of these ranks; skips those that cannot be read.
std::vector<RankRecord> read_records(const std::string& folder, std::span<const int> world_ranks);

// Writes the report and returns true in the first call on any node; returns false in later ones. The first of `records`
// is that of the caller's node.
Result<bool> write_report(const std::string& folder, std::span<const RankRecord> records, const HangTrigger& trigger,
                          const HangVerdict& verdict);
// Returns the headline of report.json, or nothing if there is none yet.
std::optional<std::string> read_headline(const std::string& folder);

// Returns what write_report writes: {"headline", "kind", "culprits": [{"rank", "host", "gpu", "kind", "text"}],
// "hosts": [...], "waiting", "trigger": {"rank", "phase", "writer", "seconds"}, "records", "ranks", "attempt"}. "hosts"
// is the result of suspect_hosts().
std::string report_json(std::span<const RankRecord> records, const HangTrigger& trigger, const HangVerdict& verdict);

}  // namespace tri
