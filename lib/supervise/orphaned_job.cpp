#include "lib/supervise/orphaned_job.h"

#include <algorithm>

#include "io/base/log.h"
#include "lib/supervise/command.h"
#include "lib/supervise/slurm_job.h"

namespace tri {
namespace {

constexpr double kQuestionsASecond = 2, kShortestMean = 28;
constexpr double kCommandSeconds = 120;

bool has_line(std::string_view lines, std::string_view wanted) {
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    if (line == wanted) return true;
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
  }
  return false;
}

}  // namespace

OrphanState orphan_state_of(std::string_view job, std::string_view nodes, int restart) {
  const std::string_view state = job_field(job, "JobState"), host = job_field(job, "BatchHost");
  if (state.empty()) return OrphanState::kUnknown;
  if (state != "RUNNING" || job_field(job, "Restarts") != std::to_string(restart)) return OrphanState::kOver;
  const bool knows = !host.empty() && !nodes.empty();
  return knows && !has_line(nodes, host) ? OrphanState::kBatchHostLost : OrphanState::kUnknown;
}

OrphanState orphan_state(const std::string& job, int restart) {
  const std::string text = run_command({"scontrol", "show", "job", "--oneliner", job}, kCommandSeconds).output;
  const std::string nodes(job_field(text, "NodeList"));
  return orphan_state_of(text, run_command({"scontrol", "show", "hostnames", nodes}, kCommandSeconds).output, restart);
}

double first_question(int num_nodes, double chance) { return chance * num_nodes / kQuestionsASecond; }

double next_question(int num_nodes, double chance) {
  const double mean = std::max(kShortestMean, num_nodes / kQuestionsASecond);
  return mean * (0.5 + chance);
}

void put_back(const std::string& job) {
  log_warn("supervise: job {} has lost the node of its batch script; requeuing it", job);
  run_command({"scontrol", "requeue", job}, kCommandSeconds);
}

}  // namespace tri
