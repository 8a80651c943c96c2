// normal_values against random_normal, element by element.
#include "kernels/random.h"

#include <gtest/gtest.h>

#include "io/base/error.h"
#include "kernels/cpu/ops.h"
#include "tests/kernels/op_test.h"

namespace tri::test {
namespace {

constexpr uint64_t kKey = 0x123456789ABCDEF0;
constexpr float kScale = 0.02f;

// Returns the whole share, block by block: `count` elements as floats.
std::vector<float> share(const NormalValues& v, int64_t count) {
  std::vector<float> values;
  for (int64_t block = 0; static_cast<int64_t>(values.size()) < count; ++block)
    for (int64_t i = 0; i < v.block && static_cast<int64_t>(values.size()) < count; ++i) {
      const int64_t element = block * v.stride + v.offset + i;
      values.push_back(element < v.valid ? v.scale * random_normal(v.key, static_cast<uint64_t>(element)) : 0.0f);
    }
  return values;
}

// Checks elements [begin, begin + count) of the share in both types, and that nothing is written next to them.
void expect_values(NormalValues v, const std::vector<float>& whole, int64_t begin, int64_t count) {
  SCOPED_TRACE(
      fmt::format("{} from {} in {} every {} at {}, {} valid", count, begin, v.block, v.stride, v.offset, v.valid));
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    const Buffer poisoned(dtype, {count + 2});
    v.out = Tensor(poisoned).flat(1, count);
    v.begin = begin;
    run_checked(cpu::normal_values, v);
    const Values actual = poisoned.values();
    EXPECT_TRUE(std::isnan(actual.front()) && std::isnan(actual.back()));
    for (int64_t i = 0; i < count; ++i) {
      float expected = whole[static_cast<size_t>(begin + i)];
      if (dtype == Dtype::kBF16) expected = static_cast<float>(bf16(expected));
      ASSERT_EQ(actual[static_cast<size_t>(i + 1)], expected) << i;
    }
  }
}

TEST(Philox, gives_the_words_of_its_authors) {  // kat_vectors of Random123, with 10 rounds
  constexpr std::array<uint32_t, 4> kZero = {0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8};
  static_assert(philox(0, 0) == kZero);
  EXPECT_EQ(philox(0, 0), kZero);
}

TEST(NormalValues, are_random_normal_at_their_places) {
  struct Share {
    int64_t block, stride, offset;
  };
  for (const auto& [block, stride, offset] :
       {Share{1, 1, 0}, {1, 4, 3}, {5, 5, 0}, {7, 28, 21}, {256, 512, 256}, {100003, 100003, 0}, {1 << 20, 1 << 22, 0}})
    for (const int64_t valid : {int64_t{0}, int64_t{17}, int64_t{1000}, std::numeric_limits<int64_t>::max()}) {
      const NormalValues v{
          .key = kKey, .scale = kScale, .block = block, .stride = stride, .offset = offset, .valid = valid};
      const std::vector<float> whole = share(v, 2000);
      for (const int64_t begin : {0, 1, 13, 999})
        for (const int64_t count : {1, 3, 17, 1001}) expect_values(v, whole, begin, count);
    }
}

TEST(NormalValues, of_many_elements_and_far_places) {
  const NormalValues many{.key = kKey, .scale = 1.0f, .block = 1000, .stride = 3000, .offset = 1000, .valid = 900000};
  const int64_t count = 400003;  // more than one thread's part
  expect_values(many, share(many, count), 0, count);
  const int64_t far = int64_t{1} << 40;  // beyond 32 bits
  NormalValues v{.key = kKey, .block = far, .stride = far};
  const Buffer out(Dtype::kF32, {3});
  v.out = out;
  v.begin = far + 5;
  v.stride = far + 10;
  v.valid = far + 17;
  cpu::normal_values(v);
  const auto element = [&](int64_t i) { return random_normal(kKey, static_cast<uint64_t>(i)); };
  EXPECT_EQ(out.values(), (Values{element(far + 15), element(far + 16), 0.0}));
}

TEST(NormalValues, check_refuses_what_does_not_fit) {
  const Buffer out(Dtype::kF32, {3}), ids(Dtype::kI32, {3});
  EXPECT_NO_THROW(check(NormalValues{.out = out, .block = 2, .stride = 4, .offset = 2}));
  EXPECT_THROW(check(NormalValues{}), Fatal);
  EXPECT_THROW(check(NormalValues{.out = ids}), Fatal);
  EXPECT_THROW(check(NormalValues{.out = out, .begin = -1}), Fatal);
  EXPECT_THROW(check(NormalValues{.out = out, .block = 0}), Fatal);
  EXPECT_THROW(check(NormalValues{.out = out, .block = 2, .stride = 4, .offset = 3}), Fatal);
  EXPECT_THROW(check(NormalValues{.out = out, .block = 2, .stride = 4, .offset = -1}), Fatal);
}

}  // namespace
}  // namespace tri::test
