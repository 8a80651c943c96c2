// The state of one rank after one step in the shared memory of its node: a file that outlives the process. A header,
// a table (the bytes of a description of the payload) and the payload. Numbers are in the memory representation: a
// segment never leaves machines of one kind.
//
// A segment is written in place. Its state word is kWriting before the first byte changes and kComplete after the last
// one, so a process that is killed leaves no segment that looks complete. Header and table have XXH3-64 checksums; the
// table contains those of the payload's parts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"

namespace tri {

// What a segment holds; all of it is in its header.
struct SegmentIdentity {
  int32_t world_rank = 0, world_size = 1;  // whose state it is
  int32_t slot = 0;                        // 0 or 1
  int64_t step = 0;                        // completed
  uint64_t layout = 0;                     // a hash of the layout; other layouts do not load it
  std::string attempt;                     // that wrote it, at most 63 bytes
  std::string run_dir;                     // absolute, at most 1,023 bytes
};

// A segment's file name: "trireme.memory.RUN.HOST.RANK.KIND.SLOT". The host keeps nodes apart that share a folder.
struct SegmentName {
  std::string run;  // run_key() of run.dir
  std::string host;
  int world_rank = 0;  // whose state it is
  bool copy = false;   // of a rank of another node
  int slot = 0;
  std::string text() const;
};
std::string run_key(const std::string& run_dir);                           // 16 hexadecimal digits
std::optional<SegmentName> segment_name_from(std::string_view file_name);  // none: it has another form

inline constexpr int64_t kSegmentHeaderBytes = 4096;
// Returns the bytes of a segment's file.
constexpr int64_t segment_bytes(int64_t table_capacity, int64_t payload_bytes) {
  return (kSegmentHeaderBytes + table_capacity + payload_bytes + 4095) / 4096 * 4096;
}

// A segment mapped for writing. One thread at a time.
class MemorySegment {
 public:
  // Creates the file in `folder`, readable only by its owner, and reserves its memory, or reuses a file of the same
  // size with its contents. Fails with kUsage and the number of bytes if there is not enough memory, else with kFile.
  static Result<std::unique_ptr<MemorySegment>> create(const std::string& folder, const SegmentName& name,
                                                       int64_t table_capacity, int64_t payload_bytes);
  ~MemorySegment();  // keeps the file
  MemorySegment(const MemorySegment&) = delete;
  MemorySegment& operator=(const MemorySegment&) = delete;

  void begin();  // from now on it is not complete
  // Fails if the table is longer than its capacity.
  Result<void> finish(const SegmentIdentity& identity, std::string_view table);
  // Completes a segment whose bytes, from another segment of these sizes, were written to memory() after begin(). Fails
  // if header or table are damaged. `check` judges the payload with the table.
  template <class Check>
  Result<void> finish_copy(Check check) {
    const auto table = checked_table();
    if (!table) return table.error();
    if (auto good = check(table.value()); !good) return good;
    complete();
    return {};
  }

  char* memory() const { return memory_; }  // of the whole file
  int64_t bytes() const { return bytes_; }
  char* payload() const { return memory_ + payload_offset(); }
  int64_t payload_offset() const { return kSegmentHeaderBytes + table_capacity_; }
  const std::string& path() const { return path_; }
  void remove();  // the file; the memory stays until this is destroyed

 private:
  MemorySegment() = default;
  Result<std::string_view> checked_table() const;
  void complete();

  std::string path_;
  char* memory_ = nullptr;
  int64_t bytes_ = 0, table_capacity_ = 0;
};

// Bytes of the header's start that a copy must not contain when it is sent: the state word.
inline constexpr int64_t kSegmentStateBytes = 8;

// A complete segment as a reader finds it; its payload is not verified.
struct FoundSegment {
  SegmentName name;
  SegmentIdentity identity;
  std::string table;
  int64_t bytes = 0, payload_offset = 0;  // of the file
};
// Reads header and table. Fails if the segment is not complete, damaged, of another version, or not this user's.
Result<FoundSegment> read_segment(const std::string& folder, const std::string& file_name);

// Returns the names of all segments in `folder`, in order; empty if it can't be listed.
std::vector<std::pair<std::string, SegmentName>> list_segments(const std::string& folder);

// Removes this user's segments of other runs than `run_dir` whose writer has ended and that were written more than
// `seconds` ago. Returns their number.
int remove_orphaned_segments(const std::string& folder, const std::string& run_dir, double seconds);
// Removes the segments of the run on `host` ("": on any) except for the files in `keep`. Returns their number.
int remove_segments(const std::string& folder, const std::string& run_dir, const std::string& host,
                    const std::vector<std::string>& keep = {});

}  // namespace tri
