#include "lib/supervise/agent_messages.h"

#include <algorithm>
#include <utility>

#include "io/base/error.h"

namespace tri {

bool is_before(const FailureSight& a, const FailureSight& b) {
  const auto key = [](const FailureSight& f) {
    return std::pair(f.status == static_cast<int>(ExitCode::kComm), f.time);
  };
  return key(a) < key(b);
}

void keep_within_a_frame(AgentReport& report) {
  constexpr size_t kMostPorts = 64, kMostGpus = 32, kMostRanks = 256, kMostLines = 32, kLongestLine = 300;
  report.ports.resize(std::min(report.ports.size(), kMostPorts));
  report.gpus.resize(std::min(report.gpus.size(), kMostGpus));
  report.ranks.resize(std::min(report.ranks.size(), kMostRanks));
  report.lines.resize(std::min(report.lines.size(), kMostLines));
  if (report.failure) report.failure->text.resize(std::min(report.failure->text.size(), kLongestLine));
  for (std::string& line : report.lines) line.resize(std::min(line.size(), kLongestLine));
}

}  // namespace tri
