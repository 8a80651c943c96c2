// out = alpha · op(a) · op(b) + beta · out + bias,  op(x) = x or its transpose, row-major, sums in fp32.
//   linear forward       out (R, N) = inp (R, K) · weight (N, K)^T + bias
//   gradient of input    dinp (R, K) = dout (R, N) · weight (N, K)
//   polynomial           out = alpha · a · b + beta · addend   (kernels/muon.h)
//   gradient of weight   dweight (N, K) fp32 += dout (R, N)^T · inp (R, K)      (beta 1: the GEMM accumulates),
//                        and with it dbias (N) += column sums of dout
// The operation that follows a GEMM can be requested with it, so that a backend may compute it in the GEMM's epilogue:
//   kGelu          pre = op(a) · op(b) + bias;  out = gelu(pre)          (kernels/activation.h)
//   kGeluBackward  out = (op(a) · op(b)) · gelu'(pre), and with it dbias (N) += column sums of out
#pragma once

#include "kernels/core/tensor.h"

namespace tri {

enum class Trans { kNo, kYes };
enum class Epilogue { kNone, kGelu, kGeluBackward };

struct Gemm {
  Tensor out;  // (M, N) f32|bf16
  Tensor a;    // (M, K), or (K, M) when trans_a
  Tensor b;    // (K, N), or (N, K) when trans_b
  Trans trans_a = Trans::kNo;
  Trans trans_b = Trans::kNo;
  float alpha = 1.0f, beta = 0.0f;
  Tensor addend;  // (M, N) the dtype of out, optional: takes the place of out in beta · out. No bias, no epilogue
  Tensor bias;    // (N), optional; the dtype of a
  Epilogue epilogue = Epilogue::kNone;
  Tensor pre;  // (M, N) the dtype of out; with an epilogue: written by kGelu, read by kGeluBackward
  // f32, optional, added to in a fixed order. With trans_a (M): sums over k of a[k, m]. With kGeluBackward (N): sums
  // over m of out[m, n].
  Tensor dbias;
};
void check(const Gemm&);

// out = alpha · op(a) · op(a)^T + beta · addend, which is symmetric. Backends may compute one triangle and mirror it.
struct SymmetricProduct {
  Tensor out;  // (S, S) the dtype of a
  Tensor a;    // (S, K) f32|bf16, or (K, S) when trans_a
  Trans trans_a = Trans::kNo;
  float alpha = 1.0f, beta = 0.0f;
  Tensor addend;  // (S, S) the dtype of a, optional, symmetric; may be a
};
void check(const SymmetricProduct&);
Gemm as_gemm(const SymmetricProduct&);  // which computes all of it

// dbias[n] += sum_r dout[r, n], in fp32, in a fixed order.
struct BiasBackward {
  Tensor dbias;  // (N) f32
  Tensor dout;   // (R, N) f32|bf16
};
void check(const BiasBackward&);

}  // namespace tri
