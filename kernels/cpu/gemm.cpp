// GEMM by OpenBLAS, the reference.  Formulas and shapes: kernels/gemm.h.
// bf16 operands are widened to fp32 scratch, so products and sums are fp32; the result is rounded once.
// Bound: 2 · M · N · K FLOPs.
#include "kernels/gemm.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Reused between calls: nothing is allocated once the largest shape has been seen.
struct Scratch {
  std::vector<float> a, b, bias, out;  // widened operands, unused for fp32
};

// Returns the tensor as floats: its own memory, or a copy widened into `scratch`.
const float* as_floats(const Tensor& tensor, std::vector<float>& scratch) {
  if (tensor.dtype == Dtype::kF32) return tensor.as<float>();
  const bf16* data = tensor.as<bf16>();
  scratch.resize(static_cast<size_t>(tensor.numel()));
  for (size_t i = 0; i < scratch.size(); ++i) scratch[i] = to_float(data[i]);
  return scratch.data();
}

// out (rows, width) = beta · out + bias; as in BLAS, beta 0 does not read out.
void start_from_bias(float* __restrict out, const float* __restrict bias, int64_t rows, int64_t width, float beta) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = out + r * width;
    if (beta == 0.0f)
      for (int64_t c = 0; c < width; ++c) row[c] = bias[c];
    else
      for (int64_t c = 0; c < width; ++c) row[c] = beta * row[c] + bias[c];
  }
}

void multiply(const Gemm& g) {
  use_one_blas_thread();
  thread_local Scratch scratch;
  const float* a = as_floats(g.a, scratch.a);
  const float* b = as_floats(g.b, scratch.b);
  const bool rounds = g.out.dtype == Dtype::kBF16;
  const int64_t count = g.out.numel();
  if (rounds) scratch.out.resize(static_cast<size_t>(count));
  const Tensor& added = g.addend.empty() ? g.out : g.addend;
  if (rounds && g.beta != 0.0f) as_floats(added, scratch.out);
  float* out = rounds ? scratch.out.data() : g.out.as<float>();
  if (!rounds && !g.addend.empty()) std::copy_n(added.as<float>(), count, out);

  float beta = g.beta;
  if (!g.bias.empty()) {
    start_from_bias(out, as_floats(g.bias, scratch.bias), g.out[0], g.out[1], beta);
    beta = 1.0f;
  }
  const bool ta = g.trans_a == Trans::kYes, tb = g.trans_b == Trans::kYes;
  const auto narrow = [](int64_t value) { return static_cast<blasint>(value); };
  cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, narrow(g.out[0]),
              narrow(g.out[1]), narrow(g.a[ta ? 0 : 1]), g.alpha, a, narrow(g.a[1]), b, narrow(g.b[1]), beta, out,
              narrow(g.out[1]));

  if (rounds) {
    bf16* rounded = g.out.as<bf16>();
    for (int64_t i = 0; i < count; ++i) rounded[i] = bf16(out[i]);
  }
}

}  // namespace

void gemm(const Gemm& g) {
  if (!g.dbias.empty() && g.trans_a == Trans::kYes) bias_backward({.dbias = g.dbias, .dout = g.a});
  if (g.epilogue == Epilogue::kGelu) {
    multiply({.out = g.pre, .a = g.a, .b = g.b, .trans_a = g.trans_a, .trans_b = g.trans_b, .bias = g.bias});
    return activation_forward({.kind = Activation::kGelu, .out = g.out, .inp = g.pre});
  }
  multiply(g);
  if (g.epilogue == Epilogue::kGeluBackward) {
    activation_backward({.kind = Activation::kGelu, .dinp = g.out, .dout = g.out, .inp = g.pre});
    if (!g.dbias.empty()) bias_backward({.dbias = g.dbias, .dout = g.out});
  }
}

// The lower triangle in blocks of rows, then its mirror image.
void symmetric_product(const SymmetricProduct& p) {
  use_one_blas_thread();
  constexpr int64_t kRows = 128;
  thread_local Scratch scratch;
  const float* a = as_floats(p.a, scratch.a);
  const int64_t side = p.out[0];
  const bool rounds = p.out.dtype == Dtype::kBF16, transposed = p.trans_a == Trans::kYes;
  if (rounds) scratch.out.resize(static_cast<size_t>(p.out.numel()));
  if (rounds && !p.addend.empty()) as_floats(p.addend, scratch.out);
  float* out = rounds ? scratch.out.data() : p.out.as<float>();
  if (!rounds && !p.addend.empty()) std::copy_n(p.addend.as<float>(), p.out.numel(), out);
  const auto narrow = [](int64_t value) { return static_cast<blasint>(value); };
  for (int64_t first = 0; first < side; first += kRows) {
    const int64_t rows = std::min(kRows, side - first);
    cblas_sgemm(CblasRowMajor, transposed ? CblasTrans : CblasNoTrans, transposed ? CblasNoTrans : CblasTrans,
                narrow(rows), narrow(first + rows), narrow(p.a[transposed ? 0 : 1]), p.alpha,
                a + first * (transposed ? 1 : p.a[1]), narrow(p.a[1]), a, narrow(p.a[1]), p.beta, out + first * side,
                narrow(side));
  }
  for (int64_t row = 0; row < side; ++row)
    for (int64_t column = 0; column < row; ++column) out[column * side + row] = out[row * side + column];
  if (rounds) {
    bf16* rounded = p.out.as<bf16>();
    for (int64_t i = 0; i < p.out.numel(); ++i) rounded[i] = bf16(out[i]);
  }
}

void bias_backward(const BiasBackward& b) {
  dispatch(b.dout.dtype, [&](auto type) {
    using T = decltype(type);
    const T* __restrict dout = b.dout.as<T>();
    float* __restrict dbias = b.dbias.as<float>();
    const int64_t rows = b.dout[0], width = b.dout[1];
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < width; ++c) dbias[c] += to_float(dout[r * width + c]);
  });
}

}  // namespace tri::cpu
