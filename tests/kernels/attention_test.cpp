// Attention on the CPU against a float64 reference that stores whole rows of probabilities and uses no blocks.
#include <algorithm>
#include <array>

#include "kernels/cpu/ops.h"
#include "tests/kernels/qkv_rows.h"

namespace tri::test {
namespace {

struct Shape {
  int B, T, NKV, G, HS, W;
  float cap = 0;
  int document = 0;  // documents of about this many tokens, and of one; 0: whole samples

  int64_t rows() const { return int64_t{B} * T; }
  int64_t out_row() const { return int64_t{NKV} * G * HS; }
  int64_t qkv_row() const { return int64_t{NKV} * (G + 2) * HS; }
  double scale() const { return static_cast<float>(1 / std::sqrt(HS)); }
  std::string text() const {
    return fmt::format("B{} T{} NKV{} G{} HS{} W{} cap {} documents {}", B, T, NKV, G, HS, W, cap, document);
  }
  // (B, T): where the document of each token starts; different in each sample. The first one began in an earlier
  // sample.
  Values document_starts() const {
    Values starts;
    for (int b = 0; b < B; ++b)
      for (int t = 0, start = 0; t < T; ++t) {
        if (document > 0 && (t + b + 2) % (document + (t / document % 3)) <= 1) start = t;
        starts.push_back(start);
      }
    return starts;
  }
};

// Returns every T with every window and group; head sizes, softcaps and documents rotate.
std::vector<Shape> all_shapes() {
  std::vector<Shape> shapes;
  for (const int T : {1, 3, 17, 64, 65, 200}) {
    for (const int W : {0, 1, 5, 64, 100, T, T + 7}) {
      for (const int G : {1, 2, 3}) {
        constexpr int kHeadSizes[] = {1, 4, 64, 80};
        constexpr float kCaps[] = {0, 0, 1.5f};  // of scores that are mostly within 2
        constexpr int kDocuments[] = {0, 0, 7, 40, 90};
        shapes.push_back({2, T, T < 100 ? 2 : 1, G, kHeadSizes[shapes.size() % 4], W, kCaps[shapes.size() / 4 % 3],
                          kDocuments[shapes.size() % 5]});
      }
    }
  }
  return shapes;
}

struct Reference {
  Values out, lse, delta, dqkv;
};

// One query row t of one head: the probabilities of its band, and lse.
struct Row {
  int first;
  Values p, slopes;  // slopes: of the softcap
  double lse;
};

Row reference_row(const Shape& s, const Values& qkv, int64_t q, int64_t k, int t, int document_start) {
  Row row{std::max(document_start, s.W == 0 ? 0 : t - s.W + 1), {}, {}, 0};
  for (int u = row.first; u <= t; ++u) {
    double score = 0;
    for (int c = 0; c < s.HS; ++c) score += qkv[q + t * s.qkv_row() + c] * qkv[k + u * s.qkv_row() + c];
    score *= s.scale();
    const double ratio = s.cap > 0 ? std::tanh(score / s.cap) : 0;
    row.p.push_back(s.cap > 0 ? s.cap * ratio : score);
    row.slopes.push_back(1 - ratio * ratio);
  }
  const double largest = *std::max_element(row.p.begin(), row.p.end());
  double sum = 0;
  for (double& p : row.p) sum += p = std::exp(p - largest);
  for (double& p : row.p) p /= sum;
  row.lse = largest + std::log(sum);
  return row;
}

// Calls f(q, k, v: offsets of the head's first token in qkv; o: in out; l: in lse; starts: of its sample's documents)
// for each head.
template <class F>
void for_each_head(const Shape& s, F f) {
  const Values starts = s.document_starts();
  for (int b = 0; b < s.B; ++b) {
    for (int h = 0; h < s.NKV * s.G; ++h) {
      const int64_t group = b * s.T * s.qkv_row() + int64_t{h / s.G} * (s.G + 2) * s.HS;
      f(group + (h % s.G) * s.HS, group + s.G * s.HS, group + (s.G + 1) * s.HS, b * s.T * s.out_row() + h * s.HS,
        (int64_t{b} * s.NKV * s.G + h) * s.T, starts.data() + b * s.T);
    }
  }
}

Reference reference_forward(const Shape& s, const Values& qkv) {
  Reference ref{Values(s.rows() * s.out_row()), Values(s.rows() * s.NKV * s.G), {}, {}};
  for_each_head(s, [&](int64_t q, int64_t k, int64_t v, int64_t o, int64_t l, const double* starts) {
    for (int t = 0; t < s.T; ++t) {
      const Row row = reference_row(s, qkv, q, k, t, static_cast<int>(starts[t]));
      for (size_t i = 0; i < row.p.size(); ++i) {
        const int64_t value = v + (row.first + static_cast<int64_t>(i)) * s.qkv_row();
        for (int c = 0; c < s.HS; ++c) ref.out[o + t * s.out_row() + c] += row.p[i] * qkv[value + c];
      }
      ref.lse[l + t] = row.lse;
    }
  });
  return ref;
}

Reference reference_backward(const Shape& s, const Values& qkv, const Values& dout) {
  Reference ref = reference_forward(s, qkv);
  ref.delta.assign(ref.lse.size(), 0);
  ref.dqkv.assign(qkv.size(), 0);
  for_each_head(s, [&](int64_t q, int64_t k, int64_t v, int64_t o, int64_t l, const double* starts) {
    for (int t = 0; t < s.T; ++t) {
      const Row row = reference_row(s, qkv, q, k, t, static_cast<int>(starts[t]));
      const int64_t at = t * s.qkv_row(), out = o + t * s.out_row();
      for (int c = 0; c < s.HS; ++c) ref.delta[l + t] += dout[out + c] * ref.out[out + c];
      for (size_t i = 0; i < row.p.size(); ++i) {
        const int64_t other = (row.first + static_cast<int64_t>(i)) * s.qkv_row();
        double dp = 0;
        for (int c = 0; c < s.HS; ++c) dp += dout[out + c] * qkv[v + other + c];
        const double ds = row.p[i] * (dp - ref.delta[l + t]) * s.scale() * row.slopes[i];
        for (int c = 0; c < s.HS; ++c) {
          ref.dqkv[v + other + c] += row.p[i] * dout[out + c];
          ref.dqkv[q + at + c] += ds * qkv[k + other + c];
          ref.dqkv[k + other + c] += ds * qkv[q + at + c];
        }
      }
    }
  });
  return ref;
}

struct Passes {
  QkvOrder order;
  Buffer qkv, dout, out, lse, delta, dqkv, first_key;

  // Runs forward, then backward, into poisoned outputs. `qkv_values` are in `order`.
  Passes(const Shape& s, Dtype dtype, const Values& qkv_values, const Values& dout_values,
         QkvOrder order = QkvOrder::kGrouped)
      : order(order),
        qkv(dtype, {s.rows(), s.qkv_row()}, qkv_values),
        dout(dtype, {s.rows(), s.out_row()}, dout_values),
        out(dtype, {s.rows(), s.out_row()}),
        lse(Dtype::kF32, {s.B, s.NKV * s.G, s.T}),
        delta(Dtype::kF32, {s.B, s.NKV * s.G, s.T}),
        dqkv(dtype, {s.rows(), s.qkv_row()}),
        first_key(s.document > 0 ? Buffer(Dtype::kI32, {s.B, s.T}, s.document_starts()) : Buffer()) {
    const AttentionForward forward = forward_args(s);
    run_checked(cpu::attention_forward, forward);
    const AttentionBackward backward = backward_args(s);
    run_checked(cpu::attention_backward, backward);
  }

  AttentionForward forward_args(const Shape& s) const {
    return {.out = out,
            .lse = lse,
            .qkv = qkv,
            .first_key = first_key,
            .order = order,
            .seq_len = s.T,
            .num_kv_heads = s.NKV,
            .group = s.G,
            .window = s.W,
            .scale = static_cast<float>(s.scale()),
            .softcap = s.cap};
  }
  AttentionBackward backward_args(const Shape& s) const {
    return {.dqkv = dqkv,
            .delta = delta,
            .dout = dout,
            .out = out,
            .lse = lse,
            .qkv = qkv,
            .first_key = first_key,
            .order = order,
            .seq_len = s.T,
            .num_kv_heads = s.NKV,
            .group = s.G,
            .window = s.W,
            .scale = static_cast<float>(s.scale()),
            .softcap = s.cap};
  }
  bool same_bits(const Passes& other) const {
    return out.same_bits(other.out) && lse.same_bits(other.lse) && delta.same_bits(other.delta) &&
           dqkv.same_bits(other.dqkv);
  }
};

Values qkv_of(const Shape& s) { return random_values(s.rows() * s.qkv_row(), "qkv"); }
Values dout_of(const Shape& s) { return random_values(s.rows() * s.out_row(), "dout"); }

TEST(Attention, forward_and_backward_match_float64) {
  for (const Shape& s : all_shapes()) {
    SCOPED_TRACE(s.text());
    const Passes run(s, Dtype::kF32, qkv_of(s), dout_of(s));
    const Reference ref = reference_backward(s, qkv_of(s), dout_of(s));
    expect_close("out", run.out.values(), ref.out);
    expect_close("lse", run.lse.values(), ref.lse);
    expect_close("delta", run.delta.values(), ref.delta);
    expect_close("dqkv", run.dqkv.values(), ref.dqkv);
    if (HasFatalFailure()) return;
  }
}

TEST(Attention, rows_by_kind_make_the_bits_of_grouped_ones) {
  for (const Shape& s : all_shapes()) {
    SCOPED_TRACE(s.text());
    const auto by_kind = [&](const Values& rows) { return rows_in(QkvOrder::kByKind, rows, s.NKV, s.G, s.HS); };
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      const Passes grouped(s, dtype, qkv_of(s), dout_of(s));
      const Passes kinds(s, dtype, by_kind(qkv_of(s)), dout_of(s), QkvOrder::kByKind);
      EXPECT_TRUE(kinds.out.same_bits(grouped.out));
      EXPECT_TRUE(kinds.lse.same_bits(grouped.lse));
      EXPECT_TRUE(kinds.delta.same_bits(grouped.delta));
      ASSERT_EQ(kinds.dqkv.values(), by_kind(grouped.dqkv.values()));
    }
  }
}

TEST(Attention, gradient_matches_finite_differences) {
  const std::vector<Shape> shapes = {
      {2, 1, 2, 1, 4, 0},          {2, 3, 1, 2, 4, 0},     {1, 3, 1, 3, 4, 1},          {1, 17, 1, 1, 1, 5},
      {1, 17, 2, 2, 4, 0},         {1, 64, 1, 3, 4, 64},   {1, 65, 1, 2, 80, 5},        {1, 65, 1, 1, 64, 0},
      {1, 200, 1, 2, 4, 64},       {1, 17, 2, 2, 4, 0, 1}, {1, 130, 1, 2, 8, 64, 0.5f}, {2, 33, 1, 2, 4, 0, 0, 6},
      {1, 130, 1, 2, 8, 50, 1, 70}};
  for (const Shape& s : shapes) {
    SCOPED_TRACE(s.text());
    Values qkv = qkv_of(s);
    const Values dout = dout_of(s);
    const Passes run(s, Dtype::kF32, qkv, dout);
    expect_gradient("qkv", run.dqkv.values(), qkv, [&] { return dot(dout, reference_forward(s, qkv).out); });
    if (HasFatalFailure()) return;
  }
}

// Documents of a sample give what each gives as a sample of its own.
TEST(Attention, packed_documents_equal_each_alone) {
  for (const Shape& s : {Shape{2, 150, 2, 2, 8, 0, 0, 40}, Shape{1, 200, 1, 3, 16, 30, 1.5f, 70}}) {
    SCOPED_TRACE(s.text());
    const Passes packed(s, Dtype::kF32, qkv_of(s), dout_of(s));
    const Values starts = s.document_starts();
    const auto rows = [](const Values& all, int64_t width, int64_t begin, int64_t end) {
      return Values(all.begin() + begin * width, all.begin() + end * width);
    };
    for (int64_t begin = 0, end; begin < s.rows(); begin = end) {
      for (end = begin + 1; end < s.rows() && end % s.T != 0 && starts[end] == starts[begin];) ++end;
      Shape one = s;
      one.B = 1;
      one.T = static_cast<int>(end - begin);
      one.document = 0;
      const Passes alone(one, Dtype::kF32, rows(qkv_of(s), s.qkv_row(), begin, end),
                         rows(dout_of(s), s.out_row(), begin, end));
      expect_close("out", rows(packed.out.values(), s.out_row(), begin, end), alone.out.values());
      expect_close("dqkv", rows(packed.dqkv.values(), s.qkv_row(), begin, end), alone.dqkv.values());
      if (HasFatalFailure()) return;
    }
  }
}

// Context parallelism: the queries of two chunks against the keys of the whole samples. The outputs are those rows of
// whole samples; the gradients of keys and values, summed over the ranks, are those of whole samples.
TEST(Attention, chunks_of_queries_equal_whole_samples) {
  for (const Shape& s : {Shape{2, 200, 2, 2, 8, 0}, Shape{2, 256, 1, 3, 16, 60, 1.5f}, Shape{1, 264, 2, 1, 4, 0, 0, 40},
                         Shape{2, 8, 1, 2, 4, 3, 0, 3}}) {
    SCOPED_TRACE(s.text());
    const Values qkv = qkv_of(s), dout = dout_of(s);
    const Passes whole(s, Dtype::kF32, qkv, dout);
    const int64_t kv_width = int64_t{s.NKV} * s.HS;
    const QkvRow row = qkv_row(QkvOrder::kGrouped, s.NKV, s.G, s.HS);
    const Values whole_dqkv = whole.dqkv.values();
    Values kv, expected_dkv;
    for (int64_t r = 0; r < s.rows(); ++r)
      for (const bool value : {false, true})
        for (int n = 0; n < s.NKV; ++n)
          for (int c = 0; c < s.HS; ++c) {
            const int64_t at = r * row.width + (value ? row.value(n) : row.key(n)) + c;
            kv.push_back(qkv[static_cast<size_t>(at)]);
            expected_dkv.push_back(whole_dqkv[static_cast<size_t>(at)]);
          }
    Values dkv(kv.size(), 0);
    for (const int rank : {0, 1}) {  // of two, each with the chunks `rank` and 3 - rank of four
      const int chunk = s.T / 4;
      const std::array<int, 2> chunk_start = {rank * chunk, (3 - rank) * chunk};
      const auto local = [&](const Values& all, int64_t width) {
        Values part;
        for (int b = 0; b < s.B; ++b)
          for (const int start : chunk_start) {
            const auto begin = all.begin() + (int64_t{b} * s.T + start) * width;
            part.insert(part.end(), begin, begin + chunk * width);
          }
        return part;
      };
      Shape of_rank = s;
      of_rank.T = 2 * chunk;
      Passes run(of_rank, Dtype::kF32, local(qkv, s.qkv_row()), local(dout, s.out_row()));  // allocates
      const Buffer kv_rows(Dtype::kF32, {s.rows(), 2 * kv_width}, kv);
      const Buffer dkv_rows(Dtype::kF32, {s.rows(), 2 * kv_width});
      const auto with_keys = [&](auto args) {
        args.first_key = whole.first_key;
        args.kv = kv_rows;
        args.key_len = s.T;
        args.chunk_start = chunk_start;
        return args;
      };
      const AttentionForward forward = with_keys(run.forward_args(of_rank));
      run_checked(cpu::attention_forward, forward);
      AttentionBackward backward = with_keys(run.backward_args(of_rank));
      backward.dkv = dkv_rows;
      const Values before = run.dqkv.values();
      run_checked(cpu::attention_backward, backward);
      expect_close("out", run.out.values(), local(whole.out.values(), s.out_row()));
      const Values dqkv = run.dqkv.values(), expected = local(whole_dqkv, s.qkv_row());
      for (int64_t r = 0; r < of_rank.rows(); ++r)
        for (int n = 0; n < s.NKV; ++n) {
          const int64_t q = r * row.width + row.query(n, 0), width = int64_t{s.G} * s.HS;
          const auto queries = [&](const Values& all) { return Values(all.begin() + q, all.begin() + q + width); };
          expect_close("dq", queries(dqkv), queries(expected));
          for (int c = 0; c < s.HS; ++c)
            for (const int64_t at : {r * row.width + row.key(n) + c, r * row.width + row.value(n) + c})
              ASSERT_EQ(dqkv[static_cast<size_t>(at)], before[static_cast<size_t>(at)]) << "of dqkv's keys and values";
          if (HasFatalFailure()) return;
        }
      const Values part = dkv_rows.values();
      for (size_t i = 0; i < part.size(); ++i) dkv[i] += part[i];
    }
    expect_close("dkv", dkv, expected_dkv);
    if (HasFatalFailure()) return;
  }
}

TEST(Attention, window_of_the_sequence_or_more_equals_no_window_bit_for_bit) {
  for (const int T : {1, 17, 64, 65, 200}) {
    const Shape full{1, T, 2, 2, 4, 0};
    const Passes expected(full, Dtype::kF32, qkv_of(full), dout_of(full));
    for (const int W : {T, T + 1, 4 * T}) {
      Shape windowed = full;
      windowed.W = W;
      EXPECT_TRUE(Passes(windowed, Dtype::kF32, qkv_of(full), dout_of(full)).same_bits(expected)) << windowed.text();
    }
  }
}

TEST(Attention, window_of_one_copies_the_own_value) {
  const Shape s{2, 70, 2, 3, 5, 1};
  const Values qkv = qkv_of(s), out = Passes(s, Dtype::kF32, qkv, dout_of(s)).out.values();
  for_each_head(s, [&](int64_t, int64_t, int64_t v, int64_t o, int64_t, const double*) {
    for (int t = 0; t < s.T; ++t) {
      for (int c = 0; c < s.HS; ++c) ASSERT_EQ(out[o + t * s.out_row() + c], qkv[v + t * s.qkv_row() + c]);
    }
  });
}

TEST(Attention, bf16_storage_matches_fp32) {
  for (const Shape& s : {Shape{2, 17, 2, 2, 4, 0}, Shape{1, 65, 1, 3, 80, 5}, Shape{1, 200, 1, 2, 64, 64}}) {
    SCOPED_TRACE(s.text());
    const Passes half(s, Dtype::kBF16, qkv_of(s), dout_of(s)), full(s, Dtype::kF32, qkv_of(s), dout_of(s));
    expect_close("out", half.out.values(), full.out.values(), kBf16Tolerance);
    expect_close("lse", half.lse.values(), full.lse.values());  // fp32 in both, from equal inputs
    expect_close("dqkv", half.dqkv.values(), full.dqkv.values(), kBf16Tolerance);
    if (HasFatalFailure()) return;
  }
}

TEST(Attention, runs_are_bit_identical_whatever_ran_before) {
  const Shape s{2, 65, 2, 3, 4, 0}, other{1, 200, 1, 1, 80, 5};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    const Passes first(s, dtype, qkv_of(s), dout_of(s));
    const Passes between(other, dtype, Values(other.rows() * other.qkv_row(), NAN), dout_of(other));
    EXPECT_TRUE(std::isnan(between.out.values()[0]));
    EXPECT_TRUE(Passes(s, dtype, qkv_of(s), dout_of(s)).same_bits(first)) << enum_name(dtype);
  }
}

TEST(Attention, scores_beyond_the_range_of_exp_match_float64) {
  const Shape s{1, 130, 1, 1, 16, 0};
  const Values qkv = random_values(s.rows() * s.qkv_row(), "qkv", 20.0);  // scores up to several thousand
  const Passes run(s, Dtype::kF32, qkv, dout_of(s));
  const Reference ref = reference_backward(s, qkv, dout_of(s));
  ASSERT_GT(*std::max_element(ref.lse.begin(), ref.lse.end()), 1000);
  // The rounding of a score to fp32, 2^-24 of thousands, becomes a relative error of the exponential.
  expect_close("out", run.out.values(), ref.out, 1e-3);
  expect_close("lse", run.lse.values(), ref.lse);
  expect_close("dqkv", run.dqkv.values(), ref.dqkv, 1e-2);
}

TEST(Attention, nan_in_a_query_reaches_its_row_and_no_other) {
  const Shape s{1, 70, 1, 2, 4, 0};
  Values qkv = qkv_of(s);
  qkv[66 * s.qkv_row()] = NAN;  // token 66, head 0
  const Passes run(s, Dtype::kF32, qkv, dout_of(s));
  const Values out = run.out.values();
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    const bool hit = i / s.out_row() == 66 && i % s.out_row() < s.HS;
    ASSERT_EQ(std::isnan(out[i]), hit) << "out[" << i << "]";
  }
  EXPECT_TRUE(std::isnan(run.lse.values()[66]));
}

TEST(Attention, check_refuses_wrong_operands) {
  const Shape s{2, 8, 2, 2, 4, 0};
  const Passes run(s, Dtype::kF32, qkv_of(s), dout_of(s));
  const auto refuses_forward = [&](auto change) {
    AttentionForward args = run.forward_args(s);
    change(args);
    EXPECT_THROW(check(args), Fatal);
  };
  refuses_forward([](auto& a) { a.seq_len = 7; });
  refuses_forward([](auto& a) { a.group = 3; });
  refuses_forward([](auto& a) { a.window = -1; });
  refuses_forward([](auto& a) { a.scale = 0; });
  refuses_forward([](auto& a) { a.softcap = -1; });
  refuses_forward([](auto& a) { a.lse = Tensor(); });
  refuses_forward([](auto& a) { a.lse.dtype = Dtype::kBF16; });
  refuses_forward([](auto& a) { a.out.dtype = Dtype::kBF16; });
  refuses_forward([](auto& a) { a.first_key = a.lse; });
  refuses_forward([](auto& a) { a.kv = a.qkv; });
  refuses_forward([](auto& a) { a.key_len = 9; });
  AttentionBackward args = run.backward_args(s);
  args.dqkv = args.qkv;
  EXPECT_THROW(check(args), Fatal);
  args = run.backward_args(s);
  args.dout.shape[0] -= 1;
  EXPECT_THROW(check(args), Fatal);
}

}  // namespace
}  // namespace tri::test
