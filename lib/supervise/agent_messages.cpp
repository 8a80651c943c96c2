#include "lib/supervise/agent_messages.h"

#include <algorithm>

namespace tri {

void keep_within_a_frame(AgentReport& report) {
  constexpr size_t kMostPorts = 64, kMostGpus = 32, kMostRanks = 256, kMostLines = 32, kLongestLine = 300;
  report.ports.resize(std::min(report.ports.size(), kMostPorts));
  report.gpus.resize(std::min(report.gpus.size(), kMostGpus));
  report.ranks.resize(std::min(report.ranks.size(), kMostRanks));
  report.lines.resize(std::min(report.lines.size(), kMostLines));
  for (std::string& line : report.lines) line.resize(std::min(line.size(), kLongestLine));
}

}  // namespace tri
