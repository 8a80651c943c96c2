// Causal self-attention over QKV rows of either order (qkv_row.h). The softmax statistics are saved, scores are never
// stored.
//   out[t] = sum_{s in band(t)} softmax_s(scale · q_t·k_s) · v_s
//   lse[b, h, t] = log sum_{s in band(t)} exp(scale · q_t·k_s)
//   band(t) = (t - W, t] with W = window; [0, t] when the window is 0
// With a softcap c > 0 (Gemma-2), c · tanh(x / c) replaces each score x = scale · q_t·k_s. Its derivative with respect
// to x is 1 - tanh²(x / c).
// Blocks outside the band are skipped in both passes.  Source: Dao 2023 (FlashAttention-2), algorithms 1 and 2.
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
  float scale = 0.0f;    // usually 1 / sqrt(HS)
  float softcap = 0.0f;  // c; 0 = none
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
  float softcap = 0.0f;
  AttentionKernel kernel = AttentionKernel::kAuto;  // as in the forward pass
  bool deterministic = true;  // false: cuDNN may add in any order; other kernels are always deterministic
};
void check(const AttentionBackward&);

// Returns where the heads of a call's QKV rows lie.
template <class Args>
QkvRow qkv_row_of(const Args& a) {
  const int64_t heads = int64_t{a.num_kv_heads} * (a.group + 2);
  return qkv_row(a.order, a.num_kv_heads, a.group, static_cast<int>(a.qkv[1] / heads));
}

// The part of a call that decides which of a GPU's kernels runs it.
struct AttentionShape {
  Dtype dtype = Dtype::kF32;
  int seq_len = 0;
  int num_kv_heads = 0;
  int group = 0;
  int64_t head_size = 0;
  int window = 0;
  QkvOrder order = QkvOrder::kGrouped;
  int64_t batch = 1;
  bool softcap = false;
};
template <class Args>
AttentionShape attention_shape(const Args& a) {
  return {a.qkv.dtype, a.seq_len, a.num_kv_heads,       a.group,      qkv_row_of(a).head_size,
          a.window,    a.order,   a.qkv[0] / a.seq_len, a.softcap > 0};
}

// kScalar: any dtype and head size, without tensor cores, far slower. kFlash: the project's FlashAttention kernels.
enum class AttentionPath { kScalar, kFlash, kCudnn };
template <>
struct EnumNames<AttentionPath> {
  static constexpr std::array table{std::pair{AttentionPath::kScalar, std::string_view("scalar kernels")},
                                    std::pair{AttentionPath::kFlash, std::string_view("FlashAttention kernels")},
                                    std::pair{AttentionPath::kCudnn, std::string_view("cuDNN")}};
};

// Returns the kernels that run this pass on a GPU. Shapes alone decide, so that `trireme check` can answer without a
// GPU, with one exception at run time: if cuDNN refuses a graph, kAuto falls back to the next path. Fails with a usage
// error if no kernel can run the pass: cuDNN was requested for a shape that it does not support, or the sequence is too
// long for the scalar kernels' shared memory.
Result<AttentionPath> attention_path(AttentionKernel kernel, Pass pass, const AttentionShape& shape,
                                     const GpuProperties& gpu);
// Returns a message that says why bf16 attention of this shape falls back to the scalar kernels, or "" if it does not.
std::string scalar_attention_warning(AttentionKernel kernel, const AttentionShape& shape, const GpuProperties& gpu);

// Returns true for bf16 with head size 64, 96 or 128, and any group, window and sequence length.
bool flash_attention_takes(const AttentionShape& shape, const GpuProperties& gpu);
// Returns whether the FlashAttention kernels on this GPU are those for Hopper (wgmma, TMA); otherwise they use
// mma.sync.
bool flash_attention_is_hoppers(const GpuProperties& gpu);
// Returns true for bf16 without a softcap and with a head size that is a multiple of 8 up to 128, and any group and
// window.
bool cudnn_attention_takes(const AttentionShape& shape, const GpuProperties& gpu);

// The most shared memory of a block that the FlashAttention kernels need. If a GPU has less than Hopper's kernels need,
// those of mma.sync run (cuda/flash_attention.h). kScalarStaticBytes: what the scalar kernels need in addition to the
// scores.
inline constexpr int64_t kFlashSharedBytes = 163 * 1024;
inline constexpr int64_t kHopperSharedBytes = 196 * 1024;
inline constexpr int64_t kScalarStaticBytes = 1024;
inline constexpr int64_t kScalarMaxHeadSize = 1024;

}  // namespace tri
