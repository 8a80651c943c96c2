#include "lib/checkpoint/state.h"

#include <algorithm>

#include "kernels/core/dims.h"
#include "lib/checkpoint/weights.h"
#include "lib/optim/optimizers.h"

namespace tri {
namespace {

// The part of one bucket of the chunk's flat buffer that this rank holds, and its share of that among the ranks of
// Bucket::sharded_over().
struct Slice {
  const std::vector<ParamSpec>& specs;
  const FlatLayout& layout;
  const Bucket& bucket;
  SliceRange held, local;
  int number;  // number of the bucket in the rank: ranks that hold the same bucket take turns writing
  Tensor master;
  std::vector<Tensor> state;  // of the optimizer, in the order of state_names
  const std::vector<std::string>& state_names;
  Tensor ema;  // or empty
};

std::pair<int64_t, int64_t> range_of(const SliceRange& slice) { return {slice.begin, slice.begin + slice.size}; }

void add_shards(const Slice& slice, const Mesh& mesh, std::vector<StateShard>& shards) {
  for (const int index : slice.bucket.parameters) {
    const ParamSpec& spec = slice.specs[static_cast<size_t>(index)];
    const std::vector<int64_t> local = spec.local_shape(mesh);
    const Axis holders = mesh.holders(spec.sharded | slice.bucket.sharded_over() | AxisSet{"pp"});
    const int64_t offset = slice.layout.offset[static_cast<size_t>(index)];
    const auto [begin, end] = range_of(slice.held);
    const auto [local_begin, local_end] = range_of(slice.local);
    // Cut at the borders of the local share, so that a shard is written whole or not at all.
    std::vector<int64_t> cuts = {std::max(begin, offset), std::min(end, offset + num_elements(local))};
    if (cuts[0] >= cuts[1]) continue;
    for (const int64_t border : {local_begin, local_end})
      if (border > cuts[0] && border < cuts[1]) cuts.push_back(border);
    std::sort(cuts.begin(), cuts.end());
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      const bool is_local = cuts[c] >= local_begin && cuts[c] < local_end;
      const bool writes = is_local && slice.number % holders.size == holders.rank && !spec.tied_copy;
      int64_t at = cuts[c] - begin;
      for (Region& region : regions_of_range(local, cuts[c] - offset, cuts[c + 1] - offset)) {
        if (spec.split_dim >= 0) {
          const auto dim = static_cast<size_t>(spec.split_dim);
          region.start[dim] += spec.shard(mesh).rank * local[dim];
        }
        const int64_t count = num_elements(region.extent);
        const auto add = [&](const std::string& name, const Tensor& memory) {
          const StoredType type = memory.dtype == Dtype::kBF16 ? StoredType::kBf16 : StoredType::kF32;
          shards.push_back({{.tensor = name, .type = type, .shape = spec.shape, .region = region},
                            memory.flat(at, count),
                            is_local,
                            writes});
        };
        add(weight_name(spec.name), slice.master);
        for (size_t s = 0; s < slice.state.size(); ++s)
          add(fmt::format("optimizer/{}/{}", spec.name, slice.state_names[s]), slice.state[s]);
        if (!slice.ema.empty()) add(weight_name(spec.name, WeightSet::kAverage), slice.ema);
        at += count;
      }
    }
  }
}

}  // namespace

std::vector<StateShard> state_shards(const Config& config, const Mesh& mesh, const StoreTensors& store) {
  std::vector<StateShard> shards;
  int number = 0;  // of the bucket
  for (const ChunkStoreTensors& chunk : store.chunks) {
    const std::vector<SliceRange> local = slice_ranges(chunk.layout, mesh, Slices::kSharded);
    for (size_t b = 0; b < local.size(); ++b) {
      const SliceRange& held = chunk.slices[b];
      const auto slice_of = [&](const Tensor& slices) { return slices.flat(held.place, held.size); };
      const OptimizerRow& row = optimizer_row(config.optimizer.name);
      add_shards(
          {.specs = chunk.specs,
           .layout = chunk.layout,
           .bucket = chunk.layout.buckets[b],
           .held = held,
           .local = local[b],
           .number = number++,
           .master = chunk.master.empty() ? chunk.parameters.flat(held.begin, held.size) : slice_of(chunk.master),
           .state = chunk.state_of(b),
           .state_names = chunk.layout.buckets[b].muon ? row.matrix_state : row.state,
           .ema = chunk.ema.empty() ? Tensor{} : slice_of(chunk.ema)},
          mesh, shards);
    }
  }
  return shards;
}

// Shards have the same layout in the buffer as on the device, without large gaps.
StateBuffer state_buffer(const std::vector<StateShard>& shards) {
  constexpr int64_t kMostPadding = 4096;
  StateBuffer buffer{.offset = std::vector<int64_t>(shards.size(), -1)};
  std::vector<size_t> order;
  for (size_t i = 0; i < shards.size(); ++i)
    if (shards[i].local) order.push_back(i);
  const auto address = [&](size_t i) { return static_cast<const char*>(shards[i].memory.data); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return address(a) < address(b); });
  const char* end = nullptr;  // of the previous shard, on the device
  for (const size_t i : order) {
    const int64_t bytes = shards[i].memory.bytes(), gap = end == nullptr ? 0 : address(i) - end;
    const int64_t at = buffer.offset[i] = gap > kMostPadding ? round_up(buffer.bytes, 256) : buffer.bytes + gap;
    end = address(i) + bytes;
    buffer.bytes = at + bytes;
    if (!shards[i].writes) continue;
    auto& runs = buffer.runs;
    const bool joins = !runs.empty() && address(i) - runs.back().from == at - runs.back().offset &&
                       at - (runs.back().offset + runs.back().bytes) <= kMostPadding;
    if (!joins) runs.push_back({address(i), at, 0});
    runs.back().bytes = buffer.bytes - runs.back().offset;
  }
  return buffer;
}

}  // namespace tri
