// The loader of a node across processes: groups of ranks of one machine simulate nodes.
#include "lib/train/node_loader.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "lib/train/inputs.h"
#include "tests/data/expected_batch.h"
#include "tests/data/token_files.h"
#include "tests/io/temporary_folder.h"
#include "tests/mp/mp_test.h"

namespace tri {
namespace {

constexpr int kSeqLen = 16, kGlobalBatch = 16;

struct Layout {
  int pp, dp, tp;
};
constexpr Layout kLayouts[] = {{1, 1, 8}, {1, 8, 1}, {8, 1, 1}, {2, 2, 2}, {4, 1, 2}, {1, 4, 2}, {4, 2, 1}};

Config config_of(const Layout& layout, bool shared) {
  Config config;
  config.model.seq_len = kSeqLen;
  config.data = {.global_batch = kGlobalBatch, .micro_batch = 2, .shared = shared};
  config.parallel = {.tp = layout.tp, .pp = layout.pp, .dp = layout.dp};
  return config;
}

// Returns the ranks that share a node with this one, with `size` ranks per node.
std::vector<int> node_of(int rank, int size) {
  std::vector<int> ranks;
  for (int r = rank / size * size; r < (rank / size + 1) * size; ++r) ranks.push_back(r);
  return ranks;
}

// Returns the bytes of the samples that a node needs per step, each once: by definition, not by the loader's lists.
int64_t needed(const Layout& layout, const std::vector<int>& node, int64_t token_bytes) {
  std::set<int> dp_ranks;
  for (const int rank : node) {
    const Mesh mesh = make_mesh(rank, {{"tp", layout.tp}, {"dp", layout.dp}, {"pp", layout.pp}});
    if (mesh.axis("pp").first() || mesh.axis("pp").last()) dp_ranks.insert(mesh.axis("dp").rank);
  }
  return static_cast<int64_t>(dp_ranks.size()) * kGlobalBatch / layout.dp * (kSeqLen + 1) * token_bytes;
}

std::vector<int32_t> copy_of(std::span<const int32_t> tokens) { return {tokens.begin(), tokens.end()}; }

// A folder of rank 0 that all ranks know.
class CommonFolder {
 public:
  CommonFolder() {
    if (test_job()->world_rank() == 0) folder_.emplace();
    path_ = test_job()->broadcast(folder_ ? folder_->path().string() : "");
  }
  ~CommonFolder() { test_job()->barrier(); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::optional<TemporaryFolder> folder_;
  std::string path_;
};

TEST(SharedWindow, is_zero_at_first_and_one_memory_for_its_members_alone) {
  Job& job = *test_job();
  for (const int size : {1, 2, 4, 8}) {
    const std::vector<int> members = node_of(job.world_rank(), size);
    SharedWindow window(&job, members, 8 * 1000);
    auto* words = static_cast<int64_t*>(window.memory());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(words) % 64, 0u);
    EXPECT_EQ(std::count(words, words + 1000, 0), 1000);
    job.barrier();
    words[job.world_rank()] = 100 + job.world_rank();
    job.barrier();
    for (int rank = 0; rank < job.world_size(); ++rank) {
      const bool member = std::count(members.begin(), members.end(), rank) > 0;
      EXPECT_EQ(words[rank], member ? 100 + rank : 0) << "size " << size;
    }
  }
}

// Creates 5000 consecutive tokens. Collective.
Dataset counting_dataset(const CommonFolder& folder) {
  if (test_job()->world_rank() == 0) write_counting(folder / "a", 5000, 0, TokenType::kU16);
  test_job()->barrier();
  return value_or_throw(Dataset::open({{folder / "a", 1}}, kSeqLen, 0.1, 1, 5000));
}

TEST(NodeLoader, each_rank_gets_what_its_stage_takes_and_each_node_reads_what_it_needs_once) {
  Job& job = *test_job();
  auto device = open_test_device();
  const CommonFolder folder;
  const Dataset data = counting_dataset(folder);
  for (const Layout& layout : kLayouts)
    for (const int node_size : {8, 4, 2})
      for (const bool shared : {true, false}) {
        const Mesh mesh = make_mesh(job.world_rank(), {{"tp", layout.tp}, {"dp", layout.dp}, {"pp", layout.pp}});
        const std::vector<int> node = node_of(job.world_rank(), node_size);
        constexpr int64_t kFirst = 7, kSteps = 12;
        NodeLoader loader({.config = config_of(layout, shared),
                           .mesh = mesh,
                           .job = &job,
                           .node_ranks = node,
                           .device = *device,
                           .dataset = &data,
                           .first_step = kFirst,
                           .steps = kSteps});
        for (int64_t step = kFirst; step < kFirst + kSteps; ++step) {
          const StepTokens tokens = loader.next();
          const Batch expected = make_batch(data, Split::kTrain, step,
                                            {.global_batch = kGlobalBatch,
                                             .micro_batch = 2,
                                             .dp_rank = mesh.axis("dp").rank,
                                             .dp_size = mesh.axis("dp").size});
          EXPECT_EQ(copy_of(tokens.inputs), mesh.axis("pp").first() ? expected.inputs : std::vector<int32_t>{});
          EXPECT_EQ(copy_of(tokens.targets), mesh.axis("pp").last() ? expected.targets : std::vector<int32_t>{});
          if (shared && step == kFirst + 3) job.barrier();  // all have read ahead, or wait for a free slot
        }
        const bool takes = mesh.axis("pp").first() || mesh.axis("pp").last();
        const std::vector<int64_t> read = job.all_gather(loader.bytes_read());
        int64_t of_node = 0;
        for (const int rank : node) of_node += read[static_cast<size_t>(rank)];
        const int64_t expected = shared ? needed(layout, node, 2) : takes ? needed(layout, {job.world_rank()}, 2) : 0;
        EXPECT_EQ(shared ? of_node : loader.bytes_read(), kSteps * expected) << "nodes of " << node_size;
      }
}

TEST(NodeLoader, validation_batches_come_round_and_each_node_reads_them_once) {
  Job& job = *test_job();
  auto device = open_test_device();
  const CommonFolder folder;
  if (job.world_rank() == 0) write_counting(folder / "a", 5000, 0, TokenType::kU16);
  job.barrier();
  const Dataset data = value_or_throw(Dataset::open({{folder / "a", 1}}, kSeqLen, 0.2, 1, 5000));
  constexpr int64_t kPeriod = 3, kSteps = 8;
  ASSERT_GE(data.num_samples(Split::kValidation), kPeriod * kGlobalBatch);
  for (const Layout& layout : kLayouts)
    for (const int node_size : {8, 2}) {
      const Mesh mesh = make_mesh(job.world_rank(), {{"tp", layout.tp}, {"dp", layout.dp}, {"pp", layout.pp}});
      const std::vector<int> node = node_of(job.world_rank(), node_size);
      const Config config = config_of(layout, true);
      const bool reads = reads_tokens(config, mesh, node);
      NodeLoader loader({.config = config,
                         .mesh = mesh,
                         .job = &job,
                         .node_ranks = node,
                         .device = *device,
                         .dataset = reads ? &data : nullptr,
                         .split = Split::kValidation,
                         .steps = kSteps,
                         .period = kPeriod});
      for (int64_t step = 0; step < kSteps; ++step) {
        const StepTokens tokens = loader.next();
        const Batch expected = make_batch(data, Split::kValidation, step % kPeriod,
                                          {.global_batch = kGlobalBatch,
                                           .micro_batch = 2,
                                           .dp_rank = mesh.axis("dp").rank,
                                           .dp_size = mesh.axis("dp").size});
        EXPECT_EQ(copy_of(tokens.inputs), mesh.axis("pp").first() ? expected.inputs : std::vector<int32_t>{});
        EXPECT_EQ(copy_of(tokens.targets), mesh.axis("pp").last() ? expected.targets : std::vector<int32_t>{});
      }
      EXPECT_EQ(loader.bytes_read(), reads ? kSteps * needed(layout, node, 2) : 0);
    }
}

TEST(NodeLoader, every_stage_gets_the_documents_of_its_samples) {
  Job& job = *test_job();
  auto device = open_test_device();
  const CommonFolder folder;
  if (job.world_rank() == 0) write_counting(folder / "a", 5000, 0, TokenType::kU16);
  job.barrier();
  const Dataset data = value_or_throw(Dataset::open({{folder / "a", 1}}, kSeqLen, 0.1, 1, 5000, {.documents = true}));
  for (const Layout& layout : kLayouts)
    for (const int node_size : {8, 2}) {
      const Mesh mesh = make_mesh(job.world_rank(), {{"tp", layout.tp}, {"dp", layout.dp}, {"pp", layout.pp}});
      const std::vector<int> node = node_of(job.world_rank(), node_size);
      Config config = config_of(layout, true);
      config.data.document_mask = true;
      EXPECT_EQ(ring_members(config, mesh, node), node);
      NodeLoader loader({.config = config,
                         .mesh = mesh,
                         .job = &job,
                         .node_ranks = node,
                         .device = *device,
                         .dataset = reads_tokens(config, mesh, node) ? &data : nullptr,
                         .steps = 5,
                         .windows = {0, 3}});
      for (int64_t step = 0; step < 5; ++step) {
        const StepTokens tokens = loader.next();
        const int dp = mesh.axis("dp").size, samples = kGlobalBatch / dp;
        std::vector<int32_t> expected;
        for (int n = 0; n < samples; ++n) {
          const int64_t of_step = (int64_t{n / 2} * dp + mesh.axis("dp").rank) * 2 + n % 2;
          const std::vector<int32_t> starts = data.document_starts(Split::kTrain, step * kGlobalBatch + of_step);
          expected.insert(expected.end(), starts.begin(), starts.end());
        }
        EXPECT_EQ(copy_of(tokens.document_starts), expected);
        EXPECT_EQ(tokens.inputs.empty(), !mesh.axis("pp").first());
        EXPECT_EQ(tokens.targets.empty(), !mesh.axis("pp").last());
        EXPECT_EQ(tokens.pairs,
                  (std::vector{attention_pairs(expected, kSeqLen, 0), attention_pairs(expected, kSeqLen, 3)}));
      }
      const std::vector<int64_t> read = job.all_gather(loader.bytes_read());
      int64_t of_node = 0;
      for (const int rank : node) of_node += read[static_cast<size_t>(rank)];
      EXPECT_EQ(of_node == 0, needed(layout, node, 2) == 0) << "middle stages need no tokens";
    }
}

// Returns the number of files under `folder` that this process has open or mapped, according to the system.
int held_files(const std::string& folder) {
  int held = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the entry of the listing itself
    held += std::filesystem::read_symlink(entry, gone).string().rfind(folder, 0) == 0;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) held += line.find(folder) != std::string::npos;
  return held;
}

TEST(Inputs, token_files_are_opened_where_they_are_read_and_nowhere_else) {
  Job& job = *test_job();
  const CommonFolder folder;
  if (job.world_rank() == 0) write_counting(folder / "a", 5000, 0, TokenType::kU16);
  job.barrier();
  for (const Layout& layout : kLayouts)
    for (const bool shared : {true, false}) {
      const Mesh mesh = make_mesh(job.world_rank(), {{"tp", layout.tp}, {"dp", layout.dp}, {"pp", layout.pp}});
      // All ranks are on one node. Determined by definition, not from the loader's lists.
      const bool reads = shared ? job.world_rank() == 0 : mesh.axis("pp").first() || mesh.axis("pp").last();
      Config config = config_of(layout, shared);
      config.model.vocab = 5000;
      config.data.sources = {{reads ? folder / "a" : folder / "missing", 1.0}};
      Inputs inputs;
      const auto opened = open_inputs(config, mesh, job, inputs);
      ASSERT_TRUE(opened) << opened.error().message;
      EXPECT_EQ(inputs.dataset.has_value(), reads);
      EXPECT_EQ(held_files(folder / ""), reads ? 1 : 0) << "the tokens, not their index";
      EXPECT_EQ(inputs.num_samples(Split::kTrain), 309);  // (5000 - 1) / 16, without a hundredth for validation
      EXPECT_EQ(inputs.num_samples(Split::kValidation), 3);
    }
}

TEST(Inputs, a_copy_that_differs_is_an_error_on_all_ranks_that_names_node_and_file) {
  Job& job = *test_job();
  const CommonFolder folder;
  const std::string mine = folder / fmt::format("rank{}", job.world_rank());
  // The same counts but one different token, like a copy made before the text was corrected.
  const int stale = job.world_size() - 2;
  write_with_bad_token(mine, 2000, 700, job.world_rank() == stale ? 2 : 3);
  Config config = config_of({1, job.world_size(), 1}, false);
  config.data.global_batch = 2 * job.world_size();
  config.model.vocab = 300;
  config.data.sources = {{mine, 1.0}};
  const Mesh mesh = make_mesh(job.world_rank(), {{"dp", job.world_size()}});
  Inputs inputs;
  const auto opened = open_inputs(config, mesh, job, inputs);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ExitCode::kFile);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const std::string& words = opened.error().message;
  EXPECT_NE(words.find(fmt::format("rank {}", stale)), std::string::npos) << words;
  EXPECT_NE(words.find(fmt::format("{} on {} has 2000 tokens", folder / fmt::format("rank{}", stale), host)),
            std::string::npos)
      << words;
  // After the correction the ranks agree.
  write_with_bad_token(mine, 2000, 700, 3);
  Inputs again;
  const auto mended = open_inputs(config, mesh, job, again);
  EXPECT_TRUE(mended) << mended.error().message;
}

TEST(NodeLoader, a_failure_of_the_reading_rank_reaches_all_ranks_of_its_node) {
  Job& job = *test_job();
  auto device = open_test_device();
  const CommonFolder folder;
  if (job.world_rank() == 0) write_with_bad_token(folder / "a", 8000, 4000, 400);
  job.barrier();
  const Dataset data = value_or_throw(Dataset::open({{folder / "a", 1}}, kSeqLen, 0, 1, 300));
  const Layout layout{.pp = 2, .dp = 2, .tp = job.world_size() / 4};
  const Mesh mesh = make_mesh(job.world_rank(), {{"tp", layout.tp}, {"dp", layout.dp}, {"pp", layout.pp}});
  NodeLoader loader({.config = config_of(layout, true),
                     .mesh = mesh,
                     .job = &job,
                     .node_ranks = job.node_ranks(),
                     .device = *device,
                     .dataset = &data,
                     .steps = 1000});
  try {
    for (int step = 0; step < 1000; ++step) loader.next();
    FAIL() << "nothing was thrown";
  } catch (const Fatal& fatal) {
    EXPECT_EQ(fatal.code(), ExitCode::kFile);
    EXPECT_NE(std::string(fatal.what()).find("holds token 400"), std::string::npos) << fatal.what();
  }
}

TEST(NodeLoader, ranks_may_stop_at_any_step) {
  Job& job = *test_job();
  auto device = open_test_device();
  const CommonFolder folder;
  const Dataset data = counting_dataset(folder);
  const Layout layout{.pp = 2, .dp = 2, .tp = job.world_size() / 4};
  const Mesh mesh = make_mesh(job.world_rank(), {{"tp", layout.tp}, {"dp", layout.dp}, {"pp", layout.pp}});
  for (int stop = 0; stop < 6; ++stop) {
    NodeLoader loader({.config = config_of(layout, true),
                       .mesh = mesh,
                       .job = &job,
                       .node_ranks = job.node_ranks(),
                       .device = *device,
                       .dataset = &data,
                       .first_step = stop,
                       .steps = 1000});
    for (int step = 0; step < stop; ++step) loader.next();
  }
}

TEST(NodeLoader, one_rank_needs_no_job) {
  auto device = open_test_device();
  const CommonFolder folder;
  const Dataset data = counting_dataset(folder);
  NodeLoader loader({.config = config_of({1, 1, 1}, true),
                     .mesh = make_mesh(0, {}),
                     .node_ranks = {0},
                     .device = *device,
                     .dataset = &data,
                     .first_step = 3,
                     .steps = 4});
  const BatchShape shape{.global_batch = kGlobalBatch, .micro_batch = 2};
  for (int64_t step = 3; step < 7; ++step)
    EXPECT_EQ(copy_of(loader.next().inputs), make_batch(data, Split::kTrain, step, shape).inputs);
  EXPECT_EQ(loader.bytes_read(), 4 * needed({1, 1, 1}, {0}, 2));
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) { return tri::run_mp_tests(argc, argv); }
