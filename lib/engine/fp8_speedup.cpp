#include "lib/engine/fp8_speedup.h"

#include <algorithm>
#include <array>
#include <functional>

#include "io/base/median.h"
#include "kernels/core/arena.h"
#include "kernels/gemm_search.h"
#include "kernels/ops.h"
#include "lib/engine/rank_tensors.h"
#include "lib/model/stage_tensors.h"

namespace tri {
namespace {

// The operands of a layer's linears, which share memory: made on a measuring arena, then on a real one.
class LayerGemms {
 public:
  LayerGemms(const Config& config, const StageDims& d, Arena& arena) : config_(config), rows_(d.R) {
    const int64_t attention = int64_t{d.NHl} * d.HS;
    shapes_ = {{{d.qkv_width, d.C}, {d.C, attention}, {d.fc1_width, d.C}, {d.C, d.Fl}}};
    int64_t widest = 0, largest = 0;
    for (const auto& [n, k] : shapes_) {
      widest = std::max({widest, n, k});
      largest = std::max(largest, n * k);
    }
    const Dtype gradient = config.precision.fp8_gradients;
    const auto take = [&](Dtype dtype, int64_t count) { return arena.take("timed GEMMs", dtype, {count}); };
    inp_ = take(d.dtype, rows_ * widest);
    out_ = take(d.dtype, rows_ * widest);
    made_ = take(d.dtype, rows_ * widest);
    weight_ = take(d.dtype, largest);
    dweight_ = take(Dtype::kF32, largest);
    inp8_ = take(Dtype::kE4M3, rows_ * widest);
    inp8_t_ = take(Dtype::kE4M3, rows_ * widest);
    dout8_ = take(gradient, rows_ * widest);
    dout8_t_ = take(gradient, rows_ * widest);
    weight8_ = take(Dtype::kE4M3, largest);
    weight8_t_ = take(Dtype::kE4M3, largest);
    one_ = take(Dtype::kF32, 1);
    amax_ = take(Dtype::kF32, 1);
    counts_ = take(Dtype::kI64, kNumFp8Counts);
  }

  void fill(Stream& stream) const {
    uint64_t key = 0;
    for (const Tensor& tensor : {inp_, out_, weight_}) normal_values({.out = tensor, .key = ++key}, stream);
    const float one = 1.0f;
    stream.copy(one_.data, &one, sizeof one);
    stream.zero(amax_);
    stream.zero(counts_);
    cast_weights(stream);
    cast_rows(stream);
    stream.synchronize();  // `one` is ours
  }

  void in_compute_type(Stream& stream) const {
    for (const auto& [n, k] : shapes_) {
      const Tensor inp = matrix(inp_, rows_, k), out = matrix(out_, rows_, n), weight = matrix(weight_, n, k);
      gemm({.out = matrix(made_, rows_, n), .a = inp, .b = weight, .trans_b = Trans::kYes}, stream);
      gemm({.out = matrix(made_, rows_, k), .a = out, .b = weight}, stream);
      weight_gradient(n, k, stream);
    }
  }

  void in_fp8(Stream& stream) const {
    const bool fast = config_.precision.fp8_fast_accumulation != FastAccumulation::kNone;
    const bool all_fast = config_.precision.fp8_fast_accumulation == FastAccumulation::kAll;
    const auto accumulation = [](bool is_fast) { return is_fast ? Fp8Accumulation::kFast : Fp8Accumulation::kFp32; };
    for (const auto& [n, k] : shapes_) {
      const auto multiply = [&](Tensor out, Tensor a, Tensor b, float beta, bool is_fast) {
        fp8_gemm({.out = out,
                  .a = a,
                  .b = b,
                  .inverse_a = one_,
                  .inverse_b = one_,
                  .beta = beta,
                  .accumulation = accumulation(is_fast)},
                 stream);
      };
      const Tensor inp8_t = matrix(inp8_t_, k, rows_), dout8_t = matrix(dout8_t_, n, rows_);
      multiply(matrix(made_, rows_, n), matrix(inp8_, rows_, k), matrix(weight8_, n, k), 0.0f, fast);
      multiply(matrix(made_, rows_, k), matrix(dout8_, rows_, n), matrix(weight8_t_, k, n), 0.0f, all_fast);
      if (casts_wgrad())
        multiply(matrix(dweight_, n, k), dout8_t, inp8_t, 1.0f, all_fast);
      else
        weight_gradient(n, k, stream);
    }
  }

  void cast_rows(Stream& stream) const {
    for (const auto& [n, k] : shapes_) {
      const Tensor inp8 = matrix(inp8_, rows_, k);
      cast(matrix(inp_, rows_, k), inp8, {}, stream);
      if (casts_wgrad()) fp8_transpose({.out = matrix(inp8_t_, k, rows_), .inp = inp8}, stream);
      cast(matrix(out_, rows_, n), matrix(dout8_, rows_, n), casts_wgrad() ? matrix(dout8_t_, n, rows_) : Tensor{},
           stream);
    }
  }

  void cast_weights(Stream& stream) const {
    for (const auto& [n, k] : shapes_)
      cast(matrix(weight_, n, k), matrix(weight8_, n, k), matrix(weight8_t_, k, n), stream);
  }
  // What a step does for its weights: where the update writes codes, they are transposed.
  void prepare_weights(Stream& stream) const {
    if (config_.precision.fp8_guard == Switch::kOn) return cast_weights(stream);
    for (const auto& [n, k] : shapes_)
      fp8_transpose({.out = matrix(weight8_t_, k, n), .inp = matrix(weight8_, n, k)}, stream);
  }

 private:
  bool casts_wgrad() const { return config_.precision.fp8_wgrad == GemmFormat::kFp8; }
  void weight_gradient(int64_t n, int64_t k, Stream& stream) const {
    gemm({.out = matrix(dweight_, n, k),
          .a = matrix(out_, rows_, n),
          .b = matrix(inp_, rows_, k),
          .trans_a = Trans::kYes,
          .beta = 1.0f},
         stream);
  }
  static Tensor matrix(const Tensor& memory, int64_t rows, int64_t columns) {
    return memory.flat(0, rows * columns).view({rows, columns});
  }
  void cast(Tensor inp, Tensor out, Tensor out_t, Stream& stream) const {
    fp8_cast({.out = out, .out_t = out_t, .inp = inp, .scale = one_, .amax = amax_, .counts = counts_}, stream);
  }

  const Config& config_;
  const int64_t rows_;
  std::array<std::pair<int64_t, int64_t>, kNumLinears> shapes_;  // (N, K)
  Tensor inp_, out_, made_, weight_, dweight_;
  Tensor inp8_, inp8_t_, dout8_, dout8_t_, weight8_, weight8_t_;
  Tensor one_, amax_, counts_;
};

}  // namespace

double fp8_speedup(const Config& config, const Mesh& mesh, Device& device) {
  constexpr int kRounds = 5;
  constexpr double kRoundSeconds = 30e-3;  // of each of both: altogether a third of a second, in which the device heats
  const StageDims dims = stage_dims(config, mesh);
  Arena measuring;
  LayerGemms(config, dims, measuring);
  Arena arena(device, measuring.used());
  const LayerGemms layer(config, dims, arena);
  const auto stream = device.make_stream("timed GEMMs");
  if (GemmSearch* search = device.gemm_search(); search != nullptr && config.run.gemm_search) {
    GemmRecorder recorder;
    layer.in_compute_type(recorder);
    layer.in_fp8(recorder);
    search->search(recorder.gemms(), *stream);
  }
  const auto begin = device.make_event(EventKind::kTimed), end = device.make_event(EventKind::kTimed);
  const auto seconds = [&](const std::function<void(Stream&)>& work, int calls) {
    stream->record(*begin);
    for (int call = 0; call < calls; ++call) work(*stream);
    stream->record(*end);
    stream->synchronize();
    return end->seconds_after(*begin) / calls;
  };
  const std::array<std::function<void(Stream&)>, 4> works{
      [&](Stream& s) { layer.in_compute_type(s); }, [&](Stream& s) { layer.in_fp8(s); },
      [&](Stream& s) { layer.cast_rows(s); }, [&](Stream& s) { layer.prepare_weights(s); }};
  std::array<std::vector<double>, 4> times;
  layer.fill(*stream);
  for (int round = -1; round < kRounds; ++round)
    for (size_t i = 0; i < works.size(); ++i) {
      const double once = seconds(works[i], 1);
      const double of_many = seconds(works[i], std::clamp(static_cast<int>(kRoundSeconds / once), 1, 200));
      if (round >= 0) times[i].push_back(of_many);
    }
  device.lend_workspace({});  // what libraries took is free again
  const double fp8 = median(times[1]) + median(times[2]) + median(times[3]) / microbatches(config);
  return median(times[0]) / fp8;
}

}  // namespace tri
