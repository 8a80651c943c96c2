// Compares a CUDA operation with its CPU reference: equal operands, poisoned outputs, two calls for determinism.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "tests/cuda/cuda_test.h"
#include "tests/kernels/compare.h"

namespace tri::test {

// The operands of one call by name, including outputs; a default Buffer is an absent operand.
using Operands = std::vector<std::pair<std::string, Buffer>>;

// The tensors of all operands on one side, the host or the device: on("out").
class Place {
 public:
  void add(const std::string& name, Tensor tensor) { tensors_[name] = tensor; }
  Tensor operator()(const std::string& name) const {
    const auto found = tensors_.find(name);
    TRI_REQUIRE(found != tensors_.end(), "no operand is called {}", name);
    return found->second;
  }

 private:
  std::map<std::string, Tensor> tensors_;
};

// How operands are compared: `all`, and exceptions. repeats: a second call must give the same bits.
struct Comparisons {
  Comparison all;
  std::map<std::string, Comparison> others;
  bool repeats = true;
  Comparisons(Comparison all, std::map<std::string, Comparison> others = {}) : all(all), others(std::move(others)) {}
  Comparison of(const std::string& name) const {
    const auto found = others.find(name);
    return found == others.end() ? all : found->second;
  }
};

// `make(place)` builds the op's arguments; every operand is compared after the call. Returns the CPU's results.
template <class Make, class Cpu, class Cuda>
Operands expect_cuda_matches_cpu(const std::string& what, const Operands& operands, Make make, Cpu cpu_op, Cuda cuda_op,
                                 const Comparisons& comparisons, CudaStream& stream) {
  SCOPED_TRACE(what);
  Operands expected = operands;
  std::vector<std::unique_ptr<DeviceBuffer>> once, twice;
  Place host, device, again;
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto& [name, buffer] = operands[i];
    once.push_back(std::make_unique<DeviceBuffer>(buffer));
    twice.push_back(std::make_unique<DeviceBuffer>(buffer));
    host.add(name, expected[i].second.is_absent() ? Tensor() : Tensor(expected[i].second));
    device.add(name, *once.back());
    again.add(name, *twice.back());
  }
  const auto args = make(host);
  check(args);
  cpu_op(args);
  cuda_op(make(device), stream);
  cuda_op(make(again), stream);
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto& [name, buffer] = operands[i];
    if (buffer.is_absent()) continue;
    const Values actual = once[i]->values(buffer);
    EXPECT_EQ(difference(actual, expected[i].second.values(), comparisons.of(name)), "") << name;
    const Comparison between_calls = comparisons.repeats ? same_bits : comparisons.of(name);
    EXPECT_EQ(difference(twice[i]->values(buffer), actual, between_calls), "") << name << " differs in a second call";
  }
  return expected;
}

#define TRI_COMPARE_ON(stream, op, what, operands, make, comparisons) \
  expect_cuda_matches_cpu(                                            \
      what, operands, make, [](const auto& args) { cpu::op(args); },  \
      [](const auto& args, CudaStream& on) { cuda::op(args, on); }, comparisons, stream)
#define TRI_COMPARE(op, what, operands, make, comparisons) \
  TRI_COMPARE_ON(test_stream(), op, what, operands, make, comparisons)

// Makes an op's arguments: a copy of `args` in which each named field is the operand of the same name, as in
// TRI_MAKE((PackKv{.order = order}), kv, qkv).
#define TRI_MAKE(args, ...)               \
  [made_of = args](const Place& on) {     \
    auto made = made_of;                  \
    TRI_SCAN(TRI_SET_FIELDS(__VA_ARGS__)) \
    return made;                          \
  }
#define TRI_SET_FIELDS(field, ...) \
  made.field = on(#field);         \
  __VA_OPT__(TRI_SET_NEXT TRI_PARENTHESES(__VA_ARGS__))
#define TRI_SET_NEXT() TRI_SET_FIELDS
#define TRI_PARENTHESES ()
// Macros do not call themselves: each scan sets one more field, at most 27.
#define TRI_SCAN(...) TRI_SCAN9(TRI_SCAN9(TRI_SCAN9(__VA_ARGS__)))
#define TRI_SCAN9(...) TRI_SCAN3(TRI_SCAN3(TRI_SCAN3(__VA_ARGS__)))
#define TRI_SCAN3(...) TRI_SCAN1(TRI_SCAN1(TRI_SCAN1(__VA_ARGS__)))
#define TRI_SCAN1(...) __VA_ARGS__

constexpr Dtype kTypes[] = {Dtype::kF32, Dtype::kBF16};

// Compares element by element, to the rounding of the storage type.
inline Comparison rounding_of(Dtype dtype, double fp32 = 2e-5) {
  return elements(dtype == Dtype::kF32 ? fp32 : kBf16Tolerance);
}

}  // namespace tri::test
