#include "tests/mp/hang_jobs.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <set>
#include <sstream>

#include "io/base/json.h"

namespace tri::hangs {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr int kBaseSteps = 2, kSteps = 8;
constexpr auto kTimeout = 180s;  // a job that takes longer never ends

// Returns the files of this name in all dumps of a run, in order.
std::set<std::string> dumped(const std::string& run, const char* name) {
  std::set<std::string> files;
  if (fs::exists(run + "/hang"))
    for (const auto& entry : fs::directory_iterator(run + "/hang"))
      if (const fs::path file = entry.path() / name; !entry.is_symlink() && fs::exists(file))
        files.insert(file.string());
  return files;
}

// Returns the last report of a run.
std::optional<Verdict> verdict_of(const std::string& run) {
  const std::set<std::string> reports = dumped(run, "report.json");
  if (reports.empty()) return std::nullopt;
  const auto json = nlohmann::json::parse(read_all(*reports.rbegin()));
  Verdict verdict{.kind = json.at("kind"), .headline = json.at("headline"), .suspects = {}};
  for (const auto& suspect : json.at("culprits"))
    verdict.suspects.push_back({suspect.at("rank").get<int>(), suspect.at("kind").get<std::string>()});
  return verdict;
}

nlohmann::json trigger_of(const std::string& file) { return nlohmann::json::parse(read_all(file)); }

// Returns the phase in which ranks stopped according to the last report; "": there is none.
std::string phase_of(const std::string& run) {
  const std::set<std::string> triggers = dumped(run, "trigger.json");
  return triggers.empty() ? "" : trigger_of(*triggers.rbegin()).at("phase");
}

// Returns what made a run dump its ranks before half of the deadline had passed; "": nothing. On a busy machine half of
// it may pass without a hang.
std::string early_alarm(const std::string& run) {
  for (const std::string& file : dumped(run, "trigger.json")) {
    const auto trigger = trigger_of(file);
    const std::string phase = trigger.at("phase");
    const double deadline = phase == "setup" || phase == "load" ? kStartDeadline : kDeadline;
    if (trigger.at("seconds").get<double>() < deadline / 2) return trigger.dump();
  }
  return "";
}

// Returns the processes of a job, whose environment contains `mark`.
std::vector<pid_t> processes_of(const std::string& mark) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (read_all("/proc/" + name + "/environ").find(mark) != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

// Returns the state of a process and its threads according to the kernel.
std::string description_of(pid_t process) {
  const std::string folder = fmt::format("/proc/{}", process);
  std::string text = fmt::format("process {}:\n", process);
  for (const std::string& line : lines_of(folder + "/status"))
    for (const char* field : {"State:", "PPid:", "Threads:", "SigPnd:", "ShdPnd:"})
      if (line.starts_with(field)) text += "  " + line + "\n";
  std::error_code gone;
  for (fs::directory_iterator thread(folder + "/task", gone); !gone && thread != fs::directory_iterator();
       thread.increment(gone)) {
    const std::string path = thread->path().string();
    text += fmt::format("  thread {}    {}\n", read_all(path + "/stat"), read_all(path + "/wchan"));
    for (const std::string& frame : lines_of(path + "/stack")) text += "    " + frame + "\n";
  }
  return text;
}

double seconds_of(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::string output(const std::string& folder) { return read_all(folder + "/output"); }
void copy_run(const std::string& base, const std::string& folder) {
  fs::create_directories(folder);
  fs::copy(base + "/run", folder + "/run", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

}  // namespace

bool is_right(const Case& c, const Outcome& outcome) {
  if (!outcome.verdict || outcome.status != 6) return false;
  const Expected expected = expected_of(c.place, c.action);
  const auto is_it = [&](const Verdict::Suspect& suspect) { return suspect.rank == c.rank; };
  const auto& suspects = outcome.verdict->suspects;
  if (suspects.empty() || outcome.verdict->kind != enum_name(expected.kind)) return false;
  if (expected.one_of_several) return std::any_of(suspects.begin(), suspects.end(), is_it);
  return std::all_of(suspects.begin(), suspects.end(), is_it);
}

std::optional<double> lateness_of(const Outcome& outcome) {
  if (!outcome.status || !outcome.seconds) return std::nullopt;
  return *outcome.seconds - outcome.deadline;
}

bool is_late(const Outcome& outcome) { return !outcome.status || lateness_of(outcome).value_or(0) > kEndsWithin; }

Jobs::Jobs(const std::string& mpirun, const std::string& program) : mpirun_(mpirun), program_(program) {
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
                      {}, output, kTimeout) == 0,
          "{}", read_all(output));
}

Jobs::~Jobs() {
  std::error_code failed;
  fs::remove_all(folder_, failed);  // can be reproduced from the seed
}

void Jobs::prepare(int layout) {
  const std::string base = base_of(layout), whole = folder_ + "/whole" + std::to_string(layout);
  fs::create_directories(base);
  require(train(layout, base, kBaseSteps, 1, {}) == 0, "{}: the first steps failed:\n{}", layout_at(layout).name,
          output(base));
  copy_run(base, whole);
  const std::string traces = whole + "/trace";
  require(train(layout, whole, kSteps, 1,
                {"TRIREME_TEST_HANG_TRACE=" + traces, "TRIREME_TEST_STORAGE_TRACE=" + traces,
                 "TRIREME_TEST_STORAGE_READS=" + traces}) == 0,
          "{}: the undisturbed run failed:\n{}", layout_at(layout).name, output(whole));
  for (const std::string& folder : {base, whole}) {
    const std::string early = early_alarm(folder + "/run");
    require(early.empty(), "{}: a false alarm: {}\n{}", layout_at(layout).name, early, output(folder));
  }
  std::map<std::pair<std::string, int>, int64_t> counts;
  for (int rank = 0; rank < layout_at(layout).ranks; ++rank)
    for (const std::string& line : lines_of(fmt::format("{}.{}", traces, rank)))
      for (const Place& place : places())
        // Lines about storage have a path after the place.
        if (line == place.name || (of_storage(place.name) && line.rfind(std::string(place.name) + " ", 0) == 0))
          ++counts[{place.name, rank}];
  const std::lock_guard lock(mutex_);
  occasions_[layout] = std::move(counts);
}

int64_t Jobs::occasions(int layout, const std::string& place, int rank) const {
  const auto& counts = occasions_.at(layout);
  const auto found = counts.find({place, rank});
  return found == counts.end() ? 0 : found->second;
}

Outcome Jobs::run(const Case& c, int number, double slower) {
  const std::string folder = fmt::format("{}/case{}", folder_, number), mark = folder + "/struck";
  copy_run(base_of(c.layout), folder);
  const std::string fifo = folder + "/never";
  require(::mkfifo(fifo.c_str(), 0600) == 0, "no FIFO {}", fifo);
  Strings settings{"TRIREME_TEST_STRUCK=" + mark};
  if (of_storage(c.place))
    settings.push_back(fmt::format("TRIREME_TEST_STORAGE_RULES={}{}", c.rule(), c.action == "fifo" ? "=" + fifo : ""));
  else
    settings.push_back("TRIREME_TEST_HANG=" + c.rule());
  Outcome outcome{.status = train(c.layout, folder, kSteps, slower, settings)};
  // mpirun may end before the last rank.
  const auto gone = std::chrono::steady_clock::now();
  const auto most = gone + std::chrono::duration<double>(kEndsWithin);
  std::vector<pid_t> left = processes_of(mark);
  std::string lasting;
  for (; !left.empty() && std::chrono::steady_clock::now() < most; left = processes_of(mark)) {
    if (lasting.empty() && std::chrono::steady_clock::now() > gone + 1s)
      for (const pid_t process : left) lasting += description_of(process);
    std::this_thread::sleep_for(50ms);
  }
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  outcome.orphans = static_cast<int>(left.size());
  for (const pid_t process : left) ::kill(process, SIGKILL);
  struct stat struck {};
  if (::stat(mark.c_str(), &struck) == 0) outcome.seconds = seconds_of(now) - seconds_of(struck.st_mtim);
  outcome.deadline = slower * c.deadline(phase_of(folder + "/run"));
  outcome.verdict = verdict_of(folder + "/run");
  outcome.output = output(folder);
  if (!lasting.empty()) outcome.output += "\na second after mpirun had ended:\n" + lasting;
  if (const auto reports = dumped(folder + "/run", "report.txt"); !reports.empty())
    outcome.output += "\n" + read_all(*reports.rbegin());
  fs::remove_all(folder);
  return outcome;
}

bool Jobs::use_is_watched() const {
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
      folder + "/output", kTimeout);
  const std::string said = output(folder);
  const auto says = [&](const char* words) { return said.find(words) != std::string::npos; };
  const bool right = status == 6 && says("rank 2 [") && says("is stopped by a signal in") &&
                     says("the job has no run folder") && !fs::exists(run + "/hang");
  fmt::print("{} eval, rank 2 stopped: status {}\n", right ? "right" : "WRONG", status.value_or(-1));
  if (!right) fmt::print("{}\n", said);
  std::fflush(stdout);
  return right;
}

std::optional<int> Jobs::train(int layout, const std::string& folder, int steps, double slower,
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
                         // What killed ranks leave in shared memory is removed with the case.
                         "OMPI_MCA_btl_vader_backing_directory=" + folder,
                         "OMPI_MCA_osc_sm_backing_directory=" + folder,
                         "TRIREME_TEST_STORAGE=" + folder + "/run/checkpoints"};
  if (gpus() == 0) environment.emplace_back("CUDA_VISIBLE_DEVICES=");
  environment.insert(environment.end(), settings.begin(), settings.end());
  return run_program(command, environment, folder + "/output", kTimeout);
}

}  // namespace tri::hangs
