// Ranks of a training job that hang at chosen moments: the job ends by itself with status 6, in time, without a process
// left, and its report names the rank that hangs and the kind of its trouble, and nobody else.
//   mp_hangs MPIRUN TRIREME [CASES] [SEED]     CASES 0: a few that are chosen; else so many, drawn from SEED
//   mp_hangs MPIRUN TRIREME LAYOUT RULE        one case
//   TRIREME_TEST_GPUS: on so many GPUs, two or four, instead of the CPU; drawn cases alone. Status 77 where there are fewer.
// TRIREME is built with tests/hangs/hangs.cpp and tests/storage/points.cpp.
//
// The chosen cases are part of the tests of every build, on whatever machine: one whose verdict is wrong or missing, or
// which ends late, is tried once more with doubled deadlines, and its line says so. Drawn cases have one try.
//
// Every job goes on from a checkpoint and passes through all phases: set-up, loading, steps, checkpoints, evaluations,
// samples, the end. One that nobody disturbs says how many occasions each rank has at each place; a case is an occasion
// and what happens there.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "io/base/random.h"
#include "lib/fault/hang_locator.h"
#include "tests/hangs/hangs.h"
#include "tests/mp/run_program.h"

namespace tri {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr int kBaseSteps = 2, kSteps = 8;
constexpr auto kPatience = 180s;  // a job that takes longer does not end
// Seconds, by the phase in which something hangs; until the first step all ranks start on few cores. Times `slower`.
constexpr double kDeadline = 12, kStartDeadline = 16;
constexpr double kEndsWithin = 5;     // seconds after the deadline
constexpr double kWrongShare = 0.01;  // of the verdicts, at most
constexpr int kGpuCases = 16;         // where no number is given
constexpr int kSkipped = 77;          // exit status

struct Layout {
  const char* name;  // tp x pp x dp
  int ranks;
  const char* settings;
};
const std::vector<Layout> kCpuLayouts = {
    {"2x2x2", 8, "parallel.tp=2 parallel.pp=2 parallel.dp=2"},
    {"1x4x2", 8, "parallel.tp=1 parallel.pp=4 parallel.dp=2"},
    {"2x2x2-messages", 8,
     "parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.tp_transfers=collectives parallel.pp_transfers=messages"},
    {"1x4x2-messages", 8,
     "parallel.tp=1 parallel.pp=4 parallel.dp=2 parallel.dp_transfers=collectives parallel.pp_transfers=messages"}};
const std::vector<Layout> kTwoGpuLayouts = {{"2x1x1", 2, "parallel.tp=2"},
                                            {"1x2x1", 2, "parallel.pp=2"},
                                            {"1x1x2", 2, "parallel.dp=2"},
                                            {"2x1x1-messages", 2, "parallel.tp=2 parallel.tp_transfers=collectives"},
                                            {"1x2x1-messages", 2, "parallel.pp=2 parallel.pp_transfers=messages"},
                                            {"1x1x2-messages", 2, "parallel.dp=2 parallel.dp_transfers=collectives"}};
const std::vector<Layout> kFourGpuLayouts = {
    {"2x2x1", 4, "parallel.tp=2 parallel.pp=2"},
    {"1x2x2", 4, "parallel.pp=2 parallel.dp=2"},
    {"2x2x1-messages", 4,
     "parallel.tp=2 parallel.pp=2 parallel.tp_transfers=collectives parallel.pp_transfers=messages"},
    {"1x2x2-messages", 4,
     "parallel.pp=2 parallel.dp=2 parallel.dp_transfers=collectives parallel.pp_transfers=messages"}};

// Of TRIREME_TEST_GPUS; 0: the CPU is tested.
int gpus() {
  static const int number = [] {
    const char* text = std::getenv("TRIREME_TEST_GPUS");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return number;
}
const std::vector<Layout>& layouts() {
  return gpus() == 0 ? kCpuLayouts : gpus() < 4 ? kTwoGpuLayouts : kFourGpuLayouts;
}
const Layout& layout_at(int index) { return layouts().at(static_cast<size_t>(index)); }
int num_layouts() { return static_cast<int>(layouts().size()); }

// Where something can hang, and how.
struct Place {
  const char* name;
  Strings actions;
};
const std::vector<Place>& places() {
  static const std::vector<Place> all = [] {
    std::vector<Place> made;
    for (const char* name : kHostPlaces) made.push_back({name, {"stop", "spin"}});
    for (const char* name : kComputePlaces) made.push_back({name, {"stop", "spin", "task"}});
    made.push_back({"data", {"stop", "sleep"}});
    for (const char* name :
         {"tp copies", "pp send forward", "pp receive forward", "pp send backward", "pp receive backward"})
      made.push_back({name, {"stop", "spin", "skip"}});
    // A bucket that is left out here is taken for the next one that comes: nobody waits before the last.
    made.push_back({"dp copies", {"stop", "spin"}});
    // Where one of MPI's collectives is left out the next one takes its place: mostly that is an error, and no hang.
    for (const char* name : {"tp", "dp"}) made.push_back({name, {"stop", "spin"}});
    for (const char* name : {"read", "shard", "shard-fsync", "shard-rename", "index", "manifest", "publish", "latest"})
      made.push_back({name, {"stop", "fifo"}});
    return made;
  }();
  return all;
}
bool of_storage(const std::string& place) {
  for (const char* name : {"read", "shard", "shard-fsync", "shard-rename", "index", "manifest", "publish", "latest"})
    if (place == name) return true;
  return false;
}

// What a report has to say.
struct Expected {
  HangKind kind;
  bool one_of_several = false;  // the rank is one of those in the circle, or at the transfer's ends
};
Expected expected_of(const std::string& place, const std::string& action) {
  if (action == "stop") return {HangKind::kProcessStopped};
  if (action == "spin") return {HangKind::kHostBusy};
  if (action == "task") return {HangKind::kDeviceBusy};
  if (action == "sleep") return {HangKind::kDataReader};
  if (action == "fifo") return {HangKind::kStorage};
  // One that goes by copies is lost; of others the program knows nothing, and waits in a circle.
  return {place.find("copies") != std::string::npos ? HangKind::kTransfer : HangKind::kCycle, true};
}

struct Case {
  int layout = 0, rank = 0;
  std::string place;
  int64_t number = 0;
  std::string action;

  std::string rule() const { return fmt::format("{}/{}/{}/{}", rank, place, number, action); }
  std::string text() const { return fmt::format("{:<14} {:<32}", layout_at(layout).name, rule()); }
  double deadline(double slower) const {
    return slower * (place == "setup" || place == "read" ? kStartDeadline : kDeadline);
  }
};

struct Verdict {
  std::string kind, headline;
  struct Culprit {
    int rank;
    std::string kind;
  };
  std::vector<Culprit> culprits;
};

struct Outcome {
  std::optional<int> status;      // none: it did not end
  std::optional<double> seconds;  // from the hang to the end; none: nothing hung
  double deadline = 0;            // seconds
  int orphans = 0;
  std::optional<Verdict> verdict;
  std::string output;  // and the last report
};

// Files of this name of all dumps of a run, in their order.
std::set<std::string> dumped(const std::string& run, const char* name) {
  std::set<std::string> files;
  if (fs::exists(run + "/hang"))
    for (const auto& entry : fs::directory_iterator(run + "/hang"))
      if (const fs::path file = entry.path() / name; !entry.is_symlink() && fs::exists(file))
        files.insert(file.string());
  return files;
}

// The last report of a run.
std::optional<Verdict> verdict_of(const std::string& run) {
  const std::set<std::string> reports = dumped(run, "report.json");
  if (reports.empty()) return std::nullopt;
  const auto json = nlohmann::json::parse(read_all(*reports.rbegin()));
  Verdict verdict{.kind = json.at("kind"), .headline = json.at("headline"), .culprits = {}};
  for (const auto& culprit : json.at("culprits"))
    verdict.culprits.push_back({culprit.at("rank").get<int>(), culprit.at("kind").get<std::string>()});
  return verdict;
}

// What made a run dump its ranks before half of the deadline had passed; "": nothing. On a busy machine half of it may
// pass without a hang.
std::string early_alarm(const std::string& run) {
  for (const std::string& file : dumped(run, "trigger.json")) {
    const std::string text = read_all(file);
    const auto trigger = nlohmann::json::parse(text);
    const std::string phase = trigger.at("phase");
    const double deadline = phase == "setup" || phase == "load" ? kStartDeadline : kDeadline;
    if (trigger.at("seconds").get<double>() < deadline / 2) return text;
  }
  return "";
}

// Nobody but the rank that hangs is named; of several that meet in what hangs, it is one.
bool is_right(const Case& c, const Outcome& outcome) {
  if (!outcome.verdict || outcome.status != 6) return false;
  const Expected expected = expected_of(c.place, c.action);
  const auto is_it = [&](const Verdict::Culprit& culprit) { return culprit.rank == c.rank; };
  const auto& culprits = outcome.verdict->culprits;
  if (culprits.empty() || outcome.verdict->kind != enum_name(expected.kind)) return false;
  if (expected.one_of_several) return std::any_of(culprits.begin(), culprits.end(), is_it);
  return std::all_of(culprits.begin(), culprits.end(), is_it);
}

// Seconds after its deadline; none: it did not end, or nothing hung.
std::optional<double> lateness_of(const Outcome& outcome) {
  if (!outcome.status || !outcome.seconds) return std::nullopt;
  return *outcome.seconds - outcome.deadline;
}
bool is_late(const Outcome& outcome) { return !outcome.status || lateness_of(outcome).value_or(0) > kEndsWithin; }

// Processes of a job: `mark` stands in their environment.
std::vector<pid_t> processes_of(const std::string& mark) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (read_all("/proc/" + name + "/environ").find(mark) != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

double seconds_of(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class Jobs {
 public:
  Jobs(const std::string& mpirun, const std::string& program) : mpirun_(mpirun), program_(program) {
    folder_ = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm/trireme-XXXXXX" : "/tmp/trireme-XXXXXX";
    require(::mkdtemp(folder_.data()) != nullptr, "no temporary folder");
    std::ofstream(folder_ + "/tiny.yaml") << fmt::format(
        R"(
run: {{name: tiny, device: {}, eval_every: 1, eval_batches: 1, sample_every: 3, sample_tokens: 2, gemm_search: false}}
model: {{layers: 4, {}, heads: 2, vocab: 257}}
data: {{sources: [{}/text], global_batch: 8, micro_batch: 1, tokenizer: bytes, shared: false}}
lr: {{peak: 1e-2, decay_steps: 100}}
checkpoint: {{every: 2}}
)",
        gpus() > 0 ? "cuda" : "cpu", gpus() > 0 ? "hidden: 128, seq_len: 128" : "hidden: 16, seq_len: 16", folder_);
    std::ofstream text(folder_ + "/text.txt");
    for (int i = 0; i < 4000; ++i) text << i << " green bottles hanging on the wall\n";
    text.close();
    const std::string output = folder_ + "/output";
    require(run_program({program_, "data", "prepare", "--tokenizer", "bytes", "--output", folder_ + "/text",
                         folder_ + "/text.txt"},
                        {}, output, kPatience) == 0,
            "{}", read_all(output));
  }
  ~Jobs() {
    std::error_code failed;
    fs::remove_all(folder_, failed);  // the seed brings it back
  }

  // The run of a layout that others go on from, and one that nobody disturbs: it comes to its end, and counts.
  void prepare(int layout) {
    const std::string base = base_of(layout), whole = folder_ + "/whole" + std::to_string(layout);
    fs::create_directories(base);
    require(train(layout, base, kBaseSteps, 1, {}) == 0, "{}: the first steps failed:\n{}", layout_at(layout).name,
            output(base));
    copy_run(base, whole);
    const std::string traces = whole + "/trace";
    require(train(layout, whole, kSteps, 1,
                  {"TRIREME_TEST_HANG_TRACE=" + traces, "TRIREME_TEST_STORAGE_TRACE=" + traces,
                   "TRIREME_TEST_STORAGE_READS=" + traces}) == 0,
            "{}: the run that nobody disturbs failed:\n{}", layout_at(layout).name, output(whole));
    const std::string early = early_alarm(whole + "/run");
    require(early.empty(), "{}: a false alarm: {}\n{}", layout_at(layout).name, early, output(whole));
    std::map<std::pair<std::string, int>, int64_t> counts;
    for (int rank = 0; rank < layout_at(layout).ranks; ++rank)
      for (const std::string& line : lines_of(fmt::format("{}.{}", traces, rank)))
        for (const Place& place : places())
          // Storage's lines have a path behind the place.
          if (line == place.name || (of_storage(place.name) && line.rfind(std::string(place.name) + " ", 0) == 0))
            ++counts[{place.name, rank}];
    const std::lock_guard lock(mutex_);
    occasions_[layout] = std::move(counts);
  }
  // How often the rank comes there.
  int64_t occasions(int layout, const std::string& place, int rank) const {
    const auto& counts = occasions_.at(layout);
    const auto found = counts.find({place, rank});
    return found == counts.end() ? 0 : found->second;
  }

  // `slower`: how many times as long the deadlines are.
  Outcome run(const Case& c, int number, double slower) {
    const std::string folder = fmt::format("{}/case{}", folder_, number), mark = folder + "/struck";
    copy_run(base_of(c.layout), folder);
    const std::string fifo = folder + "/never";
    require(::mkfifo(fifo.c_str(), 0600) == 0, "no FIFO {}", fifo);
    Strings settings{"TRIREME_TEST_STRUCK=" + mark};
    if (of_storage(c.place))
      settings.push_back(
          fmt::format("TRIREME_TEST_STORAGE_RULES={}{}", c.rule(), c.action == "fifo" ? "=" + fifo : ""));
    else
      settings.push_back("TRIREME_TEST_HANG=" + c.rule());
    Outcome outcome{.status = train(c.layout, folder, kSteps, slower, settings), .deadline = c.deadline(slower)};
    // mpirun may be gone before the last rank.
    const auto most = std::chrono::steady_clock::now() + std::chrono::duration<double>(kEndsWithin);
    std::vector<pid_t> left = processes_of(mark);
    for (; !left.empty() && std::chrono::steady_clock::now() < most; left = processes_of(mark))
      std::this_thread::sleep_for(50ms);
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    outcome.orphans = static_cast<int>(left.size());
    for (const pid_t process : left) ::kill(process, SIGKILL);
    struct stat struck {};
    if (::stat(mark.c_str(), &struck) == 0) outcome.seconds = seconds_of(now) - seconds_of(struck.st_mtim);
    outcome.verdict = verdict_of(folder + "/run");
    outcome.output = output(folder);
    if (const auto reports = dumped(folder + "/run", "report.txt"); !reports.empty())
      outcome.output += "\n" + read_all(*reports.rbegin());
    fs::remove_all(folder);
    return outcome;
  }

  // `trireme eval` of the first layout's run, in which a rank is stopped: ended and named as in training. It has no run
  // of its own, so the report is words on stderr.
  bool use_is_watched() const {
    const std::string folder = folder_ + "/use", run = base_of(0) + "/run";
    fs::create_directories(folder);
    Strings command = {mpirun_, "-n", "4", "--wdir", folder, program_, "eval", run};
    for (const char* phase : {"setup", "load"})
      command.insert(command.end(), {"--set", fmt::format("fault.{}_seconds={}", phase, kStartDeadline)});
    command.insert(command.end(), {"--set", fmt::format("fault.evaluation_seconds={}", kDeadline)});
    const auto status = run_program(
        command,
        {"OMPI_MCA_odls_base_sigkill_timeout=0", "TRIREME_BLACK_BOXES=" + folder,
         "OMPI_MCA_btl_vader_backing_directory=" + folder, "OMPI_MCA_osc_sm_backing_directory=" + folder,
         "CUDA_VISIBLE_DEVICES=", "TRIREME_TEST_HANG=2/evaluation/1/stop", "TRIREME_TEST_STRUCK=" + folder + "/struck"},
        folder + "/output", kPatience);
    const std::string said = output(folder);
    const auto says = [&](const char* words) { return said.find(words) != std::string::npos; };
    const bool right = status == 6 && says("rank 2 [") && says("stopped in") && says("this job has no run folder") &&
                       !fs::exists(run + "/hang");
    fmt::print("{} eval, rank 2 stopped: status {}\n", right ? "right" : "WRONG", status.value_or(-1));
    if (!right) fmt::print("{}\n", said);
    std::fflush(stdout);
    return right;
  }

 private:
  std::string base_of(int layout) const { return folder_ + "/base" + std::to_string(layout); }
  static std::string output(const std::string& folder) { return read_all(folder + "/output"); }
  static void copy_run(const std::string& base, const std::string& folder) {
    fs::create_directories(folder);
    fs::copy(base + "/run", folder + "/run", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }

  // In `folder`: the run, the ranks' black boxes, what they say.
  std::optional<int> train(int layout, const std::string& folder, int steps, double slower,
                           const Strings& settings) const {
    Strings command = {mpirun_,
                       "-n",
                       std::to_string(layout_at(layout).ranks),
                       "--wdir",
                       folder,
                       program_,
                       "train",
                       folder_ + "/tiny.yaml",
                       "--set",
                       "run.dir=run",
                       "--set",
                       fmt::format("run.steps={}", steps)};
    std::istringstream words(layout_at(layout).settings);
    for (std::string word; words >> word;) command.insert(command.end(), {"--set", word});
    for (const char* phase : {"setup", "load"})
      command.insert(command.end(), {"--set", fmt::format("fault.{}_seconds={}", phase, slower * kStartDeadline)});
    for (const char* phase : {"step", "checkpoint", "evaluation"})
      command.insert(command.end(), {"--set", fmt::format("fault.{}_seconds={}", phase, slower * kDeadline)});
    Strings environment = {"OMPI_MCA_odls_base_sigkill_timeout=0", "TRIREME_BLACK_BOXES=" + folder,
                           // What killed ranks leave of the memory that they share goes with the case.
                           "OMPI_MCA_btl_vader_backing_directory=" + folder,
                           "OMPI_MCA_osc_sm_backing_directory=" + folder,
                           "TRIREME_TEST_STORAGE=" + folder + "/run/checkpoints"};
    if (gpus() == 0) environment.emplace_back("CUDA_VISIBLE_DEVICES=");
    environment.insert(environment.end(), settings.begin(), settings.end());
    return run_program(command, environment, folder + "/output", kPatience);
  }

  const std::string mpirun_, program_;
  std::string folder_;
  std::mutex mutex_;
  std::map<int, std::map<std::pair<std::string, int>, int64_t>> occasions_;  // [layout][place, rank]
};

// Every kind of trouble, in every phase; the number of the occasion is drawn.
std::vector<Case> chosen_cases() {
  return {{0, 5, "forward", 0, "stop"},  {0, 2, "backward", 0, "spin"},        {0, 7, "tp copies", 0, "skip"},
          {0, 0, "data", 0, "sleep"},    {0, 6, "setup", 0, "stop"},           {1, 6, "shard", 0, "fifo"},
          {1, 4, "update", 0, "task"},   {1, 2, "pp send forward", 0, "skip"}, {1, 7, "evaluation", 0, "stop"},
          {1, 3, "dp copies", 0, "spin"}};
}

// A message whose receive is left out may wait in MPI's memory, and nobody misses anything.
bool hangs_there(const Case& c) {
  const bool messages = std::string_view(layout_at(c.layout).name).ends_with("messages");
  return !(c.action == "skip" && messages && c.place.find("receive") != std::string::npos);
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : key_(derive_key(seed, "hangs")) {}
  int64_t below(int64_t end) { return static_cast<int64_t>(random_u64(key_, drawn_++) % static_cast<uint64_t>(end)); }

 private:
  const uint64_t key_;
  uint64_t drawn_ = 0;
};

// Of those that the rank has. What is left out at the very end is missed by nobody.
int64_t draw_number(const Jobs& jobs, const Case& c, Draw& draw) {
  const int64_t occasions = jobs.occasions(c.layout, c.place, c.rank);
  require(occasions > 0, "{}: rank {} never comes to {}", layout_at(c.layout).name, c.rank, c.place);
  return 1 + draw.below(c.action == "skip" ? std::max<int64_t>(occasions / 2, 1) : occasions);
}

// Each place and action in turn, in an order drawn anew each time; layout and rank of those that come there.
std::vector<Case> drawn_cases(const Jobs& jobs, int count, Draw& draw) {
  std::vector<Case> cases;
  std::vector<std::pair<std::string, std::string>> round;
  while (static_cast<int>(cases.size()) < count) {
    if (round.empty()) {
      for (const Place& place : places())
        for (const std::string& action : place.actions) round.emplace_back(place.name, action);
      for (size_t i = round.size(); i-- > 1;)
        std::swap(round[i], round[static_cast<size_t>(draw.below(static_cast<int64_t>(i) + 1))]);
    }
    const auto [place, action] = round.back();
    round.pop_back();
    std::vector<Case> candidates;
    for (int layout = 0; layout < num_layouts(); ++layout)
      for (int rank = 0; rank < layout_at(layout).ranks; ++rank)
        if (const Case c{layout, rank, place, 0, action}; jobs.occasions(layout, place, rank) > 0 && hangs_there(c))
          candidates.push_back(c);
    require(!candidates.empty(), "no rank of any layout comes to {}", place);
    cases.push_back(candidates[static_cast<size_t>(draw.below(static_cast<int64_t>(candidates.size())))]);
    cases.back().number = draw_number(jobs, cases.back(), draw);
  }
  return cases;
}

// What came of the cases.
class Tally {
 public:
  // `tries`: up to this outcome.
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
    if (!right) fmt::print("{}\n", outcome.output);
    std::fflush(stdout);
  }
  // Whether all is well.
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

// Several at a time: jobs that hang hardly need a core.
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

// The chosen cases have two tries, and a job beside them that only uses a checkpoint.
bool hangs(Jobs& jobs, const std::function<std::vector<Case>()>& make_cases, const std::vector<int>& layouts,
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

int layout_of(const std::string& name) {
  for (int layout = 0; layout < num_layouts(); ++layout)
    if (name == layout_at(layout).name) return layout;
  throw Failure(fmt::format("no layout {}", name));
}

// The case of "RANK/PLACE/NUMBER/ACTION".
Case case_of(const std::string& layout, const std::string& rule) {
  Case c{.layout = layout_of(layout)};
  std::istringstream parts(rule);
  std::string rank, number;
  std::getline(parts, rank, '/');
  std::getline(parts, c.place, '/');
  std::getline(parts, number, '/');
  std::getline(parts, c.action, '/');
  c.rank = std::stoi(rank);
  c.number = std::stoll(number);
  return c;
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
  Jobs jobs(arguments[0], fs::absolute(arguments[1]));
  const bool one = arguments.size() == 4 && arguments[2].find_first_not_of("0123456789") != std::string::npos;
  if (one) {
    const Case c = case_of(arguments[2], arguments[3]);
    return hangs(
        jobs, [&] { return std::vector{c}; }, {c.layout}, 1);
  }
  const int count = arguments.size() > 2 ? std::stoi(arguments[2]) : gpus() > 0 ? kGpuCases : 0;
  const uint64_t seed = arguments.size() > 3 ? std::stoull(arguments[3]) : 42;
  fmt::print("seed {}\n", seed);
  Draw draw(seed);
  std::vector<int> all(layouts().size());
  std::iota(all.begin(), all.end(), 0);
  if (count > 0)
    return hangs(
        jobs, [&] { return drawn_cases(jobs, count, draw); }, all, 1);
  const auto chosen = [&] {
    std::vector<Case> cases = chosen_cases();
    for (Case& c : cases) c.number = draw_number(jobs, c, draw);
    return cases;
  };
  return hangs(jobs, chosen, {0, 1}, 2);
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "mp_hangs MPIRUN TRIREME [CASES] [SEED] | LAYOUT RULE\n");
    return 2;
  }
  try {
    if (!tri::enough_gpus()) {
      fmt::print("skipped: fewer GPUs than {}\n", tri::gpus());
      return tri::kSkipped;
    }
    return tri::main_of({argv + 1, argv + argc}) ? 0 : 1;
  } catch (const std::exception& problem) {
    fmt::print("FAILED: {}\n", problem.what());
    return 1;
  }
}
