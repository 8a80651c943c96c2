// CUDA's ops of Muon against the CPU reference.
#include "kernels/core/dims.h"
#include "kernels/moment_rounding.h"
#include "tests/cuda/op_compare.h"

namespace tri::test {
namespace {

MomentumUpdate momentum_on(const Place& on) {
  return {.momentum = on("momentum"),
          .grad = on("grad"),
          .grad_scale = on("grad_scale"),
          .block_tensor = on("block_tensor"),
          .mu = 0.95f,
          .rounding = {.draws = on("draws"), .first_block = 70, .step_key = 0x123456789ABCDEF}};
}

Operands momentum_operands(int64_t blocks, Dtype kept, double grad_scale) {
  const int64_t n = blocks * kBlock;
  Values owners;
  for (int64_t b = 0; b < blocks; ++b) owners.push_back(b % 5 == 3 ? -1 : static_cast<double>(b * 2 / blocks));
  return {
      {"momentum", Buffer(kept, {n}, random_values(n, "momentum"))},
      {"grad", Buffer(Dtype::kF32, {n}, random_values(n, "grad"))},
      {"grad_scale", Buffer(Dtype::kF32, {1}, {grad_scale})},
      {"block_tensor", Buffer(Dtype::kI32, {blocks}, owners)},
      {"draws", Buffer(Dtype::kI32, {2, TensorDraws::kColumns}, {1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 2, 5, 15, 10, 0, 0})}};
}

TEST(CudaMuon, momentum_update) {
  TRI_NEEDS_GPU();
  for (const int64_t blocks : {1, 5, 700})
    for (const Dtype kept : kTypes) {
      const Comparison momentum = kept == Dtype::kBF16 ? draws(1e-6) : elements(2e-5);
      TRI_COMPARE(momentum_update, "momentum", momentum_operands(blocks, kept, 0.5), momentum_on,
                  (Comparisons(elements(2e-5), {{"momentum", momentum}})));
      const Operands before = momentum_operands(blocks, kept, NAN);
      const Operands after = TRI_COMPARE(momentum_update, "not finite", before, momentum_on, same_bits);
      for (size_t i = 0; i < before.size(); ++i)
        EXPECT_TRUE(after[i].second.same_bits(before[i].second)) << before[i].first;
    }
}

// Parts with runs of multiples of four elements, and others; inside a run, over several, from before the slice.
TEST(CudaMuon, pack_and_unpack_parts_of_matrices) {
  TRI_NEEDS_GPU();
  constexpr int64_t n = 64 * kBlock;
  const std::vector<std::pair<MatrixRuns, int64_t>> parts{{{.offset = 0, .run = n, .stride = n}, n},
                                                          {{.offset = 128, .run = 64, .stride = 96, .first = 32}, 4096},
                                                          {{.offset = -64, .run = 32, .stride = 64, .first = 36}, 1000},
                                                          {{.offset = 5, .run = 7, .stride = 9, .first = 3}, 2001},
                                                          {{.offset = 1, .run = 1, .stride = 3}, 1}};
  for (const auto& [runs, count] : parts)
    for (const Dtype dtype : kTypes) {
      const Buffer slice(Dtype::kF32, {n}, random_values(n, "slice"));
      const auto pack = TRI_MAKE((PackMatrix{.runs = runs}), out, inp);
      TRI_COMPARE(pack_matrix, fmt::format("pack {} of {}", count, runs.run),
                  (Operands{{"out", Buffer(dtype, {count})}, {"inp", slice}}), pack, same_bits);
      const auto unpack = TRI_MAKE((UnpackMatrix{.runs = runs, .scale = 12.8f, .decay = 0.1f}), out, inp, master);
      TRI_COMPARE(unpack_matrix, fmt::format("unpack {} of {}", count, runs.run),
                  (Operands{{"out", slice},
                            {"inp", Buffer(dtype, {count}, random_values(count, "inp"))},
                            {"master", Buffer(Dtype::kF32, {n}, random_values(n, "master"))}}),
                  unpack, elements(2e-5));
    }
}

TEST(CudaMuon, matrices_are_scaled_and_their_shards_joined) {
  TRI_NEEDS_GPU();
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {3, 20}, {64, 128}, {1000, 768}})
    for (const Dtype dtype : kTypes) {
      const Buffer inp(dtype, {rows, columns}, random_values(rows * columns, "inp"));
      const auto sum = [](const Place& on) { return MatrixSumsq{.sumsq = on("sumsq"), .inp = on("inp").flat()}; };
      const Operands summed = TRI_COMPARE(
          matrix_sumsq, "sumsq", (Operands{{"sumsq", Buffer(Dtype::kF32, {1})}, {"inp", inp}}), sum, elements(1e-5));
      for (const auto& [out_shards, inp_shards] : {std::pair<int64_t, int64_t>{1, 1}, {1, 4}, {4, 1}}) {
        if (columns % (out_shards * inp_shards) != 0) continue;
        for (const Buffer& sumsq : {Buffer(), summed.front().second}) {
          const auto scale =
              TRI_MAKE((ScaleMatrix{.out_shards = out_shards, .inp_shards = inp_shards}), out, inp, sumsq);
          TRI_COMPARE(scale_matrix, fmt::format("{} x {}, {} into {}", rows, columns, inp_shards, out_shards),
                      (Operands{{"out", Buffer(dtype, {rows, columns})}, {"inp", inp}, {"sumsq", sumsq}}), scale,
                      rounding_of(dtype));
        }
      }
    }
}

// Sides of a part of a tile, of one, of several with a partial one, and of more tiles than the GPU has clusters of
// multiprocessors, so that some are divided. Long sums over K have the tolerance of bf16; the diagonal is large.
TEST(CudaMuon, symmetric_products) {
  TRI_NEEDS_GPU();
  for (const Dtype dtype : kTypes)
    for (const auto& [side, k] : {std::pair<int64_t, int64_t>{8, 8},
                                  {64, 200},
                                  {136, 64},
                                  {256, 520},
                                  {520, 1032},
                                  {1032, 48},
                                  {1544, 640},
                                  {3080, 72}}) {
      if (dtype == Dtype::kF32 && side > 600) continue;
      const bool square = side == 520;
      Values symmetric = random_values(side * side, "addend");
      for (int64_t i = 0; i < side; ++i)
        for (int64_t j = 0; j < i; ++j) symmetric[j * side + i] = symmetric[i * side + j];
      const Buffer addend(dtype, {side, side}, symmetric), out(dtype, {side, side});
      for (const Trans trans : {Trans::kNo, Trans::kYes})
        for (const bool adds : {false, true}) {
          const Buffer a = trans == Trans::kYes ? Buffer(dtype, {k, side}, random_values(side * k, "a"))
                                                : Buffer(dtype, {side, k}, random_values(side * k, "a"));
          const auto product = [&](const Place& on) {
            return SymmetricProduct{.out = on("out"),
                                    .a = on("a"),
                                    .trans_a = trans,
                                    .alpha = 0.5f,
                                    .beta = adds ? -1.25f : 0.0f,
                                    .addend = adds ? on("addend") : Tensor()};
          };
          TRI_COMPARE(
              symmetric_product,
              fmt::format("{} x {} {}, transposed {}, adds {}", side, k, enum_name(dtype), trans == Trans::kYes, adds),
              (Operands{{"out", out}, {"a", a}, {"addend", addend}}), product,
              rounding_of(dtype, 1e-5 * std::sqrt(static_cast<double>(k))));
        }
      if (!square) continue;
      const auto powers = [](const Place& on) {  // Muon's polynomial: the addend is the operand
        return SymmetricProduct{
            .out = on("out"), .a = on("addend"), .alpha = 2.0315f, .beta = -4.775f, .addend = on("addend")};
      };
      TRI_COMPARE(symmetric_product, "polynomial", (Operands{{"out", out}, {"addend", addend}}), powers,
                  rounding_of(dtype, 1e-5 * std::sqrt(static_cast<double>(side))));
    }
}

}  // namespace
}  // namespace tri::test
