// The host memory of checkpoints in memory: the amounts of the check before a start.
#include "lib/checkpoint/memory_budget.h"

#include <gtest/gtest.h>

#include <fstream>

#include "io/base/hash.h"
#include "lib/config/axis_fields.h"
#include "lib/engine/job_plan.h"
#include "lib/engine/rank_tensors.h"
#include "lib/optim/optimizers.h"
#include "tests/io/temporary_folder.h"

namespace tri::test {
namespace {

std::string message(int64_t segments, int64_t others, const NodeMemory& memory) {
  const auto result = check_memory_budget("n1", 8, segments, others, memory);
  if (result) return "";
  EXPECT_EQ(result.error().code, ExitCode::kUsage);
  return result.error().message;
}

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(MemoryBudget, is_refused_with_the_amounts_if_a_node_has_too_little) {
  EXPECT_EQ(message(8 * kGiB, 2 * kGiB, {.shared = 8 * kGiB, .available = 10 * kGiB}), "");
  const std::string shared = message(8 * kGiB, 0, {.shared = 8 * kGiB - 1, .available = 100 * kGiB});
  for (const char* part : {"checkpoint.memory_every", "node n1", "8.00 GiB", "8 ranks", "/dev/shm", "to 0"})
    EXPECT_NE(shared.find(part), std::string::npos) << part << "\n" << shared;
  const std::string available = message(8 * kGiB, 2 * kGiB, {.shared = 9 * kGiB, .available = 10 * kGiB - 1});
  for (const char* part : {"8.00 GiB", "2.00 GiB", "available"})
    EXPECT_NE(available.find(part), std::string::npos) << part << "\n" << available;
  EXPECT_EQ(message(8 * kGiB, 2 * kGiB, {}), "") << "unknown memory refuses nothing";
}

TEST(MemoryBudget, a_single_node_has_no_buddy) {
  EXPECT_EQ(memory_checkpoint_bytes(10, 1), 20);
  EXPECT_EQ(memory_checkpoint_bytes(10, 2), 40);
}

// The segments of all ranks together hold the state once.
TEST(MemoryBudget, segments_hold_the_state_of_a_storage_checkpoint) {
  Config config = value_or_throw(
      parse_config("model: {layers: 2, hidden: 256, heads: 4, vocab: 1000, seq_len: 64}\nparallel: {tp: 2, dp: 2}\n"
                   "data: {global_batch: 4}",
                   "test.yaml", {}));
  config = value_or_throw(plan_on_paper(value_or_throw(resolve_config(std::move(config), 4)), 4));
  int64_t parameters = 0, segments = 0, shards = 0;
  for (const ParamSpec& spec : model_parameters(config)) parameters += spec.numel();
  for (int rank = 0; rank < 4; ++rank) {
    const Mesh mesh = mesh_of(config, rank);
    Arena arena;
    const auto of_rank = state_shards(config, mesh, allocate_rank(config, mesh, arena).store);
    segments += memory_segment_bytes(of_rank);
    shards += static_cast<int64_t>(of_rank.size());
  }
  const int64_t state = (4 + optimizer_state_bytes(config.optimizer)) * parameters;
  EXPECT_GE(segments, state);
  // Header, table and its shards, and rounding; padding between joined shards is below 4 KiB each.
  EXPECT_LE(segments, state + 4 * (4096 + (64 << 10) + 4096) + shards * (512 + 256 + 4096));
}

TEST(MemoryBudget, segments_of_an_earlier_attempt_count_as_free) {
  const TemporaryFolder folder;
  const std::string run = "/runs/mine", other = "/runs/other";
  const auto write = [&](const std::string& name, size_t bytes) {
    std::ofstream(folder / name) << std::string(bytes, 'x');
  };
  write("trireme.memory." + hex64(xxh3_64(run)) + ".n1.00000.own.0", 1000);
  write("trireme.memory." + hex64(xxh3_64(run)) + ".n1.00001.copy.1", 500);
  write("trireme.memory." + hex64(xxh3_64(other)) + ".n1.00000.own.0", 70);
  write("trireme.recorder.a.0", 7);
  EXPECT_EQ(reused_segment_bytes(folder.path().string(), run), 1500);
  EXPECT_EQ(reused_segment_bytes(folder / "none", run), 0);
}

}  // namespace
}  // namespace tri::test
