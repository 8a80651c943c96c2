#include "kernels/attention.h"

#include "kernels/core/checks.h"
#include "kernels/core/dims.h"

namespace tri {
namespace {

// Checks what both directions share: QKV rows, one output row per token, one statistic per head and token.
template <class Args>
void check_attention(const char* op, const Args& a) {
  TRI_REQUIRE(a.num_kv_heads > 0 && a.group > 0 && a.seq_len > 0 && a.window >= 0,
              "{}: num_kv_heads {}, group {}, seq_len {}, window {}", op, a.num_kv_heads, a.group, a.seq_len, a.window);
  TRI_REQUIRE(a.scale > 0.0f && a.softcap >= 0.0f, "{}: scale {}, softcap {}", op, a.scale, a.softcap);
  require_float(op, "qkv", a.qkv);
  const int64_t num_heads = int64_t{a.num_kv_heads} * a.group;
  const int64_t qkv_heads = int64_t{a.num_kv_heads} * (a.group + 2);
  TRI_REQUIRE(a.qkv.dims == 2 && a.qkv[0] > 0 && a.qkv[0] % a.seq_len == 0,
              "{}: qkv {} is not a number of sequences of {} tokens", op, a.qkv.shape_text(), a.seq_len);
  TRI_REQUIRE(a.qkv[1] > 0 && a.qkv[1] % qkv_heads == 0, "{}: qkv {} does not divide into {} x ({} + 2) heads", op,
              a.qkv.shape_text(), a.num_kv_heads, a.group);
  const int64_t rows = a.qkv[0], head_size = a.qkv[1] / qkv_heads;
  require_tensor(op, "out", a.out, a.qkv.dtype, {rows, num_heads * head_size});
  require_tensor(op, "lse", a.lse, Dtype::kF32, {rows / a.seq_len, num_heads, a.seq_len});
  const int64_t batch = rows / a.seq_len, key_len = key_len_of(a);
  if (!a.first_key.empty()) require_tensor(op, "first_key", a.first_key, Dtype::kI32, {batch, key_len});
  if (a.kv.empty()) {
    TRI_REQUIRE((a.key_len == 0 || a.key_len == a.seq_len) && a.first_kv_head == 0,
                "{}: key_len {} and first_kv_head {} without kv", op, a.key_len, a.first_kv_head);
    return;
  }
  require_matrix(op, "kv", a.kv);
  const int kv_heads = kv_heads_of(a);
  TRI_REQUIRE(kv_heads > 0 && a.first_kv_head >= 0 && a.first_kv_head + kv_heads <= a.num_kv_heads,
              "{}: kv {} from head {} of {} on", op, a.kv.shape_text(), a.first_kv_head, a.num_kv_heads);
  require_tensor(op, "kv", a.kv, a.qkv.dtype, {batch * key_len, kv_heads * 2 * head_size});
  for (const int start : a.chunk_start)
    TRI_REQUIRE(a.seq_len % 2 == 0 && start >= 0 && start + a.seq_len / 2 <= key_len,
                "{}: a chunk of {} / 2 queries at {} of {} positions", op, a.seq_len, start, key_len);
}

// For grouped rows with several groups cuDNN processes one sequence per execution (cuda/cudnn_attention.cpp), so the
// tiles of 128 queries of one sequence must fill the GPU. Measured on an H200 with head size 128, forward/backward:
// cuDNN reaches 422/284 TFLOP/s with 4 tiles per multiprocessor, 263/178 with 2, 151/108 with 1 (263/163 with 8 query
// heads at T 2048). The FlashAttention kernels lose far less because they tile all sequences together.
bool sequence_leaves_cudnn_idle(const AttentionShape& s, const GpuProperties& gpu) {
  constexpr int64_t kTilesPerMultiprocessor = 3;
  const int64_t tiles = int64_t{s.num_kv_heads} * s.group * ceil_div(s.seq_len, 128);
  return !has_one_query_stride(s.order, s.num_kv_heads, s.group) &&
         tiles < kTilesPerMultiprocessor * gpu.num_multiprocessors;
}

// Returns whether the project's Hopper kernels are faster than cuDNN's. Measured on an H200 at its power limit, in
// TFLOP/s, the project's vs. cuDNN's. Forward, head size 128: 604 vs. 537 (T 8192), 510 vs. 485 (2048), 321 vs. 334
// (512); head size 64: 304 vs. 329. Backward, head size 128: 517 vs. 481, 395 vs. 384, 252 vs. 196; head size 64: 283
// vs. 251, although cuDNN's is not even deterministic. With LLaMA 8B's shape the backward pass takes a fifth less time.
// A block of the backward pass owns 128 keys of a key/value head: with one block per multiprocessor (4 x 2048, 2
// key/value heads) it reaches 282, cuDNN 316.
bool hopper_leads(Pass pass, const AttentionShape& s, const GpuProperties& gpu) {
  if (!flash_attention_is_hoppers(gpu)) return false;
  if (pass == Pass::kForward) return s.head_size == 128 && s.seq_len >= 1024;
  return s.batch * s.num_kv_heads * ceil_div(s.seq_len, 128) >= 2 * gpu.num_multiprocessors;
}

// Returns the largest head size that the FlashAttention kernels take on this GPU, or would with more shared memory.
int most_head_size(const GpuProperties& gpu) {
  return gpu.max_shared_bytes >= flash_shared_bytes(kFlashMaxHeadSize) ? kFlashMaxHeadSize : 128;
}

}  // namespace

void check(const AttentionForward& a) { check_attention("attention_forward", a); }

void check(const AttentionBackward& a) {
  check_attention("attention_backward", a);
  require_tensor("attention_backward", "dqkv", a.dqkv, a.qkv.dtype, {a.qkv[0], a.qkv[1]});
  require_tensor("attention_backward", "dout", a.dout, a.out.dtype, {a.out[0], a.out[1]});
  require_tensor("attention_backward", "delta", a.delta, Dtype::kF32, {a.lse[0], a.lse[1], a.lse[2]});
  TRI_REQUIRE(a.dkv.empty() == a.kv.empty(), "attention_backward: dkv {} with kv {}", a.dkv.shape_text(),
              a.kv.shape_text());
  if (!a.kv.empty()) require_tensor("attention_backward", "dkv", a.dkv, a.kv.dtype, {a.kv[0], a.kv[1]});
  TRI_REQUIRE(a.dqkv.data != a.qkv.data, "attention_backward: dqkv may not be qkv, which later blocks still read");
}

bool flash_attention_takes(const AttentionShape& s, const GpuProperties& gpu) {
  return s.dtype == Dtype::kBF16 && s.head_size % 8 == 0 && s.head_size <= kFlashMaxHeadSize &&
         gpu.max_shared_bytes >= flash_shared_bytes(s.head_size);
}

bool flash_attention_is_hoppers(const GpuProperties& gpu) {
  return gpu.has_hopper_attention && gpu.capability == 90 && gpu.max_shared_bytes >= kHopperSharedBytes;
}

bool cudnn_attention_takes(const AttentionShape& s, const GpuProperties& gpu) {
  return gpu.has_cudnn && s.dtype == Dtype::kBF16 && s.head_size % 8 == 0 && s.head_size <= 128 && !s.softcap &&
         !s.documents && s.key_len == 0;
}

Result<AttentionPath> attention_path(AttentionKernel kernel, Pass pass, const AttentionShape& s,
                                     const GpuProperties& gpu) {
  const bool flash = flash_attention_takes(s, gpu), cudnn = cudnn_attention_takes(s, gpu);
  if (kernel == AttentionKernel::kCudnn) {
    if (cudnn) return AttentionPath::kCudnn;
    return usage_error(
        "model.attention: cudnn does not support {} with head size {}{}{}{}{}; set model.attention: auto",
        enum_name(s.dtype), s.head_size, s.softcap ? " and model.attention_softcap" : "",
        s.documents ? " and data.document_mask" : "", s.key_len > 0 ? " and parallel.cp" : "",
        gpu.has_cudnn ? "" : ", and this trireme was built without cuDNN");
  }
  // cuDNN's deterministic backward pass also processes the blocks outside the window.
  const bool all_blocks = pass == Pass::kBackward && s.window > 0 && 2 * s.window <= s.seq_len;
  const bool slow = flash && fills_tiles(s.head_size) &&
                    (all_blocks || sequence_leaves_cudnn_idle(s, gpu) || hopper_leads(pass, s, gpu));
  if (kernel == AttentionKernel::kAuto && cudnn && !slow) return AttentionPath::kCudnn;
  if (flash) return AttentionPath::kFlash;
  // Shared memory holds a query's scores and, in the backward pass, their gradients: one float per token each.
  const int64_t most_forward = (gpu.max_shared_bytes - kScalarStaticBytes) / 4, most_backward = most_forward / 2;
  const int keys = s.key_len > 0 ? s.key_len : s.seq_len;
  if (keys > (pass == Pass::kForward ? most_forward : most_backward))
    return usage_error(
        "model.seq_len: {} with {} and head size {} needs the scalar attention kernels, which on this GPU accept at "
        "most {} tokens in a backward pass and {} in a forward pass; use precision.compute: bf16 and a model.head_dim "
        "that is a multiple of 8 up to {}",
        keys, enum_name(s.dtype), s.head_size, most_backward, most_forward, most_head_size(gpu));
  if (s.head_size > kScalarMaxHeadSize)
    return usage_error(
        "model.head_dim: a head size of {} exceeds {}, the limit of attention on a GPU; set a smaller one, or raise "
        "model.heads",
        s.head_size, kScalarMaxHeadSize);
  return AttentionPath::kScalar;
}

std::string scalar_attention_warning(AttentionKernel kernel, const AttentionShape& s, const GpuProperties& gpu) {
  if (s.dtype != Dtype::kBF16) return {};
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const auto path = attention_path(kernel, pass, s, gpu);
    if (!path || path.value() != AttentionPath::kScalar) continue;
    AttentionShape whole = s;  // of samples without documents, on one cp rank
    whole.documents = false;
    whole.key_len = 0;
    const auto without = attention_path(kernel, pass, whole, gpu);
    if (without && without.value() != AttentionPath::kScalar) {
      const bool both = s.documents && s.key_len > 0;
      return fmt::format(
          "attention with head size {} and {} runs on the scalar kernels on this GPU, many times slower than on tensor "
          "cores, since no other kernel supports this combination; set {}",
          s.head_size,
          both          ? "data.document_mask, parallel.cp"
          : s.documents ? "data.document_mask"
                        : "parallel.cp",
          both          ? "data.document_mask: false and parallel.cp: 1"
          : s.documents ? "data.document_mask: false"
                        : "parallel.cp: 1");
    }
    const int most = most_head_size(gpu);
    return fmt::format(
        "attention with head size {} runs on the scalar kernels, many times slower than on tensor cores, since no "
        "other kernel supports this size here; use a model.head_dim that is a multiple of 8 up to {} and a GPU with "
        "{} KiB of shared memory",
        s.head_size, most, flash_shared_bytes(most) / 1024);
  }
  return {};
}

}  // namespace tri
