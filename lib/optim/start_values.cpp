#include "lib/optim/start_values.h"

#include <algorithm>

#include "kernels/ops.h"

namespace tri {

void write_start_values(const ParameterMemory& memory, const Mesh& mesh, uint64_t seed, Stream& compute) {
  constexpr int64_t kOnes = 1 << 16;  // at a time: only vectors start with ones
  const std::vector<float> ones(kOnes, 1.0f);
  const std::vector<bf16> rounded_ones(kOnes, bf16(1.0f));
  // Writes elements [begin, begin + n) of a tensor into out (n).
  const auto start = [&](const ParamSpec& spec, const Tensor& out, int64_t begin) {
    if (spec.init == InitRule::kNormal) {
      NormalValues normal = normal_start(spec, spec.shard(mesh), seed);
      normal.out = out;
      normal.begin = begin;
      normal_values(normal, compute);
    } else if (spec.init == InitRule::kOnes) {
      const void* from = ones.data();
      if (out.dtype == Dtype::kBF16) from = rounded_ones.data();
      for (int64_t first = 0; first < out.numel(); first += kOnes) {
        const Tensor part = out.flat(first, std::min(kOnes, out.numel() - first));
        compute.copy(part.data, from, part.bytes());
      }
    }
  };
  for (size_t c = 0; c < memory.parameters().size(); ++c) {
    const ChunkStoreTensors& chunk = memory.tensors().chunks[c];
    if (!chunk.quantized.empty()) compute.zero(chunk.quantized);
    compute.zero(chunk.parameters);  // zeros padding, and tensors that start with zeros
    if (!chunk.master.empty()) compute.zero(chunk.master);
    for (const Parameter& parameter : memory.parameters()[c]) {
      const auto i = static_cast<size_t>(parameter.index);
      const int64_t offset = chunk.layout.offset[i], count = parameter.weight.numel();
      if (!is_fp8(parameter.weight.dtype)) start(parameter.spec, parameter.weight.flat(), 0);
      if (chunk.master.empty()) continue;
      const SliceRange& slice = memory.buckets()[static_cast<size_t>(memory.bucket_of(parameter))].slice;
      const int64_t first = std::max(offset, slice.begin), end = std::min(offset + count, slice.begin + slice.size);
      if (first < end)
        start(parameter.spec, chunk.master.flat(slice.place + first - slice.begin, end - first), first - offset);
    }
  }
  for (const BucketSlice& slice : memory.slices())
    if (!slice.ema.empty()) compute.copy(slice.ema.data, slice.master.data, slice.ema.bytes());
  compute.synchronize();
}

}  // namespace tri
