#include "lib/optim/parameter_store.h"

#include <algorithm>

#include "kernels/core/dims.h"
#include "kernels/core/timeline.h"
#include "kernels/ops.h"

namespace tri {
namespace {

// Zero-2 pool: a bucket being filled, its neighbour at a border, one being reduced, and the tied embedding's on a
// single stage, which the head opens and only the embedding closes.
constexpr int kGradientPool = 4;

std::vector<std::vector<ParamSpec>> rank_specs(const Config& config, const Mesh& mesh) {
  std::vector<std::vector<ParamSpec>> specs;
  for (int chunk = 0; chunk < config.parallel.chunks; ++chunk)
    specs.push_back(chunk_parameters(config, mesh.pp, chunk));
  return specs;
}

// Numbers of the rank's tensors over all chunks: those divided over tp first, replicated ones last.
std::vector<std::vector<int>> number_tensors(const std::vector<std::vector<ParamSpec>>& specs) {
  std::vector<std::vector<int>> numbers;
  for (const auto& chunk : specs) numbers.emplace_back(chunk.size());
  int next = 0;
  for (const bool replicated : {false, true})
    for (size_t c = 0; c < specs.size(); ++c)
      for (size_t i = 0; i < specs[c].size(); ++i)
        if ((specs[c][i].scope == GradScope::kReplicated) == replicated) numbers[c][i] = next++;
  return numbers;
}

}  // namespace

bool copies_dp_buckets(const Config& config) {
  const ParallelConfig& p = config.parallel;
  if (!p.overlap_dp || p.zero == 0) return false;
  // Measured on four H200s: copies are 2 % of a step faster alone, and 1 % slower where they share the copy engines
  // with those of tp.
  return p.dp_transfers == Transfers::kCopies || (p.dp_transfers == Transfers::kAuto && p.tp == 1);
}

void reduce_bucket(RowExchange& exchange, Tensor out, Tensor whole, bool add, Stream& stream) {
  for (const RowBlock& block : exchange.begin_reduce(whole, {.pieces = 1}, stream)) exchange.send(block, stream);
  const Tensor parts = exchange.finish_reduce(stream);
  const int64_t rows = out.numel() / kBlock;
  const Tensor sum = out.view({rows, kBlock});
  const int first = add ? 0 : 1;  // of the parts that are added
  residual_add({.out = sum,
                .inp = add ? sum : parts.rows(0, 1).view({rows, kBlock}),
                .add = parts.rows(first, parts[0] - first).view({parts[0] - first, rows, kBlock})},
               stream);
}

StoreTensors allocate_store(const Config& config, const Mesh& mesh, Arena& arena) {
  const int dp = mesh.dp.size, zero = config.parallel.zero;
  const int64_t parts = zero >= 1 ? dp : 1;
  StoreTensors store;
  int64_t pool_elements = 0;
  int pool_buckets = 0;
  for (const auto& specs : rank_specs(config, mesh)) {
    ChunkStoreTensors chunk;
    chunk.layout = make_flat_layout(specs, mesh.tp.size, dp, config.parallel.bucket_elements);
    const int64_t size = chunk.layout.size, slices = size / parts;
    chunk.parameters = arena.take("parameters", config.precision.compute, {size});
    chunk.gradients = arena.take("gradients", Dtype::kF32, {zero == 2 ? slices : size});
    if (config.precision.compute != Dtype::kF32) chunk.master = arena.take("master weights", Dtype::kF32, {slices});
    chunk.exp_avg = arena.take("optimizer moments", Dtype::kF32, {slices});
    chunk.exp_avg_sq = arena.take("optimizer moments", Dtype::kF32, {slices});
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
    for (const ParamSpec& spec : specs) {
      ++store.num_tensors;
      store.num_split_tensors += spec.scope != GradScope::kReplicated;
    }
    store.chunks.push_back(std::move(chunk));
  }
  for (int i = 0; i < std::min(kGradientPool, pool_buckets); ++i)
    store.pool.push_back(arena.take("gradient workspace", Dtype::kF32, {pool_elements}));
  if (dp > 1 && copies_dp_buckets(config)) {
    int64_t largest = 0;
    for (const ChunkStoreTensors& chunk : store.chunks)
      for (const Bucket& bucket : chunk.layout.buckets) largest = std::max(largest, bucket.size);
    store.exchange = allocate_row_exchange("dp exchange", dp, largest, Dtype::kF32, 1, arena);
  }
  store.decay = arena.take("optimizer tables", Dtype::kF32, {store.num_tensors});
  store.count_weight = arena.take("optimizer tables", Dtype::kF32, {store.num_tensors});
  store.local_sumsq = arena.take("optimizer tables", Dtype::kF32, {store.num_tensors});
  return store;
}

struct ParameterStore::BucketState {
  int chunk = 0;
  const Bucket* bucket = nullptr;
  Tensor whole;               // (size) f32: where gradients are added; zero 2: while open
  Tensor grad_slice;          // (slice) f32
  Tensor param_whole;         // (size) compute dtype
  Tensor block_tensor;        // (size / kBlock) i32
  int pool = -1;              // zero 2: index of the pool buffer while open
  bool open = false;          // zero 2: `whole` is valid
  bool ragged = false;        // some tensor ends inside a block of kBlock elements
  std::vector<bool> written;  // [parameter of the bucket]: its gradient holds this step's numbers
  int ready = 0;              // gradients completed in this pass
  bool last_pass = false;
  std::unique_ptr<Event> dedicated_freed;  // zero 2: the reduction that read the dedicated buffer is done
  std::unique_ptr<Event> gathered;         // the parameters are complete
  bool gather_pending = false;             // ... and the compute stream has not waited for it yet
};

ParameterStore::ParameterStore(const Config& config, const Mesh& mesh, StoreTensors tensors, int num_microbatches,
                               Device& device, Stream& compute, Channel& dp, RowExchange* exchange)
    : config_(config),
      mesh_(mesh),
      tensors_(std::move(tensors)),
      num_microbatches_(num_microbatches),
      sharded_(config.parallel.zero >= 1),
      grads_sharded_(config.parallel.zero == 2),
      compute_(compute),
      dp_(dp),
      exchange_(exchange) {
  const auto specs = rank_specs(config, mesh);
  for (size_t c = 0; c < specs.size(); ++c) {
    const ChunkStoreTensors& chunk = tensors_.chunks[c];
    auto& list = parameters_.emplace_back();
    for (size_t i = 0; i < specs[c].size(); ++i) {
      const std::vector<int64_t> shape = specs[c][i].local_shape(mesh.tp.size);
      Tensor weight = chunk.parameters.flat(chunk.layout.offset[i], specs[c][i].local_numel(mesh.tp.size));
      weight.dims = static_cast<int>(shape.size());
      std::copy(shape.begin(), shape.end(), weight.shape.begin());
      list.push_back({specs[c][i], weight, static_cast<int>(c), static_cast<int>(i)});
    }
    auto& states = buckets_.emplace_back();
    for (size_t b = 0; b < chunk.layout.buckets.size(); ++b) {
      const Bucket& bucket = chunk.layout.buckets[b];
      auto state = std::make_unique<BucketState>();
      state->chunk = static_cast<int>(c);
      state->bucket = &bucket;
      for (const int index : bucket.parameters)
        state->ragged |= specs[c][static_cast<size_t>(index)].local_numel(mesh.tp.size) % kBlock != 0;
      state->written.assign(bucket.parameters.size(), false);
      const int64_t parts = sharded_ ? mesh.dp.size : 1;
      state->param_whole = chunk.parameters.flat(bucket.first, bucket.size);
      state->block_tensor = chunk.block_tensor.flat(bucket.first / kBlock, bucket.size / kBlock);
      if (grads_sharded_) {
        state->grad_slice = chunk.gradients.flat(bucket.first / parts, bucket.size / parts);
      } else {
        state->whole = chunk.gradients.flat(bucket.first, bucket.size);
        state->grad_slice = slice_of(state->whole);
      }
      state->dedicated_freed = device.make_event();
      state->gathered = device.make_event();
      const bool master_apart = !chunk.master.empty();
      slices_.push_back({.chunk = static_cast<int>(c),
                         .bucket = static_cast<int>(b),
                         .scope = bucket.scope,
                         .master = master_apart ? chunk.master.flat(bucket.first / parts, bucket.size / parts)
                                                : slice_of(state->param_whole),
                         .param = master_apart ? slice_of(state->param_whole) : Tensor{},
                         .grad = state->grad_slice,
                         .exp_avg = chunk.exp_avg.flat(bucket.first / parts, bucket.size / parts),
                         .exp_avg_sq = chunk.exp_avg_sq.flat(bucket.first / parts, bucket.size / parts),
                         .block_tensor = slice_of(state->block_tensor)});
      states.push_back(std::move(state));
    }
  }
  // Buckets lie in reverse order of use; chunk 0 is used first.
  std::stable_sort(slices_.begin(), slices_.end(), [](const BucketSlice& a, const BucketSlice& b) {
    return a.chunk != b.chunk ? a.chunk < b.chunk : a.bucket > b.bucket;
  });
  for (size_t i = 0; i < tensors_.pool.size(); ++i) pool_freed_.push_back(device.make_event());
  pool_open_.assign(tensors_.pool.size(), false);
  fill_tables();
}

ParameterStore::~ParameterStore() = default;

// What the optimizer must know of every tensor and every block of the flat buffers.
void ParameterStore::fill_tables() {
  const auto specs = rank_specs(config_, mesh_);
  const auto numbers = number_tensors(specs);
  const int dp_counts = sharded_ || mesh_.dp.first();
  std::vector<float> decay(static_cast<size_t>(tensors_.num_tensors)), weight(decay.size());
  tensor_names_.resize(decay.size());
  for (size_t c = 0; c < specs.size(); ++c) {
    const ChunkStoreTensors& chunk = tensors_.chunks[c];
    std::vector<int> owners = block_owners(chunk.layout, specs[c], mesh_.tp.size);
    for (int& owner : owners)
      if (owner >= 0) owner = numbers[c][static_cast<size_t>(owner)];
    compute_.copy(chunk.block_tensor.data, owners.data(), chunk.block_tensor.bytes());
    compute_.synchronize();
    for (size_t i = 0; i < specs[c].size(); ++i) {
      const ParamSpec& spec = specs[c][i];
      const auto number = static_cast<size_t>(numbers[c][i]);
      tensor_names_[number] = spec.name;
      decay[number] = spec.decay ? static_cast<float>(config_.optimizer.weight_decay) : -1.0f;
      const bool first_holder = spec.scope != GradScope::kReplicated || mesh_.tp.first();
      weight[number] = dp_counts && first_holder && !spec.tied_copy ? 1.0f : 0.0f;
    }
  }
  compute_.copy(tensors_.decay.data, decay.data(), tensors_.decay.bytes());
  compute_.copy(tensors_.count_weight.data, weight.data(), tensors_.count_weight.bytes());
  compute_.synchronize();
}

// On the device: the parameters, and where there are master weights, which the parameters round, this rank's slices.
void ParameterStore::make_start_values() {
  constexpr int64_t kOnes = 1 << 16;  // at a time: vectors alone start with ones
  const std::vector<float> ones(kOnes, 1.0f);
  const std::vector<bf16> rounded_ones(kOnes, bf16(1.0f));
  // Elements [begin, begin + n) of a tensor into out (n).
  const auto start = [&](const ParamSpec& spec, const Tensor& out, int64_t begin) {
    if (spec.init == InitRule::kNormal) {
      NormalValues normal = normal_start(spec, mesh_.tp, config_.run.seed);
      normal.out = out;
      normal.begin = begin;
      normal_values(normal, compute_);
    } else if (spec.init == InitRule::kOnes) {
      const void* from = ones.data();
      if (out.dtype == Dtype::kBF16) from = rounded_ones.data();
      for (int64_t first = 0; first < out.numel(); first += kOnes) {
        const Tensor part = out.flat(first, std::min(kOnes, out.numel() - first));
        compute_.copy(part.data, from, part.bytes());
      }
    }
  };
  const auto specs = rank_specs(config_, mesh_);
  for (size_t c = 0; c < specs.size(); ++c) {
    const ChunkStoreTensors& chunk = tensors_.chunks[c];
    compute_.zero(chunk.parameters);  // what lies between the tensors, and those that start with zeros
    if (!chunk.master.empty()) compute_.zero(chunk.master);
    for (size_t i = 0; i < specs[c].size(); ++i) {
      const int64_t offset = chunk.layout.offset[i], count = specs[c][i].local_numel(mesh_.tp.size);
      start(specs[c][i], chunk.parameters.flat(offset, count), 0);
      if (chunk.master.empty()) continue;
      const Bucket& bucket = chunk.layout.buckets[static_cast<size_t>(chunk.layout.bucket_of[i])];
      const int64_t parts = sharded_ ? mesh_.dp.size : 1, slice = bucket.size / parts;
      const int64_t slice_first = bucket.first + (sharded_ ? mesh_.dp.rank * slice : 0);
      const int64_t first = std::max(offset, slice_first), end = std::min(offset + count, slice_first + slice);
      if (first < end)
        start(specs[c][i], chunk.master.flat(bucket.first / parts + first - slice_first, end - first), first - offset);
    }
  }
  compute_.synchronize();
}

Tensor ParameterStore::slice_of(Tensor whole) const {
  if (!sharded_) return whole;
  const int64_t part = whole.numel() / mesh_.dp.size;
  return whole.flat(mesh_.dp.rank * part, part);
}

ParameterStore::BucketState& ParameterStore::bucket_of(const Parameter& parameter) {
  const FlatLayout& layout = tensors_.chunks[static_cast<size_t>(parameter.chunk)].layout;
  const int bucket = layout.bucket_of[static_cast<size_t>(parameter.index)];
  return *buckets_[static_cast<size_t>(parameter.chunk)][static_cast<size_t>(bucket)];
}

void ParameterStore::begin_step() {
  if (grads_sharded_)
    for (const ChunkStoreTensors& chunk : tensors_.chunks) compute_.zero(chunk.gradients);
  for (auto& chunk : buckets_)
    for (auto& bucket : chunk) {
      // Small tensors at once; a matrix is overwritten by its first product.
      const bool matrices = bucket->bucket->matrices;
      if (!matrices && !grads_sharded_) compute_.zero(bucket->whole);
      bucket->written.assign(bucket->written.size(), !matrices);
    }
  if (sums_own_) compute_.zero(tensors_.local_sumsq);
}

void ParameterStore::begin_backward(int chunk, int microbatch) {
  for (auto& bucket : buckets_[static_cast<size_t>(chunk)]) {
    bucket->ready = 0;
    bucket->last_pass = microbatch == num_microbatches_ - 1;
  }
}

void ParameterStore::before_use(const Parameter& parameter) {
  BucketState& bucket = bucket_of(parameter);
  if (!bucket.gather_pending) return;
  bucket.gather_pending = false;
  // compute waits for the updated parameters of the previous step
  if (exchange_ != nullptr) return exchange_->finish_gather(bucket.param_whole, compute_);
  const TimeCategoryScope scope(compute_, dp_.category());
  compute_.wait(*bucket.gathered);
}

void ParameterStore::open_bucket(BucketState& bucket) {
  const ChunkStoreTensors& chunk = tensors_.chunks[static_cast<size_t>(bucket.chunk)];
  const auto index = static_cast<size_t>(bucket.bucket - chunk.layout.buckets.data());
  if (!chunk.dedicated[index].empty()) {
    bucket.whole = chunk.dedicated[index];
    const TimeCategoryScope scope(compute_, dp_.category());
    compute_.wait(*bucket.dedicated_freed);  // compute waits for the previous microbatch's reduction
  } else {
    size_t tried = 0;
    while (pool_open_[pool_next_]) {
      pool_next_ = (pool_next_ + 1) % tensors_.pool.size();
      TRI_REQUIRE(++tried < tensors_.pool.size(), "all {} gradient buffers are open", tensors_.pool.size());
    }
    bucket.pool = static_cast<int>(pool_next_);
    pool_open_[pool_next_] = true;
    bucket.whole = tensors_.pool[pool_next_].flat(0, bucket.bucket->size);
    const TimeCategoryScope scope(compute_, dp_.category());
    compute_.wait(*pool_freed_[pool_next_]);  // compute waits for the reduction of its previous bucket
    pool_next_ = (pool_next_ + 1) % tensors_.pool.size();
  }
  // A matrix is overwritten by its first product, but not the rest of its last block, which counts in sums.
  const bool overwritten = bucket.bucket->matrices && !bucket.ragged;
  if (!overwritten) compute_.zero(bucket.whole);
  bucket.written.assign(bucket.written.size(), !overwritten);
  bucket.open = true;
}

Tensor ParameterStore::gradient(const Parameter& parameter) {
  const GradientTarget target = gradient_target(parameter);
  if (target.beta == 0.0f) compute_.zero(target.tensor);
  return target.tensor;
}

ParameterHooks::GradientTarget ParameterStore::gradient_target(const Parameter& parameter) {
  BucketState& bucket = bucket_of(parameter);
  if (grads_sharded_ && !bucket.open) open_bucket(bucket);
  const auto& members = bucket.bucket->parameters;
  const auto member = static_cast<size_t>(std::find(members.begin(), members.end(), parameter.index) - members.begin());
  const float beta = bucket.written[member] ? 1.0f : 0.0f;
  bucket.written[member] = true;
  return {gradient_at(parameter, bucket.whole), beta};
}

Tensor ParameterStore::any_gradient_place(const Parameter& parameter) {
  BucketState& bucket = bucket_of(parameter);
  if (!grads_sharded_) return gradient_at(parameter, bucket.whole);
  const ChunkStoreTensors& chunk = tensors_.chunks[static_cast<size_t>(bucket.chunk)];
  const Tensor& dedicated = chunk.dedicated[static_cast<size_t>(bucket.bucket - chunk.layout.buckets.data())];
  return gradient_at(parameter, dedicated.empty() ? tensors_.pool.front() : dedicated);
}

// The parameter's place in its bucket's gradients `whole`.
Tensor ParameterStore::gradient_at(const Parameter& parameter, Tensor whole) {
  const FlatLayout& layout = tensors_.chunks[static_cast<size_t>(parameter.chunk)].layout;
  const int64_t offset = layout.offset[static_cast<size_t>(parameter.index)] - bucket_of(parameter).bucket->first;
  Tensor gradient = whole.flat(offset, parameter.weight.numel());
  gradient.dims = parameter.weight.dims;
  gradient.shape = parameter.weight.shape;
  return gradient;
}

void ParameterStore::gradient_ready(const Parameter& parameter) {
  BucketState& bucket = bucket_of(parameter);
  if (++bucket.ready == static_cast<int>(bucket.bucket->parameters.size()) && (grads_sharded_ || bucket.last_pass))
    reduce(bucket);
}

void ParameterStore::reduce(BucketState& bucket) {
  dp_.after(compute_);  // the dp channel waits for the bucket's last gradient
  // While they are still this rank's own, the gradients name the rank that made a NaN. Where nothing is added to them,
  // the global norm's sums tell.
  if (sums_own_ && (dp_.size() > 1 || bucket.bucket->scope == GradScope::kReplicated))
    tensor_sumsq({.sumsq = tensors_.local_sumsq, .inp = bucket.whole, .block_tensor = bucket.block_tensor},
                 dp_.stream());
  if (!sharded_) return dp_.all_reduce(bucket.whole, ReduceOp::kSum);
  const Tensor slice = slice_of(bucket.whole);
  if (exchange_ != nullptr)
    reduce_bucket(*exchange_, bucket.grad_slice, bucket.whole, grads_sharded_, dp_.stream());
  else
    dp_.reduce_scatter(slice, bucket.whole);
  if (!grads_sharded_) return;
  if (exchange_ == nullptr) accumulate({.inout = bucket.grad_slice, .inp = slice}, dp_.stream());
  Event& freed = bucket.pool >= 0 ? *pool_freed_[static_cast<size_t>(bucket.pool)] : *bucket.dedicated_freed;
  dp_.stream().record(freed);
  if (bucket.pool >= 0) pool_open_[static_cast<size_t>(bucket.pool)] = false;
  bucket.pool = -1;
  bucket.open = false;
}

void ParameterStore::finish_gradients(Channel& tp, Channel* embedding) {
  dp_.before(compute_);  // compute waits for all dp reductions
  if (exchange_ != nullptr) exchange_->settle(compute_);
  tp.after(compute_);
  if (embedding != nullptr) embedding->after(compute_);
  for (const BucketSlice& slice : slices_) {
    if (slice.scope == GradScope::kReplicated) tp.all_reduce(slice.grad, ReduceOp::kSum);
    if (slice.scope == GradScope::kTied && embedding != nullptr) embedding->all_reduce(slice.grad, ReduceOp::kSum);
  }
  tp.before(compute_);  // compute waits for the sums over tp and over the two embeddings
  if (embedding != nullptr) embedding->before(compute_);
}

void ParameterStore::state_loaded() {
  for (const BucketSlice& slice : slices_) {
    if (!sharded_ && mesh_.dp.size > 1) {
      dp_.after(compute_);
      for (const Tensor& whole : {slice.master, slice.exp_avg, slice.exp_avg_sq}) {
        const int64_t own = whole.numel() / mesh_.dp.size;
        dp_.all_gather(whole, whole.flat(mesh_.dp.rank * own, own));
      }
      dp_.before(compute_);
    }
    if (!slice.param.empty()) cast({.out = slice.param, .inp = slice.master}, compute_);
    publish(slice);
  }
}

void ParameterStore::publish(const BucketSlice& slice) {
  BucketState& bucket = *buckets_[static_cast<size_t>(slice.chunk)][static_cast<size_t>(slice.bucket)];
  if (!sharded_) return;
  if (exchange_ != nullptr) {
    if (bucket.gather_pending) exchange_->finish_gather(bucket.param_whole, compute_);
    exchange_->begin_gather(bucket.param_whole, compute_);
    exchange_->start_gather(bucket.param_whole, compute_);
    bucket.gather_pending = true;
    return;
  }
  dp_.after(compute_);  // the dp channel waits for the update of this slice
  dp_.all_gather(bucket.param_whole, slice_of(bucket.param_whole));
  dp_.stream().record(*bucket.gathered);
  bucket.gather_pending = true;
}

}  // namespace tri
