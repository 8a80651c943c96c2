// The serialiser of host messages: received values equal those sent, and bytes from any other source are rejected.
#include "lib/comm/host/messages.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <limits>

namespace tri {
namespace {

enum class Colour : uint8_t { kRed = 3, kBlue = 9 };

struct Plain {
  int step = 0;
  double seconds = 0;
  Colour colour = Colour::kRed;
  bool operator==(const Plain&) const = default;
};

struct Inner {
  std::string name;
  std::vector<int32_t> numbers;
  bool operator==(const Inner&) const = default;
};
template <class Archive>
void fields(Archive& archive, Inner& inner) {
  archive(inner.name, inner.numbers);
}

struct Outer {
  int64_t step = 0;
  bool behind = false;
  std::vector<Inner> parts;
  std::optional<Inner> best;
  std::map<std::string, int64_t> numbers;
  std::pair<std::string, Plain> pair;
  bool operator==(const Outer&) const = default;
};
template <class Archive>
void fields(Archive& archive, Outer& outer) {
  archive(outer.step, outer.behind, outer.parts, outer.best, outer.numbers, outer.pair);
}

Outer sample() {
  return {.step = -7,
          .behind = true,
          .parts = {{"first\n\0 line", {1, -2, 3}}, {"", {}}},
          .best = Inner{"best", {4}},
          .numbers = {{"a", 1}, {"b", std::numeric_limits<int64_t>::min()}},
          .pair = {"x y", {3, 0.1, Colour::kBlue}}};
}

template <class T>
void expect_round_trip(const T& value) {
  EXPECT_EQ(from_bytes<T>(to_bytes(value)), value);
}

TEST(Messages, every_kind_of_value_comes_back_equal) {
  expect_round_trip(42);
  expect_round_trip(true);
  expect_round_trip(Colour::kBlue);
  expect_round_trip(std::numeric_limits<double>::denorm_min());
  expect_round_trip(std::array<double, 3>{1, 2, 3});
  expect_round_trip(Plain{1, -0.0, Colour::kBlue});
  expect_round_trip(std::string("none left\n+path own \0 x", 24));
  expect_round_trip(std::string());
  expect_round_trip(std::vector<int32_t>{});
  expect_round_trip(std::vector<std::string>{"", "a", "b c"});
  expect_round_trip(std::optional<int>());
  expect_round_trip(std::optional<std::string>(""));
  expect_round_trip(std::vector<std::optional<std::string>>{{}, "x"});
  expect_round_trip(Outer{});
  expect_round_trip(sample());
  EXPECT_TRUE(std::isnan(from_bytes<double>(to_bytes(std::nan("")))));
}

TEST(Messages, results_carry_the_value_or_the_error_with_its_code_and_errno) {
  const auto good = from_bytes<Result<Outer>>(to_bytes(Result<Outer>(sample())));
  ASSERT_TRUE(good);
  EXPECT_EQ(good.value(), sample());
  const auto bad = from_bytes<Result<Outer>>(to_bytes(Result<Outer>(Error{"a: b\n:c", ExitCode::kFile, ESTALE})));
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message, "a: b\n:c");
  EXPECT_EQ(bad.error().code, ExitCode::kFile);
  EXPECT_EQ(bad.error().os_error, ESTALE);
  EXPECT_TRUE(from_bytes<Result<void>>(to_bytes(Result<void>())));
  EXPECT_FALSE(from_bytes<Result<void>>(to_bytes(Result<void>(Error{"x"}))));
}

template <class T>
void expect_malformed(const std::string& bytes) {
  try {
    from_bytes<T>(bytes);
    ADD_FAILURE() << bytes.size() << " bytes are taken for a value";
  } catch (const Fatal& problem) {
    EXPECT_EQ(problem.code(), ExitCode::kComm);
    EXPECT_NE(std::string(problem.what()).find("malformed"), std::string::npos) << problem.what();
  }
}

// No prefix of a message is a message, and nothing may follow a message.
TEST(Messages, bytes_that_are_too_few_or_too_many_are_fatal) {
  const std::string bytes = to_bytes(sample());
  for (size_t size = 0; size < bytes.size(); ++size) expect_malformed<Outer>(bytes.substr(0, size));
  expect_malformed<Outer>(bytes + "x");
  expect_malformed<int64_t>(to_bytes(int32_t{1}));
  expect_malformed<int32_t>(to_bytes(int64_t{1}));
  expect_malformed<std::string>("");
}

// A nonsensical count must not be allocated.
TEST(Messages, counts_beyond_the_message_are_fatal) {
  for (const uint64_t count : {uint64_t{1}, uint64_t{1} << 40, std::numeric_limits<uint64_t>::max()}) {
    const std::string bytes = to_bytes(count);
    expect_malformed<std::string>(bytes);
    expect_malformed<std::vector<double>>(bytes);
    expect_malformed<std::vector<std::string>>(bytes);
    expect_malformed<std::map<std::string, int>>(bytes);
  }
  expect_malformed<bool>(std::string(1, '\2'));
  expect_malformed<std::optional<int>>(std::string(5, '\7'));
  expect_malformed<std::map<int, int>>(to_bytes(std::vector<std::array<int, 2>>{{1, 2}, {1, 3}}));
}

using Errors = std::vector<std::optional<Error>>;

void expect_first(const Errors& of_ranks, const std::string& message, ExitCode code) {
  const auto error = first_error(of_ranks);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->message, message);
  EXPECT_EQ(error->code, code);
  EXPECT_EQ(error->os_error, code == ExitCode::kFile ? ENOENT : 0);
}

TEST(Messages, the_lowest_rank_that_failed_speaks_for_the_job_and_says_who_it_is) {
  const Error file{"no such file", ExitCode::kFile, ENOENT}, device{"no GPU", ExitCode::kDevice};
  EXPECT_FALSE(first_error({{}, {}, {}}).has_value());
  expect_first({file, {}, {}}, "no such file", ExitCode::kFile);
  expect_first({file, file, file}, "no such file", ExitCode::kFile);
  expect_first({{}, {}, device}, "rank 2: no GPU", ExitCode::kDevice);
  expect_first({{}, device, file}, "rank 1, the first of 2 that failed: no GPU", ExitCode::kDevice);
  expect_first({file, device, {}}, "rank 0, the first of 2 that failed: no such file", ExitCode::kFile);
  expect_first({file, file, {}}, "rank 0, the first of 2 that failed: no such file", ExitCode::kFile);
  expect_first({file, device, file}, "rank 0, the first of 3 that failed: no such file", ExitCode::kFile);
}

}  // namespace
}  // namespace tri
