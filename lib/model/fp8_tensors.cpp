#include "lib/model/fp8_tensors.h"

#include <algorithm>

#include "kernels/fp8.h"
#include "lib/model/layer_division.h"
#include "lib/model/stage_tensors.h"

namespace tri {

bool any_fp8_layer(const Config& config) { return config.precision.gemm == GemmFormat::kFp8; }

bool keeps_fp8_weights(const Config& config) {
  return any_fp8_layer(config) && config.precision.compute == Dtype::kBF16;
}

Fp8Slots::Fp8Slots(const Config& config) {
  if (!any_fp8_layer(config)) return;
  const Layers layers = layers_of_model(config);
  for (int layer = 0; layer < config.model.layers; ++layer) {
    first_.push_back(linears());
    for (const LinearSpec& linear : layers[layer].linears()) modules_.push_back(linear.module);
  }
}

int Fp8Slots::layer_of(int64_t slot) const {
  return static_cast<int>(std::ranges::upper_bound(first_, slot % linears()) - first_.begin()) - 1;
}

std::string Fp8Slots::name_of(int64_t slot) const {
  static constexpr const char* kOperands[] = {"input", "weight", "gradient"};
  const std::string_view module = modules_[static_cast<size_t>(slot % linears())];
  return fmt::format("{}/{}", fmt::format(fmt::runtime(module), layer_of(slot)), kOperands[slot / linears()]);
}

Fp8Tensors allocate_fp8(const Config& config, const Mesh& mesh, Arena& arena) {
  const int64_t slots = Fp8Slots(config).count();
  const char* const name = "fp8 scales";
  Fp8Tensors t;
  t.inverse = arena.take(name, Dtype::kF32, {slots, kFp8InverseStride});
  t.counts = arena.take(name, Dtype::kI64, {slots, kNumFp8Counts});
  t.numbers = arena.take(name, Dtype::kF32, {3 * slots});
  const int tp = mesh.axis("tp").size;
  const Layers all = layers_of_model(config);
  for (int chunk = 0; chunk < config.parallel.chunks; ++chunk) {
    const LayerRange layers = layers_of(config, mesh.axis("pp"), chunk);
    auto& of_chunk = t.weights.emplace_back(static_cast<size_t>(layers.count));
    for (int i = 0; i < layers.count; ++i) {
      const LayerSpec& layer = all[layers.first + i];
      if (!layer.fp8) continue;
      for (const LinearSpec& linear : layer.linears()) {
        Fp8Weight& weight = of_chunk[static_cast<size_t>(i)].emplace_back();
        if (!linear.fp8) continue;
        const int64_t n = linear.n(tp), k = linear.k(tp), experts = linear.experts / config.parallel.ep;
        const auto take = [&](int64_t rows, int64_t columns) {
          return experts > 0 ? arena.take("fp8 weights", Dtype::kE4M3, {experts, rows, columns})
                             : arena.take("fp8 weights", Dtype::kE4M3, {rows, columns});
        };
        if (!keeps_fp8_weights(config)) weight.values = take(n, k);
        weight.transposed = take(k, n);
      }
    }
  }
  return t;
}

Fp8Workspace allocate_fp8_workspace(const Config& config, const LayerSpec& layer, const StageDims& d, Arena& arena) {
  const char* const name = "workspace";
  const Recompute recompute = config.parallel.recompute;
  const Dtype gradient = config.precision.fp8_gradients;
  Fp8Workspace w;
  if (recompute == Recompute::kNorms || recompute == Recompute::kSelective)
    w.normed = arena.take(name, Dtype::kE4M3, {d.R, d.C});
  w.dstream = arena.take(name, gradient, {d.R, d.C});
  w.dstream_t = arena.take(name, gradient, {d.C, d.R});
  w.input_transpose = arena.take(name, Dtype::kE4M3, {layer.widest_input(d.tp) * d.R});
  return w;
}

}  // namespace tri
