// FP8 casts, scales and GEMM, the reference.  Formulas and shapes: kernels/fp8.h.
// The GEMM widens its operands exactly and adds in fp32 by OpenBLAS.  Bound: 2 · M · N · K FLOPs of fp32.
#include "kernels/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/core/dims.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/fp8_block.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Compares by the bits, like the integer maximum on a GPU.
void raise(float& amax, uint32_t size) { amax = std::bit_cast<float>(std::max(std::bit_cast<uint32_t>(amax), size)); }

// Returns the value's bits without the sign.
uint32_t size_of(float value) { return std::bit_cast<uint32_t>(value) & 0x7FFFFFFF; }

// Transposes the first `used` rows of `values` (rows, columns) into out (columns, rows) in tiles that fit in the cache.
void transpose(const uint8_t* values, uint8_t* out, int64_t rows, int64_t columns, int64_t used) {
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < used; r0 += kTile)
    for (int64_t c0 = 0; c0 < columns; c0 += kTile)
      for (int64_t r = r0; r < std::min(used, r0 + kTile); ++r)
        for (int64_t c = c0; c < std::min(columns, c0 + kTile); ++c) out[c * rows + r] = values[r * columns + c];
}

// Quantizes `count` numbers. amax and counts may be null.
template <class T>
void encode(const T* inp, uint8_t* out, int64_t count, float scale, const Fp8Format& format, float* amax,
            int64_t* counts) {
  uint32_t most = 0;
  int64_t saturated = 0, underflowed = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float value = to_float(inp[i]);
    most = std::max(most, size_of(value));
    const float scaled = std::isfinite(value) ? value * scale : NAN;
    out[i] = fp8_encode(scaled, format);
    saturated += std::fabs(scaled) > format.limit;
    underflowed += value != 0.0f && (out[i] & 0x7F) == 0;
  }
  if (amax != nullptr) raise(*amax, most);
  if (counts == nullptr) return;
  counts[static_cast<int>(Fp8Count::kElements)] += count;
  counts[static_cast<int>(Fp8Count::kSaturated)] += saturated;
  counts[static_cast<int>(Fp8Count::kUnderflowed)] += underflowed;
}

float scale_of(float amax, Dtype format) {
  if (!(amax > 0.0f) || !std::isfinite(amax)) return 1.0f;
  int of_amax = 0, of_limit = 0;
  const float amax_fraction = std::frexp(amax, &of_amax);
  const float limit_fraction = std::frexp(fp8_format(format).limit / kFp8Headroom, &of_limit);
  const int exponent = of_limit - of_amax - (amax_fraction > limit_fraction ? 1 : 0);
  return std::ldexp(1.0f, std::clamp(exponent, -kFp8MostExponent, kFp8MostExponent));
}

const float* widened(const Tensor& tensor, std::vector<float>& scratch) {
  const Fp8Table& table = fp8_table(tensor.dtype);
  const uint8_t* quantized = fp8_bytes(tensor);
  scratch.resize(static_cast<size_t>(tensor.numel()));
  for (size_t i = 0; i < scratch.size(); ++i) scratch[i] = table[quantized[i]];
  return scratch.data();
}

// Returns `scratch`, grown if needed, as (rows, columns).
Tensor scratch_tensor(std::vector<char>& scratch, Dtype dtype, int64_t rows, int64_t columns) {
  scratch.resize(std::max(scratch.size(), static_cast<size_t>(rows * columns) * dtype_bytes(dtype)));
  return {scratch.data(), dtype, {rows, columns}};
}

}  // namespace

void fp8_amax(const Fp8Amax& a) {
  dispatch(a.inp.dtype, [&](auto type) {
    const auto* inp = a.inp.as<decltype(type)>();
    uint32_t most = 0;
    for (int64_t i = 0, count = first_rows(a.inp, a.used).numel(); i < count; ++i)
      most = std::max(most, size_of(to_float(inp[i])));
    raise(*a.amax.as<float>(), most);
  });
}

void fp8_cast(const Fp8Cast& c) {
  thread_local std::vector<uint8_t> scratch;
  if (c.out.empty()) scratch.resize(static_cast<size_t>(c.inp.numel()));
  uint8_t* out = c.out.empty() ? scratch.data() : fp8_bytes(c.out);
  dispatch(c.inp.dtype, [&](auto type) {
    encode(c.inp.as<decltype(type)>(), out, first_rows(c.inp, c.used).numel(), *c.scale.as<float>(),
           fp8_format(c.format()), c.amax.as<float>(), c.counts.as<int64_t>());
  });
  if (!c.out_t.empty()) transpose(out, fp8_bytes(c.out_t), c.inp[0], c.inp[1], used_rows(c.used, c.inp[0]));
  if (!c.dbias.empty()) bias_backward({.dbias = c.dbias, .dout = c.inp});
}

void cast_block(const Fp8SliceWeights& c, const float* values, int64_t first, int tensor) {
  TRI_REQUIRE(tensor < c.slot.numel(), "tensor {} of {}", tensor, c.slot.numel());
  const int32_t slot = c.slot.as<int32_t>()[tensor];
  TRI_REQUIRE(slot >= 0 && slot < c.scale.numel(), "tensor {} has slot {} of {}", tensor, slot, c.scale.numel());
  encode(values, fp8_bytes(c.out) + first, kBlock, c.scale.as<float>()[slot], kE4M3Format, c.amax.as<float>() + slot,
         c.counts.as<int64_t>() + slot * kNumFp8Counts);
}

void fp8_cast_slice(const Fp8CastSlice& c) {
  const int32_t* owners = c.block_tensor.as<int32_t>();
  for (int64_t block = 0; block < c.block_tensor.numel(); ++block)
    if (owners[block] >= 0) cast_block(c.quantized, c.inp.as<float>() + block * kBlock, block * kBlock, owners[block]);
}

void fp8_norm_forward(const Fp8NormForward& n) {
  thread_local std::vector<char> scratch;
  NormForward norm = n.norm;
  Fp8Cast c = n.cast;
  norm.out = c.inp = scratch_tensor(scratch, norm.inp.dtype, norm.inp[0], norm.inp[1]);
  norm_forward(norm);
  fp8_cast(c);
}

void fp8_activation_forward(const Fp8ActivationForward& a) {
  thread_local std::vector<char> scratch;
  Fp8Cast c = a.cast;
  c.inp = scratch_tensor(scratch, a.inp.dtype, a.inp[0], a.inp[1] / (is_gated(a.kind) ? 2 : 1));
  activation_forward({.kind = a.kind, .out = c.inp, .inp = a.inp, .used = c.used});
  fp8_cast(c);
}

void fp8_activation_backward(const Fp8ActivationBackward& a) {
  thread_local std::vector<char> scratch;
  Fp8Cast c = a.cast;
  c.inp = scratch_tensor(scratch, a.inp.dtype, a.inp[0], a.inp[1]);
  activation_backward({.kind = a.kind, .dinp = c.inp, .dout = a.dout, .inp = a.inp, .used = c.used});
  fp8_cast(c);
}

void fp8_transpose(const Fp8Transpose& t) {
  const int64_t rows = t.inp[t.inp.dims - 2], columns = t.inp[t.inp.dims - 1];
  for (int64_t first = 0; first < t.inp.numel(); first += rows * columns)
    transpose(fp8_bytes(t.inp) + first, fp8_bytes(t.out) + first, rows, columns, used_rows(t.used, rows));
}

void fp8_scales(const Fp8Scales& s) {
  float *scale = s.scale.as<float>(), *inverse = s.inverse.as<float>();
  const float *amax = s.amax.as<float>(), *grad_scale = s.grad_scale.as<float>();
  float* history = s.history.as<float>();
  if (s.from == ScalesFrom::kStep && std::isnan(*grad_scale)) return;
  for (int64_t i = 0; i < s.scale.numel(); ++i) {
    if (s.from == ScalesFrom::kUnset && scale[i] != 0.0f) continue;
    if (s.from == ScalesFrom::kStep && std::isfinite(amax[i])) history[i] = std::max(amax[i], s.decay * history[i]);
    scale[i] = scale_of(s.from == ScalesFrom::kUnset ? amax[i] : history[i], s.format);
    inverse[i * kFp8InverseStride] = 1.0f / scale[i];
  }
}

void fp8_counts_to_float(const Fp8CountsToFloat& c) {
  const int64_t* counts = c.counts.as<int64_t>();
  float* out = c.out.as<float>();
  for (int64_t i = 0; i < c.counts.numel(); ++i) out[i] = static_cast<float>(counts[i]);
}

void fp8_gemm(const Fp8Gemm& g) {
  use_one_blas_thread();
  thread_local std::vector<float> a_values, b_values, product;
  const float *a = widened(g.a, a_values), *b = widened(g.b, b_values);
  const int64_t m = g.out[0], n = g.out[1], k = g.a[1];
  product.resize(static_cast<size_t>(m * n));
  const auto narrow = [](int64_t value) { return static_cast<blasint>(value); };
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, narrow(m), narrow(n), narrow(k), 1.0f, a, narrow(k), b,
              narrow(k), 0.0f, product.data(), narrow(n));
  const float inverse = *g.inverse_a.as<float>() * *g.inverse_b.as<float>();
  dispatch(g.out.dtype, [&](auto type) {
    using T = decltype(type);
    T* out = g.out.as<T>();
    const T* bias = g.bias.as<T>();
    for (int64_t r = 0; r < m; ++r)
      for (int64_t c = 0; c < n; ++c) {
        const int64_t i = r * n + c;
        float value = product[static_cast<size_t>(i)] * inverse;
        if (g.beta != 0.0f) value += g.beta * to_float(out[i]);  // as in BLAS, beta 0 does not read out
        if (bias != nullptr) value += to_float(bias[c]);
        out[i] = from_float<T>(value);
      }
  });
}

}  // namespace tri::cpu
