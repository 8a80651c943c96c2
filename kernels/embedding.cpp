#include "kernels/embedding.h"

namespace tri {
namespace {

void check_table(const char* op, const Tensor& rows, const Tensor& table, Dtype table_dtype) {
  TRI_REQUIRE(rows.dims == 2 && table.dims == 2 && rows[1] == table[1] && table.dtype == table_dtype,
              "{} of rows {} with table {}", op, rows.shape_text(), table.shape_text());
}

void check_tokens(const char* op, const Tensor& rows, const Tensor& tokens) {
  TRI_REQUIRE(tokens.numel() == rows[0] && tokens.dtype == Dtype::kI32, "{} of rows {} with tokens {}", op,
              rows.shape_text(), tokens.shape_text());
}

}  // namespace

void check(const EmbeddingForward& e) {
  check_table("embedding", e.out, e.weight, e.out.dtype);
  check_tokens("embedding", e.out, e.tokens);
}

void check(const EmbeddingBackward& e) {
  check_table("embedding gradient", e.dout, e.dweight, Dtype::kF32);
  check_tokens("embedding gradient", e.dout, e.tokens);
}

void check(const PositionForward& p) { check_table("position", p.inout, p.weight, p.inout.dtype); }

void check(const PositionBackward& p) { check_table("position gradient", p.dout, p.dweight, Dtype::kF32); }

}  // namespace tri
