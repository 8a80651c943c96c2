// Token and position embeddings, the reference.  Formulas and shapes: kernels/embedding.h.
// Rows are added in ascending order, so a frequent token's gradient has one order of summation.  Bound: memory.
#include "kernels/embedding.h"

#include <algorithm>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Returns the token's row in this rank's share of `num_rows` rows, or -1 if another rank has it.
int64_t local_row(int32_t token, int first_token, int64_t num_rows) {
  TRI_REQUIRE(token >= 0, "token {}", token);
  const int64_t row = int64_t{token} - first_token;
  return row >= 0 && row < num_rows ? row : -1;
}

// dst += scale · src, (width)
template <class Dst, class Src>
void add_row(Dst* __restrict dst, const Src* __restrict src, int64_t width, float scale = 1.0f) {
  for (int64_t c = 0; c < width; ++c) dst[c] = from_float<Dst>(to_float(dst[c]) + scale * to_float(src[c]));
}

}  // namespace

void embedding_forward(const EmbeddingForward& e) {
  dispatch(e.out.dtype, [&](auto type) {
    using T = decltype(type);
    const T* weight = e.weight.as<T>();
    const int32_t* tokens = e.tokens.as<int32_t>();
    const int64_t width = e.out[1];
    T* out = e.out.as<T>();
    for (int64_t r = 0; r < e.out[0]; ++r, out += width) {
      const int64_t row = local_row(tokens[r], e.first_token, e.weight[0]);
      if (row < 0)
        std::fill_n(out, width, T{});
      else
        for (int64_t c = 0; c < width; ++c) out[c] = from_float<T>(e.scale * to_float(weight[row * width + c]));
    }
  });
}

void embedding_backward(const EmbeddingBackward& e) {
  dispatch(e.dout.dtype, [&](auto type) {
    using T = decltype(type);
    const T* dout = e.dout.as<T>();
    const int32_t* tokens = e.tokens.as<int32_t>();
    const int64_t width = e.dout[1];
    for (int64_t r = 0; r < e.dout[0]; ++r, dout += width) {
      const int64_t row = local_row(tokens[r], e.first_token, e.dweight[0]);
      if (row >= 0) add_row(e.dweight.as<float>() + row * width, dout, width, e.scale);
    }
  });
}

void position_forward(const PositionForward& p) {
  dispatch(p.inout.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t width = p.inout[1], seq_len = p.weight[0];
    for (int64_t r = 0; r < p.inout[0]; ++r)
      add_row(p.inout.as<T>() + r * width, p.weight.as<T>() + (p.first_row + r) % seq_len * width, width);
  });
}

void position_backward(const PositionBackward& p) {
  dispatch(p.dout.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t width = p.dout[1], seq_len = p.dweight[0];
    for (int64_t r = 0; r < p.dout[0]; ++r)
      add_row(p.dweight.as<float>() + (p.first_row + r) % seq_len * width, p.dout.as<T>() + r * width, width);
  });
}

void row_positions(const RowPositions& p) {
  const int64_t batch = p.document_starts[0], key_len = p.document_starts[1], seq_len = p.out[0] / batch;
  const int64_t chunk = seq_len < key_len ? seq_len / 2 : seq_len;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < seq_len; ++i) {
      const int64_t position = seq_len == key_len ? i : p.chunk_start[static_cast<size_t>(i / chunk)] + i % chunk;
      p.out.as<int32_t>()[b * seq_len + i] =
          static_cast<int32_t>(position) - p.document_starts.as<int32_t>()[b * key_len + position];
    }
}

}  // namespace tri::cpu
