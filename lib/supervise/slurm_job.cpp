#include "lib/supervise/slurm_job.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <set>
#include <thread>

#include "io/base/clock.h"
#include "io/base/format.h"
#include "io/base/log.h"
#include "lib/supervise/command.h"
#include "lib/supervise/history.h"

namespace tri {
namespace {

constexpr double kCommandSeconds = 120;  // Slurm's commands have their own timeouts of about MessageTimeout
constexpr double kQuestionsASecond = 2, kShortestMean = 28;  // of agents that query their job

std::string job_text(const std::string& job) {
  const auto shown = run_command({"scontrol", "show", "job", "--oneliner", job}, kCommandSeconds);
  return shown.ok() ? shown.output : "";
}

std::string without_blanks_at_end(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// Returns the words of each line of sinfo, which lists a node once per partition.
std::set<std::string> sinfo_lines(const std::vector<std::string>& options) {
  std::vector<std::string> words{"sinfo", "--noheader", "--Node"};
  words.insert(words.end(), options.begin(), options.end());
  std::set<std::string> lines;
  for (const std::string& line : split_lines(run_command(words, kCommandSeconds).output))
    lines.insert(without_blanks_at_end(line));
  return lines;
}

bool has_line(std::string_view lines, std::string_view wanted) {
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    if (line == wanted) return true;
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
  }
  return false;
}

}  // namespace

std::string_view job_field(std::string_view job, std::string_view name) {
  const std::string key = std::string(name) + "=";
  const size_t at = job.rfind(key, 0) == 0 ? 0 : job.find(" " + key);
  if (at == job.npos) return {};
  job.remove_prefix(job.find('=', at) + 1);
  return job.substr(0, job.find_first_of(" \n"));
}

double slurm_time(std::string_view text) {
  const std::string whole(text);
  std::tm local{};
  const char* end = ::strptime(whole.c_str(), "%Y-%m-%dT%H:%M:%S", &local);
  if (end == nullptr || *end != '\0') return 0;
  local.tm_isdst = -1;
  const time_t time = ::mktime(&local);
  return time < 0 ? 0 : static_cast<double>(time);
}

JobState job_state_of(std::string_view job, int restart) {
  const std::string_view state = job_field(job, "JobState");
  if (state.empty()) return JobState::kUnknown;
  if (job_field(job, "Restarts") != std::to_string(restart)) return JobState::kRequeued;
  if (state != "RUNNING") return job_field(job, "Reason") == "TimeLimit" ? JobState::kTimedOut : JobState::kCancelled;
  return job_field(job, "Requeue") == "0" ? JobState::kNoRequeue : JobState::kRunning;
}

bool SlurmJob::has_commands() { return run_command({"scontrol", "--version"}, kCommandSeconds).status != 127; }

JobState SlurmJob::state(double timeout) const {
  for (const double end = monotonic_seconds() + timeout;;) {
    const JobState state = job_state_of(job_text(start_.batch.job), start_.batch.restart);
    const double left = end - monotonic_seconds();
    if (state != JobState::kUnknown || left <= 0) return state;
    log_warn("slurmctld does not respond; retrying for {:.0f} s", left);
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(5.0, left)));
  }
}

double SlurmJob::time(std::string_view field) const { return slurm_time(job_field(job_text(start_.batch.job), field)); }

std::optional<std::string> SlurmJob::comment() const {
  const auto shown =
      run_command({"squeue", "--noheader", "--jobs=" + start_.batch.job, "--format=%k"}, kCommandSeconds);
  return shown.ok() ? std::optional(without_blanks_at_end(shown.output)) : std::nullopt;
}

bool SlurmJob::set_comment(const std::string& comment) const {
  return run_command({"scontrol", "update", "JobId=" + start_.batch.job, "Comment=" + comment}, kCommandSeconds).ok();
}

bool SlurmJob::nodes_answer() const {
  const std::string count = std::to_string(start_.num_nodes);
  return run_command({"srun", "--overlap", "--mpi=none", "--nodes=" + count, "--ntasks=" + count, "--ntasks-per-node=1",
                      "--cpus-per-task=1", "--gpus-per-node=0", "--mem=0", "--kill-on-bad-exit=1", "true"},
                     60)
      .ok();
}

bool SlurmJob::has_node_out_of_service() const {
  return !sinfo_lines({"--nodes=" + start_.node_list, "--states=down,fail", "--format=%N"}).empty();
}

bool SlurmJob::requeue() const {
  return run_command({"scontrol", "requeue", start_.batch.job}, kCommandSeconds, CommandErrors::kShow).ok();
}

std::vector<std::string> SlurmJob::excluded() const {
  const std::string nodes(job_field(job_text(start_.batch.job), "ExcNodeList"));
  if (nodes.empty() || nodes == "(null)") return {};
  return host_names(nodes);
}

bool SlurmJob::set_excluded(const std::vector<std::string>& nodes) const {
  const std::vector<std::string> words{"scontrol", "update", "JobId=" + start_.batch.job,
                                       "ExcNodeList=" + joined(nodes)};
  return run_command(words, kCommandSeconds, CommandErrors::kShow).ok();
}

bool SlurmJob::can_spare(const std::vector<std::string>& nodes) const {
  constexpr std::string_view kUnusable[] = {"down", "drain", "drng", "fail", "maint", "unk", "inval", "pow"};
  std::set<std::string> left;
  for (const std::string& line : sinfo_lines({"--partition=" + start_.partition, "--format=%N %t"})) {
    const std::string name = line.substr(0, line.find(' ')), state = line.substr(line.find(' ') + 1);
    const bool usable = state.back() != '*' && std::none_of(std::begin(kUnusable), std::end(kUnusable),
                                                            [&](auto s) { return state.rfind(s, 0) == 0; });
    if (usable && std::find(nodes.begin(), nodes.end(), name) == nodes.end()) left.insert(name);
  }
  return static_cast<int>(left.size()) >= start_.num_nodes;
}

bool SlurmJob::are_out_of_service(const std::vector<std::string>& nodes) const {
  return !nodes.empty() &&
         sinfo_lines({"--nodes=" + joined(nodes), "--states=down,fail,drain", "--format=%N"}).size() ==
             std::set(nodes.begin(), nodes.end()).size();
}

std::string queue_state(const std::string& job) {
  const auto shown = run_command({"squeue", "--noheader", "--jobs=" + job, "--format=%T"}, kCommandSeconds);
  const auto lines = split_lines(shown.output);
  return shown.ok() && !lines.empty() ? without_blanks_at_end(lines.front()) : "";
}

std::vector<std::string> host_names(const std::string& node_list) {
  const auto shown = run_command({"scontrol", "show", "hostnames", node_list}, kCommandSeconds);
  return shown.ok() ? split_lines(shown.output) : std::vector<std::string>();
}

OrphanState orphan_state_of(std::string_view job, std::string_view nodes, int restart) {
  const std::string_view state = job_field(job, "JobState"), host = job_field(job, "BatchHost");
  if (state.empty()) return OrphanState::kUnknown;
  if (state != "RUNNING" || job_field(job, "Restarts") != std::to_string(restart)) return OrphanState::kOver;
  const bool knows = !host.empty() && !nodes.empty();
  return knows && !has_line(nodes, host) ? OrphanState::kBatchHostLost : OrphanState::kUnknown;
}

OrphanState orphan_state(const std::string& job, int restart) {
  const std::string text = job_text(job);
  const std::string nodes(job_field(text, "NodeList"));
  return orphan_state_of(text, run_command({"scontrol", "show", "hostnames", nodes}, kCommandSeconds).output, restart);
}

double first_question(int num_nodes, double chance) { return chance * num_nodes / kQuestionsASecond; }

double next_question(int num_nodes, double chance) {
  const double mean = std::max(kShortestMean, num_nodes / kQuestionsASecond);
  return mean * (0.5 + chance);
}

void put_back(const std::string& job) {
  log_warn("supervise: job {} has lost the node of its batch script: requeued", job);
  run_command({"scontrol", "requeue", job}, kCommandSeconds);
}

}  // namespace tri
