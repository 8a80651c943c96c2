// A supervised run with a fault at a random moment: it recovers automatically, excludes only the faulty node, has the
// losses of an undisturbed run bit for bit, and repeats no step that a checkpoint contained.
//   mp_heal MPIRUN TRIREME NVML [memory[=N]] [CASES] [SEED] [AT_ONCE]   CASES 0: a few chosen ones; else that many,
//     each fault in turn; AT_ONCE: runs that run concurrently (default 2), each with four ranks
//   mp_heal MPIRUN TRIREME NVML [memory[=N]] FAULT MOMENT   one case; MOMENT from 0, the start, to 1, the end
// memory: with checkpoints in memory every N steps (default 1): a fault repeats at most N steps unless it destroys the
// memory of a node and of its buddy.
// TRIREME is built with tests/nodes/host.cpp, tests/hangs/hangs.cpp and tests/storage/points.cpp, NVML is
// tests/nvml/fake.cpp. TRIREME_TEST_FOLDER: where run folders and checkpoints in memory go (default /dev/shm, about
// 30 MB a run). Nodes are names on this machine (tests/nodes/nodes.sh): two that train and a spare.
#include <fmt/ranges.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <span>

#include "io/base/error.h"
#include "io/base/file.h"
#include "io/base/json.h"
#include "io/base/random.h"
#include "tests/mp/run_program.h"

namespace tri {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr int kRanks = 4, kSteps = 240, kEvery = 20;
constexpr double kTimeout = 300;         // seconds; a run that takes longer does not heal
constexpr double kDeadline = 12;         // of a step, in seconds
constexpr double kLeave = 5;             // seconds until all processes have ended, after the driver
constexpr double kStart = 1;             // seconds that a rank needs to start
constexpr double kAddsUpWithin = 0.001;  // share of the wall time
constexpr int kMemorySaves = 60;         // steps between checkpoints on storage, with those in memory
constexpr double kWatchesSegments = 2;   // seconds in which a checkpoint in memory must begin
constexpr const char* kNodes[] = {"node0", "node1", "node2", "node3"};

// Happens to the rank, to its node or to the driver.
enum class Guilt { kNobody, kNode, kBothNodes };
struct Fault {
  const char* name;
  Guilt guilt;
  bool another_attempt;  // else the run continues
  const char* rule;      // a rule of hangs.h or points.h, "RANK/...", where '#' is a random number; "": none
};
constexpr Fault kFaults[] = {
    {"rank killed", Guilt::kNobody, true, ""},
    {"rank stopped", Guilt::kNobody, true, ""},
    {"rank stopped as it starts", Guilt::kNobody, true, ""},
    {"rank spins", Guilt::kNobody, true, "forward/#/spin"},
    {"node without power", Guilt::kNode, true, ""},
    {"agent killed", Guilt::kNobody, false, ""},
    {"agent stopped", Guilt::kNobody, false, ""},
    {"driver killed", Guilt::kNobody, true, ""},
    {"storage fails", Guilt::kNobody, false, "any/#/fail=EIO"},
    {"XID 79, rank killed", Guilt::kNode, true, ""},
    {"XID 13, rank killed", Guilt::kNobody, true, ""},
    {"recovery action, rank killed", Guilt::kNode, true, ""},
};
constexpr Fault kMemoryFaults[] = {
    {"rank killed", Guilt::kNobody, true, ""},
    {"rank stopped", Guilt::kNobody, true, ""},
    {"node without power", Guilt::kNode, true, ""},
    {"driver killed", Guilt::kNobody, true, ""},
    {"rank killed, bit flipped", Guilt::kNobody, true, ""},     // in its own segments: the buddy's copy serves
    {"rank killed, memory lost", Guilt::kNobody, true, ""},     // of a node and its buddy: storage serves
    {"both nodes without power", Guilt::kBothNodes, true, ""},  // which are buddies: the same
    {"rank killed in its snapshot", Guilt::kNobody, true, ""},  // while its segment is being written
    {"ranks killed in a copy", Guilt::kNobody, true, ""},       // all at once, while a copy of a buddy is
};
int memory_every = 0;  // steps; 0: no checkpoints in memory
std::span<const Fault> faults() {
  return memory_every > 0 ? std::span<const Fault>(kMemoryFaults) : std::span<const Fault>(kFaults);
}

struct Case {
  int fault = 0, rank = 0;
  double moment = 0;  // as a share of the undisturbed run's time
  const Fault& what() const { return faults()[static_cast<size_t>(fault)]; }
  bool is(std::string_view name) const { return name == what().name; }
  std::string node() const { return kNodes[rank / 2]; }
  bool memory_is_lost() const { return is("rank killed, memory lost") || is("both nodes without power"); }
  Strings nodes_at_fault() const {
    if (what().guilt == Guilt::kBothNodes) return {kNodes[0], kNodes[1]};
    return what().guilt == Guilt::kNode ? Strings{node()} : Strings();
  }
};

struct Outcome {
  std::optional<int> status;  // of the driver that finished; none: none did
  bool struck = false;        // whether the fault came before the end
  std::set<std::string> excluded;
  int attempts = 0;
  std::string losses;                         // of all steps
  int64_t repeated = 0;                       // most steps that a restart repeated
  std::string from;                           // where the state of the attempt after the fault came from; "": unknown
  int segments_left = 0;                      // in memory
  int processes_left = 0;                     // after the driver's end
  std::string lost;                           // steps that were repeated although a checkpoint contained them; "": none
  double adds_up_within = 1;                  // share of the wall time
  std::optional<double> detection, recovery;  // seconds
  std::string output;
};

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }
void pause() { std::this_thread::sleep_for(20ms); }

std::vector<Json> json_lines(const std::string& path) {
  std::vector<Json> lines;
  for (const std::string& line : lines_of(path))
    if (Json parsed = Json::parse(line, nullptr, false); parsed.is_object()) lines.push_back(std::move(parsed));
  return lines;
}

// Returns loss and gradient norm of every step, from the last time that it was done.
std::string losses_of(const std::string& run) {
  std::map<int64_t, std::string> steps;
  for (const Json& line : json_lines(run + "/metrics.jsonl")) {
    if (line.contains("restart")) {
      const int64_t from = line.value("step", int64_t{0});
      steps.erase(steps.upper_bound(from), steps.end());
    } else if (line.contains("step_ms")) {
      const int64_t step = line.at("step");
      steps[step] = fmt::format("{} {} {}\n", step, line.at("loss").dump(), line.at("grad_norm").dump());
    }
  }
  std::string text;
  for (const auto& [step, line] : steps) text += line;
  return text;
}

// Returns the most steps that were done before a restart and again after it.
int64_t repeated_steps(const std::string& run) {
  int64_t newest = 0, most = 0;
  for (const Json& line : json_lines(run + "/metrics.jsonl")) {
    if (line.contains("restart")) {
      const int64_t from = line.value("step", int64_t{0});
      most = std::max(most, newest - from);
      newest = from;
    } else if (line.contains("step_ms")) {
      newest = line.at("step");
    }
  }
  return most;
}

// Returns the last step that the run has done.
int64_t newest_step(const std::string& run) {
  const std::string text = read_all(run + "/metrics.jsonl");
  const size_t last = text.rfind("\"step_ms\"");
  if (last == text.npos) return 0;
  const size_t begin = text.rfind('\n', last) + 1;  // 0 in the first line
  const Json line = Json::parse(text.substr(begin, text.find('\n', last) - begin), nullptr, false);
  return line.is_object() ? line.value("step", int64_t{0}) : 0;
}

// Returns the segments in memory whose names contain all of `parts`.
Strings segments(const std::string& folder, const Strings& parts = {}) {
  Strings found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const auto has = [&](const std::string& part) { return name.find(part) != std::string::npos; };
    if (name.starts_with("trireme.memory.") && std::all_of(parts.begin(), parts.end(), has))
      found.push_back(entry.path().string());
  }
  return found;
}

void remove_all(const Strings& paths) {
  for (const std::string& path : paths) ::unlink(path.c_str());
}

// Kills processes at a moment at which a segment of `paths` is being written. Returns false if there was none.
bool kill_while_written(const Strings& paths, const std::vector<pid_t>& to) {
  constexpr uint64_t kWriting = 1;  // the state word of a segment, its first eight bytes (memory_segment.cpp)
  const auto send = [&](int signal) {
    for (const pid_t process : to) ::kill(process, signal);
  };
  std::vector<Descriptor> files;
  for (const std::string& path : paths) files.emplace_back(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto is_written = [](const Descriptor& file) {
    uint64_t state = 0;
    return ::pread(file.get(), &state, sizeof state, 0) == sizeof state && state == kWriting;
  };
  for (const double end = now() + kWatchesSegments; !to.empty() && now() < end;) {
    for (const Descriptor& file : files) {
      if (!is_written(file)) continue;
      send(SIGSTOP);  // so that it is still being written when they are killed
      const bool still = is_written(file);
      send(still ? SIGKILL : SIGCONT);
      if (still) return true;
    }
    std::this_thread::sleep_for(50us);
  }
  return false;
}

// Returns the processes of a case: their environments contain all entries, their command lines all words.
std::vector<pid_t> processes(const Strings& entries, const Strings& words) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = '\0' + read_all("/proc/" + name + "/environ");
    const std::string command = '\0' + read_all("/proc/" + name + "/cmdline");
    const auto in = [](const std::string& text, const std::string& part) {
      return text.find('\0' + part + '\0') != std::string::npos;
    };
    if (std::all_of(entries.begin(), entries.end(), [&](const auto& part) { return in(environment, part); }) &&
        std::all_of(words.begin(), words.end(), [&](const auto& part) { return in(command, part); }))
      found.push_back(std::stoi(name));
  }
  return found;
}

// A driver, and what is needed to restart it.
class Driver {
 public:
  Driver(Strings command, Strings environment, std::string output)
      : command_(std::move(command)), environment_(std::move(environment)), output_(std::move(output)) {
    start();
  }
  ~Driver() {
    if (process_ > 0) ::kill(process_, SIGKILL), ::waitpid(process_, nullptr, 0);
  }
  // Returns the exit status; none: it is running. A killed driver is restarted, as by slurm/train.sbatch.
  std::optional<int> status() {
    int status = 0;
    if (process_ < 0 || ::waitpid(process_, &status, WNOHANG) != process_) return std::nullopt;
    process_ = -1;
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    start();
    return std::nullopt;
  }
  pid_t process() const { return process_; }

 private:
  void start() {
    process_ = ::fork();
    require(process_ >= 0, "no process");
    if (process_ > 0) return;
    for (const std::string& entry : environment_) ::putenv(const_cast<char*>(entry.c_str()));
    std::vector<char*> argv;
    for (std::string& word : command_) argv.push_back(word.data());
    argv.push_back(nullptr);
    const int out = ::open(output_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666), in = ::open("/dev/null", O_RDONLY);
    if (out < 0 || in < 0) ::_exit(127);
    ::dup2(in, 0), ::dup2(out, 1), ::dup2(out, 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  Strings command_, environment_;
  std::string output_;
  pid_t process_ = -1;
};

class Runs {
 public:
  Runs(const std::string& mpirun, const std::string& program, const std::string& nvml)
      : mpirun_(fs::absolute(mpirun)), program_(fs::absolute(program)), nvml_(fs::absolute(nvml)) {
    nodes_ = fs::absolute(fs::path(mpirun)).parent_path().parent_path() / "tests/nodes/nodes.sh";
    const char* in = std::getenv("TRIREME_TEST_FOLDER");
    if (in == nullptr) in = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    folder_ = std::string(in) + "/trireme-XXXXXX";
    require(::mkdtemp(folder_.data()) != nullptr, "no temporary folder");
    std::ofstream(folder_ + "/heal.yaml") << fmt::format(R"(
run: {{name: heal, device: cpu, steps: {}, eval_every: 60, eval_batches: 1, sample_every: 100, sample_tokens: 2}}
model: {{layers: 4, hidden: 32, heads: 4, vocab: 257, seq_len: 64}}
data: {{sources: [{}/text], global_batch: 8, tokenizer: bytes}}
parallel: {{pp: 2, dp: 2}}
lr: {{peak: 1e-2, decay_steps: 1000}}
checkpoint: {{every: {}, memory_every: {}}}
fault: {{setup_seconds: 60, load_seconds: 60, step_seconds: {}, checkpoint_seconds: {}, evaluation_seconds: {}}}
)",
                                                         kSteps, folder_, memory_every > 0 ? kMemorySaves : kEvery,
                                                         memory_every, kDeadline, kDeadline, kDeadline);
    std::ofstream text(folder_ + "/text.txt");
    for (int i = 0; i < 2000; ++i) text << i << " green bottles hanging on the wall\n";
    text.close();
    const std::string output = folder_ + "/output";
    require(run_program({program_, "data", "prepare", "--tokenizer", "bytes", "--output", folder_ + "/text",
                         folder_ + "/text.txt"},
                        {}, output, 60s) == 0,
            "{}", read_all(output));
  }
  ~Runs() {
    std::error_code failed;
    fs::remove_all(folder_, failed);  // can be reproduced from the seed
  }

  // Runs without a fault: other runs are compared with its losses and its time.
  void undisturbed() {
    const double began = now();
    const Outcome whole = run(nullptr, 0);
    require(whole.status == 0 && whole.attempts == 1 && whole.excluded.empty() && whole.processes_left == 0,
            "the undisturbed run failed:\n{}", whole.output);
    require(std::count(whole.losses.begin(), whole.losses.end(), '\n') == kSteps, "the undisturbed run has {} steps",
            std::count(whole.losses.begin(), whole.losses.end(), '\n'));
    losses_ = whole.losses;
    seconds_ = now() - began;
  }
  const std::string& losses() const { return losses_; }

  // `c` null: no fault.
  Outcome run(const Case* c, int number) {
    const std::string folder = fmt::format("{}/case{}", folder_, number), mark = "TRIREME_TEST_CASE=" + folder;
    fs::create_directories(folder + "/nodes");
    Strings environment{mark,
                        "NODES=" + folder + "/nodes",
                        "MPIRUN=" + mpirun_,
                        "TRIREME_NVML=" + nvml_,
                        "TRIREME_BLACK_BOXES=" + folder,
                        "TRIREME_TEST_STRUCK=" + folder + "/struck",
                        "TRIREME_TEST_STORAGE=" + folder + "/run/checkpoints",
                        "CUDA_VISIBLE_DEVICES="};
    if (c != nullptr && *c->what().rule != '\0') environment.push_back(rule_of(*c));
    const bool two_spares = memory_every > 0;
    Driver driver({program_, "supervise", folder_ + "/heal.yaml", "--ranks", std::to_string(kRanks), "--hosts",
                   two_spares ? "node0,node1,node2,node3" : "node0,node1,node2", "--spares", two_spares ? "2" : "1",
                   "--launcher", nodes_ + " ranks {nodes}", "--agent-launcher", nodes_ + " agent {node}", "--set",
                   "run.dir=" + folder + "/run"},
                  environment, folder + "/output");
    Outcome outcome;
    const double began = now();
    double struck = 0;
    while (!outcome.status && now() - began < kTimeout) {
      pause();
      outcome.status = driver.status();
      if (c == nullptr || struck > 0 || outcome.status) continue;
      if (*c->what().rule != '\0') {
        if (fs::exists(folder + "/struck")) struck = now();
      } else if (is_time(*c, now() - began, folder + "/run") && strike(*c, mark, folder, driver.process())) {
        struck = now();
      }
    }
    // Agents and ranks that must exit may take a moment.
    std::vector<pid_t> left = processes({mark}, {});
    for (const double end = now() + kLeave; outcome.status && !left.empty() && now() < end;
         left = processes({mark}, {}))
      pause();
    outcome.processes_left = static_cast<int>(left.size());
    for (const pid_t process : left) ::kill(process, SIGKILL);
    outcome.segments_left = static_cast<int>(segments(folder).size());
    outcome.struck = struck > 0;
    judge(folder + "/run", struck, outcome);
    if (c == nullptr || !c->what().another_attempt) outcome.detection.reset();  // there was nothing to detect
    outcome.output = read_all(folder + "/output");
    std::error_code failed;
    if (std::getenv("KEEP") == nullptr) fs::remove_all(folder, failed);
    return outcome;
  }

 private:
  static std::string rule_of(const Case& c) {
    const int occasions = c.is("rank spins") ? kSteps : 40;  // forwards: two per step and rank; calls of storage
    std::string rule = fmt::format("{}/{}", c.rank, c.what().rule);
    rule.replace(rule.find('#'), 1, std::to_string(1 + static_cast<int>(c.moment * occasions)));
    return (c.is("rank spins") ? "TRIREME_TEST_HANG=" : "TRIREME_TEST_STORAGE_RULES=") + rule;
  }

  // Whether the moment of the fault has come, `seconds` after the driver's start. With checkpoints in memory most
  // faults strike at a step, however slow this machine is.
  bool is_time(const Case& c, double seconds, const std::string& run) const {
    constexpr double kAtStart = 0.1;  // earlier moments count from the driver's start
    if (memory_every > 0 && c.moment >= kAtStart) return static_cast<double>(newest_step(run)) > c.moment * kSteps;
    return c.is("rank stopped as it starts") || seconds > c.moment * seconds_;
  }

  // Returns false if there is nothing yet to which the fault could happen.
  static bool strike(const Case& c, const std::string& mark, const std::string& folder, pid_t driver) {
    const std::string node = "TRIREME_TEST_HOST=" + c.node();
    const auto send = [](const std::vector<pid_t>& to, int signal) {
      for (const pid_t process : to) ::kill(process, signal);
      return !to.empty();
    };
    const auto rank = [&] {
      return processes({mark, node, "OMPI_COMM_WORLD_RANK=" + std::to_string(c.rank)}, {"train"});
    };
    const auto agent = [&] { return processes({mark, node}, {"--agent"}); };
    if (c.is("rank stopped")) return send(rank(), SIGSTOP);
    if (c.is("rank stopped as it starts")) {
      if (rank().empty()) return false;
      std::this_thread::sleep_for(std::chrono::duration<double>(c.moment * kStart));
      return send(rank(), SIGSTOP);
    }
    if (c.is("agent killed")) return send(agent(), SIGKILL);
    if (c.is("agent stopped")) return send(agent(), SIGSTOP);
    if (c.is("driver killed")) return driver > 0 && !rank().empty() && ::kill(driver, SIGKILL) == 0;
    if (c.is("node without power") || c.is("both nodes without power")) {
      if (rank().empty() || agent().empty()) return false;
      for (const std::string& name : c.nodes_at_fault()) std::ofstream(folder + "/nodes/" + name) << "without power\n";
      for (const std::string& name : c.nodes_at_fault()) {
        const Strings on_it{mark, "TRIREME_TEST_HOST=" + name};
        for (auto left = processes(on_it, {}); send(left, SIGKILL); left = processes(on_it, {})) pause();
        remove_all(segments(folder, {"." + name + "."}));
      }
      return true;
    }
    if (rank().empty()) return false;
    const std::string gpus = folder + "/nodes/" + c.node() + ".nvml";
    if (c.is("XID 79, rank killed")) std::ofstream(gpus) << "xid=1:79";
    if (c.is("XID 13, rank killed")) std::ofstream(gpus) << "xid=1:13";
    if (c.is("recovery action, rank killed")) std::ofstream(gpus) << "recovery=1:1";
    if (memory_every == 0 || c.is("rank killed")) return send(rank(), SIGKILL);
    if (c.is("rank killed in its snapshot"))
      return kill_while_written(segments(folder, {fmt::format(".{:05d}.own.", c.rank)}), rank());
    if (c.is("ranks killed in a copy"))
      return kill_while_written(segments(folder, {fmt::format(".{:05d}.copy.", c.rank)}), processes({mark}, {"train"}));
    // All ranks at once: none goes on to replace what was damaged.
    if (segments(folder).empty() || !send(processes({mark}, {"train"}), SIGKILL)) return false;
    if (c.is("rank killed, memory lost")) remove_all(segments(folder));
    for (const std::string& path : segments(folder, {fmt::format(".{:05d}.own.", c.rank)})) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary | std::ios::ate);
      const auto at = static_cast<std::streamoff>(file.tellg()) - 4096 - 4000;  // in the payload, at its end
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ 16));
    }
    return true;
  }

  // Judges the files that the run has written.
  void judge(const std::string& run, double struck, Outcome& outcome) const {
    int64_t saved = 0;
    for (const Json& event : json_lines(run + "/events.jsonl")) {
      const std::string kind = event.at("kind");
      const Json& fields = event.at("fields");
      const double time = event.at("time");
      if (kind == "attempt_start") {
        ++outcome.attempts;
        const int64_t from = fields.at("checkpoint");
        if (from < saved) outcome.lost += fmt::format("begins at step {}, {} was saved; ", from, saved);
        if (struck > 0 && !outcome.detection && time > struck) outcome.detection = time - struck;  // by a new driver
      } else if (kind == "attempt_end") {
        saved = std::max<int64_t>(saved, fields.at("checkpoint"));
        const double noticed = fields.value("noticed", time);
        if (struck > 0 && !outcome.detection && noticed > struck) outcome.detection = noticed - struck;
      } else if (kind == "start" && struck > 0 && time > struck) {
        if (fields.at("step").get<int64_t>() < saved)
          outcome.lost += fmt::format("resumes from step {}, {} was saved; ", fields.at("step").dump(), saved);
        if (outcome.detection && !outcome.recovery) outcome.recovery = time - struck - *outcome.detection;
        if (outcome.from.empty()) outcome.from = fields.value("from", "");
      } else if (kind == "exclusion") {
        outcome.excluded.insert(event.at("host").get<std::string>());
      }
    }
    outcome.losses = losses_of(run);
    outcome.repeated = repeated_steps(run);
    const std::string report = run + "/time.json";
    if (run_program({program_, "report", run, "--time", "--json"}, {}, report, 60s) != 0) return;
    const Json time = Json::parse(read_all(report), nullptr, false);
    if (!time.is_object()) return;
    double sum = 0;
    for (const auto& [name, seconds] : time.at("seconds").items()) sum += seconds.get<double>();
    const double wall = time.at("wall_s");
    outcome.adds_up_within = std::abs(sum - wall) / wall;
  }

  const std::string mpirun_, program_, nvml_;
  std::string nodes_, folder_, losses_;
  double seconds_ = 0;
};

// Returns what is wrong with the outcome; "": nothing.
std::string wrong_with(const Case& c, const Outcome& outcome, const std::string& losses) {
  const Fault& fault = c.what();
  std::string wrong;
  if (!outcome.status) return "it did not end; ";
  if (outcome.status != 0) wrong += fmt::format("status {}; ", *outcome.status);
  std::set<std::string> faulty;
  if (outcome.struck)
    for (const std::string& node : c.nodes_at_fault()) faulty.insert(node);
  if (outcome.excluded != faulty) wrong += fmt::format("excluded: {}; ", fmt::join(outcome.excluded, ","));
  if (outcome.processes_left > 0) wrong += fmt::format("{} processes are left; ", outcome.processes_left);
  if (outcome.losses != losses) wrong += "other losses; ";
  if (memory_every > 0 && outcome.repeated > memory_every && !c.memory_is_lost())
    wrong += fmt::format("{} steps were repeated; ", outcome.repeated);
  // What was damaged or lost may not serve: only a copy, or storage if no generation was complete yet.
  const bool own = outcome.from == "memory", lost = own || outcome.from == "buddy";
  if ((own && (fault.guilt != Guilt::kNobody || c.is("rank killed, bit flipped"))) || (lost && c.memory_is_lost()))
    wrong += fmt::format("resumed from {}; ", outcome.from);
  if (outcome.segments_left > 0) wrong += fmt::format("{} segments are left; ", outcome.segments_left);
  if (!fault.another_attempt && outcome.attempts != 1) wrong += fmt::format("{} attempts; ", outcome.attempts);
  if (outcome.adds_up_within > kAddsUpWithin)
    wrong += fmt::format("time adds up within {:.2f} %; ", 100 * outcome.adds_up_within);
  return wrong + outcome.lost;
}

// Counts the results of the cases.
class Tally {
 public:
  void add(const Case& c, const Outcome& outcome, const std::string& losses) {
    const std::string wrong = wrong_with(c, outcome, losses);
    const std::lock_guard lock(mutex_);
    Row& row = rows_[c.what().name];
    ++row.cases;
    row.wrong += !wrong.empty();
    row.late += !outcome.struck;
    if (outcome.detection) row.detection.push_back(*outcome.detection);
    if (outcome.recovery) row.recovery.push_back(*outcome.recovery);
    ++row.from[outcome.from];
    row.repeated = std::max(row.repeated, outcome.repeated);
    fmt::print("{} {:<28} rank {} {:.2f}  {} attempts, excluded: {}{}{}{}{}\n", wrong.empty() ? "right" : "WRONG",
               c.what().name, c.rank, c.moment, outcome.attempts,
               outcome.excluded.empty() ? "none" : fmt::format("{}", fmt::join(outcome.excluded, ",")),
               outcome.detection ? fmt::format(", seen after {:.1f} s", *outcome.detection) : "",
               outcome.recovery ? fmt::format(", trains {:.1f} s later", *outcome.recovery) : "",
               outcome.from.empty() ? "" : fmt::format(", from {}, {} repeated", outcome.from, outcome.repeated),
               outcome.struck ? "" : ", nothing happened before the end");
    if (!wrong.empty()) fmt::print("  {}\n{}\n", wrong, outcome.output);
    std::fflush(stdout);
  }
  // Returns whether everything is as expected.
  bool print() const {
    int cases = 0, wrong = 0, late = 0;
    fmt::print("{:<28} {:>5} {:>5} {:>5}  {:>17}  {:>17}\n", "fault", "cases", "wrong", "late", "detection, s",
               "recovery, s");
    for (const auto& [name, row] : rows_) {
      fmt::print("{:<28} {:>5} {:>5} {:>5}  {:>17}  {:>17}{}\n", name, row.cases, row.wrong, row.late,
                 median_and_most(row.detection), median_and_most(row.recovery), origins(row));
      cases += row.cases;
      wrong += row.wrong;
      late += row.late;
    }
    fmt::print("{} of {} runs healed rightly (seconds: median, most)\n", cases - wrong, cases);
    // A run without its fault proves nothing; with few cases each one must get its fault.
    const bool shown = late <= cases / 4;
    if (!shown) fmt::print("FAILED: {} of {} faults never came\n", late, cases);
    return wrong == 0 && shown;
  }

 private:
  static std::string median_and_most(std::vector<double> seconds) {
    if (seconds.empty()) return "-";
    std::sort(seconds.begin(), seconds.end());
    return fmt::format("{:.1f}, {:.1f}", seconds[seconds.size() / 2], seconds.back());
  }
  struct Row {
    int cases = 0, wrong = 0, late = 0;
    std::vector<double> detection, recovery;
    std::map<std::string, int> from;  // cases by the origin of the state
    int64_t repeated = 0;             // steps, the most
  };
  // Returns "  at most 1 repeated; memory 12, nothing 1"; without checkpoints in memory "".
  static std::string origins(const Row& row) {
    if (memory_every == 0) return "";
    std::string text = fmt::format("  at most {} repeated", row.repeated);
    for (const auto& [from, cases] : row.from)
      if (!from.empty()) text += fmt::format("{} {} {}", text.find(';') == text.npos ? ";" : ",", from, cases);
    return text;
  }
  std::mutex mutex_;
  std::map<std::string, Row> rows_;
};

int fault_of(const std::string& name) {
  for (size_t fault = 0; fault < faults().size(); ++fault)
    if (name == faults()[fault].name) return static_cast<int>(fault);
  throw Failure(fmt::format("no fault {}", name));
}

std::vector<Case> randomized_cases(int count, uint64_t seed) {
  const uint64_t key = derive_key(seed, "heal");
  uint64_t num_draws = 0;
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Case c{.fault = i % static_cast<int>(faults().size())};
    c.rank = static_cast<int>(random_u64(key, num_draws++) % kRanks);
    c.moment = 0.9 * static_cast<double>(random_u64(key, num_draws++) % 10000) / 10000;
    cases.push_back(c);
  }
  return cases;
}

// Most of the time runs wait for a fault.
bool all_of(Runs& runs, const std::vector<Case>& cases, int at_once = 2) {
  runs.undisturbed();
  Tally tally;
  std::atomic<size_t> next{0};
  std::vector<std::thread> workers;
  for (int worker = 0; worker < at_once; ++worker)
    workers.emplace_back([&] {
      for (size_t i = next++; i < cases.size(); i = next++) {
        Case c = cases[i];
        Outcome outcome = runs.run(&c, static_cast<int>(i) + 1);
        // A run that is faster than the undisturbed one ends before its fault: tries an earlier moment.
        for (size_t attempt = 1; !outcome.struck && attempt <= 3; ++attempt) {
          c.moment /= 2;
          outcome = runs.run(&c, static_cast<int>(i + attempt * cases.size()) + 1);
        }
        tally.add(c, outcome, runs.losses());
      }
    });
  for (std::thread& worker : workers) worker.join();
  return tally.print();
}

bool main_of(Strings arguments) {
  if (arguments.size() > 3 && arguments[3].starts_with("memory")) {
    const size_t number = arguments[3].find('=');
    memory_every = number == std::string::npos ? 1 : std::stoi(arguments[3].substr(number + 1));
    arguments.erase(arguments.begin() + 3);
  }
  Runs runs(arguments[0], arguments[1], arguments[2]);
  if (arguments.size() == 5 && arguments[3].find_first_not_of("0123456789") != std::string::npos)
    return all_of(runs, {{fault_of(arguments[3]), 3, std::stod(arguments[4])}});
  const int count = arguments.size() > 3 ? std::stoi(arguments[3]) : 0;
  const uint64_t seed = arguments.size() > 4 ? std::stoull(arguments[4]) : 42;
  const int at_once = arguments.size() > 5 ? std::stoi(arguments[5]) : 2;
  fmt::print("seed {}\n", seed);
  if (count > 0) return all_of(runs, randomized_cases(count, seed), at_once);
  if (memory_every > 0)
    return all_of(runs, {{fault_of("rank killed"), 1, 0.4},
                         {fault_of("node without power"), 2, 0.5},
                         {fault_of("rank killed, bit flipped"), 3, 0.6},
                         {fault_of("rank killed, memory lost"), 0, 0.7},
                         {fault_of("ranks killed in a copy"), 2, 0.4}});
  return all_of(runs, {{fault_of("rank killed"), 1, 0.4}, {fault_of("driver killed"), 2, 0.6}});
}

}  // namespace
}  // namespace tri

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr,
               "mp_heal MPIRUN TRIREME NVML [memory[=N]] [CASES] [SEED] [AT_ONCE] | [memory[=N]] FAULT MOMENT\n");
    return 2;
  }
  try {
    return tri::main_of({argv + 1, argv + argc}) ? 0 : 1;
  } catch (const std::exception& problem) {
    fmt::print("FAILED: {}\n", problem.what());
    return 1;
  }
}
