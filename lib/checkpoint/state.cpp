#include "lib/checkpoint/state.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace tri {
namespace {

int64_t product(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{1}, std::multiplies<>());
}

// Blocks of [begin, end) among the elements under `prefix` (the first indices), whose dims are shape[dim...].
void add_blocks(const std::vector<int64_t>& shape, size_t dim, std::vector<int64_t>& prefix, int64_t begin, int64_t end,
                std::vector<TensorBlock>& blocks) {
  if (begin == end) return;
  const int64_t inner = std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1, shape.end(), int64_t{1},
                                        std::multiplies<>());
  const auto whole_rows = [&](int64_t first, int64_t last) {  // of this dim
    if (first >= last) return;
    TensorBlock block{prefix, std::vector<int64_t>(dim, 1)};
    block.start.push_back(first);
    block.extent.push_back(last - first);
    for (size_t d = dim + 1; d < shape.size(); ++d) {
      block.start.push_back(0);
      block.extent.push_back(shape[d]);
    }
    blocks.push_back(std::move(block));
  };
  const auto part_of_row = [&](int64_t row, int64_t from, int64_t to) {
    prefix.push_back(row);
    add_blocks(shape, dim + 1, prefix, from, to, blocks);
    prefix.pop_back();
  };
  const int64_t first = begin / inner, last = end / inner;  // `last`: the row that `end` lies in
  if (first == last) return part_of_row(first, begin % inner, end % inner);
  if (begin % inner != 0) part_of_row(first, begin % inner, inner);
  whole_rows(begin % inner == 0 ? first : first + 1, last);
  if (end % inner != 0) part_of_row(last, 0, end % inner);
}

}  // namespace

int64_t TensorBlock::numel() const { return product(extent); }

std::vector<TensorBlock> blocks_of_range(const std::vector<int64_t>& shape, int64_t begin, int64_t end) {
  TRI_REQUIRE(!shape.empty() && 0 <= begin && begin <= end && end <= product(shape), "elements {} to {} of {}", begin,
              end, product(shape));
  std::vector<TensorBlock> blocks;
  std::vector<int64_t> prefix;
  add_blocks(shape, 0, prefix, begin, end, blocks);
  return blocks;
}

namespace {

// Of one bucket: what of the chunk's flat buffer this rank holds, and what of that it writes when it is replicated over
// dp.
struct Slice {
  const std::vector<ParamSpec>& specs;
  const FlatLayout& layout;
  const Bucket& bucket;
  int64_t begin, end;
  int64_t own_begin, own_end;
  bool replica_writes;  // of the tp ranks that hold the same, this one writes
  Tensor master, exp_avg, exp_avg_sq;
};

void add_pieces(const Slice& slice, Axis tp, std::vector<StatePiece>& pieces) {
  for (const int index : slice.bucket.parameters) {
    const ParamSpec& spec = slice.specs[static_cast<size_t>(index)];
    const std::vector<int64_t> local = spec.local_shape(tp.size);
    const int64_t offset = slice.layout.offset[static_cast<size_t>(index)];
    // Cut at the borders of what is written, so that a piece is written whole or not at all.
    std::vector<int64_t> cuts = {std::max(slice.begin, offset), std::min(slice.end, offset + product(local))};
    if (cuts[0] >= cuts[1]) continue;
    for (const int64_t border : {slice.own_begin, slice.own_end})
      if (border > cuts[0] && border < cuts[1]) cuts.push_back(border);
    std::sort(cuts.begin(), cuts.end());
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      const bool own = cuts[c] >= slice.own_begin && cuts[c] < slice.own_end;
      const bool writes = own && slice.replica_writes && !spec.tied_copy;
      int64_t at = cuts[c] - slice.begin;
      for (TensorBlock& block : blocks_of_range(local, cuts[c] - offset, cuts[c + 1] - offset)) {
        if (spec.split_dim >= 0) {
          const auto dim = static_cast<size_t>(spec.split_dim);
          block.start[dim] += tp.rank * local[dim];
        }
        const int64_t count = block.numel();
        const auto add = [&](const std::string& name, const Tensor& memory) {
          pieces.push_back({name, spec.shape, block, memory.flat(at, count), writes});
        };
        add("model/" + spec.name, slice.master);
        add("optimizer/" + spec.name + "/exp_avg", slice.exp_avg);
        add("optimizer/" + spec.name + "/exp_avg_sq", slice.exp_avg_sq);
        at += count;
      }
    }
  }
}

}  // namespace

std::vector<StatePiece> state_pieces(const Config& config, const Mesh& mesh, const StoreTensors& store) {
  const bool sharded = config.parallel.zero >= 1;
  const int64_t parts = sharded ? mesh.dp.size : 1;
  std::vector<StatePiece> pieces;
  int number = 0;  // of the bucket: replicas over tp take turns
  for (size_t c = 0; c < store.chunks.size(); ++c) {
    const ChunkStoreTensors& chunk = store.chunks[c];
    const std::vector<ParamSpec> specs = chunk_parameters(config, mesh.pp, static_cast<int>(c));
    for (const Bucket& bucket : chunk.layout.buckets) {
      const int64_t own = bucket.size / mesh.dp.size, held = bucket.size / parts;
      const int64_t own_begin = bucket.first + mesh.dp.rank * own, begin = sharded ? own_begin : bucket.first;
      const auto slice_of = [&](const Tensor& slices) { return slices.flat(bucket.first / parts, held); };
      const bool turn = number++ % mesh.tp.size == mesh.tp.rank;
      add_pieces({.specs = specs,
                  .layout = chunk.layout,
                  .bucket = bucket,
                  .begin = begin,
                  .end = begin + held,
                  .own_begin = own_begin,
                  .own_end = own_begin + own,
                  .replica_writes = bucket.scope != GradScope::kReplicated || turn,
                  .master = chunk.master.empty() ? chunk.parameters.flat(begin, held) : slice_of(chunk.master),
                  .exp_avg = slice_of(chunk.exp_avg),
                  .exp_avg_sq = slice_of(chunk.exp_avg_sq)},
                 mesh.tp, pieces);
    }
  }
  return pieces;
}

}  // namespace tri
