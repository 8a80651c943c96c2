#include <algorithm>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {

void embedding_forward(const EmbeddingForward& e) {
  dispatch(e.out.dtype, [&](auto type) {
    using T = decltype(type);
    const T* weight = e.weight.as<T>();
    const int32_t* tokens = e.tokens.as<int32_t>();
    T* out = e.out.as<T>();
    const int64_t width = e.out[1], local = e.weight[0];
    for (int64_t r = 0; r < e.out[0]; ++r) {
      const int64_t row = tokens[r] - e.first_token;
      if (row >= 0 && row < local)
        std::copy_n(weight + row * width, width, out + r * width);
      else
        std::fill_n(out + r * width, width, T{});
    }
  });
}

void embedding_backward(const EmbeddingBackward& e) {
  dispatch(e.dout.dtype, [&](auto type) {
    using T = decltype(type);
    const T* dout = e.dout.as<T>();
    const int32_t* tokens = e.tokens.as<int32_t>();
    float* dweight = e.dweight.as<float>();
    const int64_t width = e.dout[1], local = e.dweight[0];
    for (int64_t r = 0; r < e.dout[0]; ++r) {
      const int64_t row = tokens[r] - e.first_token;
      if (row < 0 || row >= local) continue;
      for (int64_t c = 0; c < width; ++c) dweight[row * width + c] += to_float(dout[r * width + c]);
    }
  });
}

void position_forward(const PositionForward& p) {
  dispatch(p.inout.dtype, [&](auto type) {
    using T = decltype(type);
    const T* weight = p.weight.as<T>();
    T* inout = p.inout.as<T>();
    const int64_t width = p.inout[1], seq_len = p.weight[0];
    for (int64_t r = 0; r < p.inout[0]; ++r) {
      const int64_t position = (p.first_row + r) % seq_len;
      for (int64_t c = 0; c < width; ++c)
        inout[r * width + c] =
            from_float<T>(to_float(inout[r * width + c]) + to_float(weight[position * width + c]));
    }
  });
}

void position_backward(const PositionBackward& p) {
  dispatch(p.dout.dtype, [&](auto type) {
    using T = decltype(type);
    const T* dout = p.dout.as<T>();
    float* dweight = p.dweight.as<float>();
    const int64_t width = p.dout[1], seq_len = p.dweight[0];
    for (int64_t r = 0; r < p.dout[0]; ++r) {
      const int64_t position = (p.first_row + r) % seq_len;
      for (int64_t c = 0; c < width; ++c) dweight[position * width + c] += to_float(dout[r * width + c]);
    }
  });
}

}  // namespace tri::cpu
