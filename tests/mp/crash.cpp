// Kills ranks of a training job at chosen moments of a save: the newest checkpoint is always complete and correct, and
// the run continues from it.
//   mp_crash MPIRUN TRIREME [KILLS] [SEED] [ERRORS]       TRIREME is built with tests/storage/points.cpp
// KILLS 0, the default: every phase of a save on every rank once, on the first layouts of kLayouts; else on all.
//
// A chain is one run folder. One job after another is started in it, and in each job one rank is killed at one storage
// call of its first or second save (during a write: half-way). Every phase of a save on every rank is hit equally
// often; the call within the phase is chosen at random. After each kill the folder is compared with an undisturbed run
// of the same config: its newest valid checkpoint must be no older than the published one, with the same shards and
// checksums as the other run's checkpoint of that step, and its files must match the checksums. Then follow jobs of a
// few steps, in each of which one storage call fails or takes long: the folder must fulfil the same conditions. Finally
// the chain's run finishes undisturbed: its losses equal those of the other run.
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "io/base/log.h"
#include "io/base/random.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/manifest.h"
#include "io/checkpoint/verify.h"
#include "tests/mp/run_program.h"
#include "tests/storage/points.h"

namespace tri {
namespace {

namespace fs = std::filesystem;

constexpr int kKeepLast = 2;
constexpr int kCountedSaves = 6;
constexpr int kFirstLayouts = 2;
constexpr int kMostPhases = 40;     // of all ranks of a layout
constexpr int64_t kErrorSteps = 3;  // of a job with a storage error
constexpr const char* kErrors[] = {"fail=EIO", "fail=ENOSPC", "fail=ESTALE", "fail=EACCES", "sleep=1"};
constexpr std::chrono::seconds kTimeout{600};  // a job that takes longer hangs

struct Layout {
  const char* name;
  int ranks;
  const char* settings;
};
constexpr Layout kLayouts[] = {{"dp 2, zero 1", 2, "parallel.dp=2 parallel.zero=1"},
                               {"pp 2 x dp 2, zero 2", 4, "parallel.pp=2 parallel.dp=2 parallel.zero=2"},
                               {"tp 2", 2, "parallel.tp=2"},
                               {"dp 3, zero 0", 3, "parallel.dp=3 parallel.zero=0"}};

// Returns a program's exit status, or 128 + the signal. Fails if it hangs.
int run(const Strings& command, const Strings& settings, const std::string& output) {
  const std::optional<int> status = run_program(command, settings, output, kTimeout);
  require(status.has_value(), "hangs: {}\n{}", fmt::join(command, " "), read_all(output));
  return *status;
}

struct Point {
  int rank = 0;
  std::string phase;
  int64_t a_save = 0;  // number of these points per save
};

class Chain {
 public:
  Chain(const std::string& mpirun, const std::string& program, const std::string& folder, const Layout& layout,
        int64_t steps)
      : mpirun_(mpirun), program_(program), folder_(folder), layout_(layout), steps_(steps) {
    fs::create_directories(folder);
  }

  // Runs the undisturbed run, and counts the points of each phase per save and rank.
  void prepare() {
    require(train("whole", steps_, steps_, {}) == 0, "the whole run failed:\n{}", output());
    for (const CheckpointEntry& entry : value_or_throw(list_checkpoints(folder_ + "/whole/checkpoints")))
      expected_[entry.step] = value_or_throw(read_manifest(entry.path));
    require(static_cast<int64_t>(expected_.size()) == steps_, "{} checkpoints of {}", expected_.size(), steps_);
    // The chain begins with a few steps, so that every later save has an old checkpoint to remove.
    require(train("run", kCountedSaves, kKeepLast, {}) == 0, "the first steps failed:\n{}", output());
    for (int rank = 0; rank < layout_.ranks; ++rank) {
      std::map<std::string, int64_t> counts;
      for (const std::string& line : lines_of(trace(rank))) ++counts[line.substr(0, line.find(' '))];
      for (const char* phase : kStoragePhases) {
        const int64_t saves = std::string(phase) == "prune" ? kCountedSaves - kKeepLast : kCountedSaves;
        if (counts[phase] >= saves) points_.push_back({rank, phase, counts[phase] / saves});
      }
    }
    newest_ = kCountedSaves;
  }
  const std::vector<Point>& points() const { return points_; }

  // Starts a job that is killed at the `number`th point of its kind; returns false when no steps are left to train.
  void kill_at(const Point& point, int64_t number) {
    const int status = train("run", steps_, kKeepLast, fmt::format("{}/{}/{}/kill", point.rank, point.phase, number));
    const std::string what =
        fmt::format("{}: rank {} killed at point {} of {}", layout_.name, point.rank, number, point.phase);
    require(status == 137, "{}: the job ended with status {}\n{}", what, status, output());
    // The step that rank 0 had begun to publish, and the one that it had published, when it was killed.
    int64_t begun = newest_, published = newest_;
    const Strings reached = lines_of(trace(0));
    const auto is_begin = [](const std::string& line) { return line.rfind("begin ", 0) == 0; };
    if (std::any_of(reached.begin(), reached.end(), is_begin)) require_resumed();  // else it died while cleaning up
    for (size_t i = 0; i < reached.size(); ++i) {
      if (reached[i].rfind("publish step_", 0) != 0) continue;
      begun = std::stoll(reached[i].substr(std::string("publish step_").size()));
      if (i + 1 < reached.size()) published = begun;
    }
    const std::string last = lines_of(trace(point.rank)).back();
    require(last.rfind(point.phase + " ", 0) == 0, "{}: it died at {}", what, last);
    check(published, begun, what);
  }

  // Runs a job of kErrorSteps steps, in which the `number`th point of its kind fails. A transient error costs nothing,
  // because the call is repeated. After any other error training continues without that checkpoint; the status is 3 if
  // the last one could not be saved. Returns false if the job did not reach such a point.
  bool fail_at(const Point& point, int64_t number, const std::string& error) {
    const int64_t last = newest_ + kErrorSteps;
    const std::string what =
        fmt::format("{}: rank {}, point {} of {}: {}", layout_.name, point.rank, number, point.phase, error);
    const int status =
        train("run", last, kKeepLast, fmt::format("{}/{}/{}/{}", point.rank, point.phase, number, error));
    const bool transient = error != "fail=ENOSPC" && error != "fail=EACCES";
    require(status == 0 || (!transient && status == static_cast<int>(ExitCode::kFile)),
            "{}: the job ended with status {}\n{}", what, status, output());
    require_resumed();
    check(status == 0 ? last : newest_, last, what);
    const Strings reached = lines_of(trace(point.rank));
    return std::count_if(reached.begin(), reached.end(),
                         [&](const std::string& line) { return line.rfind(point.phase + " ", 0) == 0; }) >= number;
  }

  // Checks that the newest checkpoint is one of those steps and equals the other run's checkpoint of that step.
  void check(int64_t first, int64_t last, const std::string& what) {
    int64_t newest = 0;
    for (const CheckpointEntry& entry : value_or_throw(list_checkpoints(checkpoints()))) {
      if (!entry.valid) continue;
      newest = std::max(newest, entry.step);
      const Manifest manifest = value_or_throw(read_manifest(entry.path));
      require(expected_.count(entry.step) == 1 && manifest.tensors == expected_[entry.step].tensors &&
                  manifest.info.numbers == expected_[entry.step].info.numbers,
              "{}: {} is not what a run without kills has", what, entry.path);
      const auto report = verify(entry.path, 1);
      require(report && report.value().problems.empty(), "{}: {}: {}", what, entry.path,
              report ? report.value().problems.front() : report.error().message);
    }
    require(newest >= first && newest <= last, "{}: the newest checkpoint is of step {}, not {} to {}", what, newest,
            first, last);
    newest_ = newest;
  }

  void finish() {
    require(train("run", steps_, kKeepLast, {}) == 0, "the last job failed:\n{}", output());
    require_resumed();
    check(steps_, steps_, "the last job");
    const Strings whole = curve("whole"), mine = curve("run");
    require(static_cast<int64_t>(mine.size()) == steps_ && mine == whole,
            "{}: the losses differ from a run without kills", layout_.name);
  }

  // Returns the point that a later start must clean up, if any: an unfinished attempt.
  std::optional<Point> cleaning() const {
    for (const auto& entry : fs::directory_iterator(checkpoints()))
      if (entry.path().filename().string().find(".tmp.") != std::string::npos) return Point{0, "cleaning", 1};
    return std::nullopt;
  }
  bool room() const { return newest_ + 4 + kErrorSteps < steps_; }
  const Layout& layout() const { return layout_; }
  int64_t newest() const { return newest_; }

 private:
  std::string checkpoints() const { return folder_ + "/run/checkpoints"; }
  std::string output() const { return read_all(folder_ + "/output"); }
  std::string trace(int rank) const { return fmt::format("{}/trace.{}", folder_, rank); }

  void require_resumed() const {
    require(output().find(fmt::format("resumed from run/checkpoints/{}:", step_name(newest_))) != std::string::npos,
            "not resumed from step {}:\n{}", newest_, output());
  }

  int train(const std::string& dir, int64_t steps, int64_t keep_last, const std::string& rules) {
    for (int rank = 0; rank < layout_.ranks; ++rank) fs::remove(trace(rank));
    Strings command = {mpirun_, "-n",          std::to_string(layout_.ranks), "--wdir", folder_, program_,
                       "train", "../tiny.yaml"};
    Strings settings = {"run.dir=" + dir, fmt::format("run.steps={}", steps), fmt::format("lr.decay_steps={}", steps_),
                        fmt::format("checkpoint.keep_last={}", keep_last)};
    std::istringstream words(layout_.settings);
    for (std::string word; words >> word;) settings.push_back(word);
    for (const std::string& setting : settings) command.insert(command.end(), {"--set", setting});
    // The other ranks get no time: they could not react to a signal.
    return run(command,
               {"OMPI_MCA_odls_base_sigkill_timeout=0",
                // Memory that killed ranks share, and their flight recorders, are removed with the chain.
                "OMPI_MCA_btl_vader_backing_directory=" + folder_, "OMPI_MCA_osc_sm_backing_directory=" + folder_,
                "TRIREME_BLACK_BOXES=" + folder_, "TRIREME_TEST_STORAGE=" + folder_ + "/" + dir + "/checkpoints",
                "TRIREME_TEST_STORAGE_RULES=" + rules, "TRIREME_TEST_STORAGE_TRACE=" + folder_ + "/trace"},
               folder_ + "/output");
  }

  // Returns step, loss and gradient norm of every step in metrics.jsonl, without those that were lost at a restart.
  Strings curve(const std::string& dir) const {
    Strings kept;
    for (const std::string& line : lines_of(folder_ + "/" + dir + "/metrics.jsonl")) {
      long restart = 0, step = 0, lost = 0;
      if (std::sscanf(line.c_str(), "{\"restart\":%ld,\"step\":%ld,\"lost_steps\":%ld", &restart, &step, &lost) == 3)
        kept.resize(kept.size() - static_cast<size_t>(lost));
      std::string text;
      for (const char* key : {"\"step\":", "\"loss\":", "\"grad_norm\":"}) {
        const size_t at = line.find(key);
        if (at != std::string::npos) text += line.substr(at, line.find_first_of(",}", at) - at) + " ";
      }
      if (text.find("loss") != std::string::npos) kept.push_back(text);
    }
    return kept;
  }

  const std::string mpirun_, program_, folder_;
  const Layout layout_;
  const int64_t steps_;
  std::map<int64_t, Manifest> expected_;
  std::vector<Point> points_;
  int64_t newest_ = 0;
};

// Counts how often every phase was hit, over all chains.
class Tally {
 public:
  void add(const Point& point) {
    const std::lock_guard lock(mutex_);
    ++phases_[point.phase];
    ++ranks_[point.rank];
    ++kills_;
  }
  void add_error() {
    const std::lock_guard lock(mutex_);
    ++errors_;
  }
  int kills() const { return kills_; }
  int errors() const { return errors_; }
  void print() const {
    for (const char* phase : kStoragePhases)
      if (phases_.count(phase) != 0) fmt::print("  {:<13} {}\n", phase, phases_.at(phase));
    for (const auto& [rank, count] : ranks_) fmt::print("  of rank {}     {}\n", rank, count);
  }
  bool covers(const char* phase) const { return phases_.count(phase) != 0; }

 private:
  std::mutex mutex_;
  std::map<std::string, int> phases_;
  std::map<int, int> ranks_;
  int kills_ = 0, errors_ = 0;
};

void run_chain(Chain& chain, int kills, int errors, uint64_t seed, Tally& tally) {
  const uint64_t key = derive_key(seed, chain.layout().name);
  uint64_t num_draws = 0;
  const auto draw = [&](int64_t below) {
    return static_cast<int64_t>(random_u64(key, num_draws++) % static_cast<uint64_t>(below));
  };
  chain.prepare();
  std::vector<Point> round;
  for (int kill = 0; kills > 0 ? kill < kills : kill == 0 || !round.empty(); ++kill) {
    require(chain.room(), "{}: the run is too short for {} kills", chain.layout().name, kill);
    // Uses each kind once, in a new random order, then all of them again.
    if (round.empty()) {
      round = chain.points();
      for (size_t i = round.size(); i-- > 1;)
        std::swap(round[i], round[static_cast<size_t>(draw(static_cast<int64_t>(i) + 1))]);
    }
    const std::optional<Point> cleaning = chain.cleaning();
    if (cleaning && draw(8) == 0) {
      chain.kill_at(*cleaning, 1 + draw(2));
      tally.add(*cleaning);
      continue;
    }
    const Point point = round.back();
    round.pop_back();
    chain.kill_at(point, 1 + draw(2 * point.a_save));
    tally.add(point);
  }
  for (int error = 0; error < errors; ++error) {
    require(chain.room(), "{}: the run is too short for {} errors", chain.layout().name, errors);
    const Point& point = chain.points()[static_cast<size_t>(draw(static_cast<int64_t>(chain.points().size())))];
    if (chain.fail_at(point, 1 + draw(kErrorSteps * point.a_save), kErrors[draw(std::size(kErrors))]))
      tally.add_error();
  }
  chain.finish();
}

int crash(const std::string& mpirun, const std::string& program, int kills, int errors, uint64_t seed) {
  std::string folder = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm/trireme-XXXXXX" : "/tmp/trireme-XXXXXX";
  require(::mkdtemp(folder.data()) != nullptr, "no temporary folder");
  std::ofstream(folder + "/tiny.yaml") << R"(
run: {name: tiny, eval_batches: 0, sample_tokens: 0, device: cpu}
model: {layers: 2, hidden: 16, heads: 2, vocab: 257, seq_len: 16}
data: {sources: [../text], global_batch: 6, tokenizer: bytes}
lr: {peak: 1e-2}
checkpoint: {every: 1}
)";
  std::ofstream text(folder + "/text.txt");
  for (int i = 0; i < 400; ++i) text << i << " green bottles hanging on the wall\n";
  text.close();
  require(run({program, "data", "prepare", "--tokenizer", "bytes", "--output", folder + "/text", folder + "/text.txt"},
              {}, folder + "/output") == 0,
          "{}", read_all(folder + "/output"));

  fmt::print("seed {}\n", seed);
  const int num_chains = kills == 0 ? kFirstLayouts : static_cast<int>(std::size(kLayouts));
  const int share = (kills + num_chains - 1) / num_chains, error_share = (errors + num_chains - 1) / num_chains;
  Tally tally;
  std::atomic<int> next{0}, failures{0};
  const auto work = [&] {
    for (int c = next++; c < num_chains; c = next++) {
      const Layout& layout = kLayouts[c];
      try {
        Chain chain(mpirun, program, fmt::format("{}/chain{}", folder, c), layout,
                    2 * (share > 0 ? share : kMostPhases) + kErrorSteps * (error_share + 1) + kCountedSaves + 5);
        run_chain(chain, share, error_share, seed, tally);
        fmt::print("ok {}: killed{}, {} errors, then the same losses as without\n", layout.name,
                   share > 0 ? fmt::format(" {} times", share) : " in each phase", error_share);
      } catch (const std::exception& problem) {
        fmt::print("FAILED {} (seed {}): {}\n", layout.name, seed, problem.what());
        ++failures;
      }
      std::fflush(stdout);
    }
  };
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < std::max(2u, std::min(4u, std::thread::hardware_concurrency() / 2)); ++i)
    workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  fmt::print("{} storage calls failed or were slow\n{} kills, by phase of the save:\n", tally.errors(), tally.kills());
  if (2 * tally.errors() < errors) {
    fmt::print("FAILED: most of {} errors never occurred\n", errors);
    ++failures;
  }
  tally.print();
  for (const char* phase : kStoragePhases)
    if ((kills == 0 || kills >= 200) && !tally.covers(phase) &&
        std::string(phase) != "replace") {  // no step is saved twice here
      fmt::print("FAILED: no kill in phase {}\n", phase);
      ++failures;
    }
  fs::remove_all(folder);  // can be reproduced from the seed
  return failures;
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "mp_crash MPIRUN TRIREME [KILLS] [SEED] [ERRORS]\n");
    return 2;
  }
  try {
    return tri::crash(argv[1], std::filesystem::absolute(argv[2]), argc > 3 ? std::atoi(argv[3]) : 0,
                      argc > 5 ? std::atoi(argv[5]) : 12, argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 42);
  } catch (const std::exception& problem) {
    fmt::print("FAILED: {}\n", problem.what());
    return 1;
  }
}
