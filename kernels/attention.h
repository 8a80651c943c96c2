// Causal self-attention over QKV rows of either order (qkv_row.h), softmax statistics kept, scores never stored.
//   out[t] = sum_{s in band(t)} softmax_s(scale · q_t·k_s) · v_s
//   lse[b, h, t] = log sum_{s in band(t)} exp(scale · q_t·k_s)
//   band(t) = (t - W, t] with W = window; [0, t] when the window is 0
// Blocks outside the band are skipped, forward and backward.  Source: Dao 2023 (FlashAttention-2), algorithms 1 and 2.
#pragma once

#include <string>

#include "kernels/core/gpu.h"
#include "kernels/core/kinds.h"
#include "kernels/core/qkv_row.h"
#include "kernels/core/tensor.h"

namespace tri {

struct AttentionForward {
  Tensor out;  // (R, NHl · HS) T, heads in order
  Tensor lse;  // (B, NHl, T) f32
  Tensor qkv;  // (R, NKVl · (G + 2) · HS) T
  QkvOrder order = QkvOrder::kGrouped;
  int seq_len = 0;       // T; B = R / T
  int num_kv_heads = 0;  // NKVl
  int group = 0;         // G; NHl = NKVl · G
  int window = 0;        // W; 0 = full causal
  float scale = 0.0f;    // 1 / sqrt(HS)
  AttentionKernel kernel = AttentionKernel::kAuto;
};
void check(const AttentionForward&);

struct AttentionBackward {
  Tensor dqkv;                          // (R, NKVl · (G + 2) · HS) T, overwritten; may not be qkv
  Tensor delta;                         // (B, NHl, T) f32, workspace: sum_c dout · out
  Tensor dout;                          // (R, NHl · HS) T
  Tensor out;                           // (R, NHl · HS) T
  Tensor lse;                           // (B, NHl, T) f32
  Tensor qkv;                           // (R, NKVl · (G + 2) · HS) T
  QkvOrder order = QkvOrder::kGrouped;  // of qkv and dqkv
  int seq_len = 0;
  int num_kv_heads = 0;
  int group = 0;
  int window = 0;
  float scale = 0.0f;
  AttentionKernel kernel = AttentionKernel::kAuto;  // the forward's
  bool deterministic = true;                        // false: cuDNN may add in any order; other kernels never do
};
void check(const AttentionBackward&);

// Where the heads of a call's QKV rows lie.
template <class Args>
QkvRow qkv_row_of(const Args& a) {
  const int64_t heads = int64_t{a.num_kv_heads} * (a.group + 2);
  return qkv_row(a.order, a.num_kv_heads, a.group, static_cast<int>(a.qkv[1] / heads));
}

// What of a call decides which of a GPU's kernels take it.
struct AttentionShape {
  Dtype dtype = Dtype::kF32;
  int seq_len = 0;
  int num_kv_heads = 0;
  int group = 0;
  int64_t head_size = 0;
  int window = 0;
  QkvOrder order = QkvOrder::kGrouped;
  int64_t batch = 1;
};
template <class Args>
AttentionShape attention_shape(const Args& a) {
  return {a.qkv.dtype, a.seq_len, a.num_kv_heads,      a.group, qkv_row_of(a).head_size,
          a.window,    a.order,   a.qkv[0] / a.seq_len};
}

// kScalar: any dtype and head size, without tensor cores, far slower. kFlash: our FlashAttention kernels. kCudnn.
enum class AttentionPath { kScalar, kFlash, kCudnn };
template <>
struct EnumNames<AttentionPath> {
  static constexpr std::array table{std::pair{AttentionPath::kScalar, std::string_view("scalar kernels")},
                                    std::pair{AttentionPath::kFlash, std::string_view("FlashAttention kernels")},
                                    std::pair{AttentionPath::kCudnn, std::string_view("cuDNN")}};
};

// The kernels that take this pass on a GPU. Decided by shapes alone, so that `trireme check` can say it without a GPU;
// one more thing shows only when a call is made: cuDNN may refuse a graph, and kAuto then takes the next path.
// Usage error where none can: cuDNN asked for a shape that it does not take, or a sequence too long for the scalar
// kernels' shared memory.
Result<AttentionPath> attention_path(AttentionKernel kernel, Pass pass, const AttentionShape& shape,
                                     const GpuProperties& gpu);
// Why bf16 attention of this shape is left to the scalar kernels, for people; empty where it is not.
std::string scalar_attention_warning(AttentionKernel kernel, const AttentionShape& shape, const GpuProperties& gpu);

// bf16 and head sizes 64, 96 and 128; any group, window and sequence length.
bool flash_attention_takes(const AttentionShape& shape, const GpuProperties& gpu);
// Whether our FlashAttention kernels are those for Hopper (wgmma, TMA) on this GPU, else those of mma.sync.
bool flash_attention_is_hoppers(const GpuProperties& gpu);
// bf16 and head sizes that are a multiple of 8 up to 128; any group and window.
bool cudnn_attention_takes(const AttentionShape& shape, const GpuProperties& gpu);

// Shared memory of a block that the FlashAttention kernels need, at most (Hopper's more, and where there is less those
// of mma.sync run: cuda/flash_attention.h); and that the scalar ones need in addition to the scores.
inline constexpr int64_t kFlashSharedBytes = 163 * 1024;
inline constexpr int64_t kHopperSharedBytes = 196 * 1024;
inline constexpr int64_t kScalarStaticBytes = 1024;
inline constexpr int64_t kScalarMaxHeadSize = 1024;

}  // namespace tri
