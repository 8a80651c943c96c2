#include "kernels/expert_rows.h"

#include <limits>

#include "kernels/core/checks.h"

namespace tri {
namespace {

void check_count(const char* op, int64_t count) {
  TRI_REQUIRE(count <= std::numeric_limits<int32_t>::max(), "{}: {} rows exceed an int32", op, count);
}

}  // namespace

void check(const SortPairs& a) {
  TRI_REQUIRE(a.experts.dims == 2, "sort_pairs: experts {}", a.experts.shape_text());
  const int64_t rows = a.experts[0], per_token = a.experts[1];
  require_tensor("sort_pairs", "experts", a.experts, Dtype::kI32, {rows, per_token});
  require_tensor("sort_pairs", "place", a.place, Dtype::kI32, {rows, per_token});
  require_tensor("sort_pairs", "pair", a.pair, Dtype::kI32, {rows * per_token});
  require_tensor("sort_pairs", "offsets", a.offsets, Dtype::kI32, {a.offsets.numel()});
  TRI_REQUIRE(a.offsets.numel() > 1, "sort_pairs: offsets {}", a.offsets.shape_text());
  check_count("sort_pairs", rows * per_token);
}

void check(const MergeSources& a) {
  TRI_REQUIRE(a.counts.dims == 2, "merge_sources: counts {}", a.counts.shape_text());
  require_tensor("merge_sources", "counts", a.counts, Dtype::kI32, {a.counts[0], a.counts[1]});
  require_tensor("merge_sources", "offsets", a.offsets, Dtype::kI32, {a.counts[1] + 1});
  require_tensor("merge_sources", "pair", a.pair, Dtype::kI32, {a.pair.numel()});
  require_tensor("merge_sources", "place", a.place, Dtype::kI32, {a.pair.numel()});
  check_count("merge_sources", a.pair.numel());
}

void check(const GatherRows& a) {
  TRI_REQUIRE(!a.inp.empty() && a.inp.dims == 2, "gather_rows: inp {}", a.inp.shape_text());
  if (!a.weights.empty()) {
    require_matrix("gather_rows", "inp", a.inp);
    require_tensor("gather_rows", "weights", a.weights, Dtype::kF32, {a.inp[0] * a.divisor});
  }
  require_optional("gather_rows", "used", a.used, Dtype::kI32, {1});
  require_tensor("gather_rows", "out", a.out, a.inp.dtype, {a.out[0], a.inp[1]});
  require_tensor("gather_rows", "index", a.index, Dtype::kI32, {a.out[0]});
  TRI_REQUIRE(a.divisor > 0 && a.out.data != a.inp.data, "gather_rows: divisor {}, or out {} is inp", a.divisor,
              a.out.shape_text());
  check_count("gather_rows", a.inp[0] * a.divisor);
}

void check(const CombineRows& a) {
  require_matrix("combine_rows", "out", a.out);
  const int64_t rows = a.out[0], width = a.out[1], per_token = a.place[1];
  require_tensor("combine_rows", "place", a.place, Dtype::kI32, {rows, per_token});
  require_tensor("combine_rows", "rows", a.rows, a.out.dtype, {a.rows[0], width});
  require_optional("combine_rows", "weights", a.weights, Dtype::kF32, {rows, per_token});
  require_optional("combine_rows", "addend", a.addend, a.out.dtype, {rows, width});
  TRI_REQUIRE(a.out.data != a.rows.data, "combine_rows: out {} is rows", a.out.shape_text());
}

void check(const CombineBackward& a) {
  require_matrix("combine_backward", "dout", a.dout);
  const int64_t rows = a.dout[0], width = a.dout[1], per_token = a.place[1];
  require_tensor("combine_backward", "place", a.place, Dtype::kI32, {rows, per_token});
  require_tensor("combine_backward", "rows", a.rows, a.dout.dtype, {a.rows[0], width});
  require_optional("combine_backward", "drows", a.drows, a.dout.dtype, {a.rows[0], width});
  require_tensor("combine_backward", "weights", a.weights, Dtype::kF32, {rows, per_token});
  require_tensor("combine_backward", "dweights", a.dweights, Dtype::kF32, {rows, per_token});
}

}  // namespace tri
