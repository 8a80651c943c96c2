#include "lib/checkpoint/memory_budget.h"

#include <sys/statvfs.h>

#include <filesystem>

#include "io/base/format.h"
#include "io/base/proc.h"
#include "io/base/text_file.h"
#include "io/checkpoint/memory_segment.h"
#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/dims.h"

namespace tri {

int64_t memory_segment_bytes(const std::vector<StateShard>& shards) {
  constexpr int64_t kHeader = 4096, kTable = 64 << 10, kTableOfShard = 512;
  constexpr int64_t kRunMultiple = 256, kPage = 4096;
  int64_t payload = 0;
  for (const StateBuffer::Run& run : state_buffer(shards).runs) payload += round_up(run.bytes, kRunMultiple);
  return round_up(kHeader + kTable + kTableOfShard * static_cast<int64_t>(shards.size()) + payload, kPage);
}

NodeMemory node_memory(const std::string& folder, int64_t reused) {
  NodeMemory memory;
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) == 0)
    memory.shared = static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize) + reused;
  if (const auto available = available_bytes(text_of("/proc/meminfo"))) memory.available = *available + reused;
  return memory;
}

int64_t reused_segment_bytes(const std::string& folder, const std::string& run_dir) {
  const std::string key = "." + run_key(run_dir) + ".";
  int64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with("trireme.mem") || name.find(key) == std::string::npos) continue;
    std::error_code gone;
    if (const auto size = it->file_size(gone); !gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

Result<void> check_memory_budget(const std::string& host, int ranks, int64_t segments, int64_t others,
                                 const NodeMemory& memory) {
  const std::string need =
      fmt::format("checkpoint.memory_every: node {} needs {} of shared memory for the checkpoints of {}", host,
                  format_bytes(segments), counted(ranks, "rank"));
  const std::string remedy =
      "divide the state over more ranks (parallel.zero: 1 with a larger dp, or more nodes), or set "
      "checkpoint.memory_every to 0";
  if (memory.shared >= 0 && segments > memory.shared)
    return usage_error("{}, but {} are free; enlarge /dev/shm (mount -o remount,size=BYTES), {}", need,
                       format_bytes(memory.shared), remedy);
  if (memory.available >= 0 && segments + others > memory.available)
    return usage_error("{}, and {} for those in storage, but {} of its memory are available; {}", need,
                       format_bytes(others), format_bytes(memory.available), remedy);
  return {};
}

Result<void> check_memory_budget(Job& job, const std::string& run_dir, int64_t segment, int64_t others) {
  const std::vector<int64_t> segments = job.all_gather(segment), all_others = job.all_gather(others);
  if (job.world_rank() != job.node_ranks().front()) return {};
  const int64_t nodes = job.node_size() < job.world_size() ? 2 : 1;  // several, or this one
  int64_t of_segments = 0, of_others = 0;
  for (const int rank : job.node_ranks()) {
    of_segments += memory_checkpoint_bytes(segments[static_cast<size_t>(rank)], nodes);
    of_others += all_others[static_cast<size_t>(rank)];
  }
  const std::string folder = flight_record_folder();
  return check_memory_budget(job.host(), job.node_size(), of_segments, of_others,
                             node_memory(folder, reused_segment_bytes(folder, run_dir)));
}

}  // namespace tri
