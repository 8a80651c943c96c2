// Ranks of a training job hang at chosen moments: the job ends by itself with status 6, in time, without leaving a
// process, and its report names the hanging rank and the kind of fault, and no other rank.
//   mp_hangs MPIRUN TRIREME [CASES] [SEED]     CASES 0: a few chosen ones; else that many, at random from SEED
//   mp_hangs MPIRUN TRIREME LAYOUT RULE        one case
//   TRIREME_TEST_GPUS: runs on that many GPUs, two or four, instead of the CPU; only randomized cases. Status 77 if
//   there are fewer.
// TRIREME is built with tests/hangs/hangs.cpp and tests/storage/points.cpp.
//
// The chosen cases are part of the tests of every build, on any machine: a case whose verdict is wrong or missing, or
// which ends late, is repeated once with doubled deadlines, and its line says so. Randomized cases have one try.
//
// Every job continues from a checkpoint and passes all phases: set-up, loading, steps, checkpoints, evaluations,
// samples, end. An undisturbed job counts the occasions of each rank at each place; a case is an occasion and an
// action.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>

#include "tests/mp/hang_jobs.h"

namespace tri::hangs {
namespace {

constexpr double kWrongShare = 0.01;  // of the verdicts, at most
constexpr int kGpuCases = 16;         // if no number is given
constexpr int kSkipped = 77;          // exit status

// Counts the results of the cases.
class Tally {
 public:
  // `tries`: needed for this outcome.
  void add(const Case& c, const Outcome& outcome, int tries) {
    const bool right = is_right(c, outcome);
    const std::lock_guard lock(mutex_);
    ++cases_;
    wrong_ += !right;
    orphans_ += outcome.orphans;
    late_ += is_late(outcome);
    latest_ = std::max(latest_, lateness_of(outcome).value_or(0));
    const char* again = tries > 1 ? " (at the second try, with doubled deadlines)" : "";
    fmt::print("{} {} {}{}\n", right ? "right" : "WRONG", c.text(), text_of(outcome), again);
    if (!right || is_late(outcome) || outcome.orphans > 0) fmt::print("{}\n", outcome.output);
    std::fflush(stdout);
  }
  // Returns whether everything is as expected.
  bool print() const {
    fmt::print("{} of {} verdicts right; {} processes left; the last end {:.1f} s after its deadline\n",
               cases_ - wrong_, cases_, orphans_, latest_);
    if (late_ > 0) fmt::print("FAILED: {} jobs did not end within {} s of their deadline\n", late_, kEndsWithin);
    if (wrong_ > kWrongShare * cases_) fmt::print("FAILED: {} verdicts are wrong\n", wrong_);
    if (orphans_ > 0) fmt::print("FAILED: {} processes were left\n", orphans_);
    return late_ == 0 && wrong_ <= kWrongShare * cases_ && orphans_ == 0;
  }

 private:
  static std::string text_of(const Outcome& outcome) {
    std::string text = outcome.verdict ? outcome.verdict->headline : "no report";
    text += !outcome.status ? "; did not end" : fmt::format("; status {}", *outcome.status);
    text += outcome.seconds ? fmt::format(", {:.1f} s after the hang", *outcome.seconds) : ", nothing hung";
    if (const auto late = lateness_of(outcome)) text += fmt::format(", {:.1f} s after the deadline", *late);
    if (outcome.orphans > 0) text += fmt::format(", {} PROCESSES LEFT", outcome.orphans);
    return text;
  }

  std::mutex mutex_;
  int cases_ = 0, wrong_ = 0, orphans_ = 0, late_ = 0;
  double latest_ = 0;
};

// Runs several at a time: jobs that hang hardly need a core.
template <class Work>
void side_by_side(int count, const Work& work) {
  std::atomic<int> next{0};
  std::mutex mutex;
  std::string failure;
  std::vector<std::thread> workers;
  const unsigned at_a_time = gpus() > 0 ? 4 : std::clamp(2 * std::thread::hardware_concurrency(), 2u, 8u);
  for (unsigned i = 0; i < at_a_time; ++i)
    workers.emplace_back([&] {
      for (int item = next++; item < count; item = next++) try {
          work(item);
        } catch (const std::exception& problem) {
          const std::lock_guard lock(mutex);
          failure = problem.what();
        }
    });
  for (std::thread& worker : workers) worker.join();
  require(failure.empty(), "{}", failure);
}

// The chosen cases have two tries, and a job that only uses a checkpoint runs alongside them.
bool run_cases(Jobs& jobs, const std::function<std::vector<Case>()>& make_cases, const std::vector<int>& layouts,
               int tries) {
  side_by_side(static_cast<int>(layouts.size()), [&](int i) { jobs.prepare(layouts[static_cast<size_t>(i)]); });
  const std::vector<Case> cases = make_cases();
  Tally tally;
  const int uses = tries > 1 && gpus() == 0 ? 1 : 0;
  std::atomic<bool> use_is_watched{true};
  side_by_side(static_cast<int>(cases.size()) + uses, [&](int i) {
    if (i < uses) {
      use_is_watched = jobs.use_is_watched();
      return;
    }
    i -= uses;
    const Case& c = cases[static_cast<size_t>(i)];
    Outcome outcome = jobs.run(c, i, 1);
    int tried = 1;
    for (; tried < tries && outcome.orphans == 0 && (!is_right(c, outcome) || is_late(outcome)); ++tried)
      outcome = jobs.run(c, i, 2);
    tally.add(c, outcome, tried);
  });
  return tally.print() && use_is_watched;
}

bool enough_gpus() {
  if (gpus() == 0) return true;
  FILE* const list = ::popen("nvidia-smi -L 2>/dev/null", "r");
  require(list != nullptr, "no process can be started");
  int there = 0;
  for (char line[512]; std::fgets(line, sizeof line, list) != nullptr;)
    there += std::string_view(line).starts_with("GPU ");
  ::pclose(list);
  return there >= gpus();
}

bool main_of(const Strings& arguments) {
  Jobs jobs(arguments[0], std::filesystem::absolute(arguments[1]));
  const Occasions occasions = [&](int layout, const std::string& place, int rank) {
    return jobs.occasions(layout, place, rank);
  };
  const bool one = arguments.size() == 4 && arguments[2].find_first_not_of("0123456789") != std::string::npos;
  if (one) {
    const Case c = case_of(arguments[2], arguments[3]);
    return run_cases(
        jobs, [&] { return std::vector{c}; }, {c.layout}, 1);
  }
  const int count = arguments.size() > 2 ? std::stoi(arguments[2]) : gpus() > 0 ? kGpuCases : 0;
  const uint64_t seed = arguments.size() > 3 ? std::stoull(arguments[3]) : 42;
  fmt::print("seed {}\n", seed);
  Draw draw(seed);
  std::vector<int> all(layouts().size());
  std::iota(all.begin(), all.end(), 0);
  if (count > 0)
    return run_cases(
        jobs, [&] { return randomized_cases(occasions, count, draw); }, all, 1);
  return run_cases(
      jobs, [&] { return chosen_cases(occasions, draw); }, {0, 1}, 2);
}

}  // namespace
}  // namespace tri::hangs

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "mp_hangs MPIRUN TRIREME [CASES] [SEED] | LAYOUT RULE\n");
    return 2;
  }
  try {
    if (!tri::hangs::enough_gpus()) {
      fmt::print("skipped: fewer GPUs than {}\n", tri::hangs::gpus());
      return tri::hangs::kSkipped;
    }
    return tri::hangs::main_of({argv + 1, argv + argc}) ? 0 : 1;
  } catch (const std::exception& problem) {
    fmt::print("FAILED: {}\n", problem.what());
    return 1;
  }
}
