// Typed messages between the hosts of a job, and agreement among all ranks.
#include "lib/comm/host/messages.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "lib/comm/groups/background_gather.h"
#include "lib/comm/host/bootstrap.h"
#include "lib/comm/job/clock_offset.h"
#include "tests/mp/mp_test.h"

namespace tri {
namespace {

struct Figures {
  int64_t rank = 0;
  std::string text;
  std::vector<double> seconds;
  bool operator==(const Figures&) const = default;
};
template <class Archive>
void fields(Archive& archive, Figures& f) {
  archive(f.rank, f.text, f.seconds);
}

// Returns a value of a different size on every rank; empty on rank 0.
Figures figures_of(int rank) {
  return {rank, std::string(static_cast<size_t>(rank) * 100, 'x'), std::vector<double>(static_cast<size_t>(rank), 0.1)};
}

TEST(Messages, gather_brings_every_rank_s_value_to_rank_0_and_all_gather_to_all) {
  Job& job = *test_job();
  std::vector<Figures> figures;
  std::vector<int> ranks;
  std::vector<std::string> texts;
  for (int rank = 0; rank < job.world_size(); ++rank) {
    figures.push_back(figures_of(rank));
    ranks.push_back(rank);
    texts.push_back(figures_of(rank).text);
  }
  EXPECT_EQ(job.all_gather(figures_of(job.world_rank())), figures);
  EXPECT_EQ(job.all_gather(job.world_rank()), ranks);
  EXPECT_EQ(job.all_gather(figures_of(job.world_rank()).text), texts);
  const bool root = job.world_rank() == 0;
  EXPECT_EQ(job.gather(figures_of(job.world_rank())), root ? figures : std::vector<Figures>());
  EXPECT_EQ(job.gather(std::string()), root ? std::vector<std::string>(figures.size()) : std::vector<std::string>());
}

TEST(Messages, broadcast_gives_all_ranks_the_value_of_rank_0) {
  Job& job = *test_job();
  const int rank = job.world_rank();
  EXPECT_EQ(job.broadcast(rank + 17), 17);
  EXPECT_EQ(job.broadcast(figures_of(rank + 3)), figures_of(3));
  EXPECT_EQ(job.broadcast(rank == 0 ? std::optional<std::string>() : "mine"), std::nullopt);
  const auto error = job.broadcast(rank == 0 ? Result<Figures>(Error{"no such file", ExitCode::kFile}) : Figures{});
  ASSERT_FALSE(error);
  EXPECT_EQ(error.error().message, "no such file");
  EXPECT_EQ(error.error().code, ExitCode::kFile);
  const auto value = job.broadcast(rank == 0 ? Result<Figures>(figures_of(2)) : Result<Figures>(Error{"no rank 0"}));
  ASSERT_TRUE(value);
  EXPECT_EQ(value.value(), figures_of(2));
}

// Rounds are far smaller than the messages, whose sizes differ: every byte arrives in its place.
TEST(Messages, long_messages_travel_in_rounds) {
  Job& job = *test_job();
  const auto bytes_of = [](int rank) {
    std::string bytes;
    for (int i = 0; i < 1000 * rank + 7 * (rank % 2); ++i) bytes += static_cast<char>((i * 31 + rank) % 251);
    return bytes;
  };
  std::vector<std::string> expected;
  for (int rank = 0; rank < job.world_size(); ++rank) expected.push_back(bytes_of(rank));
  const int n = job.world_size();
  for (const int64_t bytes_a_round : {n, n + 1, 16 * n, 100000 * n}) {
    EXPECT_EQ(collect_bytes(bytes_of(job.world_rank()), Receivers::kAll, bytes_a_round), expected);
    const auto gathered = collect_bytes(bytes_of(job.world_rank()), Receivers::kRank0, bytes_a_round);
    EXPECT_EQ(gathered, job.world_rank() == 0 ? expected : std::vector<std::string>());
    EXPECT_EQ(broadcast_bytes(bytes_of(job.world_rank() + 3), bytes_a_round), bytes_of(3));
  }
}

TEST(Messages, members_of_a_group_gather_values_without_the_others) {
  Job& job = *test_job();
  const int first = job.world_rank() / 2 * 2;
  if (first + 1 >= job.world_size()) return;  // no partner
  const std::vector<int> pair{first, first + 1};
  for (int round = 0; round < 3; ++round)
    EXPECT_EQ(gather_among_members(figures_of(job.world_rank()), pair),
              (std::vector<Figures>{figures_of(first), figures_of(first + 1)}));
  EXPECT_EQ(gather_among_members(job.world_rank(), pair), pair);
}

TEST(ClockOffset, is_within_its_error) {
  Job& job = *test_job();
  // Each rank pretends to be on its own host: in fact all share one clock.
  const ClockOffset apart = measure_clock_offset(job, job.world_rank());
  EXPECT_LE(std::abs(apart.offset), apart.error);
  EXPECT_EQ(apart.error == 0, job.world_rank() == 0);
  const ClockOffset together = measure_clock_offset(job, 0);
  EXPECT_EQ(together.offset, 0);
  EXPECT_EQ(together.error, 0);
  if (job.world_rank() == 1)
    fmt::print("clock of another process: within {:.1f} us\n", 1e-3 * static_cast<double>(apart.error));
}

TEST(Agree, every_rank_keeps_its_own_value_where_all_succeed) {
  Job& job = *test_job();
  auto mine = agree(job, Result<std::unique_ptr<int>>(std::make_unique<int>(job.world_rank())));
  ASSERT_TRUE(mine);
  EXPECT_EQ(*mine.value(), job.world_rank());
  EXPECT_TRUE(agree(job, Result<void>()));
}

// `error_of(rank)`: the error of that rank, if any.
void expect_agreed(const std::function<std::optional<Error>(int)>& error_of, const std::string& message,
                   ExitCode code) {
  Job& job = *test_job();
  const auto mine = error_of(job.world_rank());
  const Result<int> result = agree(job, mine ? Result<int>(*mine) : Result<int>(job.world_rank()));
  ASSERT_FALSE(result) << "a rank without an error continues alone";
  EXPECT_EQ(result.error().message, message);
  EXPECT_EQ(result.error().code, code);
}

TEST(Agree, an_error_on_one_rank_ends_all_with_its_message_code_and_rank) {
  const int n = test_job()->world_size();
  for (int bad = 1; bad < n; ++bad)
    expect_agreed(
        [&](int rank) {
          return rank == bad ? std::optional(Error{"no GPU", ExitCode::kDevice}) : std::nullopt;
        },
        fmt::format("rank {}: no GPU", bad), ExitCode::kDevice);
  expect_agreed(
      [](int rank) {
        return rank == 0 ? std::optional(Error{"no such file", ExitCode::kFile}) : std::nullopt;
      },
      "no such file", ExitCode::kFile);
  expect_agreed(
      [](int) {
        return std::optional(Error{"model.heads: 3", ExitCode::kUsage});
      },
      "model.heads: 3", ExitCode::kUsage);
}

TEST(Agree, of_different_errors_the_lowest_rank_s_counts) {
  const int n = test_job()->world_size();
  if (n < 3) GTEST_SKIP() << "needs three ranks";
  const auto error_of = [](int rank) {
    return rank == 0 ? std::nullopt
                     : std::optional(
                           Error{fmt::format("error {}", rank), rank == 1 ? ExitCode::kFile : ExitCode::kNotFinite});
  };
  expect_agreed(error_of, fmt::format("rank 1, the first of {} that failed: error 1", n - 1), ExitCode::kFile);
}

// Rank 0 is late, and other collectives run in between: each gather has its own messages.
TEST(BackgroundGather, brings_every_rank_s_message_while_ranks_go_on) {
  Job& job = *test_job();
  BackgroundGather gather(sizeof(int64_t));
  EXPECT_TRUE(gather.finished());
  for (int64_t round = 0; round < 20; ++round) {
    const int64_t mine = 1000 * round + job.world_rank();
    if (job.world_rank() == 0 && round % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    gather.begin(&mine);
    const size_t others = round % 3 == 0 ? job.all_gather(job.world_rank()).size() : 0;
    EXPECT_EQ(others, round % 3 == 0 ? static_cast<size_t>(job.world_size()) : 0);
    while (round % 2 == 0 && !gather.finished()) std::this_thread::yield();
    gather.wait();
    for (int rank = 0; job.world_rank() == 0 && rank < job.world_size(); ++rank) {
      int64_t message = 0;
      std::memcpy(&message, gather.messages() + static_cast<size_t>(rank) * sizeof message, sizeof message);
      EXPECT_EQ(message, 1000 * round + rank);
    }
  }
  const int64_t last = 0;
  gather.begin(&last);  // its end waits for the gather
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) { return tri::run_mp_tests(argc, argv); }
