// Copies elements between a native tensor and a Hugging Face one (weight_format.h), and between element types.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "io/base/parallel.h"
#include "lib/huggingface/weight_format.h"

namespace tri::huggingface {

// Converts IEEE half to float exactly.
inline float float_of_half(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, exponent = (half >> 10) & 31u, mantissa = half & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float tiny = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -tiny : tiny;
}

// Calls f(index in hf, index in native) for every element of hf, on all cores. `rows`: row_map; `width`:
// row_width.
template <class F>
void for_each_element(const std::vector<int64_t>& rows, int64_t width, Form form, F f) {
  const auto count = static_cast<int64_t>(rows.size());
  if (form == Form::kSame || width == 1) {
    parallel_ranges(count, std::max<int64_t>(1, (1 << 16) / width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0; c < width; ++c) f(r * width + c, rows[static_cast<size_t>(r)] * width + c);
    });
    return;
  }
  // Transposed: processes strips of columns, so that both sides are accessed by cache lines.
  constexpr int64_t kStrip = 16;
  const int64_t strips = (width + kStrip - 1) / kStrip;
  parallel_ranges(strips, std::max<int64_t>(1, (1 << 16) / (kStrip * count)), [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip)
      for (int64_t r = 0; r < count; ++r)
        for (int64_t c = strip * kStrip; c < std::min(width, (strip + 1) * kStrip); ++c)
          f(c * count + r, rows[static_cast<size_t>(r)] * width + c);
  });
}

}  // namespace tri::huggingface
