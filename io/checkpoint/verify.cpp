#include "io/checkpoint/verify.h"

#include <algorithm>
#include <map>

#include "io/base/mutex.h"
#include "io/base/parallel.h"
#include "io/checkpoint/manifest.h"
#include "io/checkpoint/shard_reader.h"

namespace tri {
namespace {

using Shards = std::vector<std::pair<const TensorRecord*, const StoredShard*>>;

// One shard, or the bytes between the shards of a file.
struct Task {
  const FileRecord* file;
  const TensorRecord* tensor;  // null: the bytes between shards
  const StoredShard* shard;

  int64_t bytes() const {
    return tensor == nullptr ? 0 : num_elements(shard->region.extent) * element_bytes(tensor->type);
  }
};

// Returns what is wrong with a task's bytes; empty if nothing is.
std::string problem_of(const Result<ShardReader>& shard, const Task& task, const Shards& shards) {
  if (!shard) return task.tensor == nullptr ? shard.error().message : "";  // reported once per file
  const auto good = task.tensor == nullptr ? shard.value().verify_structures(*task.file, shards)
                                           : shard.value().verify(*task.tensor, *task.shard);
  return good ? "" : good.error().message;
}

}  // namespace

Result<VerifyReport> verify(const std::string& folder, int threads, const std::function<void(int64_t)>& progress) {
  auto read = read_manifest(folder);
  if (!read) return read.error();
  const Manifest& manifest = read.value();
  std::map<std::string, Shards> shards;
  for (const TensorRecord& tensor : manifest.tensors)
    for (const StoredShard& shard : tensor.shards) shards[shard.file].emplace_back(&tensor, &shard);

  VerifyReport report{.files = static_cast<int64_t>(manifest.files.size())};
  // Checks shards in file order; then the bytes between them, which were read with them.
  std::vector<Task> tasks;
  for (const FileRecord& file : manifest.files) {
    Shards& all = shards[file.name];
    std::sort(all.begin(), all.end(), [](auto a, auto b) { return a.second->offset < b.second->offset; });
    for (const auto& [tensor, shard] : all) tasks.push_back({&file, tensor, shard});
    tasks.push_back({&file, nullptr, nullptr});
    report.shards += static_cast<int64_t>(all.size());
  }
  std::vector<int64_t> bytes;
  for (const Task& task : tasks) bytes.push_back(task.bytes());
  std::vector<std::string> problems(tasks.size());  // one per task
  Mutex mutex;                                      // guards report.bytes and progress
  parallel_by_weight(bytes, threads, [&](int64_t begin, int64_t end) {
    const FileRecord* file = nullptr;
    Result<ShardReader> shard = file_error("");
    for (auto t = static_cast<size_t>(begin); t < static_cast<size_t>(end); ++t) {
      if (tasks[t].file != file) shard = ShardReader::open(folder, *(file = tasks[t].file));
      problems[t] = problem_of(shard, tasks[t], shards.at(file->name));
      const MutexLock lock(mutex);
      report.bytes += bytes[t];
      if (progress) progress(bytes[t]);
    }
  });
  for (std::string& problem : problems)
    if (!problem.empty()) report.problems.push_back(std::move(problem));
  return report;
}

}  // namespace tri
