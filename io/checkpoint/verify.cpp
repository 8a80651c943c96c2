#include "io/checkpoint/verify.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "io/checkpoint/manifest.h"
#include "io/checkpoint/shard_reader.h"

namespace tri {
namespace {

using Pieces = std::vector<std::pair<const TensorRecord*, const StoredPiece*>>;

// One piece, or what lies between the pieces of a file.
struct Task {
  const FileRecord* file;
  const Pieces* pieces;
  int64_t piece;  // -1: between
};

Result<void> run(const std::string& folder, const Task& task) {
  auto shard = ShardReader::open(folder, *task.file);
  if (!shard) return task.piece < 0 ? Result<void>(shard.error()) : Result<void>();  // said once a file
  if (task.piece < 0) return shard.value().verify_structures(*task.file, *task.pieces);
  const auto& [tensor, piece] = (*task.pieces)[static_cast<size_t>(task.piece)];
  return shard.value().verify(*tensor, *piece);
}

int64_t bytes_of(const Task& task) {
  if (task.piece < 0) return 0;
  const auto& [tensor, piece] = (*task.pieces)[static_cast<size_t>(task.piece)];
  return num_elements(piece->region.extent) * element_bytes(tensor->type);
}

}  // namespace

Result<VerifyReport> verify(const std::string& folder, int threads, const std::function<void(int64_t)>& progress) {
  auto read = read_manifest(folder);
  if (!read) return read.error();
  const Manifest& manifest = read.value();
  std::map<std::string, Pieces> pieces;
  for (const TensorRecord& tensor : manifest.tensors)
    for (const StoredPiece& piece : tensor.pieces) pieces[piece.file].emplace_back(&tensor, &piece);

  VerifyReport report{.files = static_cast<int64_t>(manifest.files.size())};
  std::vector<Task> tasks;
  for (const FileRecord& file : manifest.files) {
    const Pieces& all = pieces[file.name];
    for (int64_t p = -1; p < static_cast<int64_t>(all.size()); ++p) tasks.push_back({&file, &all, p});
    report.pieces += static_cast<int64_t>(all.size());
  }
  std::vector<std::string> problems(tasks.size());  // of each task
  std::atomic<size_t> next{0};
  std::mutex mutex;  // guards report.bytes and progress
  const auto work = [&] {
    for (size_t t = next++; t < tasks.size(); t = next++) {
      if (const auto good = run(folder, tasks[t]); !good) problems[t] = good.error().message;
      const std::lock_guard lock(mutex);
      report.bytes += bytes_of(tasks[t]);
      if (progress) progress(bytes_of(tasks[t]));
    }
  };
  {
    std::vector<std::jthread> pool;
    for (int i = 1; i < threads; ++i) pool.emplace_back(work);
    work();
  }
  for (std::string& problem : problems)
    if (!problem.empty()) report.problems.push_back(std::move(problem));
  return report;
}

}  // namespace tri
