#include "lib/supervise/orphaned_job.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "io/base/format.h"
#include "io/base/log.h"

namespace tri {
namespace {

constexpr double kQuestionsASecond = 2, kShortestMean = 28;

std::string output_of(const std::string& command) {
  struct Close {
    void operator()(FILE* pipe) const { ::pclose(pipe); }
  };
  const std::unique_ptr<FILE, Close> pipe(::popen(command.c_str(), "re"));
  std::string output;
  char part[4096];
  for (size_t got = 1; pipe && got > 0;) output.append(part, got = std::fread(part, 1, sizeof part, pipe.get()));
  return output;
}

// "NAME=value " -> value; "": there is none.
std::string_view field(std::string_view job, const std::string& name) {
  const size_t at = (job.rfind(name + "=", 0) == 0) ? 0 : job.find(" " + name + "=");
  if (at == job.npos) return {};
  job.remove_prefix(job.find('=', at) + 1);
  return job.substr(0, job.find_first_of(" \n"));
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

OrphanState orphan_state_of(std::string_view job, std::string_view nodes, int restart) {
  const std::string_view state = field(job, "JobState"), host = field(job, "BatchHost");
  if (state.empty()) return OrphanState::kUnknown;
  if (state != "RUNNING" || field(job, "Restarts") != std::to_string(restart)) return OrphanState::kOver;
  const bool knows = !host.empty() && !nodes.empty();
  return knows && !has_line(nodes, host) ? OrphanState::kBatchHostLost : OrphanState::kUnknown;
}

OrphanState orphan_state(const std::string& job, int restart) {
  const std::string text = output_of(fmt::format("scontrol show job --oneliner '{}' 2>/dev/null", job));
  const std::string nodes(field(text, "NodeList"));
  return orphan_state_of(text, output_of(fmt::format("scontrol show hostnames '{}' 2>/dev/null", nodes)), restart);
}

double first_question(int num_nodes, double chance) { return chance * num_nodes / kQuestionsASecond; }

double next_question(int num_nodes, double chance) {
  const double mean = std::max(kShortestMean, num_nodes / kQuestionsASecond);
  return mean * (0.5 + chance);
}

void put_back(const std::string& job) {
  log_warn("supervise: job {} has lost the node of its batch script: requeued", job);
  output_of(fmt::format("scontrol requeue '{}' 2>&1", job));
}

}  // namespace tri
