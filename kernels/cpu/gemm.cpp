#include <cblas.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// The operand as floats: itself, or converted into `scratch`, which keeps its memory for the next call.
const float* as_floats(const Tensor& tensor, std::vector<float>& scratch) {
  if (tensor.dtype == Dtype::kF32) return tensor.as<float>();
  const bf16* data = tensor.as<bf16>();
  scratch.resize(static_cast<size_t>(tensor.numel()));
  for (size_t i = 0; i < scratch.size(); ++i) scratch[i] = to_float(data[i]);
  return scratch.data();
}

}  // namespace

void gemm(const Gemm& g) {
  static const bool single_threaded = [] {  // ranks share the cores; one thread a rank also fixes the order of sums
    openblas_set_num_threads(1);
    return true;
  }();
  (void)single_threaded;
  thread_local std::vector<float> a_scratch, b_scratch, bias_scratch, out_scratch;
  const float* a = as_floats(g.a, a_scratch);
  const float* b = as_floats(g.b, b_scratch);
  const int64_t m = g.out[0], n = g.out[1], count = g.out.numel();
  if (count == 0) return;

  const bool in_place = g.out.dtype == Dtype::kF32;
  if (!in_place) {
    out_scratch.resize(static_cast<size_t>(count));
    if (g.beta != 0.0f)
      for (int64_t i = 0; i < count; ++i) out_scratch[static_cast<size_t>(i)] = to_float(g.out.as<bf16>()[i]);
  }
  float* out = in_place ? g.out.as<float>() : out_scratch.data();
  // The bias is the product's starting value: out = beta · out + bias, then + a · b.
  float beta = g.beta;
  if (!g.bias.empty()) {
    const float* bias = as_floats(g.bias, bias_scratch);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) out[i * n + j] = (beta == 0.0f ? 0.0f : beta * out[i * n + j]) + bias[j];
    beta = 1.0f;
  }
  const bool ta = g.trans_a == Trans::kYes, tb = g.trans_b == Trans::kYes;
  const int64_t k = g.a[ta ? 0 : 1];
  cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, static_cast<int>(m),
              static_cast<int>(n), static_cast<int>(k), 1.0f, a, static_cast<int>(g.a[1]), b, static_cast<int>(g.b[1]),
              beta, out, static_cast<int>(n));
  if (!in_place)
    for (int64_t i = 0; i < count; ++i) g.out.as<bf16>()[i] = bf16(out[i]);
}

void bias_backward(const BiasBackward& b) {
  dispatch(b.dout.dtype, [&](auto type) {
    using T = decltype(type);
    const T* dout = b.dout.as<T>();
    float* dbias = b.dbias.as<float>();
    const int64_t rows = b.dout[0], n = b.dout[1];
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < n; ++j) dbias[j] += to_float(dout[r * n + j]);
  });
}

}  // namespace tri::cpu
