#include "lib/optim/store_tensors.h"

#include <algorithm>
#include <utility>

#include "kernels/core/dims.h"
#include "kernels/moment_rounding.h"
#include "lib/model/fp8_tensors.h"
#include "lib/optim/optimizers.h"

namespace tri {
namespace {

// Zero-2 pool: a bucket being filled, its neighbour at a border, one being reduced, and the tied embedding's on a
// rank with both ends of the pipeline, which stays open from the head to the embedding.
constexpr int kGradientPool = 4;

// With experts, their buckets and those of router and shared expert are open at the same time.
constexpr int kExpertGradientPool = 3;

void count_tensors(const ParamSpec& spec, const Mesh& mesh, StoreTensors& store) {
  const auto count = static_cast<int>(spec.local_tensors(mesh));
  store.num_tensors += count;
  const AxisSet sliced = slicing_axes(spec, mesh);
  auto run = std::ranges::find_if(store.runs,
                                  [&](const TensorRun& r) { return r.sharded == spec.sharded && r.sliced == sliced; });
  if (run == store.runs.end()) run = store.runs.insert(run, {.sharded = spec.sharded, .sliced = sliced});
  run->count += count;
}

// Returns the elements of Muon's slices among those of the first `buckets`.
int64_t muon_elements(const ChunkStoreTensors& chunk, size_t buckets) {
  int64_t elements = 0;
  for (size_t b = 0; b < buckets; ++b)
    if (chunk.layout.buckets[b].muon) elements += chunk.slices[b].size;
  return elements;
}

}  // namespace

std::vector<Tensor> ChunkStoreTensors::state_of(size_t bucket) const {
  const SliceRange& slice = slices[bucket];
  const int64_t all = slices.back().place + slices.back().size;
  std::vector<Tensor> of_slice;
  for (const Tensor& one : state) {
    const bool without_muon = one.numel() < all;
    if (without_muon && layout.buckets[bucket].muon) continue;
    const int64_t place = slice.place - (without_muon ? muon_elements(*this, bucket) : 0);
    of_slice.push_back(one.flat(place, slice.size));
  }
  return of_slice;
}

AxisSet StoreTensors::sharded(int tensor) const {
  const auto run = std::ranges::find_if(runs, [&](const TensorRun& r) { return tensor < r.first + r.count; });
  TRI_REQUIRE(tensor >= 0 && run != runs.end(), "tensor {} of {}", tensor, num_tensors);
  return run->sharded;
}

StoreTensors allocate_store(const Config& config, const Mesh& mesh, Arena& arena) {
  std::vector<std::vector<ParamSpec>> specs;
  for (int c = 0; c < config.parallel.chunks; ++c) specs.push_back(chunk_parameters(config, mesh.axis("pp"), c));
  return allocate_store(config, mesh, std::move(specs), arena);
}

StoreTensors allocate_store(const Config& config, const Mesh& mesh, std::vector<std::vector<ParamSpec>> specs,
                            Arena& arena) {
  const int dp = mesh.joint_axis(kBucketAxes).size, zero = config.parallel.zero;
  StoreTensors store;
  int64_t pool_elements = 0;
  int pool_buckets = 0;
  for (std::vector<ParamSpec>& of_chunk : specs) {
    ChunkStoreTensors chunk;
    chunk.specs = std::move(of_chunk);
    chunk.layout = make_flat_layout(chunk.specs, mesh, config.parallel.bucket_elements);
    chunk.slices = slice_ranges(chunk.layout, mesh, zero >= 1 ? Slices::kSharded : Slices::kWhole);
    const int64_t size = chunk.layout.size;
    const int64_t slices = chunk.slices.empty() ? 0 : chunk.slices.back().place + chunk.slices.back().size;
    const int64_t quantized = chunk.layout.quantized;
    if (quantized > 0) chunk.quantized = arena.take("parameters", Dtype::kE4M3, {quantized});
    chunk.parameters = arena.take("parameters", config.precision.compute, {size - quantized});
    chunk.gradients = arena.take("gradients", Dtype::kF32, {zero == 2 ? slices : size});
    if (config.precision.compute != Dtype::kF32) chunk.master = arena.take("master weights", Dtype::kF32, {slices});
    const OptimizerRow& row = optimizer_row(config.optimizer.name);
    for (size_t i = 0; i < row.state.size(); ++i) {
      const int64_t without = i < row.matrix_state.size() ? 0 : muon_elements(chunk, chunk.slices.size());
      chunk.state.push_back(slices == without && without > 0
                                ? Tensor{}
                                : arena.take("optimizer moments", config.optimizer.moments, {slices - without}));
    }
    if (config.optimizer.ema > 0) chunk.ema = arena.take("weight average", Dtype::kF32, {slices});
    chunk.block_tensor = arena.take("optimizer tables", Dtype::kI32, {size / kBlock});
    for (const Bucket& bucket : chunk.layout.buckets) {
      Tensor& dedicated = chunk.dedicated.emplace_back();
      if (zero != 2) continue;
      if (bucket.matrices) {
        pool_elements = std::max(pool_elements, bucket.size);
        ++pool_buckets;
      } else {
        dedicated = arena.take("gradient workspace", Dtype::kF32, {bucket.size});
      }
    }
    for (const ParamSpec& spec : chunk.specs) count_tensors(spec, mesh, store);
    store.chunks.push_back(std::move(chunk));
  }
  const int pool = kGradientPool + (config.model.experts > 0 ? kExpertGradientPool : 0);
  for (int i = 0; i < std::min(pool, pool_buckets); ++i)
    store.pool.push_back(arena.take("gradient workspace", Dtype::kF32, {pool_elements}));
  if (by_peer_copies(config.parallel.dp_transfers, dp)) {
    int64_t largest = 0;
    for (const ChunkStoreTensors& chunk : store.chunks)
      for (const Bucket& bucket : chunk.layout.buckets)
        if (!(bucket.sharded_over() - kRowAxes).empty()) largest = std::max(largest, bucket.size);
    store.peer_copies = allocate_peer_copies("dp peer copies", dp, largest, Dtype::kF32, 1, arena);
  }
  std::ranges::sort(store.runs, std::ranges::greater{},
                    [](const TensorRun& run) { return std::pair(run.sharded.bits(), run.sliced.bits()); });
  for (size_t i = 1; i < store.runs.size(); ++i)
    store.runs[i].first = store.runs[i - 1].first + store.runs[i - 1].count;
  store.decay = arena.take("optimizer tables", Dtype::kF32, {store.num_tensors});
  store.count_weight = arena.take("optimizer tables", Dtype::kF32, {store.num_tensors});
  if (config.optimizer.moments != Dtype::kF32)
    store.draws = arena.take("optimizer tables", Dtype::kI32, {store.num_tensors, TensorDraws::kColumns});
  if (keeps_fp8_weights(config)) store.fp8_slot = arena.take("optimizer tables", Dtype::kI32, {store.num_tensors});
  store.local_sumsq = arena.take("optimizer tables", Dtype::kF32, {store.num_tensors});
  return store;
}

}  // namespace tri
