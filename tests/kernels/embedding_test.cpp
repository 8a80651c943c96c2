// Token and position embeddings against float64, full and split over tensor-parallel ranks.
#include "kernels/embedding.h"

#include <gtest/gtest.h>

#include "io/base/error.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

constexpr int64_t kRows[] = {1, 3, 17, 256};
constexpr int64_t kWidths[] = {1, 5, 64, 257, 1024};
constexpr int64_t kVocab = 24;  // few tokens, so that each occurs often
constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16};

template <class Check>
void for_each_shape(Check check) {
  for (const int64_t rows : kRows)
    for (const int64_t width : kWidths) {
      SCOPED_TRACE(fmt::format("R {} C {}", rows, width));
      check(rows, width);
    }
}

Values lookup(const Values& weight, const Values& tokens, int64_t width) {
  Values out;
  for (const double token : tokens)
    for (int64_t c = 0; c < width; ++c) out.push_back(weight[static_cast<int64_t>(token) * width + c]);
  return out;
}

// Returns rows [first, first + count) of a (rows, width) matrix.
Values slice(const Values& matrix, int64_t first, int64_t count, int64_t width) {
  return Values(matrix.begin() + first * width, matrix.begin() + (first + count) * width);
}

TEST(Embedding, shares_of_the_table_sum_to_the_lookup) {
  for_each_shape([](int64_t rows, int64_t width) {
    const Values weight = random_values(kVocab * width, "weight"), ids = random_integers(rows, kVocab, "tokens");
    const Buffer tokens(Dtype::kI32, {rows}, ids);
    for (const Dtype dtype : kDtypes)
      for (const int64_t tp : {1, 2, 3}) {
        const int64_t local = kVocab / tp;
        Values sum(static_cast<size_t>(rows * width));
        for (int64_t rank = 0; rank < tp; ++rank) {
          const Buffer table(dtype, {local, width}, slice(weight, rank * local, local, width));
          const Buffer out(dtype, {rows, width});
          run_checked(cpu::embedding_forward,
                      {.out = out, .tokens = tokens, .weight = table, .first_token = static_cast<int>(rank * local)});
          const Values part = out.values();
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
        }
        EXPECT_EQ(sum, lookup(weight, ids, width)) << "tp " << tp;  // copies: exact
      }
  });
}

TEST(Embedding, backward_matches_finite_differences_of_float64_in_every_share) {
  for_each_shape([](int64_t rows, int64_t width) {
    const Values ids = random_integers(rows, kVocab, "tokens"), dout = random_values(rows * width, "dout");
    const Values start = random_values(kVocab * width, "start");
    Values weight = random_values(kVocab * width, "weight");
    const Buffer tokens(Dtype::kI32, {rows}, ids);
    for (const Dtype dtype : kDtypes)
      for (const int64_t tp : {1, 3}) {
        const int64_t local = kVocab / tp;
        const Buffer dy(dtype, {rows, width}, dout);
        Values gradient;
        for (int64_t rank = 0; rank < tp; ++rank) {
          const Buffer dweight(Dtype::kF32, {local, width}, slice(start, rank * local, local, width));
          run_checked(
              cpu::embedding_backward,
              {.dweight = dweight, .dout = dy, .tokens = tokens, .first_token = static_cast<int>(rank * local)});
          const Values part = dweight.values();
          gradient.insert(gradient.end(), part.begin(), part.end());
        }
        expect_gradient("weight", minus(gradient, start), weight,
                        [&] { return dot(dout, lookup(weight, ids, width)); });
      }
  });
}

TEST(Embedding, scale_multiplies_rows_and_their_gradient) {
  constexpr float kScale = 22.627417f;
  const int64_t rows = 17, width = 5;
  const Values ids = random_integers(rows, kVocab, "tokens"), dout = random_values(rows * width, "dout");
  Values weight = random_values(kVocab * width, "weight");
  const Buffer tokens(Dtype::kI32, {rows}, ids);
  for (const Dtype dtype : kDtypes) {
    const Buffer table(dtype, {kVocab, width}, weight), out(dtype, {rows, width}), dy(dtype, {rows, width}, dout);
    const Buffer dweight(Dtype::kF32, {kVocab, width}, Values(static_cast<size_t>(kVocab * width), 0.0));
    cpu::embedding_forward({.out = out, .tokens = tokens, .weight = table, .scale = kScale});
    cpu::embedding_backward({.dweight = dweight, .dout = dy, .tokens = tokens, .scale = kScale});
    Values scaled = lookup(weight, ids, width);
    for (double& value : scaled) value *= kScale;
    expect_close("out", out.values(), scaled, dtype == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance);
    expect_gradient("weight", dweight.values(), weight, [&] { return kScale * dot(dout, lookup(weight, ids, width)); });
  }
}

TEST(Embedding, a_tokens_rows_are_added_in_ascending_order) {
  // In fp32, (1e8 + 1) - 1e8 is 0, while any order that adds 1 last gives 1.
  const Buffer tokens(Dtype::kI32, {3}, {0, 0, 0}), dout(Dtype::kF32, {3, 1}, {1e8, 1, -1e8});
  const Buffer dweight(Dtype::kF32, {1, 1}, {0});
  cpu::embedding_backward({.dweight = dweight, .dout = dout, .tokens = tokens});
  EXPECT_EQ(dweight.values(), Values{0});
}

TEST(Embedding, two_runs_are_bit_identical) {
  for_each_shape([](int64_t rows, int64_t width) {
    const Buffer tokens(Dtype::kI32, {rows}, random_integers(rows, kVocab, "tokens"));
    const Buffer dout(Dtype::kF32, {rows, width}, random_values(rows * width, "dout"));
    const Values start = random_values(kVocab * width, "start");
    const Buffer first(Dtype::kF32, {kVocab, width}, start), second(Dtype::kF32, {kVocab, width}, start);
    for (const Buffer* dweight : {&first, &second})
      cpu::embedding_backward({.dweight = *dweight, .dout = dout, .tokens = tokens});
    EXPECT_TRUE(first.same_bits(second));
  });
}

TEST(Embedding, a_negative_token_is_an_error) {
  const Buffer tokens(Dtype::kI32, {1}, {-1}), out(Dtype::kF32, {1, 2}), weight(Dtype::kF32, {4, 2});
  EXPECT_THROW(cpu::embedding_forward({.out = out, .tokens = tokens, .weight = weight}), Fatal);
}

Values add_positions(Values rows, const Values& weight, int64_t seq_len, int64_t width, int64_t first_row) {
  const int64_t count = static_cast<int64_t>(rows.size()) / width;
  for (int64_t r = 0; r < count; ++r)
    for (int64_t c = 0; c < width; ++c) rows[r * width + c] += weight[(first_row + r) % seq_len * width + c];
  return rows;
}

TEST(Position, forward_adds_the_row_of_each_token) {
  for_each_shape([](int64_t rows, int64_t width) {
    for (const int64_t seq_len : {1, 5, 64})
      for (const int64_t first_row : {0, 7}) {
        const Values inp = random_values(rows * width, "inp"), weight = random_values(seq_len * width, "weight");
        const Values expected = add_positions(inp, weight, seq_len, width, first_row);
        for (const Dtype dtype : kDtypes) {
          const Buffer inout(dtype, {rows, width}, inp), table(dtype, {seq_len, width}, weight);
          run_checked(cpu::position_forward, {.inout = inout, .weight = table, .first_row = first_row});
          expect_close("inout", inout.values(), expected, dtype == Dtype::kF32 ? kFloatTolerance : kBf16Tolerance);
        }
      }
  });
}

TEST(Position, backward_matches_finite_differences_of_float64) {
  for_each_shape([](int64_t rows, int64_t width) {
    const int64_t seq_len = 5, first_row = 7;
    const Values inp = random_values(rows * width, "inp"), dout = random_values(rows * width, "dout");
    const Values start = random_values(seq_len * width, "start");
    Values weight = random_values(seq_len * width, "weight");
    for (const Dtype dtype : kDtypes) {
      const Buffer dy(dtype, {rows, width}, dout);
      const Buffer dweight(Dtype::kF32, {seq_len, width}, start), again(Dtype::kF32, {seq_len, width}, start);
      check(PositionBackward{.dweight = dweight, .dout = dy, .first_row = first_row});
      for (const Buffer* target : {&dweight, &again})
        cpu::position_backward({.dweight = *target, .dout = dy, .first_row = first_row});
      EXPECT_TRUE(dweight.same_bits(again));
      expect_gradient("weight", minus(dweight.values(), start), weight,
                      [&] { return dot(dout, add_positions(inp, weight, seq_len, width, first_row)); });
    }
  });
}

// Whole samples, and the chunks of two ranks that have halves of each sample.
TEST(Position, row_positions_count_from_the_document) {
  const Buffer starts(Dtype::kI32, {2, 8}, {0, 0, 0, 3, 3, 5, 6, 6, 0, 1, 1, 1, 1, 1, 1, 1});
  const Buffer whole(Dtype::kI32, {16});
  check(RowPositions{.out = whole, .document_starts = starts});
  cpu::row_positions({.out = whole, .document_starts = starts});
  EXPECT_EQ(whole.values(), (Values{0, 1, 2, 0, 1, 0, 0, 1, 0, 0, 1, 2, 3, 4, 5, 6}));
  for (const int rank : {0, 1}) {
    const Buffer part(Dtype::kI32, {8});
    run_checked(cpu::row_positions, {.out = part, .document_starts = starts, .chunk_start = {2 * rank, 6 - 2 * rank}});
    EXPECT_EQ(part.values(), rank == 0 ? (Values{0, 1, 0, 1, 0, 0, 5, 6}) : (Values{2, 0, 1, 0, 1, 2, 3, 4}));
  }
}

TEST(Embedding, check_refuses_what_does_not_fit) {
  const Buffer out(Dtype::kF32, {3, 4}), half(Dtype::kBF16, {3, 4}), weight(Dtype::kF32, {8, 4}),
      wide(Dtype::kF32, {8, 5});
  const Buffer tokens(Dtype::kI32, {3}), few(Dtype::kI32, {2}), floats(Dtype::kF32, {3});
  EXPECT_NO_THROW(check(EmbeddingForward{.out = out, .tokens = tokens, .weight = weight}));
  EXPECT_THROW(check(EmbeddingForward{.out = out, .tokens = tokens, .weight = wide}), Fatal);
  EXPECT_THROW(check(EmbeddingForward{.out = half, .tokens = tokens, .weight = weight}), Fatal);
  EXPECT_THROW(check(EmbeddingForward{.out = out, .tokens = few, .weight = weight}), Fatal);
  EXPECT_THROW(check(EmbeddingForward{.out = out, .tokens = floats, .weight = weight}), Fatal);
  EXPECT_THROW(check(EmbeddingForward{.out = out, .tokens = tokens, .weight = weight, .first_token = -1}), Fatal);
  EXPECT_THROW(check(EmbeddingBackward{.dweight = half, .dout = out, .tokens = tokens}), Fatal);
  EXPECT_THROW(check(PositionForward{.inout = out, .weight = wide}), Fatal);
  EXPECT_THROW(check(PositionBackward{.dweight = weight, .dout = out, .first_row = -1}), Fatal);
  const Buffer starts(Dtype::kI32, {1, 2});
  EXPECT_THROW(check(RowPositions{.out = tokens, .document_starts = starts}), Fatal);
  EXPECT_THROW(check(RowPositions{.out = few, .document_starts = few}), Fatal);
}

}  // namespace
}  // namespace tri::test
