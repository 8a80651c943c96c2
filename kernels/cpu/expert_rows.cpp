// The rows of a mixture of experts, the reference.  Formulas and shapes: kernels/expert_rows.h.
// The sort counts, then places pairs in order.  Bound: memory.
#include "kernels/expert_rows.h"

#include <cstring>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {

void sort_pairs(const SortPairs& a) {
  const int32_t* experts = a.experts.as<int32_t>();
  int32_t *place = a.place.as<int32_t>(), *pair = a.pair.as<int32_t>(), *offsets = a.offsets.as<int32_t>();
  const int64_t count = a.experts.numel(), num_experts = a.offsets.numel() - 1;
  std::vector<int32_t> next(static_cast<size_t>(num_experts) + 1);
  for (int64_t p = 0; p < count; ++p) {
    TRI_REQUIRE(experts[p] >= 0 && experts[p] < num_experts, "sort_pairs: expert {} of {}", experts[p], num_experts);
    ++next[static_cast<size_t>(experts[p]) + 1];
  }
  for (size_t e = 1; e < next.size(); ++e) next[e] += next[e - 1];
  std::memcpy(offsets, next.data(), next.size() * sizeof(int32_t));
  for (int64_t p = 0; p < count; ++p) {
    const int32_t position = next[static_cast<size_t>(experts[p])]++;
    place[p] = position;
    pair[position] = static_cast<int32_t>(p);
  }
}

void merge_sources(const MergeSources& a) {
  const int32_t* counts = a.counts.as<int32_t>();
  int32_t *place = a.place.as<int32_t>(), *pair = a.pair.as<int32_t>(), *offsets = a.offsets.as<int32_t>();
  const int64_t sources = a.counts[0], experts = a.counts[1];
  std::vector<int32_t> first(static_cast<size_t>(sources * experts));  // of the arrived rows of (source, expert)
  int64_t sum = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    first[i] = static_cast<int32_t>(sum);
    sum += counts[i];
  }
  TRI_REQUIRE(sum <= a.pair.numel(), "merge_sources: {} rows in memory of {}", sum, a.pair.numel());
  int32_t position = 0;
  for (int64_t e = 0; e < experts; ++e) {
    offsets[e] = position;
    for (int64_t s = 0; s < sources; ++s)
      for (int32_t i = 0; i < counts[s * experts + e]; ++i, ++position) {
        const int32_t arrived = first[static_cast<size_t>(s * experts + e)] + i;
        pair[position] = arrived;
        place[arrived] = position;
      }
  }
  offsets[experts] = position;
}

void gather_rows(const GatherRows& a) {
  const int32_t* index = a.index.as<int32_t>();
  const int64_t rows = used_rows(a.used, a.index.numel()), width = a.inp[1];
  if (!a.weights.empty())
    return dispatch(a.inp.dtype, [&](auto type) {
      using T = decltype(type);
      for (int64_t i = 0; i < rows; ++i) {
        const float weight = a.weights.as<float>()[index[i]];
        const T* from = a.inp.as<T>() + index[i] / a.divisor * width;
        for (int64_t c = 0; c < width; ++c) a.out.as<T>()[i * width + c] = from_float<T>(weight * to_float(from[c]));
      }
    });
  const size_t bytes = static_cast<size_t>(a.inp[1]) * dtype_bytes(a.inp.dtype);
  const auto* inp = static_cast<const char*>(a.inp.data);
  auto* out = static_cast<char*>(a.out.data);
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(out + static_cast<size_t>(i) * bytes, inp + static_cast<size_t>(index[i] / a.divisor) * bytes, bytes);
}

void combine_rows(const CombineRows& a) {
  const int32_t* place = a.place.as<int32_t>();
  const float* weights = a.weights.as<float>();
  const int64_t rows = a.out[0], width = a.out[1], per_token = a.place[1];
  std::vector<float> sum(static_cast<size_t>(width));
  dispatch(a.out.dtype, [&](auto type) {
    using T = decltype(type);
    T* out = a.out.as<T>();
    const T *expert_rows = a.rows.as<T>(), *addend = a.addend.as<T>();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width; ++c)
        sum[static_cast<size_t>(c)] = addend == nullptr ? 0.0f : to_float(addend[r * width + c]);
      for (int64_t k = 0; k < per_token; ++k) {
        const T* row = expert_rows + place[r * per_token + k] * width;
        const float weight = weights == nullptr ? 1.0f : weights[r * per_token + k];
        for (int64_t c = 0; c < width; ++c) sum[static_cast<size_t>(c)] += weight * to_float(row[c]);
      }
      for (int64_t c = 0; c < width; ++c) out[r * width + c] = from_float<T>(sum[static_cast<size_t>(c)]);
    }
  });
}

void combine_backward(const CombineBackward& a) {
  const int32_t* place = a.place.as<int32_t>();
  const float* weights = a.weights.as<float>();
  float* dweights = a.dweights.as<float>();
  const int64_t rows = a.dout[0], width = a.dout[1], per_token = a.place[1];
  dispatch(a.dout.dtype, [&](auto type) {
    using T = decltype(type);
    const T* dout = a.dout.as<T>();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < per_token; ++k) {
        const int64_t pair = r * per_token + k, at = place[pair] * width;
        const T* row = a.rows.as<T>() + at;
        T* drow = a.drows.empty() ? nullptr : a.drows.as<T>() + at;
        double sum = 0;
        for (int64_t c = 0; c < width; ++c) {  // drows may be rows: element c is read before it is written
          const float gradient = to_float(dout[r * width + c]);
          sum += static_cast<double>(gradient) * to_float(row[c]);
          if (drow != nullptr) drow[c] = from_float<T>(weights[pair] * gradient);
        }
        dweights[pair] = static_cast<float>(sum);
      }
  });
}

}  // namespace tri::cpu
