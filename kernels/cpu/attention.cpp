// Causal grouped-query attention, the reference.  Formulas and shapes: kernels/attention.h.
// Each block of kBlockRows queries processes the blocks of kBlockCols keys inside its band one after the other. Only
// the scores of one pair of blocks exist at a time, in fp32.
//   forward   s = scale · q k^T, with a softcap s = c · tanh(s / c);
//             m' = max(m, rowmax s);  p = exp(s - m');  l' = l · exp(m - m') + rowsum p;
//             acc' = acc · exp(m - m') + p v;  at the end out = acc / l, lse = m + log l
//   backward  p = exp(s - lse);  ds = p ∘ (dout v^T - delta) · scale, with a softcap also · (1 - (s / c)²);
//             dv += p^T dout;  dq += ds k;  dk += ds^T q
// dk and dv are summed over the G query heads, and within a head over its blocks, in that order.
//
// The GEMMs are OpenBLAS's, on strided views; bf16 operands are first widened into fp32 scratch.
// Limit: a masked score multiplies its value by zero, so a NaN value also reaches earlier rows of its block.
// Bound: OpenBLAS, 4 · HS FLOPs per score forward and 10 · HS backward.  Source: Dao 2023 (FlashAttention-2).
#include "kernels/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

constexpr int kBlockRows = 64;
constexpr int kBlockCols = 64;
constexpr int kLanes = 16;  // independent partial results, so that the loops vectorise
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The dimensions and offsets of the heads that a call computes. Queries are counted as the sample's local ones, [0, T).
struct Heads {
  int64_t batch, seq_len, key_len, chunk, kv_heads, row_heads, group, head_size, window;
  int first;  // key/value head of the QKV rows
  std::array<int, 2> chunk_start;
  const int32_t* document_starts;  // AttentionForward::first_key, or null
  QkvRow row;
  bool separate_keys;

  template <class Args>
  explicit Heads(const Args& a)
      : batch(a.qkv[0] / a.seq_len),
        seq_len(a.seq_len),
        key_len(key_len_of(a)),
        chunk(a.kv.empty() ? a.seq_len : a.seq_len / 2),
        kv_heads(kv_heads_of(a)),
        row_heads(int64_t{a.num_kv_heads} * a.group),
        group(a.group),
        head_size(qkv_row_of(a).head_size),
        window(a.window),
        first(a.first_kv_head),
        chunk_start(a.kv.empty() ? std::array{0, 0} : a.chunk_start),
        document_starts(a.first_key.empty() ? nullptr : a.first_key.template as<int32_t>()),
        row(qkv_row_of(a)),
        separate_keys(!a.kv.empty()) {}

  int64_t out_row() const { return row_heads * head_size; }
  // Of query head g of the call's key/value head n.
  int64_t query_at(int64_t b, int64_t t, int n, int g) const {
    return (b * seq_len + t) * row.width + row.query(first + n, g);
  }
  int64_t out_at(int64_t b, int64_t t, int n, int g) const {
    return (b * seq_len + t) * out_row() + head(n, g) * head_size;
  }
  int64_t stat_at(int64_t b, int n, int g) const { return (b * row_heads + head(n, g)) * seq_len; }
  int64_t head(int n, int g) const { return (first + n) * group + g; }  // of a row of out

  // Keys and values: rows of kv, or of qkv.
  int64_t key_row() const { return separate_keys ? kv_heads * 2 * head_size : row.width; }
  int64_t key_at(int64_t b, int n) const {
    return b * key_len * key_row() + (separate_keys ? n * head_size : row.key(n));
  }
  int64_t value_at(int64_t b, int n) const {
    return b * key_len * key_row() + (separate_keys ? (kv_heads + n) * head_size : row.value(n));
  }
  // Calls f with the first query of each block; a block does not cross chunks, so its positions are consecutive.
  template <class F>
  void for_each_query_block(F f) const {
    for (int64_t begin = 0; begin < seq_len; begin += chunk)
      for (int64_t first = begin; first < begin + chunk; first += kBlockRows) f(first);
  }
  int64_t rows_from(int64_t first) const { return std::min<int64_t>(kBlockRows, chunk - first % chunk); }
  int64_t position(int64_t query) const {
    return query < chunk ? chunk_start[0] + query : chunk_start[1] + query - chunk;
  }
  // Returns the first key that the query at `position` attends to; never decreases with the position.
  int64_t first_key(int64_t b, int64_t position) const {
    const int64_t in_window = window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
    return document_starts == nullptr ? in_window
                                      : std::max<int64_t>(in_window, document_starts[b * key_len + position]);
  }
};

// A block of queries: `rows` of them, of sequence b, whose positions begin at `position`.
struct QueryBlock {
  int64_t b, position, rows;
};

// An fp32 matrix inside a larger one: row r starts at data + r · ld.
struct Matrix {
  const float* data;
  int64_t ld;
  Matrix from_row(int64_t row) const { return {data + row * ld, ld}; }
};

// Returns (rows, cols) at `src` in fp32: the same memory, or a copy widened into `scratch`.
Matrix as_float(const float* src, int64_t ld, int64_t, int64_t, std::vector<float>&) { return {src, ld}; }
Matrix as_float(const bf16* src, int64_t ld, int64_t rows, int64_t cols, std::vector<float>& scratch) {
  scratch.resize(rows * cols);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) scratch[r * cols + c] = to_float(src[r * ld + c]);
  }
  return {scratch.data(), cols};
}

template <class T>
void store(const std::vector<float>& src, int64_t rows, int64_t cols, T* dst, int64_t ld) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) dst[r * ld + c] = from_float<T>(src[r * cols + c]);
  }
}

// c (m, n) = alpha · op(a) · op(b) + beta · c, inner dimension k.
void sgemm(CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int64_t m, int64_t n, int64_t k, float alpha, Matrix a,
           Matrix b, float beta, float* c, int64_t ldc) {
  const auto narrow = [](int64_t value) { return static_cast<blasint>(value); };
  cblas_sgemm(CblasRowMajor, trans_a, trans_b, narrow(m), narrow(n), narrow(k), alpha, a.data, narrow(a.ld), b.data,
              narrow(b.ld), beta, c, narrow(ldc));
}

// Reused between calls: nothing is allocated once the largest shape has been seen.
struct Scratch {
  std::vector<float> q, k, v, dout;  // widened operands, unused for fp32
  std::vector<float> acc;            // (kBlockRows, HS): out or dq of the block
  std::vector<float> dk, dv;         // (Tk, HS)
  std::vector<float> p = std::vector<float>(kBlockRows * kBlockCols);
  std::vector<float> dp = std::vector<float>(kBlockRows * kBlockCols);
  std::vector<float> slopes = std::vector<float>(kBlockRows * kBlockCols);  // of the softcap
};

Scratch& scratch_of_this_thread() {
  thread_local Scratch scratch;
  return scratch;
}

// Calls f(first key, number of keys) for the key blocks that overlap the band of the queries. Blocks start at multiples
// of kBlockCols, so a window that reaches the start has the same blocks as no window.
template <class F>
void for_each_key_block(const Heads& heads, const QueryBlock& queries, F f) {
  const int64_t end = queries.position + queries.rows;
  const int64_t begin = heads.first_key(queries.b, queries.position) / kBlockCols * kBlockCols;
  for (int64_t key = begin; key < end; key += kBlockCols) f(key, std::min<int64_t>(kBlockCols, end - key));
}

// scores <- c · tanh(scores / c) in the first `cols` columns.
void cap_scores(float* scores, int64_t rows, int64_t cols, float softcap) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      float& score = scores[r * kBlockCols + c];
      score = softcap * std::tanh(score / softcap);
    }
}

// slopes <- 1 - (scores / c)², the derivative of capped scores. Masked scores are -inf: their slope is 0.
void cap_slopes(const float* scores, int64_t rows, float softcap, float* slopes) {
  for (int64_t i = 0; i < rows * kBlockCols; ++i) {
    const float t = scores[i] / softcap;
    slopes[i] = scores[i] == kMinusInfinity ? 0.0f : 1.0f - t * t;
  }
}

// scores (rows, kBlockCols) = scale · q k^T, capped if softcap > 0; -inf outside the band and beyond `cols`.
void block_scores(const Heads& heads, float scale, float softcap, Matrix q, Matrix k, const QueryBlock& queries,
                  int64_t key, int64_t cols, float* scores) {
  const auto [b, first, rows] = queries;
  sgemm(CblasNoTrans, CblasTrans, rows, cols, heads.head_size, scale, q, k.from_row(key), 0.0f, scores, kBlockCols);
  if (softcap > 0) cap_scores(scores, rows, cols, softcap);
  const bool inside = cols == kBlockCols && key + cols <= first + 1 && heads.first_key(b, first + rows - 1) <= key;
  if (inside) return;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = first + r;
    const int64_t lo = std::clamp<int64_t>(heads.first_key(b, t) - key, 0, cols);
    const int64_t hi = std::clamp<int64_t>(t + 1 - key, lo, cols);
    float* row = scores + r * kBlockCols;
    std::fill(row, row + lo, kMinusInfinity);
    std::fill(row + hi, row + kBlockCols, kMinusInfinity);
  }
}

float row_max(const float* __restrict row) {
  float lanes[kLanes];
  std::copy_n(row, kLanes, lanes);
  for (int c = kLanes; c < kBlockCols; c += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = row[c + lane] > lanes[lane] ? row[c + lane] : lanes[lane];
  }
  float max = lanes[0];
  for (const float lane : lanes) max = lane > max ? lane : max;
  return max;
}

// row <- exp(row - shift). Returns the sum of the row.
float exponentiate(float* __restrict row, float shift) {
  float lanes[kLanes] = {};
  for (int c = 0; c < kBlockCols; c += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      row[c + lane] = exp_f32(row[c + lane] - shift);
      lanes[lane] += row[c + lane];
    }
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// The running softmax of a block of queries.
struct OnlineSoftmax {
  float max[kBlockRows];
  float sum[kBlockRows];

  OnlineSoftmax() {
    std::fill_n(max, kBlockRows, kMinusInfinity);
    std::fill_n(sum, kBlockRows, 0.0f);
  }

  // Turns the scores of row r into probabilities, not yet divided by the sum, and rescales acc to the new maximum.
  void absorb(int64_t r, float* scores, float* acc, int64_t head_size) {
    const float largest = std::max(max[r], row_max(scores));
    // -inf means that the band has had no key of this row so far. -inf - -inf would be NaN.
    const float shift = largest == kMinusInfinity ? 0.0f : largest;
    const float rescale = std::exp(max[r] - shift);
    sum[r] = sum[r] * rescale + exponentiate(scores, shift);
    max[r] = largest;
    if (rescale == 1.0f) return;
    for (int64_t c = 0; c < head_size; ++c) acc[c] *= rescale;
  }
};

template <class T>
void forward(const AttentionForward& a) {
  const Heads heads(a);
  Scratch& scratch = scratch_of_this_thread();
  const int64_t key_len = heads.key_len, HS = heads.head_size, ld = heads.row.width;
  const T* qkv = a.qkv.as<T>();
  const T* keys = a.kv.empty() ? qkv : a.kv.as<T>();

  const auto query_block = [&](int64_t b, int n, int g, int64_t first, Matrix k, Matrix v) {
    const int64_t rows = heads.rows_from(first);
    const QueryBlock queries{b, heads.position(first), rows};
    const Matrix q = as_float(qkv + heads.query_at(b, first, n, g), ld, rows, HS, scratch.q);
    float* p = scratch.p.data();
    scratch.acc.assign(rows * HS, 0.0f);
    OnlineSoftmax softmax;
    for_each_key_block(heads, queries, [&](int64_t key, int64_t cols) {
      block_scores(heads, a.scale, a.softcap, q, k, queries, key, cols, p);
      for (int64_t r = 0; r < rows; ++r) softmax.absorb(r, p + r * kBlockCols, &scratch.acc[r * HS], HS);
      sgemm(CblasNoTrans, CblasNoTrans, rows, HS, cols, 1.0f, {p, kBlockCols}, v.from_row(key), 1.0f,
            scratch.acc.data(), HS);
    });
    float* lse = a.lse.as<float>() + heads.stat_at(b, n, g) + first;
    for (int64_t r = 0; r < rows; ++r) {
      const float inverse = 1.0f / softmax.sum[r];
      for (int64_t c = 0; c < HS; ++c) scratch.acc[r * HS + c] *= inverse;
      lse[r] = softmax.max[r] + std::log(softmax.sum[r]);
    }
    store(scratch.acc, rows, HS, a.out.as<T>() + heads.out_at(b, first, n, g), heads.out_row());
  };

  for (int64_t b = 0; b < heads.batch; ++b) {
    for (int n = 0; n < heads.kv_heads; ++n) {
      const Matrix k = as_float(keys + heads.key_at(b, n), heads.key_row(), key_len, HS, scratch.k);
      const Matrix v = as_float(keys + heads.value_at(b, n), heads.key_row(), key_len, HS, scratch.v);
      for (int g = 0; g < heads.group; ++g)
        heads.for_each_query_block([&](int64_t first) { query_block(b, n, g, first, k, v); });
    }
  }
}

// delta[t] = sum_c dout[t, c] · out[t, c]
template <class T>
void output_dots(const T* out, const T* dout, int64_t ld, int64_t rows, int64_t head_size, float* delta) {
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < head_size; ++c) {
      sum += static_cast<double>(to_float(out[r * ld + c])) * to_float(dout[r * ld + c]);
    }
    delta[r] = static_cast<float>(sum);
  }
}

// dp <- ds = p · (dp - delta) · scale
void score_gradient(const float* __restrict p, float* __restrict dp, float delta, float scale) {
  for (int c = 0; c < kBlockCols; ++c) dp[c] = p[c] * (dp[c] - delta) * scale;
}

template <class T>
void backward(const AttentionBackward& a) {
  const Heads heads(a);
  Scratch& scratch = scratch_of_this_thread();
  const int64_t key_len = heads.key_len, HS = heads.head_size, ld = heads.row.width;
  const T* qkv = a.qkv.as<T>();
  const T* keys = a.kv.empty() ? qkv : a.kv.as<T>();
  T* dqkv = a.dqkv.as<T>();
  T* dkeys = a.kv.empty() ? dqkv : a.dkv.as<T>();

  const auto query_block = [&](int64_t b, int n, int g, int64_t first, Matrix k, Matrix v) {
    const int64_t rows = heads.rows_from(first);
    const QueryBlock queries{b, heads.position(first), rows};
    const T* dout_rows = a.dout.as<T>() + heads.out_at(b, first, n, g);
    const Matrix q = as_float(qkv + heads.query_at(b, first, n, g), ld, rows, HS, scratch.q);
    const Matrix dout = as_float(dout_rows, heads.out_row(), rows, HS, scratch.dout);
    const float* lse = a.lse.as<float>() + heads.stat_at(b, n, g) + first;
    float* delta = a.delta.as<float>() + heads.stat_at(b, n, g) + first;
    output_dots(a.out.as<T>() + heads.out_at(b, first, n, g), dout_rows, heads.out_row(), rows, HS, delta);

    float* p = scratch.p.data();
    float* dp = scratch.dp.data();
    scratch.acc.assign(rows * HS, 0.0f);
    for_each_key_block(heads, queries, [&](int64_t key, int64_t cols) {
      block_scores(heads, a.scale, a.softcap, q, k, queries, key, cols, p);
      if (a.softcap > 0) cap_slopes(p, rows, a.softcap, scratch.slopes.data());
      for (int64_t r = 0; r < rows; ++r) exponentiate(p + r * kBlockCols, lse[r]);
      sgemm(CblasTrans, CblasNoTrans, cols, HS, rows, 1.0f, {p, kBlockCols}, dout, 1.0f, &scratch.dv[key * HS], HS);
      sgemm(CblasNoTrans, CblasTrans, rows, cols, HS, 1.0f, dout, v.from_row(key), 0.0f, dp, kBlockCols);
      for (int64_t r = 0; r < rows; ++r) score_gradient(p + r * kBlockCols, dp + r * kBlockCols, delta[r], a.scale);
      if (a.softcap > 0)
        for (int64_t i = 0; i < rows * kBlockCols; ++i) dp[i] *= scratch.slopes[static_cast<size_t>(i)];
      sgemm(CblasNoTrans, CblasNoTrans, rows, HS, cols, 1.0f, {dp, kBlockCols}, k.from_row(key), 1.0f,
            scratch.acc.data(), HS);
      sgemm(CblasTrans, CblasNoTrans, cols, HS, rows, 1.0f, {dp, kBlockCols}, q, 1.0f, &scratch.dk[key * HS], HS);
    });
    store(scratch.acc, rows, HS, dqkv + heads.query_at(b, first, n, g), ld);
  };

  for (int64_t b = 0; b < heads.batch; ++b) {
    for (int n = 0; n < heads.kv_heads; ++n) {
      const Matrix k = as_float(keys + heads.key_at(b, n), heads.key_row(), key_len, HS, scratch.k);
      const Matrix v = as_float(keys + heads.value_at(b, n), heads.key_row(), key_len, HS, scratch.v);
      scratch.dk.assign(key_len * HS, 0.0f);
      scratch.dv.assign(key_len * HS, 0.0f);
      for (int g = 0; g < heads.group; ++g)
        heads.for_each_query_block([&](int64_t first) { query_block(b, n, g, first, k, v); });
      store(scratch.dk, key_len, HS, dkeys + heads.key_at(b, n), heads.key_row());
      store(scratch.dv, key_len, HS, dkeys + heads.value_at(b, n), heads.key_row());
    }
  }
}

}  // namespace

void attention_forward(const AttentionForward& a) {
  use_one_blas_thread();
  dispatch(a.qkv.dtype, [&](auto type) { forward<decltype(type)>(a); });
}

void attention_backward(const AttentionBackward& a) {
  use_one_blas_thread();
  dispatch(a.qkv.dtype, [&](auto type) { backward<decltype(type)>(a); });
}

}  // namespace tri::cpu
