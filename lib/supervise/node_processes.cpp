#include "lib/supervise/node_processes.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "io/base/file.h"
#include "io/base/host.h"
#include "io/base/proc.h"
#include "io/base/text_file.h"
#include "io/base/within.h"

namespace tri {
namespace {

namespace fs = std::filesystem;

ProcessState state_in(const std::string& folder) {
  const auto stat = process_stat(folder);
  return stat ? process_state_from(stat->state) : ProcessState::kGone;
}

// Returns the world rank as the launcher numbers it, or -1.
int world_rank_in(std::string_view environment) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const auto text = variable_in(environment, name)) return std::atoi(std::string(*text).c_str());
  return -1;
}

// All processes except this one, with their folders in /proc.
std::vector<std::pair<pid_t, std::string>> processes() {
  std::vector<std::pair<pid_t, std::string>> found;
  for (const pid_t pid : process_ids())
    if (pid != ::getpid()) found.emplace_back(pid, process_folder(pid));
  return found;
}

// Whether agents of other nodes of the run are on this machine, which happens if node names are only labels.
bool has_other_agents(const RunOnNode& run) {
  const std::string command = std::string(1, '\0') + "supervise" + '\0' + "--agent" + '\0' + run.run_dir + '\0';
  for (const auto& [pid, folder] : processes()) {
    const std::string of_process = text_of(folder + "/cmdline");
    if (of_process.size() < command.size() ||
        of_process.compare(of_process.size() - command.size(), command.npos, command) != 0)
      continue;
    const std::string environment = text_of(folder + "/environ");
    if (variable_in(environment, "SLURMD_NODENAME").value_or(run.node) != run.node) return true;
  }
  return false;
}

// Decides which processes belong to the node. A process that does not name its node may belong to another node on this
// machine; it counts as this node's only if no other node has an agent here.
class NodesOwn {
 public:
  explicit NodesOwn(const RunOnNode& run) : run_(run) {}

  // Returns the run's attempt on this node to which a process with this environment belongs; none otherwise.
  std::optional<std::string_view> attempt_of(std::string_view environment) {
    if (variable_in(environment, kSupervisedVariable) != run_.run_dir) return std::nullopt;
    const auto node = variable_in(environment, "SLURMD_NODENAME");
    const bool own = run_.node.empty() || (node ? *node == run_.node : is_alone());
    return own ? variable_in(environment, kAttemptVariable) : std::nullopt;
  }

 private:
  bool is_alone() {
    if (!looked_) alone_ = !has_other_agents(run_);
    looked_ = true;
    return alone_;
  }
  const RunOnNode& run_;
  bool looked_ = false, alone_ = false;  // set when first needed
};

// Whether the process is alive and belongs to an attempt of the run other than `attempt`, by its environment or its
// flight recorder.
bool is_leftover(const RunOnNode& run, NodesOwn& own, std::span<const RankRecord> records, const std::string& attempt,
                 pid_t process) {
  const std::string folder = "/proc/" + std::to_string(process);
  const std::string environment = text_of(folder + "/environ");  // empty for other users' processes
  const auto of_process = own.attempt_of(environment);
  if (of_process && *of_process != attempt && is_there(state_in(folder))) return true;
  if (!environment.empty() && variable_in(environment, kSupervisedVariable) != run.run_dir) return false;
  return std::any_of(records.begin(), records.end(), [&](const RankRecord& record) {
    return record.process == process && record.attempt != attempt && is_there(process_state_of(record));
  });
}

}  // namespace

// Processes are killed based on these records, so only this user's count, even for root.
std::vector<RankRecord> records_of(const RunOnNode& run) {
  std::vector<RankRecord> records;
  for (const std::string& path : list_flight_records()) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || info.st_uid != ::geteuid()) continue;
    auto record = read_flight_record(path, 0);
    if (record && record.value().run_dir == run.run_dir && record.value().host == run.host)
      records.push_back(std::move(record).value());
  }
  return records;
}

std::vector<RankSight> sighted_ranks(std::span<const RankRecord> records, const std::string& attempt) {
  std::vector<RankSight> ranks;
  for (const RankRecord& record : records) {
    if (record.attempt != attempt) continue;
    ranks.push_back({.world_rank = record.world_rank,
                     .process = record.process,
                     .state = process_state_of(record),
                     .phase = record.phase,
                     .step = record.step,
                     .progress = record.progress,
                     .ended = record.ended || record.failure.has_value()});
  }
  return ranks;
}

std::vector<RankSight> ranks_without_record(const RunOnNode& run, std::span<const RankRecord> records,
                                            const std::string& attempt) {
  std::map<pid_t, std::pair<RankSight, pid_t>> found;  // the second pid is the parent
  NodesOwn own(run);
  for (const auto& [pid, folder] : processes()) {
    const std::string environment = text_of(folder + "/environ");
    if (own.attempt_of(environment) != attempt) continue;
    const auto stat = process_stat(folder);
    if (!stat || process_state_from(stat->state) == ProcessState::kGone) continue;
    std::error_code unknown;
    const bool is_program = fs::read_symlink(folder + "/exe", unknown).filename() == run.program;
    found[pid] = {{.world_rank = world_rank_in(environment),
                   .process = pid,
                   .has_record = false,
                   .state = process_state_from(stat->state),
                   .cpu_seconds = is_program ? stat->cpu_seconds : 0},
                  stat->parent};
  }
  std::vector<RankSight> ranks;
  for (const auto& [pid, process] : found) {
    const auto& [sight, parent] = process;
    const bool has_record = std::any_of(records.begin(), records.end(), [&, &rank = sight](const RankRecord& record) {
      return record.attempt == attempt && (record.process == rank.process || record.world_rank == rank.world_rank);
    });
    if (!has_record && !found.contains(parent)) ranks.push_back(sight);
  }
  return ranks;
}

std::optional<FailureSight> first_failure(std::span<const RankRecord> records, const std::string& attempt) {
  std::optional<FailureSight> first;
  for (const RankRecord& record : records) {
    if (record.attempt != attempt || !record.failure || record.failure->consequence) continue;
    FailureSight sight{.attempt = attempt,
                       .world_rank = record.world_rank,
                       .status = record.failure->code,
                       .time = 1e-9 * static_cast<double>(record.failure->realtime),
                       .step = record.step,
                       .text = record.failure->text};
    if (!first || is_before(sight, *first)) first = std::move(sight);
  }
  return first;
}

bool sees_run_folder(const std::string& run_dir) {
  const std::string path = run_dir + "/events.jsonl";
  const auto exists = [path] {
    std::error_code problem;
    return fs::exists(path, problem);
  };
  return within(path, std::chrono::milliseconds(1000), exists, false);
}

void kill_process(pid_t process, const std::function<bool()>& is_meant) {
  const Descriptor handle(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  if (handle.get() < 0 && errno == ESRCH) return;
  if (!is_meant()) return;
  if (handle.get() >= 0)
    ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0);
  else
    ::kill(process, SIGKILL);  // Linux before 5.3, or a sandbox without process handles
}

void kill_earlier_agents(const std::string& program, const std::string& run_dir, const std::string& node) {
  const std::string command = program + '\0' + "supervise" + '\0' + "--agent" + '\0' + run_dir + '\0';
  for (const auto& [pid, path] : processes()) {
    const auto is_one = [&, folder = path] {
      if (text_of(folder + "/cmdline") != command) return false;
      const std::string environment = text_of(folder + "/environ");
      return variable_in(environment, "SLURMD_NODENAME").value_or(host_name()) == node;
    };
    if (is_one()) kill_process(pid, is_one);
  }
}

std::vector<pid_t> leftovers(const RunOnNode& run, std::span<const RankRecord> records, const std::string& attempt) {
  std::vector<pid_t> found;
  NodesOwn own(run);
  for (const auto& [pid, folder] : processes())
    if (is_leftover(run, own, records, attempt, pid)) found.push_back(pid);
  return found;
}

int kill_leftovers(const RunOnNode& run, std::span<const RankRecord> records, const std::string& attempt) {
  const auto left = leftovers(run, records, attempt);
  NodesOwn own(run);
  for (const pid_t process : left)
    kill_process(process, [&] { return is_leftover(run, own, records, attempt, process); });
  return static_cast<int>(left.size());
}

bool is_alarming(std::string_view line) {
  constexpr std::array<std::string_view, 12> kKeywords{"Xid",       "NVRM",       "Out of memory", "oom-kill",
                                                       "ECC",       "mlx5",       "link down",     "Link is Down",
                                                       "I/O error", "Call Trace", "NCCL WARN",     "soft lockup"};
  return std::any_of(kKeywords.begin(), kKeywords.end(),
                     [&](std::string_view keyword) { return line.find(keyword) != line.npos; });
}

std::vector<std::string> alarming_lines(std::span<const RankRecord> records, const std::string& attempt) {
  std::vector<std::string> lines;
  for (const RankRecord& record : records)
    if (record.attempt == attempt)
      for (const LogRecord& line : record.log)
        if (is_alarming(line.text)) lines.push_back(line.text);
  return lines;
}

}  // namespace tri
