#include "kernels/muon.h"

#include "kernels/core/checks.h"
#include "kernels/core/dims.h"
#include "kernels/moment_rounding.h"

namespace tri {
namespace {

// Requires the part of `count` elements to lie inside a slice of n elements.
void check_runs(const char* op, const MatrixRuns& runs, int64_t count, int64_t n) {
  TRI_REQUIRE(runs.run > 0 && runs.stride >= runs.run && runs.first >= 0, "{}: runs of {}, one every {}, from {}", op,
              runs.run, runs.stride, runs.first);
  TRI_REQUIRE(count == 0 || (runs.at(0) >= 0 && runs.at(count - 1) < n), "{}: elements {} to {} of a slice of {}", op,
              runs.at(0), runs.at(count - 1), n);
}

}  // namespace

void check(const MomentumUpdate& a) {
  const int64_t n = a.grad.numel();
  require_tensor("momentum_update", "grad", a.grad, Dtype::kF32, {n});
  TRI_REQUIRE(n % kBlock == 0, "momentum_update: {} elements are not whole blocks of {}", n, kBlock);
  require_float("momentum_update", "momentum", a.momentum);
  require_tensor("momentum_update", "momentum", a.momentum, a.momentum.dtype, {n});
  require_tensor("momentum_update", "grad_scale", a.grad_scale, Dtype::kF32, {1});
  require_tensor("momentum_update", "block_tensor", a.block_tensor, Dtype::kI32, {n / kBlock});
  TRI_REQUIRE(a.mu >= 0 && a.mu < 1, "momentum_update: mu {}", a.mu);
  if (a.momentum.dtype == Dtype::kF32) return;
  require_tensor("momentum_update", "draws", a.rounding.draws, Dtype::kI32,
                 {a.rounding.draws[0], TensorDraws::kColumns});
  TRI_REQUIRE(a.rounding.first_block >= 0, "momentum_update: first block {}", a.rounding.first_block);
}

void check(const PackMatrix& a) {
  require_float("pack_matrix", "out", a.out);
  require_tensor("pack_matrix", "out", a.out, a.out.dtype, {a.out.numel()});
  require_tensor("pack_matrix", "inp", a.inp, Dtype::kF32, {a.inp.numel()});
  check_runs("pack_matrix", a.runs, a.out.numel(), a.inp.numel());
}

void check(const UnpackMatrix& a) {
  require_float("unpack_matrix", "inp", a.inp);
  require_tensor("unpack_matrix", "inp", a.inp, a.inp.dtype, {a.inp.numel()});
  require_tensor("unpack_matrix", "out", a.out, Dtype::kF32, {a.out.numel()});
  require_tensor("unpack_matrix", "master", a.master, Dtype::kF32, {a.out.numel()});
  check_runs("unpack_matrix", a.runs, a.inp.numel(), a.out.numel());
}

void check(const MatrixSumsq& a) {
  require_float("matrix_sumsq", "inp", a.inp);
  require_tensor("matrix_sumsq", "sumsq", a.sumsq, Dtype::kF32, {1});
}

void check(const ScaleMatrix& a) {
  require_matrix("scale_matrix", "out", a.out);
  require_tensor("scale_matrix", "inp", a.inp, a.out.dtype, {a.out[0], a.out[1]});
  require_optional("scale_matrix", "sumsq", a.sumsq, Dtype::kF32, {1});
  TRI_REQUIRE(a.out.data != a.inp.data, "scale_matrix: out {} and inp are the same memory", a.out.shape_text());
  TRI_REQUIRE(a.out_shards > 0 && a.inp_shards > 0 && (a.out_shards == 1 || a.inp_shards == 1),
              "scale_matrix: {} shards into {}", a.inp_shards, a.out_shards);
  TRI_REQUIRE(a.out[1] % (a.out_shards * a.inp_shards) == 0, "scale_matrix: {} columns in {} shards", a.out[1],
              a.out_shards * a.inp_shards);
}

}  // namespace tri
