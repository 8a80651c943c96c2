// Every operation, one row each: name, argument struct. The rows generate the backends' tables and the functions that
// callers use:
//   norm_forward({.out = y, .inp = x, ...}, stream);
// A call checks the shapes (a violation is an internal error), enqueues on the stream's backend and returns.
#pragma once

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cached_attention.h"
#include "kernels/core/profile.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/expert_rows.h"
#include "kernels/fp8.h"
#include "kernels/gemm.h"
#include "kernels/grouped_gemm.h"
#include "kernels/kv_rows.h"
#include "kernels/muon.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/peer_rows.h"
#include "kernels/qk_norm_full.h"
#include "kernels/qk_norm_rope.h"
#include "kernels/random.h"
#include "kernels/rope.h"
#include "kernels/router.h"

#define TRI_FOR_EACH_OP(ROW)                          \
  ROW(gemm, Gemm)                                     \
  ROW(symmetric_product, SymmetricProduct)            \
  ROW(bias_backward, BiasBackward)                    \
  ROW(fp8_gemm, Fp8Gemm)                              \
  ROW(fp8_cast, Fp8Cast)                              \
  ROW(fp8_cast_slice, Fp8CastSlice)                   \
  ROW(fp8_norm_forward, Fp8NormForward)               \
  ROW(fp8_activation_forward, Fp8ActivationForward)   \
  ROW(fp8_activation_backward, Fp8ActivationBackward) \
  ROW(fp8_transpose, Fp8Transpose)                    \
  ROW(fp8_amax, Fp8Amax)                              \
  ROW(fp8_scales, Fp8Scales)                          \
  ROW(fp8_counts_to_float, Fp8CountsToFloat)          \
  ROW(norm_forward, NormForward)                      \
  ROW(norm_backward, NormBackward)                    \
  ROW(residual_add, ResidualAdd)                      \
  ROW(activation_forward, ActivationForward)          \
  ROW(activation_backward, ActivationBackward)        \
  ROW(embedding_forward, EmbeddingForward)            \
  ROW(embedding_backward, EmbeddingBackward)          \
  ROW(position_forward, PositionForward)              \
  ROW(position_backward, PositionBackward)            \
  ROW(row_positions, RowPositions)                    \
  ROW(rope, Rope)                                     \
  ROW(qk_norm_rope_forward, QkNormRopeForward)        \
  ROW(qk_norm_rope_backward, QkNormRopeBackward)      \
  ROW(qk_norm_squares, QkNormSquares)                 \
  ROW(qk_norm_full_forward, QkNormFullForward)        \
  ROW(qk_norm_products, QkNormProducts)               \
  ROW(qk_norm_full_backward, QkNormFullBackward)      \
  ROW(attention_forward, AttentionForward)            \
  ROW(attention_backward, AttentionBackward)          \
  ROW(cached_attention, CachedAttention)              \
  ROW(grouped_forward, GroupedForward)                \
  ROW(grouped_input_gradient, GroupedInputGradient)   \
  ROW(grouped_weight_gradient, GroupedWeightGradient) \
  ROW(grouped_fp8_gemm, GroupedFp8Gemm)               \
  ROW(grouped_fp8_gradient, GroupedFp8Gradient)       \
  ROW(router_forward, RouterForward)                  \
  ROW(router_backward, RouterBackward)                \
  ROW(router_totals, RouterTotals)                    \
  ROW(router_bias_update, RouterBiasUpdate)           \
  ROW(sort_pairs, SortPairs)                          \
  ROW(merge_sources, MergeSources)                    \
  ROW(gather_rows, GatherRows)                        \
  ROW(combine_rows, CombineRows)                      \
  ROW(combine_backward, CombineBackward)              \
  ROW(share_pairs, SharePairs)                        \
  ROW(plan_rows, PlanRows)                            \
  ROW(fetch_rows, FetchRows)                          \
  ROW(pack_kv, PackKv)                                \
  ROW(unpack_kv, UnpackKv)                            \
  ROW(cross_entropy_stats, CrossEntropyStats)         \
  ROW(cross_entropy_loss, CrossEntropyLoss)           \
  ROW(adamw_update, AdamwUpdate)                      \
  ROW(lamb_direction, LambDirection)                  \
  ROW(lamb_apply, LambApply)                          \
  ROW(average_weights, AverageWeights)                \
  ROW(momentum_update, MomentumUpdate)                \
  ROW(pack_matrix, PackMatrix)                        \
  ROW(unpack_matrix, UnpackMatrix)                    \
  ROW(matrix_sumsq, MatrixSumsq)                      \
  ROW(scale_matrix, ScaleMatrix)                      \
  ROW(tensor_sumsq, TensorSumsq)                      \
  ROW(weighted_sum, WeightedSum)                      \
  ROW(clip_scale, ClipScale)                          \
  ROW(cast, Cast)                                     \
  ROW(accumulate, Accumulate)                         \
  ROW(sum_parts, SumParts)                            \
  ROW(normal_values, NormalValues)

namespace tri {

// One backend: a function per operation.
struct OpTable {
#define TRI_ROW(name, Args) void (*name)(const Args&, Stream&);
  TRI_FOR_EACH_OP(TRI_ROW)
#undef TRI_ROW
};

const OpTable& cpu_ops();

// Returns the row of OpProfile that accounts for a call.
template <class Args>
const char* profile_name(const char* op, const Args&) {
  return op;
}
inline const char* profile_name(const char*, const Gemm& g) {
  if (g.trans_a == Trans::kYes) return "gemm, weight gradient";
  return g.trans_b == Trans::kYes ? "gemm, forward" : "gemm, input gradient";
}
inline const char* profile_name(const char*, const Fp8Gemm& g) {
  return g.out.dtype == Dtype::kF32 ? "fp8_gemm, into fp32" : "fp8_gemm";
}
inline const char* profile_name(const char*, const Fp8Cast& c) {
  return c.out_t.empty() ? "fp8_cast" : "fp8_cast, transposing";
}

#define TRI_ROW(name, Args)                                 \
  inline void name(const Args& args, Stream& stream) {      \
    check(args);                                            \
    const OpScope scope(stream, profile_name(#name, args)); \
    stream.ops().name(args, stream);                        \
  }
TRI_FOR_EACH_OP(TRI_ROW)
#undef TRI_ROW

}  // namespace tri
