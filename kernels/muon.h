// The ops of Muon (Jordan et al. 2024; scaled as in Moonlight, arXiv 2502.16982) around the GEMMs of its iteration.
//   m = mu · m + g;  u = g + mu · m                       g = grad · grad_scale  (momentum_update)
//   X = u / (|u|_F + eps)                                                        (matrix_sumsq, scale_matrix)
//   five times, for R <= C:  A = X · X^T;  P = c · A · A + b · A;  X = P · X + a · X  (symmetric_product, gemm)
//            for R > C:      A = X^T · X;  P = c · A · A + b · A;  X = X · P^T + a · X
//   w = (1 - lr · decay) · w - lr · 0.2 · sqrt(max(R, C)) · X                    (unpack_matrix, lamb_apply)
// X is a whole logical matrix (R, C): the queries' rows of a QKV weight, a gate projection. A rank holds a part of it,
// in a slice of a flat buffer, and packs that part to send it to the rank that iterates.
#pragma once

#include "kernels/core/tensor.h"
#include "kernels/optimizer.h"

namespace tri {

inline constexpr int kMuonIterations = 5;
inline constexpr float kMuonA = 3.4445f, kMuonB = -4.7750f, kMuonC = 2.0315f, kMuonEps = 1e-7f;

// A and P are symmetric. If their side is larger than this, only one triangle is computed (symmetric_product): up to
// 2048, an H100 computes all 128 x 256 tiles of such a matrix at once. Autotuning does not include these products.
inline constexpr int64_t kLargestWholeSide = 2048;

// Returns the share of a symmetric matrix (side, side) that is computed, in tiles of 256 x 256.
constexpr double computed_share(int64_t side) {
  const auto tiles = static_cast<double>((side + 255) / 256);
  return side > kLargestWholeSide ? (tiles + 1) / (2 * tiles) : 1.0;
}

// Changes nothing if grad_scale is NaN. Does not touch padding.
struct MomentumUpdate {
  Tensor momentum;      // (n) f32|bf16: m
  Tensor grad;          // (n) f32: overwritten with u, which uses the unrounded m
  Tensor grad_scale;    // (1) f32: the clipping factor
  Tensor block_tensor;  // (n / kBlock) i32
  float mu = 0.95f;
  MomentRounding rounding = {};  // for a momentum in bf16: uses the bits of the first moment
};
void check(const MomentumUpdate&);

// Where a part of a logical matrix lies in a slice. Its elements lie in runs, one every `stride` elements. Element p of
// the part is element offset + (first + p) / run · stride + (first + p) % run of the slice.
struct MatrixRuns {
  int64_t offset = 0;  // of the shard's first element of the matrix, from the slice's beginning; may be below 0
  int64_t run = 1, stride = 1;
  int64_t first = 0;  // element of the shard's part of the matrix

  constexpr int64_t at(int64_t p) const { return offset + (first + p) / run * stride + (first + p) % run; }
};

// out[p] = inp[runs.at(p)], converted to out's dtype.
struct PackMatrix {
  Tensor out;  // (count) f32|bf16
  Tensor inp;  // (n) f32
  MatrixRuns runs;
};
void check(const PackMatrix&);

// out[runs.at(p)] = scale · inp[p] + decay · master[runs.at(p)]: the direction of a part of a matrix. Other elements of
// out keep their values.
struct UnpackMatrix {
  Tensor out;     // (n) f32
  Tensor inp;     // (count) f32|bf16
  Tensor master;  // (n) f32
  MatrixRuns runs;
  float scale = 1.0f, decay = 0.0f;
};
void check(const UnpackMatrix&);

// sumsq[0] = the sum of squares of inp, in a fixed order. Overwrites.
struct MatrixSumsq {
  Tensor sumsq;  // (1) f32
  Tensor inp;    // (n) f32|bf16
};
void check(const MatrixSumsq&);

// out = inp / (sqrt(sumsq[0]) + eps), or a copy if sumsq is absent. A matrix of S shards is stored as (S, R, C / S).
struct ScaleMatrix {
  Tensor out;                              // (R, C) f32|bf16
  Tensor inp;                              // (R, C), same dtype; other memory than out
  Tensor sumsq;                            // (1) f32, optional
  int64_t out_shards = 1, inp_shards = 1;  // one of them is 1
  float eps = kMuonEps;
};
void check(const ScaleMatrix&);

}  // namespace tri
