#include "kernels/workspace.h"

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/core/dims.h"

namespace tri {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Counts the gradients of the scores in bf16, (B, NH, T, T) with T rounded up to whole tiles, which the deterministic
// algorithm stores (cudnn-frontend, scaled_dot_product_flash_attention.h: the dP workspace), (B, NH, T) floats, and
// space that cuDNN's engines use. With grouped heads also the gradients of the keys and values of each query head,
// which are summed afterwards.
int64_t cudnn_execution_bytes(const WorkspaceDims& d, int64_t sequences) {
  const int64_t heads = sequences * d.num_kv_heads * d.group;
  const int64_t keys = round_up(d.seq_len, 128), of_keys = d.group > 1 ? 2 * keys * d.head_size * 4 : 0;
  return heads * (round_up(d.seq_len, 64) * keys * 2 + int64_t{d.seq_len} * 4 + of_keys) + 8 * kMiB;
}

}  // namespace

int64_t cudnn_sequences(const WorkspaceDims& d) {
  if (!has_one_query_stride(d.order, d.num_kv_heads, d.group)) return 1;
  if (d.order == QkvOrder::kGrouped) return d.batch;
  int64_t executions = 1;
  const auto sequences = [&] { return ceil_div(d.batch, executions); };  // of the largest execution
  while (sequences() > 1 && cudnn_execution_bytes(d, sequences()) > kCudnnWorkspaceBytes) ++executions;
  return sequences();
}

int64_t cudnn_workspace_bytes(const WorkspaceDims& d) { return cudnn_execution_bytes(d, cudnn_sequences(d)); }

// Counts the sums of the query gradients in fp32, one counter per tile of them, and the forward pass's ticket. Hopper's
// kernels (hopper_attention_backward.cu) store the columns in boxes of 64 and two more statistics per row. Documents
// and parts of samples also need tables of the tiles of 64 queries and 128 keys (attention_tiles.cuh). Heads above 128
// have tiles of 256 columns and of 64 keys.
int64_t flash_workspace_bytes(const WorkspaceDims& d) {
  const int64_t heads = d.batch * d.num_kv_heads * d.group, rows = round_up(d.seq_len, 128);
  const int64_t keys = round_up(std::max(d.key_len, d.seq_len), 128);
  const bool wide = d.head_size > 128;
  const int64_t columns = wide ? kFlashMaxHeadSize : round_up(d.head_size, 64), key_tiles = keys / (wide ? 64 : 128);
  const int64_t tables = d.documents || d.key_len > 0 ? d.batch * (rows / 64 * 8 + key_tiles * 36) : 0;
  return heads * (rows * (columns * 4 + 8) + rows / 64 * 4) + tables + 512;
}

int64_t attention_workspace_bytes(const WorkspaceDims& d, const GpuProperties& gpu) {
  const AttentionShape shape{d.dtype, d.seq_len, d.num_kv_heads, d.group,     d.head_size, d.window,
                             d.order, d.batch,   d.softcap,      d.documents, d.key_len};
  int64_t bytes = 0;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const auto path = attention_path(d.attention, pass, shape, gpu);
    if (path && path.value() == AttentionPath::kCudnn) bytes = std::max(bytes, cudnn_workspace_bytes(d));
    // The FlashAttention kernels also replace cuDNN if it refuses a graph.
    if (flash_attention_takes(shape, gpu)) bytes = std::max(bytes, flash_workspace_bytes(d));
  }
  return bytes;
}

int64_t workspace_bytes(DeviceKind kind, const WorkspaceDims& d, const GpuProperties& gpu) {
  if (kind == DeviceKind::kCpu) return 0;
  const int64_t rows = d.batch * d.seq_len, element = static_cast<int64_t>(dtype_bytes(d.dtype));
  // The backward pass of a norm writes two sums per column and block. The number of blocks is what fits in the shared
  // memory of a multiprocessor, where each block stages at least two operands of a row twice and the weights; if the
  // rows are too wide for that, it is two.
  const int64_t blocks =
      std::clamp<int64_t>(gpu.max_shared_bytes / (5 * element * std::max<int64_t>(d.width, 1)), 2, 8);
  const int64_t norm = 8 * d.width * blocks * gpu.num_multiprocessors;
  // A bias gradient: sixteen blocks per multiprocessor, each with the sums of up to 256 columns, or one row of blocks.
  const int64_t bias = 4 * std::max<int64_t>(int64_t{16} * 256 * gpu.num_multiprocessors, d.widest + 256);
  // A bias gradient computed by a cast to FP8: the sums of each tile of 128 rows.
  const int64_t tiles = 4 * d.widest * ceil_div(rows, 128);
  // Embedding gradients: four lists of the rows, the memory of their sort, and the sums of runs that cross tiles.
  const int64_t embedding = 32 * rows + ceil_div(rows, 32) * 2 * d.width * 4;
  // Row losses, sums of squares, cuBLASLt's bias gradients, and buffers that were outgrown.
  const int64_t rest = 4 * rows + 4 * d.widest + 32 * kMiB;
  return round_up(
      kGemmWorkspaceBytes + attention_workspace_bytes(d, gpu) + std::max({norm, bias, tiles}) + embedding + rest, 256);
}

}  // namespace tri
