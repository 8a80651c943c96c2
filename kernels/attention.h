// Causal self-attention over QKV rows of either order (qkv_row.h). The softmax statistics are saved, scores are never
// stored.
//   out[t] = sum_{s in band(t)} softmax_s(scale · q_t·k_s) · v_s
//   lse[b, h, t] = log sum_{s in band(t)} exp(scale · q_t·k_s)
//   band(t) = (t - W, t] with W = window; [0, t] when the window is 0; from first_key[t] on if that is later
// With a softcap c > 0 (Gemma-2), c · tanh(x / c) replaces each score x = scale · q_t·k_s. Its derivative with respect
// to x is 1 - tanh²(x / c).
// Queries of a part of each sample (context parallelism): query i of the T local ones has the position
//   p(i) = chunk_start[0] + i if i < T/2, else chunk_start[1] + i - T/2
// in the sample, its band is band(p(i)), and the keys and values of the whole sample are in kv. A call may be for some
// of the key/value heads only. Keys are read in whole tiles of kKeyTile positions that the band overlaps.
// Blocks outside the band are skipped in both passes.  Source: Dao 2023 (FlashAttention-2), algorithms 1 and 2.
#pragma once

#include <array>
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
  // (B, Tk) i32: for each position of a sample, the first one that a query there attends to, the start of its document.
  // Never decreases along a sample, and is at most the position. Absent: 0.
  Tensor first_key;
  // (B·Tk, n · 2 · HS) T: of whole samples the keys, then the values, of the key/value heads first_kv_head and the next
  // n - 1, if the queries are those of two chunks of each sample. Only the columns of these heads and of their queries
  // are computed. Absent: those of qkv, all heads.
  Tensor kv;
  QkvOrder order = QkvOrder::kGrouped;
  int seq_len = 0;                          // T, of the queries; B = R / T; even with kv
  int key_len = 0;                          // Tk, with kv; 0: seq_len
  std::array<int, 2> chunk_start = {0, 0};  // with kv: positions in the sample of the first and of the (T/2)-th query
  int first_kv_head = 0;                    // with kv
  int num_kv_heads = 0;                     // NKVl
  int group = 0;                            // G; NHl = NKVl · G
  int window = 0;                           // W; 0 = full causal
  float scale = 0.0f;                       // usually 1 / sqrt(HS)
  float softcap = 0.0f;                     // c; 0 = none
  AttentionKernel kernel = AttentionKernel::kAuto;
};
void check(const AttentionForward&);

struct AttentionBackward {
  Tensor dqkv;                          // (R, NKVl · (G + 2) · HS) T, overwritten, with kv its queries alone; not qkv
  Tensor dkv;                           // (B·Tk, n · 2 · HS) T, overwritten; with kv
  Tensor delta;                         // (B, NHl, T) f32, workspace: sum_c dout · out
  Tensor dout;                          // (R, NHl · HS) T
  Tensor out;                           // (R, NHl · HS) T
  Tensor lse;                           // (B, NHl, T) f32
  Tensor qkv;                           // (R, NKVl · (G + 2) · HS) T
  Tensor first_key;                     // (B, Tk) i32, as in the forward pass, like the fields below
  Tensor kv;                            // (B·Tk, n · 2 · HS) T
  QkvOrder order = QkvOrder::kGrouped;  // of qkv and dqkv
  int seq_len = 0;
  int key_len = 0;
  std::array<int, 2> chunk_start = {0, 0};
  int first_kv_head = 0;
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

// Returns Tk, the positions of each sample.
template <class Args>
int key_len_of(const Args& a) {
  return a.kv.empty() || a.key_len == 0 ? a.seq_len : a.key_len;
}

// Returns the number of key/value heads that a call computes, from first_kv_head on.
template <class Args>
int kv_heads_of(const Args& a) {
  return a.kv.empty() ? a.num_kv_heads : static_cast<int>(a.kv[1] / (2 * qkv_row_of(a).head_size));
}

// Where the first of these heads begins: its queries in a row of qkv, its columns in a row of out, and its statistics
// in those of a sample. All in elements.
struct FirstHead {
  int64_t query = 0, out = 0, stat = 0;
};
template <class Args>
FirstHead first_head_of(const Args& a) {
  const QkvRow row = qkv_row_of(a);
  const int64_t head = int64_t{a.first_kv_head} * a.group;
  return {row.query(a.first_kv_head, 0), head * row.head_size, head * a.seq_len};
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
  bool documents = false;  // with first_key
  int key_len = 0;         // Tk, with kv; 0: without
};
template <class Args>
AttentionShape attention_shape(const Args& a) {
  return {.dtype = a.qkv.dtype,
          .seq_len = a.seq_len,
          .num_kv_heads = a.num_kv_heads,
          .group = a.group,
          .head_size = qkv_row_of(a).head_size,
          .window = a.window,
          .order = a.order,
          .batch = a.qkv[0] / a.seq_len,
          .softcap = a.softcap > 0,
          .documents = !a.first_key.empty(),
          .key_len = a.kv.empty() ? 0 : key_len_of(a)};
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

// Returns true for bf16 with a head size that is a multiple of 8 up to 256 (128 with documents or key_len), and any
// group, window and sequence length, on GPUs with the shared memory for it.
bool flash_attention_takes(const AttentionShape& shape, const GpuProperties& gpu);
// Returns whether heads fill the kernels' tiles of 64, 96, 128 or 256 columns. Those of mma.sync fill up other heads
// with zeros.
constexpr bool fills_tiles(int64_t head_size) {
  return head_size == 64 || head_size == 96 || head_size == 128 || head_size == 256;
}
// Returns whether the FlashAttention kernels on this GPU are those for Hopper (wgmma, TMA), for heads that fill their
// tiles, in the backward pass for heads of up to 128; otherwise they use mma.sync.
bool flash_attention_is_hoppers(const GpuProperties& gpu);
// Returns true for bf16 without a softcap, first_key and kv, with a head size that is a multiple of 8 up to 128, and
// any group and window.
bool cudnn_attention_takes(const AttentionShape& shape, const GpuProperties& gpu);

// Every kernel reads the keys of a query from multiples of this number of positions on, also keys before its band.
inline constexpr int kKeyTile = 128;

// The head size of the widest tiles of the FlashAttention kernels, and of Hopper's backward pass.
inline constexpr int kFlashMaxHeadSize = 256, kHopperBackwardMaxHeadSize = 128;
// The most shared memory of a block that the FlashAttention kernels need. If a GPU has less than Hopper's kernels need,
// those of mma.sync run (cuda/flash_attention.h). kScalarStaticBytes: what the scalar kernels need in addition to the
// scores.
constexpr int64_t flash_shared_bytes(int64_t head_size) { return (head_size > 128 ? 210 : 163) * 1024; }
inline constexpr int64_t kHopperSharedBytes = 196 * 1024;
inline constexpr int64_t kScalarStaticBytes = 1024;
inline constexpr int64_t kScalarMaxHeadSize = 1024;

}  // namespace tri
