// Finds the newest generation of checkpoints in memory from which a run can resume, and brings every rank's segment to
// its node. A generation counts only if every rank's segment of it exists somewhere, as its own or as a copy; all of
// them of the same attempt, step and layout. The search or the load verifies checksums.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/base/parallel.h"
#include "io/checkpoint/memory_segment.h"
#include "lib/checkpoint/search.h"

namespace tri {

// What the table of a segment holds: where the payload's shards are, with checksums. Rank 0's also has the rest of the
// run's state.
struct SegmentTable {
  ShardRecord record;
  std::optional<CheckpointInfo> info;
};
std::string to_text(const SegmentTable& table);
// Fails if the bytes are not those of a table.
Result<SegmentTable> segment_table_from(std::string_view text);

// The generations that continue the run's history: those of its last attempt that began steps and, if that resumed from
// memory, the one that it resumed from. Older ones may be of a history that the run has left.
struct MemoryHistory {
  std::string attempt;  // "": no generation
  std::string from_attempt;
  int64_t from_step = 0;  // of from_attempt
  bool allows(const std::string& of_attempt, int64_t step) const {
    return !attempt.empty() && (of_attempt == attempt || (of_attempt == from_attempt && step == from_step));
  }
};

// A segment somewhere in the job.
struct SegmentSight {
  std::string host, file_name;
  bool copy = false;
  SegmentIdentity identity;
};

// A source of each rank's segment of one generation.
struct GenerationChoice {
  std::string attempt;
  int64_t step = 0;
  int32_t slot = 0;
  std::vector<SegmentSight> sources;  // [world rank]: on the rank's own host if possible, else its own before a copy
};
// Returns the newest generation of `sights` that is complete, allowed, of this layout and newer than `after`; a pure
// function. `hosts`: [world rank] of the new start.
std::optional<GenerationChoice> choose_generation(const std::vector<SegmentSight>& sights, const MemoryHistory& history,
                                                  uint64_t layout, int64_t after,
                                                  const std::vector<std::string>& hosts);

// A generation whose segments are on their ranks' nodes: every rank reads its own file.
struct MemoryGeneration {
  FoundCheckpoint found;
  Manifest manifest;         // rank 0; the files are those of segments
  std::vector<int> readers;  // [file of the manifest]
  std::string attempt;       // that wrote it
  int slot = 0;
  int own_ranks = 0, buddy_ranks = 0;  // whose state came from their own segment, from a copy
};

// When checksums are compared. Loading compares them anyway, but fails if one is wrong; kFirst then finds another copy
// of the segment, or an older generation.
enum class Verify { kFirst, kWhileLoading };

struct MemorySearch {
  std::string folder;     // of segments
  std::string run_dir;    // absolute
  uint64_t layout = 0;    // segment_layout()
  MemoryHistory history;  // rank 0's counts
  int64_t after = -1;     // only later steps
  // Called on rank 0; an error: this generation is not used.
  CheckpointSearch::MayLoad may_load;
  Verify verify = Verify::kFirst;
};
// Returns a generation, or none and in `why` the reason ("" if the nodes hold no segment of the run). Never an error:
// the run can resume from storage. Collective; all ranks get the same `why` and the same choice.
std::optional<MemoryGeneration> find_in_memory(const MemorySearch& search, Job& job, std::string& why);

// Verifies the payload of a segment with its table, on `threads` threads. `payload_file`: the whole file, mapped.
Result<void> check_payload(const ShardRecord& record, std::string_view payload_file, const std::string& path,
                           int threads = 1);

// Calls act(tensor, shard), which must not throw, for every shard of `record` (a ShardRecord, or a constant one), on
// `threads` threads that get about equal numbers of bytes.
template <class Record, class Act>
void for_shards(Record& record, int threads, Act act) {
  std::vector<std::pair<decltype(&record.tensors[0]), decltype(&record.tensors[0].shards[0])>> shards;
  std::vector<int64_t> bytes;
  for (auto& tensor : record.tensors)
    for (auto& shard : tensor.shards) {
      shards.emplace_back(&tensor, &shard);
      bytes.push_back(num_elements(shard.region.extent) * element_bytes(tensor.type));
    }
  parallel_by_weight(bytes, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [tensor, shard] = shards[static_cast<size_t>(i)];
      act(*tensor, *shard);
    }
  });
}

}  // namespace tri
