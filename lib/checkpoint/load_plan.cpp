#include "lib/checkpoint/load_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace tri {
namespace {

// Indexes the shards of a tensor by their start in the dim with the most different starts.
class ShardIndex {
 public:
  explicit ShardIndex(const TensorRecord& tensor) {
    size_t most = 0;
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      std::set<int64_t> starts;
      for (const StoredShard& shard : tensor.shards) starts.insert(shard.region.start[d]);
      if (starts.size() > most) most = starts.size(), dim_ = d;
    }
    for (const StoredShard& shard : tensor.shards) {
      sorted_.push_back(&shard);
      longest_ = std::max(longest_, shard.region.extent[dim_]);
    }
    std::sort(sorted_.begin(), sorted_.end(),
              [&](const StoredShard* a, const StoredShard* b) { return start_of(*a) < start_of(*b); });
  }

  // Calls f(shard, common region) for every shard that overlaps `region`.
  template <class F>
  void for_each_in(const Region& region, F f) const {
    const int64_t begin = region.start[dim_] - longest_, end = region.start[dim_] + region.extent[dim_];
    auto at = std::upper_bound(sorted_.begin(), sorted_.end(), begin,
                               [&](int64_t start, const StoredShard* shard) { return start < start_of(*shard); });
    for (; at != sorted_.end() && start_of(**at) < end; ++at)
      if (const auto common = intersect((*at)->region, region)) f(**at, *common);
  }

 private:
  int64_t start_of(const StoredShard& shard) const { return shard.region.start[dim_]; }

  size_t dim_ = 0;
  int64_t longest_ = 0;  // extent of any shard in that dim
  std::vector<const StoredShard*> sorted_;
};

// A rank needs blocks [first, last) of a stored shard.
struct Need {
  int64_t shard;  // index in the manifest
  int32_t rank;
  int32_t request;  // index of the rank's request
  int64_t first, last;
};

class Division {
 public:
  Division(const Manifest& manifest, int64_t block_bytes, size_t num_ranks)
      : manifest_(manifest), block_bytes_(block_bytes), reads_(num_ranks), receipts_(num_ranks) {
    first_.push_back(0);
    for (const TensorRecord& tensor : manifest.tensors)
      first_.push_back(first_.back() + static_cast<int64_t>(tensor.shards.size()));
    for (size_t i = 0; i < manifest.files.size(); ++i) file_[manifest.files[i].name] = static_cast<int32_t>(i);
  }

  Result<void> add(int32_t rank, const std::vector<TensorRequest>& requests) {
    for (size_t r = 0; r < requests.size(); ++r) {
      const TensorRequest& request = requests[r];
      const TensorRecord* stored = manifest_.find(request.name);
      const StoredType type = stored != nullptr && converts(stored->type, request.type) ? stored->type : request.type;
      const auto found = manifest_.find(request.name, type, request.shape);
      if (!found) return found.error();
      add(rank, static_cast<int32_t>(r), request, *found.value());
    }
    return {};
  }

  // Ranks that need the same shard take turns reading it, unless `readers` names one.
  std::vector<Result<LoadShare>> shares(const std::vector<int>& readers) {
    std::sort(needs_.begin(), needs_.end(),
              [](const Need& a, const Need& b) { return std::tie(a.shard, a.rank) < std::tie(b.shard, b.rank); });
    for (size_t begin = 0, end = 0; begin < needs_.size(); begin = end) {
      for (end = begin; end < needs_.size() && needs_[end].shard == needs_[begin].shard;) ++end;
      size_t reader = begin + static_cast<size_t>(needs_[begin].shard) % (end - begin);
      if (!readers.empty()) {
        const auto [tensor, stored] = tensor_shard_of(needs_[begin].shard);
        const int wanted = readers[static_cast<size_t>(file_.at(stored->file))];
        for (reader = begin; reader < end && needs_[reader].rank != wanted;) ++reader;
        if (reader == end) {
          std::vector<Result<LoadShare>> refused(reads_.size(), LoadShare{});
          refused[static_cast<size_t>(wanted)] = file_error("rank {} does not need tensor {} of {}, which only it sees",
                                                            wanted, tensor->name, stored->file);
          return refused;
        }
      }
      reads_[static_cast<size_t>(needs_[reader].rank)].push_back({begin, end, reader});
    }
    std::vector<Result<LoadShare>> shares(reads_.size(), LoadShare{});
    for (size_t rank = 0; rank < reads_.size(); ++rank) add_reads(rank, shares[rank].value());
    for (size_t rank = 0; rank < reads_.size(); ++rank) {
      auto& receipts = receipts_[rank];  // sorted by reader, then by position
      shares[rank].value().receipts = std::move(receipts);
    }
    return shares;
  }

 private:
  // Needs [begin, end) are of one shard; the rank of need `reader` reads it.
  struct Shared {
    size_t begin, end, reader;
  };

  void add(int32_t rank, int32_t number, const TensorRequest& request, const TensorRecord& tensor) {
    auto at = index_.find(&tensor);
    if (at == index_.end()) at = index_.emplace(&tensor, ShardIndex(tensor)).first;
    const int64_t first_shard = first_[static_cast<size_t>(&tensor - manifest_.tensors.data())];
    std::map<int64_t, Need> of_shards;  // several regions of a request may be in the same shard
    for (const Region& region : request.regions)
      at->second.for_each_in(region, [&](const StoredShard& shard, const Region& common) {
        const Blocks blocks(shard.region, element_bytes(tensor.type), block_bytes_);
        Coordinates last = common.start;
        for (size_t d = 0; d < last.size(); ++d) last[d] += common.extent[d] - 1;
        const Need need{first_shard + (&shard - tensor.shards.data()), rank, number, blocks.holding(common.start),
                        blocks.holding(last) + 1};
        const auto [known, is_new] = of_shards.emplace(need.shard, need);
        if (is_new) return;
        known->second.first = std::min(known->second.first, need.first);
        known->second.last = std::max(known->second.last, need.last);
      });
    for (const auto& [shard, need] : of_shards) needs_.push_back(need);
  }

  std::pair<const TensorRecord*, const StoredShard*> tensor_shard_of(int64_t number) const {
    const auto tensor =
        static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), number) - first_.begin()) - 1;
    return {&manifest_.tensors[tensor],
            &manifest_.tensors[tensor].shards[static_cast<size_t>(number - first_[tensor])]};
  }

  // Adds the reads of a rank and what the other ranks receive from it.
  void add_reads(size_t rank, LoadShare& share) {
    struct Read {
      int32_t file;
      const TensorRecord* tensor;
      const StoredShard* stored;
      Shared shared;
    };
    std::vector<Read> sorted;
    for (const Shared& shared : reads_[rank]) {
      const auto [tensor, stored] = tensor_shard_of(needs_[shared.begin].shard);
      sorted.push_back({file_.at(stored->file), tensor, stored, shared});
    }
    std::sort(sorted.begin(), sorted.end(), [](const Read& a, const Read& b) {
      return std::tie(a.file, a.stored->offset) < std::tie(b.file, b.stored->offset);
    });
    int64_t position = 0;
    for (size_t i = 0; i < sorted.size(); ++i) {
      const auto& [file, tensor, stored, shared] = sorted[i];
      if (i == 0 || file != sorted[i - 1].file) share.files.push_back(manifest_.files[static_cast<size_t>(file)]);
      ShardRead read{.tensor = needs_[shared.reader].request,
                     .type = tensor->type,
                     .file = static_cast<int32_t>(share.files.size()) - 1,
                     .offset = stored->offset,
                     .region = stored->region,
                     .checksum = stored->checksum};
      for (size_t n = shared.begin; n < shared.end; ++n) {
        if (n == shared.reader) continue;
        const Need& need = needs_[n];
        read.position = position;
        read.receivers.push_back({need.rank, need.first, need.last});
        receipts_[static_cast<size_t>(need.rank)].push_back({.tensor = need.request,
                                                             .type = tensor->type,
                                                             .reader = static_cast<int32_t>(rank),
                                                             .region = stored->region,
                                                             .position = position,
                                                             .first = need.first,
                                                             .last = need.last});
      }
      if (!read.receivers.empty()) position += num_elements(stored->region.extent) * element_bytes(tensor->type);
      share.reads.push_back(std::move(read));
    }
  }

  const Manifest& manifest_;
  const int64_t block_bytes_;
  std::vector<int64_t> first_;  // [tensor]: index of its first shard
  std::unordered_map<std::string_view, int32_t> file_;
  std::unordered_map<const TensorRecord*, ShardIndex> index_;
  std::vector<Need> needs_;
  std::vector<std::vector<Shared>> reads_;           // [rank]
  std::vector<std::vector<ShardReceipt>> receipts_;  // [rank]
};

}  // namespace

Blocks::Blocks(const Region& shard, int64_t element_bytes, int64_t most_bytes) : shard_(shard) {
  const size_t dims = shard.extent.size();
  dim_ = dims - 1;
  step_bytes_ = element_bytes;
  while (dim_ > 0 && step_bytes_ * shard.extent[dim_] <= most_bytes) step_bytes_ *= shard.extent[dim_--];
  steps_ = std::clamp<int64_t>(most_bytes / step_bytes_, 1, shard.extent[dim_]);
  chunks_ = (shard.extent[dim_] + steps_ - 1) / steps_;
  for (size_t d = 0; d < dim_; ++d) outer_ *= shard.extent[d];
}

Region Blocks::region(int64_t block) const {
  Region region = shard_;
  const int64_t begin = block % chunks_ * steps_;
  region.start[dim_] += begin;
  region.extent[dim_] = std::min(steps_, shard_.extent[dim_] - begin);
  int64_t rest = block / chunks_;
  for (size_t d = dim_; d-- > 0; rest /= shard_.extent[d]) {
    region.start[d] += rest % shard_.extent[d];
    region.extent[d] = 1;
  }
  return region;
}

int64_t Blocks::offset(int64_t block) const {
  return (block / chunks_ * shard_.extent[dim_] + block % chunks_ * steps_) * step_bytes_;
}

int64_t Blocks::holding(const Coordinates& element) const {
  int64_t outer = 0;
  for (size_t d = 0; d < dim_; ++d) outer = outer * shard_.extent[d] + element[d] - shard_.start[d];
  return outer * chunks_ + (element[dim_] - shard_.start[dim_]) / steps_;
}

std::vector<Result<LoadShare>> divide_load(const Manifest& manifest,
                                           const std::vector<std::vector<TensorRequest>>& requests, int64_t block_bytes,
                                           const std::vector<int>& readers) {
  Division division(manifest, block_bytes, requests.size());
  std::vector<Result<LoadShare>> refused;
  bool fits = true;
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    const auto added = division.add(static_cast<int32_t>(rank), requests[rank]);
    refused.push_back(added ? Result<LoadShare>(LoadShare{}) : Result<LoadShare>(added.error()));
    fits = fits && added.ok();
  }
  return fits ? division.shares(readers) : refused;
}

}  // namespace tri
