#include "kernels/embedding.h"

#include "kernels/core/checks.h"

namespace tri {
namespace {

// Checks rows (R, C) against a table (V, C) of `table_dtype`.
void check_table(const char* op, const Tensor& rows, const Tensor& table, Dtype table_dtype) {
  require_matrix(op, "the rows' tensor", rows);
  TRI_REQUIRE(table.dims == 2 && table[0] > 0, "{}: table {} has no rows", op, table.shape_text());
  require_tensor(op, "the table", table, table_dtype, {table[0], rows[1]});
}

void check_tokens(const char* op, const Tensor& rows, const Tensor& tokens, int first_token) {
  require_tensor(op, "tokens", tokens, Dtype::kI32, {rows[0]});
  TRI_REQUIRE(first_token >= 0, "{}: first_token {}", op, first_token);
}

}  // namespace

void check(const EmbeddingForward& e) {
  check_table("embedding_forward", e.out, e.weight, e.out.dtype);
  check_tokens("embedding_forward", e.out, e.tokens, e.first_token);
  TRI_REQUIRE(e.scale > 0, "embedding_forward: scale {}", e.scale);
}

void check(const EmbeddingBackward& e) {
  check_table("embedding_backward", e.dout, e.dweight, Dtype::kF32);
  check_tokens("embedding_backward", e.dout, e.tokens, e.first_token);
  TRI_REQUIRE(e.scale > 0, "embedding_backward: scale {}", e.scale);
}

void check(const PositionForward& p) {
  check_table("position_forward", p.inout, p.weight, p.inout.dtype);
  TRI_REQUIRE(p.first_row >= 0, "position_forward: first_row {}", p.first_row);
}

void check(const PositionBackward& p) {
  check_table("position_backward", p.dout, p.dweight, Dtype::kF32);
  TRI_REQUIRE(p.first_row >= 0, "position_backward: first_row {}", p.first_row);
}

void check(const RowPositions& p) {
  const Tensor& starts = p.document_starts;
  TRI_REQUIRE(starts.dims == 2 && starts[0] > 0, "row_positions: document_starts {} is not (B, T)",
              starts.shape_text());
  require_tensor("row_positions", "document_starts", starts, Dtype::kI32, {starts[0], starts[1]});
  require_tensor("row_positions", "out", p.out, Dtype::kI32, {p.out.numel()});
  const int64_t seq_len = p.out[0] / starts[0];
  TRI_REQUIRE(p.out[0] % starts[0] == 0 && seq_len <= starts[1], "row_positions: out {} of samples {}",
              p.out.shape_text(), starts.shape_text());
  if (seq_len == starts[1]) return;
  for (const int start : p.chunk_start)
    TRI_REQUIRE(seq_len % 2 == 0 && start >= 0 && start + seq_len / 2 <= starts[1],
                "row_positions: a chunk of {} / 2 rows at {} of {} positions", seq_len, start, starts[1]);
}

}  // namespace tri
