#include "lib/bench/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <numeric>
#include <thread>

#include "io/base/clock.h"
#include "io/base/folder_entries.h"
#include "io/base/format.h"
#include "io/base/median.h"
#include "io/base/random.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/shard_writer.h"
#include "io/checkpoint/verify.h"
#include "lib/bench/storage.h"
#include "lib/checkpoint/checkpointer.h"
#include "lib/train/trainer.h"

namespace tri {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
// The bench's own folder, removed at the end. Rank 0 creates and removes it.
class Folder {
 public:
  Folder(std::string path, bool mine) : path_(std::move(path)), mine_(mine) {
    std::error_code ignored;
    if (mine_) fs::create_directories(path_, ignored);
  }
  ~Folder() { empty(true); }
  // Removes the contents, and waits until the file system has done so.
  void empty(bool itself = false) {
    std::error_code ignored;
    if (!mine_) return;
    fs::remove_all(path_, ignored);
    if (!itself) fs::create_directories(path_, ignored);
    if (!itself) wait_for_writeback(path_);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool mine_;
};

Result<void> check_space(const std::string& dir, int64_t needed) {
  std::error_code problem;
  fs::create_directories(dir, problem);
  const auto space = fs::space(dir, problem);
  if (problem) return file_error("{}: {}", dir, problem.message());
  if (static_cast<int64_t>(space.available) < needed)
    return file_error("{}: only {} are free, but the benchmark needs {}; name another folder with --dir", dir,
                      format_bytes(static_cast<int64_t>(space.available)), format_bytes(needed));
  return {};
}

class Bench {
 public:
  Bench(const Config& config, const Mesh& mesh, Job& job, Device& device, Arena& arena, Folder& folder,
        const CheckpointBench& bench)
      : config_(config),
        job_(job),
        device_(device),
        folder_(folder),
        rounds_(bench.rounds),
        stall_only_(bench.stall_only),
        trainer_({.config = config, .mesh = mesh, .job = &job, .device = device, .arena = arena}),
        attempt_(job.broadcast(new_attempt())),
        checkpoints_({.config = config,
                      .requested = config,
                      .mesh = mesh,
                      .job = job,
                      .device = device,
                      .compute = trainer_.runtime().compute(),
                      .store = trainer_.store().memory.tensors(),
                      .attempt = attempt_}) {
    trainer_.make_start_values();
    if (trainer_.must_load_kernels()) trainer_.load_kernels();
    tokens_.resize(static_cast<size_t>(microbatches(config) * config.data.micro_batch * config.model.seq_len /
                                       config.parallel.cp));
    for (size_t i = 0; i < tokens_.size(); ++i)
      tokens_[i] = static_cast<int32_t>(random_u64(static_cast<uint64_t>(mesh.joint_axis(kSampleAxes).rank), i) %
                                        static_cast<uint64_t>(config.model.vocab));
  }

  Result<CheckpointBenchResult> run() {
    result_.ranks = job_.world_size();
    std::vector measures{&Bench::measure_copies, &Bench::measure_stall};
    if (!stall_only_)
      measures.insert(measures.end(), {&Bench::measure_writing, &Bench::measure_loading, &Bench::measure_verifying});
    for (const auto& measure : measures)
      if (auto done = (this->*measure)(); !done) return done.error();
    return result_;
  }

 private:
  struct Timed {
    Result<void> result;
    double seconds;
  };

  // Times an action from the start of all ranks to the end of the last one.
  Timed timed(const std::function<Result<void>()>& action) {
    job_.barrier();
    const auto start = Clock::now();
    const Result<void> mine = action();
    job_.barrier();
    const double seconds = seconds_since(start);
    return {agree(job_, mine), seconds};
  }

  // `measured` returns its own seconds, or 0 for the elapsed time. `before` runs untimed before each of the two.
  Result<void> compare(CheckpointRow row, const std::function<Result<void>()>& before,
                       const std::function<Result<double>()>& measured, const std::function<Result<void>()>& floor) {
    std::vector<double> our_seconds, floor_seconds, speeds;
    for (int round = 0; round <= rounds_; ++round) {
      double mine = 0, plain = 0;
      for (const bool first : {true, false}) {
        if (auto ready = agree(job_, before()); !ready) return ready;
        if (first == (round % 2 == 0)) {
          const Timed whole = timed([&]() -> Result<void> {
            const auto seconds = measured();
            if (!seconds) return seconds.error();
            mine = seconds.value();
            return {};
          });
          if (!whole.result) return whole.result;
          if (mine == 0) mine = whole.seconds;
        } else {
          const Timed whole = timed(floor);
          if (!whole.result) return whole.result;
          plain = whole.seconds;
        }
      }
      if (round == 0) continue;  // the first round touches pages of memory for the first time
      our_seconds.push_back(mine);
      floor_seconds.push_back(plain);
      speeds.push_back(plain / mine);
    }
    row.bytes = result_.bytes;
    row.seconds = median(our_seconds);
    row.floor_seconds = median(floor_seconds);
    row.speed = median(speeds);
    result_.rows.push_back(std::move(row));
    return {};
  }

  // Saves one checkpoint without steps. The figures are rank 0's.
  Result<CheckpointStats> save() {
    if (auto begun = checkpoints_.begin({.steps = ++saved_, .samples = saved_}); !begun) return begun.error();
    checkpoints_.before_update();
    if (auto done = checkpoints_.finish(); !done) return done.error();
    const auto published = checkpoints_.published();
    return published.empty() ? CheckpointStats{} : published.back();
  }
  std::string checkpoint_folder() const { return config_.checkpoint.dir + "/" + step_name(saved_); }
  std::string local_shard() const { return checkpoint_folder() + "/" + shard_name(job_.world_rank()); }
  std::vector<std::string> checkpoint_files() const {
    std::vector<std::string> files;
    std::error_code problem;
    for (const auto& entry : entries_of(checkpoint_folder(), problem)) files.push_back(entry.path());
    if (problem) throw Fatal(ExitCode::kFile, fmt::format("{}: {}", checkpoint_folder(), problem.message()));
    return files;
  }

  // Measures the snapshot by itself against a copy of the same number of bytes.
  Result<void> measure_copies() {
    const auto stats = agree(job_, save());
    if (!stats) return stats.error();
    std::error_code problem;
    local_bytes_ = static_cast<int64_t>(fs::file_size(local_shard(), problem));
    if (problem) throw Fatal(ExitCode::kFile, fmt::format("{}: {}", local_shard(), problem.message()));
    job_.barrier();  // rank 0 empties the folder next
    result_.bytes = stats.value().bytes;
    const int64_t local = checkpoints_.host_bytes();
    HostBuffer<char> host(device_, static_cast<size_t>(local));
    const Tensor from = trainer_.store().memory.tensors().chunks.front().gradients;
    Stream& compute = trainer_.runtime().compute();
    const auto copy_once = [&]() -> Result<void> {
      // Copies the same number of bytes, in the largest copies that one tensor allows.
      for (int64_t at = 0; at < local; at += from.bytes())
        compute.copy(host.data() + at, from.data, std::min(from.bytes(), local - at));
      compute.synchronize();
      return {};
    };
    const auto before = [&]() -> Result<void> {
      folder_.empty();
      return {};
    };
    const auto snapshot = [&]() -> Result<double> {
      const auto saved = save();
      if (!saved) return saved.error();
      return job_.world_rank() == 0 ? saved.value().copy_seconds : 1.0;
    };
    const auto done = compare({.name = "snapshot", .floor = "one copy"}, before, snapshot, copy_once);
    if (done) result_.copy_seconds = result_.rows.back().floor_seconds;
    return done;
  }

  // `part`: the outcome of this rank's part of the checkpoint in progress, which the step reports.
  double step(PartOutcome part, StepResult& result) {
    const StepStatistics local{.saved = part == PartOutcome::kSaved ? 1.0f : 0.0f,
                               .failed = part == PartOutcome::kFailed ? 1.0f : 0.0f};
    const auto start = Clock::now();
    result = trainer_.step(steps_++, tokens_, tokens_, local, [this] { checkpoints_.before_update(); });
    return seconds_since(start);
  }

  Result<void> measure_stall() {
    std::vector<double> plain, stalls, alongside;
    StepResult result;
    for (int i = 0; i < 2; ++i) step(PartOutcome::kNone, result);
    for (int round = 0; round < rounds_; ++round) {
      folder_.empty();
      job_.barrier();
      const double without = (step(PartOutcome::kNone, result) + step(PartOutcome::kNone, result)) / 2;
      const auto start = Clock::now();
      if (auto begun = checkpoints_.begin({.steps = ++saved_, .samples = saved_}); !begun) return begun;
      step(checkpoints_.part_outcome(), result);
      const double with = seconds_since(start);
      double extra = with - without;
      for (bool published = false; !published;) {
        const double seconds = step(checkpoints_.part_outcome(), result);
        if (auto advanced = checkpoints_.advance(result.sums.num_saved(), result.sums.num_failed()); !advanced)
          return advanced;
        extra += seconds - without;
        published = job_.broadcast(!checkpoints_.published().empty());
      }
      plain.push_back(without);
      stalls.push_back(with - without);
      alongside.push_back(extra);
    }
    result_.step_seconds = median(plain);
    result_.stall_seconds = median(stalls);
    result_.beside_seconds = median(alongside);
    return {};
  }

  // Measures durable files of all ranks, index and manifest against one file of the same size per rank.
  Result<void> measure_writing() {
    const auto before = [&]() -> Result<void> {
      folder_.empty();
      return {};
    };
    const auto measured = [&]() -> Result<double> {
      const auto saved = save();
      if (!saved) return saved.error();
      return job_.world_rank() == 0 ? saved.value().seconds - saved.value().copy_seconds : 1.0;
    };
    const std::string path = fmt::format("{}/plain_{}", folder_.path(), job_.world_rank());
    return compare({.name = "write", .floor = "plain writes, fsync"}, before, measured,
                   [&] { return plain_write(path, local_bytes_); });
  }

  Result<void> drop_files() {
    if (job_.world_rank() != 0) return {};
    const auto dropped = drop_from_cache(checkpoint_files());
    if (!dropped) return dropped.error();
    result_.cold = result_.cold && dropped.value();
    return {};
  }

  Result<void> measure_loading() {
    folder_.empty();
    if (auto saved = save(); !saved) return saved.error();
    const auto measured = [&]() -> Result<double> {
      CheckpointSearch search(config_.checkpoint.dir, attempt_, job_);
      if (auto found = search.next(); !found) return found.error();
      auto loaded = checkpoints_.load(search);
      if (!loaded) return loaded.error();
      if (!loaded.value())
        return file_error("{}: the checkpoint that was just written cannot be loaded", checkpoint_folder());
      return 0.0;
    };
    return compare(
        {.name = "load", .floor = "plain reads"}, [&] { return drop_files(); }, measured,
        [&] { return plain_read({local_shard()}); });
  }

  // Measures verification by one process, as in `trireme checkpoint verify`.
  Result<void> measure_verifying() {
    const bool active = job_.world_rank() == 0;
    const auto measured = [&]() -> Result<double> {
      if (!active) return 0.0;
      const auto report = verify(checkpoint_folder(), static_cast<int>(std::thread::hardware_concurrency()));
      if (!report) return report.error();
      if (!report.value().problems.empty()) return file_error("{}", report.value().problems.front());
      return 0.0;
    };
    return compare(
        {.name = "verify", .floor = "plain reads, one process"}, [&] { return drop_files(); }, measured,
        [&] { return active ? plain_read(checkpoint_files()) : Result<void>{}; });
  }

  const Config& config_;
  Job& job_;
  Device& device_;
  Folder& folder_;
  const int rounds_;
  const bool stall_only_;
  Trainer trainer_;
  const std::string attempt_;
  Checkpointer checkpoints_;
  std::vector<int32_t> tokens_;
  int64_t steps_ = 0, saved_ = 0;
  int64_t local_bytes_ = 0;  // of this rank's file
  CheckpointBenchResult result_;
};

}  // namespace

Result<CheckpointBenchResult> bench_checkpoint(const Config& original, const Mesh& mesh, Job& job, Device& device,
                                               const CheckpointBench& bench) {
  const std::string dir = bench.dir.empty() ? fs::path(original.checkpoint.dir).parent_path().string() : bench.dir;
  Folder folder(dir + "/bench_" + job.broadcast(new_attempt()), job.world_rank() == 0);
  Config config = original;
  config.checkpoint.dir = folder.path();
  config.checkpoint.max_failures = 1;
  // Uses the fewest microbatches that keep all stages busy: what a checkpoint adds to a step does not depend on its
  // length.
  config.data.batch_ramp.clear();
  config.data.global_batch =
      int64_t{mesh.joint_axis(kSampleAxes).size} * config.data.micro_batch * mesh.axis("pp").size;

  Arena measuring(device);
  const RankTensors tensors = allocate_rank(config, mesh, measuring);
  const int64_t local = state_buffer(state_shards(config, mesh, tensors.store)).bytes;
  Result<void> fits;
  if (local > bench.most_bytes)
    fits = usage_error(
        "the state takes {} bytes per rank, more than --most-bytes {}; use more ranks, or fewer layers with --set "
        "model.layers=N",
        local, bench.most_bytes);
  if (auto agreed = agree(job, fits); !agreed) return agreed.error();
  const std::vector<int64_t> of_ranks = job.all_gather(local);
  const int64_t all = std::accumulate(of_ranks.begin(), of_ranks.end(), int64_t{0});
  // Space for the checkpoint and the plain files, or for two checkpoints, plus a margin.
  const Result<void> space = job.world_rank() == 0 ? check_space(dir, 2 * all + all / 10 + (64 << 20)) : Result<void>{};
  if (auto agreed = agree(job, space); !agreed) return agreed.error();

  Arena arena(device, measuring.used());
  auto result = Bench(config, mesh, job, device, arena, folder, bench).run();
  job.barrier();  // no rank reads the folder while it is removed
  return result;
}

}  // namespace tri
