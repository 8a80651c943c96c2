#include "tests/mp/split_sums.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/core/fp8.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

// tri::cpu::gemm and tri::cpu::fp8_gemm by their linker names.
extern "C" {
void __real__ZN3tri3cpu4gemmERKNS_4GemmE(const tri::Gemm& g);
void __real__ZN3tri3cpu8fp8_gemmERKNS_7Fp8GemmE(const tri::Fp8Gemm& g);
void __wrap__ZN3tri3cpu4gemmERKNS_4GemmE(const tri::Gemm& g);
void __wrap__ZN3tri3cpu8fp8_gemmERKNS_7Fp8GemmE(const tri::Fp8Gemm& g);
}

namespace tri {
namespace {

GemmSums sums;

void backend_gemm(const Gemm& g) { __real__ZN3tri3cpu4gemmERKNS_4GemmE(g); }
void backend_gemm(const Fp8Gemm& g) { __real__ZN3tri3cpu8fp8_gemmERKNS_7Fp8GemmE(g); }

// A tensor that owns its memory.
class Copy {
 public:
  Copy(Dtype dtype, int64_t rows, int64_t columns)
      : bytes_(static_cast<size_t>(rows * columns) * dtype_bytes(dtype)),
        tensor_(bytes_.data(), dtype, {rows, columns}) {}
  // Copies elements [first, first + count) of dimension `dim` of a matrix.
  Copy(const Tensor& from, int dim, int64_t first, int64_t count)
      : Copy(from.dtype, dim == 0 ? count : from[0], dim == 0 ? from[1] : count) {
    const auto element = static_cast<int64_t>(dtype_bytes(from.dtype));
    const int64_t rows = tensor_[0], width = tensor_[1] * element, skipped = dim == 0 ? first * width : first * element;
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(bytes_.data() + r * width, static_cast<const char*>(from.data) + skipped + r * from[1] * element,
                  static_cast<size_t>(width));
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  operator Tensor() const { return tensor_; }

 private:
  std::vector<char> bytes_;
  Tensor tensor_;
};

// out = beta · out + bias + the parts, which `part(first, count, out)` computes from elements of K.
template <class Part>
void sum_of_parts(const Tensor& out, const Tensor& bias, float beta, int64_t k, Part part) {
  const auto count = static_cast<size_t>(out.numel());
  std::vector<float> total(count, 0.0f);
  const int64_t parts = std::min<int64_t>(sums.parts, k);
  const Copy product(out.dtype, out[0], out[1]);
  cpu::dispatch(out.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t p = 0; p < parts; ++p) {
      const int64_t first = k * p / parts;
      part(first, k * (p + 1) / parts - first, Tensor(product));
      for (size_t i = 0; i < count; ++i) total[i] += cpu::to_float(Tensor(product).as<T>()[i]);
    }
    T* const to = out.as<T>();
    for (size_t i = 0; i < count; ++i) {
      if (beta != 0.0f) total[i] += beta * cpu::to_float(to[i]);
      if (!bias.empty()) total[i] += cpu::to_float(bias.as<T>()[i % static_cast<size_t>(out[1])]);
      to[i] = cpu::from_float<T>(total[i]);
    }
  });
}

void split_gemm(const Gemm& g) {
  // Muon's iterations: one rank computes them whole on any layout.
  if (g.a.data == g.b.data || !g.addend.empty()) return backend_gemm(g);
  if (!g.dbias.empty() && g.trans_a == Trans::kYes) cpu::bias_backward({.dbias = g.dbias, .dout = g.a});
  const int a_dim = g.trans_a == Trans::kYes ? 0 : 1, b_dim = g.trans_b == Trans::kYes ? 1 : 0;
  const Tensor out = g.epilogue == Epilogue::kGelu ? g.pre : g.out;
  sum_of_parts(out, g.bias, g.beta, g.a[a_dim], [&](int64_t first, int64_t count, Tensor product) {
    const Copy a(g.a, a_dim, first, count), b(g.b, b_dim, first, count);
    backend_gemm(Gemm{.out = product, .a = a, .b = b, .trans_a = g.trans_a, .trans_b = g.trans_b});
  });
  if (g.epilogue == Epilogue::kGelu) cpu::activation_forward({.kind = Activation::kGelu, .out = g.out, .inp = g.pre});
  if (g.epilogue == Epilogue::kGeluBackward) {
    cpu::activation_backward({.kind = Activation::kGelu, .dinp = g.out, .dout = g.out, .inp = g.pre});
    if (!g.dbias.empty()) cpu::bias_backward({.dbias = g.dbias, .dout = g.out});
  }
}

void split_gemm(const Fp8Gemm& g) {
  sum_of_parts(g.out, g.bias, g.beta, g.a[1], [&](int64_t first, int64_t count, Tensor product) {
    const Copy a(g.a, 1, first, count), b(g.b, 1, first, count);
    backend_gemm(Fp8Gemm{.out = product, .a = a, .b = b, .inverse_a = g.inverse_a, .inverse_b = g.inverse_b});
  });
}

void gemm_whose_keys_take_values(const Gemm& g) {
  float* const sum = g.dbias.as<float>();
  const std::vector<float> before(sum, sum + g.dbias.numel());
  backend_gemm(g);
  const QkvRow& row = sums.row;
  for (int key = row.key_at, value = row.value_at; value < row.width; key += row.key_stride, value += row.key_stride)
    for (int i = 0; i < row.head_size; ++i) sum[key + i] += sum[value + i] - before[static_cast<size_t>(value + i)];
}

template <class Args>
void any_gemm(const Args& g) {
  if (sums.fault == GemmFault::kKeysTakeValues) return backend_gemm(g);
  const auto faulty = sums.faulty_calls.find(g.out.data);
  if (sums.fault != GemmFault::kNone && faulty != sums.faulty_calls.end()) {
    Args once_more = g;
    once_more.beta = 1.0f;
    if (sums.fault == GemmFault::kMissesEverySecond && faulty->second++ % 2 == 1) return;
    if (sums.fault == GemmFault::kTwice) backend_gemm(g);
    return backend_gemm(sums.fault == GemmFault::kTwice ? once_more : g);
  }
  if (sums.parts == 1) return backend_gemm(g);
  split_gemm(g);
}

}  // namespace

void set_gemm_sums(const GemmSums& wanted) { sums = wanted; }

}  // namespace tri

void __wrap__ZN3tri3cpu4gemmERKNS_4GemmE(const tri::Gemm& g) {
  if (tri::sums.fault == tri::GemmFault::kKeysTakeValues && g.dbias.data == tri::sums.faulty_bias &&
      g.dbias.data != nullptr)
    return tri::gemm_whose_keys_take_values(g);
  tri::any_gemm(g);
}
void __wrap__ZN3tri3cpu8fp8_gemmERKNS_7Fp8GemmE(const tri::Fp8Gemm& g) { tri::any_gemm(g); }
