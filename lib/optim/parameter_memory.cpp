#include "lib/optim/parameter_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "io/base/random.h"
#include "kernels/core/dims.h"
#include "kernels/moment_rounding.h"

namespace tri {
namespace {

// Numbers this rank's tensors over all chunks, in the order of `runs`; of a parameter's tensors, returns the first.
std::vector<std::vector<int>> number_tensors(const std::vector<std::vector<Parameter>>& parameters,
                                             const std::vector<TensorRun>& runs, const Mesh& mesh) {
  std::vector<std::vector<int>> numbers;
  for (const auto& chunk : parameters) numbers.emplace_back(chunk.size());
  int next = 0;
  for (const TensorRun& run : runs)
    for (size_t c = 0; c < parameters.size(); ++c)
      for (size_t i = 0; i < parameters[c].size(); ++i)
        if (parameters[c][i].spec.sharded == run.sharded && slicing_axes(parameters[c][i].spec, mesh) == run.sliced)
          numbers[c][i] = std::exchange(next, next + static_cast<int>(parameters[c][i].spec.local_tensors(mesh)));
  return numbers;
}

// Returns the random draws that round a parameter's moments; they equal those of the global tensor in any layout.
// Elements are drawn four at a time (a quad). A shard whose runs in the global tensor are not whole quads instead draws
// by its own positions with its own key. `offset`: of the shard, in elements of its chunk's flat buffer.
TensorDraws draws_of(const ParamSpec& spec, int64_t offset, Axis shard, uint64_t seed) {
  constexpr int64_t kQuad = 4;
  int64_t run = spec.local_numel(shard.size);  // elements that are adjacent in the shard and in the global tensor
  for (int d = 0; d < spec.split_dim; ++d) run /= spec.shape[static_cast<size_t>(d)];
  const bool is_split = spec.split_dim >= 0 && shard.size > 1, in_runs = is_split && run % kQuad == 0;
  TRI_REQUIRE(spec.numel() / kQuad <= std::numeric_limits<uint32_t>::max(),
              "parameter {} has {} elements, too many for optimizer.moments: bf16; set optimizer.moments: fp32",
              spec.name, spec.numel());
  const std::string own_share = is_split && !in_runs ? fmt::format("/{}", shard.rank) : "";
  const uint64_t key = derive_key(seed, "optimizer/" + spec.name + own_share);
  return {.key_low = static_cast<uint32_t>(key),
          .key_high = static_cast<uint32_t>(key >> 32),
          .first_block = static_cast<int32_t>(offset / kBlock),
          .run = in_runs ? static_cast<uint32_t>(run / kQuad) : 0,
          .stride = in_runs ? static_cast<uint32_t>(run / kQuad * shard.size) : 0,
          .offset = in_runs ? static_cast<uint32_t>(run / kQuad * shard.rank) : 0,
          .unused = {}};
}

// The same of one of the rank's experts, which are whole on any layout.
TensorDraws draws_of_expert(const ParamSpec& spec, int64_t offset, int64_t expert, uint64_t seed) {
  const uint64_t key = derive_key(seed, fmt::format("optimizer/{}/{}", spec.name, expert));
  return {.key_low = static_cast<uint32_t>(key),
          .key_high = static_cast<uint32_t>(key >> 32),
          .first_block = static_cast<int32_t>(offset / kBlock),
          .run = 0,
          .stride = 0,
          .offset = 0,
          .unused = {}};
}

// Returns elements [first, first + count) of the chunk's flat buffer as the layers read them.
Tensor parameters_in(const ChunkStoreTensors& chunk, int64_t first, int64_t count) {
  const int64_t quantized = chunk.layout.quantized;
  return first < quantized ? chunk.quantized.flat(first, count) : chunk.parameters.flat(first - quantized, count);
}

// Returns the index of the first of a chunk's parameters that are used after its first layer.
int end_of_first_layer(const std::vector<ParamSpec>& specs) {
  const auto layer_of = [](const ParamSpec& spec) {
    constexpr std::string_view kLayers = "layers/";
    const std::string_view name = spec.name;
    return name.starts_with(kLayers) ? name.substr(0, name.find('/', kLayers.size())) : std::string_view{};
  };
  const auto first = std::ranges::find_if(specs, [&](const ParamSpec& spec) { return !layer_of(spec).empty(); });
  if (first == specs.end()) return static_cast<int>(specs.size());
  const auto others = [&](const ParamSpec& spec) { return layer_of(spec) != layer_of(*first); };
  return static_cast<int>(std::find_if(first, specs.end(), others) - specs.begin());
}

// Returns this rank's slice of a tensor with the layout of a full bucket.
Tensor slice_of(const BucketMemory& m, const Tensor& full) {
  const int64_t parts = m.bucket->size / m.slice.size, part = full.numel() / parts;
  return full.flat((m.slice.begin - m.bucket->first) / m.slice.size * part, part);
}

}  // namespace

ParameterMemory::ParameterMemory(const Config& config, const Mesh& mesh, StoreTensors tensors, Stream& compute,
                                 const Fp8Tensors& fp8)
    : tensors_(std::move(tensors)), sharded_(config.parallel.zero >= 1) {
  for (int chunk = 0; chunk < static_cast<int>(tensors_.chunks.size()); ++chunk) {
    add_parameters(mesh);
    add_buckets(chunk, mesh, config.parallel.zero == 2, fp8);
  }
  fill_tables(config, mesh, compute);
}

void ParameterMemory::add_parameters(const Mesh& mesh) {
  const auto c = parameters_.size();
  const ChunkStoreTensors& chunk = tensors_.chunks[c];
  const std::vector<ParamSpec>& specs = chunk.specs;
  auto& list = parameters_.emplace_back();
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::vector<int64_t> shape = specs[i].local_shape(mesh);
    Tensor weight = parameters_in(chunk, chunk.layout.offset[i], specs[i].local_numel(mesh));
    weight.dims = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), weight.shape.begin());
    list.push_back({specs[i], weight, static_cast<int>(c), static_cast<int>(i)});
    axes_to_sum_ = axes_to_sum_ | mesh.divided((specs[i].sharded | specs[i].reduced) - kReducingAxes);
  }
}

void ParameterMemory::add_buckets(int c, const Mesh& mesh, bool gradient_slices, const Fp8Tensors& fp8) {
  const ChunkStoreTensors& chunk = tensors_.chunks[static_cast<size_t>(c)];
  const std::vector<Parameter>& parameters = parameters_[static_cast<size_t>(c)];
  first_bucket_.push_back(static_cast<int>(buckets_.size()));
  for (size_t b = 0; b < chunk.layout.buckets.size(); ++b) {
    const Bucket& bucket = chunk.layout.buckets[b];
    BucketMemory m{.chunk = c, .bucket = &bucket, .slice = chunk.slices[b]};
    m.parameters = parameters_in(chunk, bucket.first, bucket.size);
    m.block_tensor = chunk.block_tensor.flat(bucket.first / kBlock, bucket.size / kBlock);
    if (gradient_slices) {
      m.gradients = chunk.dedicated[b];
      m.gradient_slice = chunk.gradients.flat(m.slice.place, m.slice.size);
    } else {
      m.gradients = chunk.gradients.flat(bucket.first, bucket.size);
      m.gradient_slice = slice_of(m, m.gradients);
    }
    for (const int index : bucket.parameters)
      m.ragged |= parameters[static_cast<size_t>(index)].spec.local_numel(mesh) % kBlock != 0;
    buckets_.push_back(m);
  }
  const size_t first_slice = slices_.size();
  const int late = c > 0 ? 0 : end_of_first_layer(chunk.specs);
  // A chunk's buckets of one kind are stored in reverse order of use.
  for (int number = static_cast<int>(buckets_.size()); number-- > first_bucket_.back();) {
    const BucketMemory& m = buckets_[static_cast<size_t>(number)];
    const auto part = [&](const Tensor& slices) { return slices.flat(m.slice.place, m.slice.size); };
    const bool master_apart = !chunk.master.empty();
    const Tensor weights = slice_of(m, m.parameters);
    Fp8SliceWeights quantized;
    if (m.bucket->quantized)
      quantized = {
          .out = weights, .slot = tensors_.fp8_slot, .scale = fp8.scale(), .amax = fp8.amax(), .counts = fp8.counts};
    slices_.push_back({.bucket = number,
                       .remaining = m.bucket->remaining(),
                       .master = master_apart ? part(chunk.master) : weights,
                       .param = master_apart && !m.bucket->quantized ? weights : Tensor{},
                       .quantized = quantized,
                       .grad = m.gradient_slice,
                       .state = chunk.state_of(static_cast<size_t>(number - first_bucket_.back())),
                       .ema = chunk.ema.empty() ? Tensor{} : part(chunk.ema),
                       .block_tensor = slice_of(m, m.block_tensor),
                       .first_block = m.slice.begin / kBlock,
                       .used_late = std::ranges::min(m.bucket->parameters) >= late});
  }
  // Sorts the last slices, the matrices of both kinds, by first use.
  const auto first_use = [&](const BucketSlice& slice) {
    const Bucket& bucket = *buckets_[static_cast<size_t>(slice.bucket)].bucket;
    return bucket.matrices ? std::ranges::min(bucket.parameters) : -1;
  };
  std::ranges::stable_sort(slices_.begin() + static_cast<int64_t>(first_slice), slices_.end(), {}, first_use);
}

// Fills what the optimizer needs to know about each tensor and each block of the flat buffers.
void ParameterMemory::fill_tables(const Config& config, const Mesh& mesh, Stream& compute) {
  const auto numbers = number_tensors(parameters_, tensors_.runs, mesh);
  std::vector<float> decay(static_cast<size_t>(tensors_.num_tensors)), weight(decay.size());
  std::vector<TensorDraws> draws(tensors_.draws.empty() ? 0 : decay.size());
  std::vector<int32_t> slots(tensors_.fp8_slot.empty() ? 0 : decay.size());
  tensor_names_.resize(decay.size());
  for (size_t c = 0; c < parameters_.size(); ++c) {
    const ChunkStoreTensors& chunk = tensors_.chunks[c];
    const std::vector<ParamSpec>& specs = chunk.specs;
    std::vector<int> owners = block_owners(chunk.layout, specs, mesh);
    for (size_t block = 0; block < owners.size(); ++block) {
      if (owners[block] < 0) continue;
      const auto i = static_cast<size_t>(owners[block]);
      const int64_t place = static_cast<int64_t>(block) - chunk.layout.offset[i] / kBlock;
      const int64_t of_tensor = specs[i].local_numel(mesh) / specs[i].local_tensors(mesh);
      owners[block] = numbers[c][i] + static_cast<int>(place * kBlock / of_tensor);
    }
    compute.copy(chunk.block_tensor.data, owners.data(), chunk.block_tensor.bytes());
    compute.synchronize();
    for (size_t i = 0; i < specs.size(); ++i) {
      const ParamSpec& spec = specs[i];
      const int64_t count = spec.local_tensors(mesh), elements = spec.local_numel(mesh) / count;
      TRI_REQUIRE(count == 1 || elements % kBlock == 0, "{}: an expert of {} elements is not whole blocks of {}",
                  spec.name, elements, kBlock);
      // Of the ranks that hold the same slice, only the first one counts.
      const Bucket& bucket = *buckets_[static_cast<size_t>(bucket_of(parameters_[c][i]))].bucket;
      const AxisSet differs = spec.sharded | AxisSet{"pp"} | (sharded_ ? bucket.sharded_over() : AxisSet{});
      const bool first_holder = mesh.holders(differs).first();
      for (int64_t t = 0; t < count; ++t) {
        const auto number = static_cast<size_t>(numbers[c][i] + t);
        const int64_t expert = spec.shard(mesh).rank * count + t;
        tensor_names_[number] = spec.experts ? fmt::format("{}[{}]", spec.name, expert) : spec.name;
        if (!draws.empty())
          draws[number] = spec.experts
                              ? draws_of_expert(spec, chunk.layout.offset[i] + t * elements, expert, config.run.seed)
                              : draws_of(spec, chunk.layout.offset[i], spec.shard(mesh), config.run.seed);
        if (!slots.empty()) slots[number] = static_cast<int32_t>(spec.fp8_slot);
        decay[number] = spec.decay ? static_cast<float>(config.optimizer.weight_decay) : -1.0f;
        weight[number] = first_holder && !spec.tied_copy ? 1.0f : 0.0f;
      }
    }
  }
  compute.copy(tensors_.decay.data, decay.data(), tensors_.decay.bytes());
  if (!draws.empty()) compute.copy(tensors_.draws.data, draws.data(), tensors_.draws.bytes());
  if (!slots.empty()) compute.copy(tensors_.fp8_slot.data, slots.data(), tensors_.fp8_slot.bytes());
  compute.copy(tensors_.count_weight.data, weight.data(), tensors_.count_weight.bytes());
  compute.synchronize();
}

int ParameterMemory::bucket_of(const Parameter& parameter) const {
  const auto chunk = static_cast<size_t>(parameter.chunk);
  return first_bucket_[chunk] + tensors_.chunks[chunk].layout.bucket_of[static_cast<size_t>(parameter.index)];
}

Tensor ParameterMemory::gradient_in(Tensor full, const Parameter& parameter) const {
  const FlatLayout& layout = tensors_.chunks[static_cast<size_t>(parameter.chunk)].layout;
  const Bucket& bucket = *buckets_[static_cast<size_t>(bucket_of(parameter))].bucket;
  const int64_t offset = layout.offset[static_cast<size_t>(parameter.index)] - bucket.first;
  Tensor gradient = full.flat(offset, parameter.weight.numel());
  gradient.dims = parameter.weight.dims;
  gradient.shape = parameter.weight.shape;
  return gradient;
}

}  // namespace tri
