#include "lib/checkpoint/load.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "io/base/parallel.h"

namespace tri {
namespace {

// A stored piece of which this rank needs something.
struct Need {
  const TensorRecord* tensor = nullptr;
  const StoredPiece* stored = nullptr;
  std::vector<const LoadTarget*> targets;
  std::vector<int> ranks;        // all that need something of it, ascending
  int reader = 0;                // the one of them that reads it
  std::unique_ptr<char[]> data;  // the reader's, when others wait for it: its elements

  int64_t bytes() const { return num_elements(stored->region.extent) * element_bytes(tensor->type); }
  void place(const char* elements) const {
    for (const LoadTarget* target : targets)
      copy_region(stored->region, elements, target->piece->region, target->out, element_bytes(tensor->type));
  }
};
// By the piece's number in the manifest, which is the same on all ranks.
using Needs = std::map<int32_t, Need>;

Needs needs_of(const CheckpointReader& reader, const std::vector<LoadTarget>& targets) {
  const std::vector<TensorRecord>& tensors = reader.manifest().tensors;
  std::vector<int32_t> first(1, 0);  // [tensor]: the number of its first piece
  for (const TensorRecord& tensor : tensors) first.push_back(first.back() + static_cast<int32_t>(tensor.pieces.size()));
  Needs needs;
  for (const LoadTarget& target : targets) {
    const TensorRecord* tensor = reader.find(*target.piece).value();
    int32_t number = first[static_cast<size_t>(tensor - tensors.data())];
    for (const StoredPiece& stored : tensor->pieces) {
      const int32_t of_this = number++;
      if (!intersect(stored.region, target.piece->region)) continue;
      Need& need = needs[of_this];
      need.tensor = tensor;
      need.stored = &stored;
      need.targets.push_back(&target);
    }
  }
  return needs;
}

// All ranks tell each other their numbers; those that need the same piece take turns in reading.
void choose_readers(Needs& needs, Job& job) {
  std::vector<int32_t> mine;
  for (const auto& [number, need] : needs) mine.push_back(number);
  const std::vector<std::vector<int32_t>> all = job.all_gather(mine);
  for (size_t rank = 0; rank < all.size(); ++rank)
    for (const int32_t number : all[rank])
      if (const auto at = needs.find(number); at != needs.end()) at->second.ranks.push_back(static_cast<int>(rank));
  for (auto& [number, need] : needs) need.reader = need.ranks[static_cast<size_t>(number) % need.ranks.size()];
}

Result<void> read_one(const CheckpointReader& reader, Need& need) {
  const bool shared = need.ranks.size() > 1;
  if (!shared && need.targets.size() == 1)  // straight to its place
    return reader.read(*need.tensor, *need.stored, need.targets[0]->piece->region, need.targets[0]->out);
  std::unique_ptr<char[]> data(new char[static_cast<size_t>(need.bytes())]);
  if (auto read = reader.read(*need.tensor, *need.stored, need.stored->region, data.get()); !read) return read;
  need.place(data.get());
  if (shared) need.data = std::move(data);
  return {};
}

// In the order of files and offsets, a stretch of it to each of this rank's share of cores.
Result<void> read_share(const CheckpointReader& reader, Needs& needs, const Job& job) {
  std::vector<Need*> share;
  for (auto& [number, need] : needs)
    if (need.reader == job.world_rank()) share.push_back(&need);
  std::sort(share.begin(), share.end(), [](const Need* a, const Need* b) {
    return std::tie(a->stored->file, a->stored->offset) < std::tie(b->stored->file, b->stored->offset);
  });
  std::vector<int64_t> bytes;
  for (const Need* need : share) bytes.push_back(need->bytes());
  std::mutex mutex;
  Result<void> result;  // guarded by mutex
  parallel_by_weight(bytes, std::max(1, num_cores() / job.node_size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto read = read_one(reader, *share[static_cast<size_t>(i)]);
      if (read) continue;
      const std::lock_guard lock(mutex);
      if (result) result = read;
      return;
    }
  });
  return result;
}

// In the order of the pieces' numbers, which sender and receiver have in common.
void share_out(const Needs& needs, Job& job) {
  std::vector<Job::Outgoing> outgoing;
  std::vector<Job::Incoming> incoming;
  for (const auto& [number, need] : needs) {
    if (need.reader != job.world_rank()) {
      incoming.push_back({need.reader, need.bytes(), [&need = need](const char* elements) { need.place(elements); }});
      continue;
    }
    for (const int rank : need.ranks)
      if (rank != need.reader) outgoing.push_back({rank, need.data.get(), need.bytes()});
  }
  job.exchange(outgoing, incoming);
}

}  // namespace

Result<void> check_fit(const CheckpointReader& reader, const std::vector<LoadTarget>& targets) {
  for (const LoadTarget& target : targets)
    if (auto found = reader.find(*target.piece); !found) return found.error();
  return {};
}

Result<void> load_pieces(const CheckpointReader& reader, const std::vector<LoadTarget>& targets, Job& job) {
  Needs needs = needs_of(reader, targets);
  choose_readers(needs, job);
  if (auto read = agree(job, read_share(reader, needs, job)); !read) return read;
  share_out(needs, job);
  return {};
}

}  // namespace tri
