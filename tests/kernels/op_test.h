// Helpers of the operation tests: host buffers that are poisoned initially, inputs that fp32 and bf16 both represent
// exactly, comparison with float64 references, and their central finite differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "io/base/random.h"
#include "kernels/core/fp8.h"
#include "kernels/core/tensor.h"
#include "kernels/cpu/dispatch.h"

namespace tri::test {

using Values = std::vector<double>;  // a tensor's elements in float64, row-major

// Returns reproducible normal values times `scale`, rounded to bf16: equal numbers in either storage type.
inline Values random_values(int64_t count, std::string_view name, double scale = 1.0) {
  const uint64_t key = derive_key(1, name);
  Values values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(bf16(static_cast<float>(scale * random_normal(key, i))));
  return values;
}

// Returns integers in [0, limit).
inline Values random_integers(int64_t count, int64_t limit, std::string_view name) {
  const uint64_t key = derive_key(2, name);
  Values values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(random_u64(key, i) % static_cast<uint64_t>(limit));
  return values;
}

// Owns a tensor's elements on the host, where CPU kernels run.
class Buffer {
 public:
  Buffer() = default;  // an absent operand
  // Creates a poisoned buffer: NaN everywhere, or the least integer.
  Buffer(Dtype dtype, std::initializer_list<int64_t> shape) : tensor_(nullptr, dtype, shape) {
    bytes_.resize(static_cast<size_t>(tensor_.bytes()));
    fill([](size_t) { return std::numeric_limits<double>::quiet_NaN(); });
  }
  Buffer(Dtype dtype, std::initializer_list<int64_t> shape, const Values& values) : Buffer(dtype, shape) {
    TRI_REQUIRE(static_cast<int64_t>(values.size()) == tensor_.numel(), "{} values for {}", values.size(),
                tensor_.shape_text());
    fill([&](size_t i) { return values[i]; });
  }

  operator Tensor() const {
    Tensor tensor = tensor_;
    tensor.data = const_cast<char*>(bytes_.data());  // null for an absent operand
    return tensor;
  }
  Values values() const {
    const Tensor tensor = *this;
    Values result(bytes_.empty() ? 0 : static_cast<size_t>(tensor.numel()));
    for (size_t i = 0; i < result.size(); ++i) {
      if (tensor.dtype == Dtype::kI32) result[i] = tensor.as<int32_t>()[i];
      if (tensor.dtype == Dtype::kI64) result[i] = static_cast<double>(tensor.as<int64_t>()[i]);
      if (tensor.dtype == Dtype::kF32) result[i] = tensor.as<float>()[i];
      if (tensor.dtype == Dtype::kBF16) result[i] = cpu::to_float(tensor.as<bf16>()[i]);
      if (is_fp8(tensor.dtype)) result[i] = fp8_table(tensor.dtype)[fp8_bytes(tensor)[i]];
    }
    return result;
  }
  bool is_absent() const { return bytes_.empty(); }
  bool same_bits(const Buffer& other) const { return bytes_ == other.bytes_; }

 private:
  template <class ValueAt>
  void fill(ValueAt value_at) {
    const Tensor tensor = *this;
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const double value = value_at(static_cast<size_t>(i));
      if (tensor.dtype == Dtype::kI32)
        tensor.as<int32_t>()[i] = std::isnan(value) ? std::numeric_limits<int32_t>::min() : static_cast<int32_t>(value);
      if (tensor.dtype == Dtype::kI64)
        tensor.as<int64_t>()[i] = std::isnan(value) ? std::numeric_limits<int64_t>::min() : static_cast<int64_t>(value);
      if (tensor.dtype == Dtype::kF32) tensor.as<float>()[i] = static_cast<float>(value);
      if (tensor.dtype == Dtype::kBF16) tensor.as<bf16>()[i] = bf16(static_cast<float>(value));
      if (is_fp8(tensor.dtype)) fp8_bytes(tensor)[i] = fp8_encode(static_cast<float>(value), fp8_format(tensor.dtype));
    }
  }

  Tensor tensor_;
  std::vector<char> bytes_;
};

// Calls an operation of the CPU after the check of its arguments, as callers of operations do.
template <class Args>
void run_checked(void (*op)(const Args&), const std::type_identity_t<Args>& args) {
  check(args);
  op(args);
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline Values minus(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

inline constexpr double kFloatTolerance = 1e-5;  // fp32 arithmetic against float64
inline constexpr double kBf16Tolerance = 1e-2;   // bf16 storage (unit roundoff 2^-9) against fp32

// Expects |actual - expected| <= tolerance · (|expected| + root mean square of expected) everywhere; NaN always fails.
inline void expect_close(std::string_view what, const Values& actual, const Values& expected,
                         double tolerance = kFloatTolerance) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const double count = static_cast<double>(std::max<size_t>(1, expected.size()));
  const double scale = std::sqrt(dot(expected, expected) / count);
  for (size_t i = 0; i < actual.size(); ++i) {
    const bool close = std::abs(actual[i] - expected[i]) <= tolerance * (std::abs(expected[i]) + scale);
    ASSERT_TRUE(close) << what << "[" << i << "] is " << actual[i] << ", expected " << expected[i];
  }
}

// Expects `actual` to be the gradient of `loss` with respect to `x`, by central differences: every element of a small
// x, and the first, the last and a random sample of a large one. `loss` reads x in place; x is restored.
template <class Loss>
void expect_gradient(std::string_view what, const Values& actual, Values& x, Loss loss,
                     double tolerance = kFloatTolerance) {
  constexpr size_t kAll = 64, kSample = 12;
  constexpr double kStep = 1e-4;
  ASSERT_EQ(actual.size(), x.size()) << what;
  const uint64_t key = derive_key(3, what);
  const size_t count = x.size() <= kAll ? x.size() : kSample;
  Values sampled, expected;
  for (size_t n = 0; n < count; ++n) {
    size_t i = n;
    if (x.size() > kAll && n > 0) i = n == 1 ? x.size() - 1 : random_u64(key, n) % x.size();
    const double kept = x[i];
    x[i] = kept + kStep;
    const double above = loss();
    x[i] = kept - kStep;
    const double below = loss();
    x[i] = kept;
    sampled.push_back(actual[i]);
    expected.push_back((above - below) / (2 * kStep));
  }
  expect_close(std::string("gradient of ") + std::string(what), sampled, expected, tolerance);
}

}  // namespace tri::test
