#include "lib/supervise/agent_messages.h"

#include <algorithm>
#include <utility>

#include "io/base/error.h"
#include "io/base/hash.h"
#include "io/checkpoint/folder.h"
#include "lib/comm/host/message_layout.h"

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

AgentHello hello_from(std::string_view bytes) {
  AgentHello hello;
  try {
    return from_bytes<AgentHello>(bytes);
  } catch (const Fatal&) {
  }
  try {
    messages::Reader reader(bytes);
    reader(hello.node, hello.host);
  } catch (const Fatal&) {
  }
  return hello;
}

std::optional<AgentOrder> order_from(std::string_view bytes) {
  AgentOrder order;
  try {
    order = from_bytes<AgentOrder>(bytes);
  } catch (const Fatal&) {
    return std::nullopt;
  }
  constexpr double kMostTimeout = 1e6;
  const bool known = order.kind <= OrderKind::kFinish;
  const bool timeout_is_valid = order.timeout >= 0 && order.timeout <= kMostTimeout;  // false for NaN
  const bool named = order.attempt.empty() || valid_attempt(order.attempt);
  return known && timeout_is_valid && named ? std::optional(order) : std::nullopt;
}

uint64_t messages_layout() {
  // Raise this if the meaning of a message changes but the types of its fields do not.
  constexpr int kMeaning = 1;
  return xxh3_64(
      fmt::format("{} {} {}", kMeaning, messages::layout_of<AgentReport>(), messages::layout_of<AgentOrder>()));
}

}  // namespace tri
