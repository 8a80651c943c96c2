#include "lib/model/fp8_tensors.h"

#include <algorithm>

#include "kernels/fp8.h"
#include "lib/model/stage_tensors.h"

namespace tri {

bool is_fp8_layer(const Config& config, int layer) {
  const PrecisionConfig& p = config.precision;
  const bool inside = layer >= p.fp8_first_layers && layer < config.model.layers - p.fp8_last_layers;
  return p.gemm == GemmFormat::kFp8 && inside;
}

bool any_fp8_layer(const Config& config) { return config.precision.gemm == GemmFormat::kFp8; }

bool keeps_fp8_codes(const Config& config) { return any_fp8_layer(config) && config.precision.compute == Dtype::kBF16; }

int64_t fp8_slot(const Config& config, Fp8Operand operand, int layer, Linear linear) {
  return (static_cast<int64_t>(operand) * config.model.layers + layer) * kNumLinears + static_cast<int64_t>(linear);
}

int64_t fp8_slots(const Config& config) {
  return any_fp8_layer(config) ? int64_t{kNumFp8Operands} * config.model.layers * kNumLinears : 0;
}

Fp8Tensors allocate_fp8(const Config& config, const Mesh& mesh, const StageDims& d, Arena& arena) {
  const int64_t slots = fp8_slots(config);
  const char* const name = "fp8 scales";
  Fp8Tensors t;
  t.inverse = arena.take(name, Dtype::kF32, {slots, kFp8InverseStride});
  t.counts = arena.take(name, Dtype::kI64, {slots, kNumFp8Counts});
  t.numbers = arena.take(name, Dtype::kF32, {3 * slots});
  const int64_t attention = int64_t{d.NHl} * d.HS;
  const std::array<std::pair<int64_t, int64_t>, kNumLinears> shapes{
      {{d.qkv_width, d.C}, {d.C, attention}, {d.fc1_width, d.C}, {d.C, d.Fl}}};  // [Linear] (N, K)
  for (int chunk = 0; chunk < config.parallel.chunks; ++chunk) {
    const LayerRange layers = layers_of(config, mesh.axis("pp"), chunk);
    auto& of_chunk = t.weights.emplace_back(static_cast<size_t>(layers.count));
    for (int i = 0; i < layers.count; ++i) {
      if (!is_fp8_layer(config, layers.first + i)) continue;
      for (size_t linear = 0; linear < shapes.size(); ++linear) {
        const auto [n, k] = shapes[linear];
        Fp8Weight& weight = of_chunk[static_cast<size_t>(i)][linear];
        if (!keeps_fp8_codes(config)) weight.values = arena.take("fp8 weights", Dtype::kE4M3, {n, k});
        weight.transposed = arena.take("fp8 weights", Dtype::kE4M3, {k, n});
      }
    }
  }
  return t;
}

Fp8Workspace allocate_fp8_workspace(const Config& config, const StageDims& d, Arena& arena) {
  const char* const name = "workspace";
  const Recompute recompute = config.parallel.recompute;
  const Dtype gradient = config.precision.fp8_gradients;
  const int64_t attention = int64_t{d.NHl} * d.HS;
  Fp8Workspace w;
  if (recompute == Recompute::kNorms || recompute == Recompute::kSelective)
    w.normed = arena.take(name, Dtype::kE4M3, {d.R, d.C});
  w.attention = arena.take(name, Dtype::kE4M3, {d.R, attention});
  w.dstream = arena.take(name, gradient, {d.R, d.C});
  w.dfc1 = arena.take(name, gradient, {d.R, d.fc1_width});
  w.dqkv = arena.take(name, gradient, {d.R, d.qkv_width});
  w.dstream_t = arena.take(name, gradient, {d.C, d.R});
  w.dfc1_t = arena.take(name, gradient, {d.fc1_width, d.R});
  w.dqkv_t = arena.take(name, gradient, {d.qkv_width, d.R});
  w.input_transpose = arena.take(name, Dtype::kE4M3, {std::max<int64_t>({d.C, attention, d.Fl}) * d.R});
  w.activated = w.input_transpose.flat(0, d.R * d.Fl).view({d.R, d.Fl});
  return w;
}

}  // namespace tri
