// The checkpointer without a training loop: who waits for whom.
#include <filesystem>

#include "io/checkpoint/folder.h"
#include "kernels/core/arena.h"
#include "lib/checkpoint/checkpointer.h"
#include "tests/mp/mp_test.h"

namespace tri {
namespace {

Config small_config(Job& job, const std::string& dir) {
  Config c;
  c.model = {.layers = 2, .hidden = 32, .heads = 4, .vocab = 100, .seq_len = 8};
  c.data.global_batch = job.world_size();
  c.data.micro_batch = 1;
  c.checkpoint.dir = dir;
  c.parallel.dp_transfers = Transfers::kCollectives;
  return value_or_throw(resolve_config(c, job.world_size()));
}

// A rank's state, and its checkpointer.
struct Rank {
  explicit Rank(Job& job)
      : dir(job.broadcast((std::filesystem::temp_directory_path() / ("checkpoint_test_" + new_attempt())).string())),
        attempt(job.broadcast(new_attempt())),
        config(small_config(job, dir)),
        mesh(make_mesh(job.world_rank(), config.parallel.tp, config.parallel.dp, config.parallel.pp)),
        device(open_test_device()),
        compute(device->make_stream("compute")) {
    Arena measuring;
    allocate_store(config, mesh, measuring);
    arena = std::make_unique<Arena>(*device, measuring.used());
    checkpoints = std::make_unique<Checkpointer>(CheckpointContext{.config = config,
                                                                   .asked = config,
                                                                   .mesh = mesh,
                                                                   .job = job,
                                                                   .device = *device,
                                                                   .compute = *compute,
                                                                   .store = allocate_store(config, mesh, *arena),
                                                                   .attempt = attempt});
  }
  ~Rank() {
    checkpoints.reset();
    std::error_code ignored;
    if (test_job()->world_rank() == 0) std::filesystem::remove_all(dir, ignored);
  }

  std::string dir, attempt;
  Config config;
  Mesh mesh;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Checkpointer> checkpoints;
};

// No step lies between the two, so no rank can have heard that the first is done: it is under way, however fast.
TEST(Checkpointer, one_that_is_due_while_another_is_under_way_waits_for_it_and_says_so) {
  Job& job = *test_job();
  Rank rank(job);
  ASSERT_TRUE(rank.checkpoints->begin({.steps = 1, .samples = 2}));
  ASSERT_TRUE(rank.checkpoints->begin({.steps = 2, .samples = 4}));
  ASSERT_TRUE(rank.checkpoints->finish());
  ASSERT_TRUE(rank.checkpoints->begin({.steps = 3, .samples = 6}));
  ASSERT_TRUE(rank.checkpoints->finish());
  const std::vector<CheckpointStats> published = rank.checkpoints->published();
  if (job.world_rank() != 0) return;
  ASSERT_EQ(published.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(published[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(published[i].behind, i == 1);
  }
  EXPECT_EQ(value_or_throw(newest_checkpoint(rank.dir))->step, 3);
}

// What is said to be needed is what is allocated, once, whatever is saved.
TEST(Checkpointer, host_memory_holds_the_state_once) {
  Job& job = *test_job();
  Rank rank(job);
  int64_t state = 0;
  for (const ParamSpec& spec : model_parameters(rank.config)) state += 3 * spec.numel() * int64_t{sizeof(float)};
  int64_t all = 0;
  for (const int64_t bytes : job.all_gather(rank.checkpoints->host_bytes())) all += bytes;
  EXPECT_GE(all, state);
  EXPECT_LE(all, state + 64 * 1024 * job.world_size());  // padding
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) { return tri::run_mp_tests(argc, argv); }
