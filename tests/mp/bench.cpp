// The benches that use all ranks: a step has the same tokens on every layout, a sweep leaves nothing behind, and
// overlap distinguishes hidden transfers from others.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lib/bench/overlap.h"
#include "lib/bench/sweep.h"
#include "lib/engine/job_plan.h"
#include "tests/hangs/on_transfer.h"
#include "tests/hangs/stream_task.h"
#include "tests/mp/mp_test.h"

namespace tri {
namespace {

Config small_config() {
  Config c;
  c.run.device = DeviceChoice::kCpu;
  c.model = {.layers = 4, .hidden = 32, .heads = 4, .vocab = 257, .seq_len = 32};
  c.data.global_batch = 8;
  return c;
}

struct Held {
  int64_t threads = 0, files = 0, arenas = 0;
  bool operator==(const Held&) const = default;
};

// Returns the resources of streams, groups and arenas that this process holds.
Held held() {
  namespace fs = std::filesystem;
  const auto entries = [](const char* folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  };
  Held h{.threads = entries("/proc/self/task"), .files = entries("/proc/self/fd")};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) h.arenas += line.find("memfd:trireme") != std::string::npos;
  return h;
}

TEST(Sweep, gives_back_threads_files_and_arenas_of_every_layout) {
  Job& job = *test_job();
  const auto device = open_test_device();
  const LayoutSweep sweep{.limit = 6, .step = {.steps = 1, .warmup = 1, .profiled = 0}};
  std::vector<Held> before;
  const auto once = [&] {
    const auto result = sweep_layouts(small_config(), job, *device, sweep,
                                      [&](const ParallelLayout&, int, int) { before.push_back(held()); });
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result.value().rows.size(), 6u);
    for (const SweepRow& row : result.value().rows) EXPECT_EQ(row.problem, "") << to_string(row.layout);
  };
  once();  // libraries create their own threads and files at the first call
  before.clear();
  once();
  EXPECT_EQ(before.size(), 6u);
  for (const Held& h : before) {
    EXPECT_EQ(h.threads, before.front().threads);
    EXPECT_EQ(h.files, before.front().files);
    EXPECT_EQ(h.arenas, 0);
  }
}

TEST(Sweep, every_rank_has_the_same_rows) {
  Job& job = *test_job();
  const auto device = open_test_device();
  const auto result =
      sweep_layouts(small_config(), job, *device, {.limit = 3, .step = {.steps = 2, .warmup = 1, .profiled = 0}},
                    [](const ParallelLayout&, int, int) {});
  ASSERT_TRUE(result.ok());
  std::string text;
  for (const SweepRow& row : result.value().rows)
    text += fmt::format("{} {} {} {}\n", to_string(row.layout), row.ms, row.tokens_per_s, row.memory_bytes);
  for (const std::string& other : job.all_gather(text)) EXPECT_EQ(other, text);
}

// Uses the initial weights, so only the tokens can differ.
TEST(Step, feeds_the_same_tokens_on_every_layout) {
  Job& job = *test_job();
  if (job.world_size() != 2) GTEST_SKIP() << "needs two ranks";
  const auto device = open_test_device();
  std::vector<double> losses;
  for (const auto& [tp, pp] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 2}}) {
    Config config = small_config();
    config.parallel.tp = tp;
    config.parallel.pp = pp;
    config = value_or_throw(plan_on_paper(value_or_throw(resolve_config(config, 2)), 2));
    const Mesh mesh = make_mesh(job.world_rank(), {{"tp", tp}, {"dp", config.parallel.dp}, {"pp", pp}});
    losses.push_back(bench_step(config, mesh, job, *device, {.steps = 1, .warmup = 0, .profiled = 0}).last_loss);
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-5 * losses[0]);
  EXPECT_NEAR(losses[2], losses[0], 1e-5 * losses[0]);
}

// Returns the rows of one axis of two ranks, with every transfer delayed by far more than its own time.
std::vector<OverlapRow> with_late_transfers(Config config, bool overlap) {
  Job& job = *test_job();
  config.parallel.overlap_dp = config.parallel.overlap_pp = overlap;
  const Config planned =
      value_or_throw(plan_on_paper(value_or_throw(resolve_config(config, job.world_size())), job.world_size()));
  const Mesh mesh = make_mesh(job.world_rank(), {{"dp", planned.parallel.dp}, {"pp", planned.parallel.pp}});
  OnTransfer delay([](Stream& stream) { idle(stream, std::chrono::milliseconds(30)); });
  return bench_overlap(planned, mesh, job, *open_test_device(), {.rounds = 5});
}

// Delayed transfers cost nothing while longer compute runs, and their whole time if they may not overlap it. Depends on
// the clock, so runs only if TRIREME_TEST_QUIET says that the machine is otherwise idle.
void expect_hidden_only_with_overlap(const Config& config) {
  if (test_job()->world_size() != 2 || std::getenv("TRIREME_TEST_QUIET") == nullptr)
    GTEST_SKIP() << "needs two ranks, and TRIREME_TEST_QUIET=1 on a machine with nothing else to do";
  const auto on = with_late_transfers(config, true), off = with_late_transfers(config, false);
  ASSERT_FALSE(on.empty());
  ASSERT_EQ(off.size(), on.size());
  for (size_t i = 0; i < on.size(); ++i) {
    const auto times = [](const OverlapRow& row) {
      return fmt::format("{} {}: {:.0f} us, {} {:.0f} us, together {:.0f} us", row.axis, row.transfer, row.transfer_us,
                         row.compute, row.compute_us, row.together_us);
    };
    EXPECT_GT(on[i].hidden.raw, 0.7) << times(on[i]);
    EXPECT_LT(off[i].hidden.raw, 0.3) << times(off[i]);
  }
}

Config longer_compute() {
  Config config = small_config();
  config.model.hidden = 128;
  config.model.seq_len = 128;
  config.data.micro_batch = 4;
  return config;
}

TEST(Overlap, of_dp_is_seen) { expect_hidden_only_with_overlap(longer_compute()); }

TEST(Overlap, of_pp_is_seen) {
  Config config = longer_compute();
  config.parallel.pp = 2;
  expect_hidden_only_with_overlap(config);
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) { return tri::run_mp_tests(argc, argv); }
