// The checkpointer without a training loop: which rank waits for which. Loading with hand-made requests: which rank
// reads what, and how much memory that needs.
#include <malloc.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <thread>

#include "io/checkpoint/folder.h"
#include "kernels/core/arena.h"
#include "lib/checkpoint/checkpointer.h"
#include "lib/checkpoint/load.h"
#include "lib/config/axis_fields.h"
#include "tests/io/checkpoint_files.h"
#include "tests/mp/mp_test.h"

// Counts all allocations of this process by new.
static std::atomic<int64_t> held{0}, most_held{0};

static void count_held(int64_t bytes) {
  const int64_t now = held += bytes;
  for (int64_t most = most_held; now > most && !most_held.compare_exchange_weak(most, now);) {
  }
}
void* operator new(std::size_t bytes) {
  void* memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  count_held(static_cast<int64_t>(::malloc_usable_size(memory)));
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) held -= static_cast<int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

namespace tri {
namespace {

Config small_config(Job& job, const std::string& dir) {
  Config c;
  c.model = {.layers = 2, .hidden = 32, .heads = 4, .vocab = 100, .seq_len = 8};
  c.data = {.global_batch = job.world_size(), .micro_batch = 1};
  c.checkpoint.dir = dir;
  c.parallel.dp_transfers = Transfers::kCollectives;
  return value_or_throw(resolve_config(c, job.world_size()));
}

// A rank's state and its checkpointer.
struct Rank {
  explicit Rank(Job& job)
      : dir(job.broadcast((std::filesystem::temp_directory_path() / ("checkpoint_test_" + new_attempt())).string())),
        attempt(job.broadcast(new_attempt())),
        config(small_config(job, dir)),
        mesh(mesh_of(config, job.world_rank())),
        device(open_test_device()),
        compute(device->make_stream("compute")) {
    Arena measuring;
    allocate_store(config, mesh, measuring);
    arena = std::make_unique<Arena>(*device, measuring.used());
    store = allocate_store(config, mesh, *arena);
    checkpoints = std::make_unique<Checkpointer>(context(job));
  }
  CheckpointContext context(Job& job) {
    return {.config = config,
            .requested = config,
            .mesh = mesh,
            .job = job,
            .device = *device,
            .compute = *compute,
            .store = store,
            .attempt = attempt};
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
  StoreTensors store;
  std::unique_ptr<Checkpointer> checkpoints;
};

// There is no step between the two, so no rank can know that the first is complete: it is in progress, however fast.
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

// A checkpointer that is destroyed while it publishes waits for its thread, which may still call the check.
TEST(Checkpointer, the_check_before_publishing_outlives_the_thread_that_runs_it) {
  Job& job = *test_job();
  Rank rank(job);
  std::atomic<bool> checked{false}, destroyed{false};
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> held_by_function = held;
  rank.checkpoints->set_may_publish([&checked, &destroyed, held_by_function, held = std::move(held)]() -> Result<void> {
    std::atomic<bool>& was_destroyed = destroyed;  // a captured variable would be destroyed with the function
    const std::weak_ptr<int> watched = held_by_function;
    checked = true;
    for (int round = 0; round < 200 && !watched.expired(); ++round)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    was_destroyed = watched.expired();
    return {};
  });
  ASSERT_TRUE(rank.checkpoints->begin({.steps = 1, .samples = 2}));
  while (rank.checkpoints->part_outcome() == PartOutcome::kNone) std::this_thread::yield();
  ASSERT_TRUE(rank.checkpoints->advance(job.world_size(), 0));
  while (job.world_rank() == 0 && !checked) std::this_thread::yield();
  rank.checkpoints.reset();
  EXPECT_FALSE(destroyed);
}

// The reported need equals the allocation, once, whatever is saved.
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

// The bytes of the shards that this rank loads.
std::string local_state(const Rank& rank) {
  std::string bytes;
  for (const StateShard& shard : state_shards(rank.config, rank.mesh, rank.store))
    if (shard.local)
      bytes.append(static_cast<const char*>(shard.memory.data), static_cast<size_t>(shard.memory.bytes()));
  return bytes;
}

void fill_state(const Rank& rank, char first) {
  for (const StateShard& shard : state_shards(rank.config, rank.mesh, rank.store))
    for (int64_t i = 0; i < shard.memory.bytes(); ++i)
      static_cast<char*>(shard.memory.data)[i] = static_cast<char>(first + i % 59);
}

// Reads while other ranks are connected, into memory laid out for an arena that does not exist yet.
TEST(Checkpointer, a_load_may_begin_before_the_rank_has_its_memory) {
  Job& job = *test_job();
  for (const bool is_damaged : {false, true}) {
    Rank rank(job);
    fill_state(rank, 1);
    const std::string saved = local_state(rank);
    ASSERT_TRUE(rank.checkpoints->begin({.steps = 4, .samples = 8}));
    ASSERT_TRUE(rank.checkpoints->finish());
    rank.checkpoints.reset();
    fill_state(rank, 2);
    const std::string before = local_state(rank);
    CheckpointSearch search(rank.dir, rank.attempt, job);
    ASSERT_TRUE(search.next());
    ASSERT_TRUE(search.found());
    if (is_damaged && job.world_rank() == 0) {
      const StoredShard& shard = search.manifest()->tensors.front().shards.front();
      const std::string path = search.found()->folder + "/" + shard.file;
      std::string bytes = read_all(path);
      char& byte = bytes[static_cast<size_t>(shard.offset)];
      byte = static_cast<char>(byte ^ 1);
      write_all(path, bytes);
    }
    job.barrier();
    MemoryGeneration generation{.found = *search.found()};
    Arena measuring;
    const StoreTensors absent = allocate_store(rank.config, rank.mesh, measuring);
    std::unique_ptr<HostBuffer<char>> none;
    auto load = StateLoad::begin({.from = generation.found,
                                  .manifest = search.manifest(),
                                  .readers = generation.readers,
                                  .job = job,
                                  .device = *rank.device},
                                 state_shards(rank.config, rank.mesh, absent), none);
    ASSERT_TRUE(load) << load.error().message;
    EXPECT_EQ(job.all_gather(job.world_rank()).size(), static_cast<size_t>(job.world_size()));
    rank.checkpoints = std::make_unique<Checkpointer>(rank.context(job), std::move(load).value());
    const auto loaded = rank.checkpoints->finish_begun(generation, 3);
    EXPECT_EQ(loaded.ok(), !is_damaged);
    EXPECT_TRUE(local_state(rank) == (is_damaged ? before : saved));
    EXPECT_EQ(rank.checkpoints->saved_step(), is_damaged ? 0 : 3);
    // The checkpointer has its memory either way.
    ASSERT_TRUE(rank.checkpoints->begin({.steps = 5, .samples = 10}));
    ASSERT_TRUE(rank.checkpoints->finish());
  }
}

// A checkpoint written by rank 0, and the requests of every rank: of each tensor its share of the last dim and one more
// element, and the first elements of the first tensor.
class Loading {
 public:
  explicit Loading(Job& job)
      : job_(job),
        dir_(job.broadcast((std::filesystem::temp_directory_path() / ("load_test_" + new_attempt())).string())),
        folder_(attempt_folder(dir_, 1, "a")) {
    tensors_ = {make_tensor(1, "model/large", StoredType::kF32, {512, 384}),
                make_tensor(2, "model/many", StoredType::kBf16, {21, 31, 16}),
                make_tensor(3, "model/small", StoredType::kF32, {33})};
    write();
    const int64_t ranks = job.world_size(), rank = job.world_rank();
    for (const TestTensor& tensor : tensors_) {
      const size_t dim = tensor.shape.size() - 1;
      Region region = full_region(tensor.shape);
      const int64_t size = tensor.shape[dim], begin = size * rank / ranks;
      region.start[dim] = begin;
      region.extent[dim] = std::min(size, size * (rank + 1) / ranks + 1) - begin;
      shards_.push_back(tensor.shard(region));
      region = full_region(tensor.shape);
      region.extent[0] = 1;
      shards_.push_back(tensor.shard(region));
    }
  }
  ~Loading() {
    job_.barrier();
    std::error_code ignored;
    if (job_.world_rank() == 0) std::filesystem::remove_all(dir_, ignored);
  }

  // The large tensor is one shard: reading it for another rank must not need its whole size in memory.
  void write() {
    if (job_.world_rank() == 0) {
      const std::vector<TestTensor> large = {tensors_[0]}, others = {tensors_[1], tensors_[2]};
      manifest_ = value_or_throw(write_checkpoint(dir_, 1, "a", large, 1, 1, 5));
      const std::string first = folder_ + "/" + shard_name(0), kept = dir_ + "/kept";
      std::filesystem::rename(first, kept);
      Manifest rest = value_or_throw(write_checkpoint(dir_, 1, "a", others, 3, 7, 6));
      for (FileRecord& file : rest.files) {
        std::filesystem::rename(folder_ + "/" + file.name, folder_ + "/other_" + file.name);
        file.name = "other_" + file.name;
        manifest_.files.push_back(file);
      }
      for (TensorRecord& tensor : rest.tensors) {
        for (StoredShard& shard : tensor.shards) shard.file = "other_" + shard.file;
        manifest_.tensors.push_back(tensor);
      }
      std::filesystem::rename(kept, first);
    }
    job_.barrier();
  }

  const Manifest* manifest() const { return job_.world_rank() == 0 ? &manifest_ : nullptr; }
  std::vector<LoadTarget> targets() {
    std::vector<LoadTarget> targets;
    filled_.clear();
    for (const TensorShard& shard : shards_)
      filled_.emplace_back(static_cast<size_t>(num_elements(shard.region.extent) * element_bytes(shard.type)), '\0');
    for (size_t i = 0; i < shards_.size(); ++i)
      targets.push_back({&shards_[i], reinterpret_cast<char*>(filled_[i].data())});
    return targets;
  }
  void expect_filled() const {
    for (size_t i = 0; i < shards_.size(); ++i) {
      const TestTensor& tensor = tensors_[i / 2];
      EXPECT_EQ(filled_[i], cut(tensor.bytes, tensor.shape, shards_[i].region, tensor.width())) << tensor.name;
    }
  }
  void expect_converted() const {
    for (size_t i = 0; i < shards_.size(); ++i) {
      const TestTensor& tensor = tensors_[i / 2];
      const Bytes stored = cut(tensor.bytes, tensor.shape, shards_[i].region, tensor.width());
      Bytes expected(filled_[i].size());
      for (size_t e = 0; e < stored.size() / static_cast<size_t>(tensor.width()); ++e) {
        uint16_t upper = 0;  // upper half of the number as f32
        float number = 0;
        if (tensor.type == StoredType::kF32) {
          std::memcpy(&number, stored.data() + 4 * e, 4);
          upper = bf16(number).bits;
          std::memcpy(expected.data() + 2 * e, &upper, 2);
        } else {
          std::memcpy(&upper, stored.data() + 2 * e, 2);
          number = std::bit_cast<float>(uint32_t{upper} << 16);
          std::memcpy(expected.data() + 4 * e, &number, 4);
        }
      }
      EXPECT_EQ(filled_[i], expected) << tensor.name;
    }
  }
  int64_t stored() const {
    int64_t bytes = 0;
    for (const TestTensor& tensor : tensors_) bytes += static_cast<int64_t>(tensor.bytes.size());
    return bytes;
  }
  Result<int64_t> load() {
    const std::vector<LoadTarget> wanted = targets();
    const auto share = plan_load(manifest(), wanted, job_, kLimits);
    if (!share) return share.error();
    return load_shards(folder_, share.value(), wanted, job_, kLimits);
  }
  std::vector<TensorShard>& shards() { return shards_; }
  const std::string& folder() const { return folder_; }

  static constexpr LoadLimits kLimits{.block_bytes = 4096, .window_bytes = 10'000, .max_threads = 2};

 private:
  Job& job_;
  const std::string dir_, folder_;
  std::vector<TestTensor> tensors_;
  Manifest manifest_;
  std::vector<TensorShard> shards_;
  std::vector<Bytes> filled_;
};

TEST(Load, shards_are_read_once_and_passed_on_in_little_memory) {
  Job& job = *test_job();
  Loading loading(job);
  const std::vector<LoadTarget> targets = loading.targets();
  const LoadShare share = value_or_throw(plan_load(loading.manifest(), targets, job, Loading::kLimits));
  const int64_t before = held;
  most_held = before;
  const auto read = load_shards(loading.folder(), share, targets, job, Loading::kLimits);
  const int64_t most = most_held - before;
  ASSERT_TRUE(read) << read.error().message;
  loading.expect_filled();
  int64_t all = 0;
  for (const int64_t of_rank : job.all_gather(read.value())) all += of_rank;
  EXPECT_EQ(all, loading.stored());
  // Counted in addition to the data: lists of blocks and messages, open files. The large shard has 768 KiB.
  constexpr int64_t kLists = 64 << 10;
  EXPECT_LE(most, load_bytes(Loading::kLimits) + kLists);
}

// Ranks request bf16 of data stored in f32, and vice versa, for shards that they read and that they receive.
TEST(Load, f32_and_bf16_are_converted_on_the_way) {
  Loading loading(*test_job());
  for (TensorShard& shard : loading.shards())
    shard.type = shard.type == StoredType::kF32 ? StoredType::kBf16 : StoredType::kF32;
  const auto loaded = loading.load();
  ASSERT_TRUE(loaded) << loaded.error().message;
  loading.expect_converted();
}

TEST(Load, what_fails_on_one_rank_is_the_same_error_on_all_and_the_next_load_works) {
  Job& job = *test_job();
  Loading loading(job);
  const std::pair<const char*, std::function<void(const std::string&)>> faults[] = {
      {"damaged",
       [](const std::string& path) {
         std::string bytes = read_all(path);
         bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
         write_all(path, bytes);
       }},
      {"bytes, but the manifest says",
       [](const std::string& path) { std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1); }}};
  for (const auto& [text, inflict] : faults) {
    if (job.world_rank() == 0) inflict(loading.folder() + "/" + shard_name(0));
    job.barrier();
    const auto loaded = loading.load();
    ASSERT_FALSE(loaded);
    EXPECT_NE(loaded.error().message.find(text), std::string::npos) << loaded.error().message;
    EXPECT_NE(loaded.error().message.find(shard_name(0)), std::string::npos) << loaded.error().message;
    for (const std::string& message : job.all_gather(loaded.error().message))
      EXPECT_EQ(message, loaded.error().message);
    loading.write();
    ASSERT_TRUE(loading.load());
    loading.expect_filled();
  }
}

TEST(Load, a_failed_query_of_one_rank_is_the_same_error_on_all) {
  Job& job = *test_job();
  Loading loading(job);
  const int last = job.world_size() - 1;
  if (job.world_rank() == last) loading.shards()[0].shape[0] = 513;
  const auto loaded = loading.load();
  ASSERT_FALSE(loaded);
  for (const std::string& message : job.all_gather(loaded.error().message))
    EXPECT_EQ(message, fmt::format("{}tensor model/large is f32 [512, 384], expected f32 [513, 384]",
                                   last == 0 ? "" : fmt::format("rank {}: ", last)));
}

// Rank 0 reads the manifest of the whole job. As JSON values alone it would need eight times the size of its text.
TEST(Load, reading_a_manifest_takes_the_memory_of_its_text_and_records) {
  if (test_job()->world_rank() != 0) return;
  constexpr int64_t kWriters = 1500, kRows = 3;
  const TemporaryFolder dir;
  {
    Manifest manifest{.attempt = "a", .step = 1};
    for (int64_t w = 0; w < kWriters; ++w) manifest.files.push_back({shard_name(static_cast<int>(w)), 1 << 20, 0});
    for (const char* name : {"model/a", "model/b", "optimizer/a/exp_avg", "optimizer/b/exp_avg"}) {
      TensorRecord tensor{name, StoredType::kF32, {kWriters * kRows, 64}, {}};
      const int64_t offset = static_cast<int64_t>(manifest.tensors.size()) << 16;
      for (int64_t w = 0; w < kWriters; ++w)
        tensor.shards.push_back({manifest.files[static_cast<size_t>(w)].name,
                                 fmt::format("{}/at_{}_0", name, w * kRows),
                                 offset,
                                 {{w * kRows, 0}, {kRows, 64}},
                                 random_u64(1, static_cast<uint64_t>(w))});
      manifest.tensors.push_back(std::move(tensor));
    }
    value_or_throw(write_manifest(dir.path(), manifest));
  }
  const auto text = static_cast<int64_t>(std::filesystem::file_size(dir / kManifestName));
  ASSERT_GT(text, 500'000);
  const int64_t before = held;
  most_held = before;
  const auto manifest = read_manifest(dir.path());
  const int64_t most = most_held - before;
  ASSERT_TRUE(manifest) << manifest.error().message;
  EXPECT_LE(most, 5 * text) << text;
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) { return tri::run_mp_tests(argc, argv); }
