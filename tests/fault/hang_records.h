// Hand-written records of ranks, for tests of the locator.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "lib/fault/hang_locator.h"
#include "lib/parallel/mesh.h"

namespace tri::hand_written {

inline constexpr uint32_t kDone = 10;  // completed operations of every channel
inline constexpr double kSilent = 60;
inline const HangTrigger kDeadline{.world_rank = 0, .phase = RunPhase::kStep, .seconds = 60};
inline const HangTrigger kRequested{};

// Ranks whose streams have work that nothing blocks; each test changes them.
class Records {
 public:
  Records(int pp, int dp, int tp) {
    for (int rank = 0; rank < pp * dp * tp; ++rank) {
      const Mesh mesh = make_mesh(rank, {{"tp", tp}, {"dp", dp}, {"pp", pp}});
      RankRecord& r = all.emplace_back();
      r.world_rank = rank;
      r.world_size = mesh.world_size();
      r.grid = mesh.grid;
      r.host = fmt::format("node{:02}", rank / 4);
      r.process_state = ProcessState::kRuns;
      r.phase = RunPhase::kStep;
      r.host_state = HostState::kAwaitsDevice;
      r.step = 5;
      r.last_event_seconds = kSilent;
      r.actions_enqueued = 20;
      r.action_entered = r.action_running = 17;
      r.action = ActionRecord{.number = 17, .kind = ComputeKind::kForward, .chunk = 1, .microbatch = 3, .waits = {}};
      add(rank, "tp", {mesh.moved("tp", 0).world_rank, 1, tp}, mesh.axis("tp").rank);
      add(rank, "dp", {mesh.moved("dp", 0).world_rank, tp, dp}, mesh.axis("dp").rank);
      add(rank, "world", {0, 1, mesh.world_size()}, rank);
      add(rank, "job", {0, 1, mesh.world_size()}, rank, ChannelKind::kHost);
    }
  }
  RankRecord& operator[](int rank) { return all[static_cast<size_t>(rank)]; }

  ChannelRecord& add(int rank, const std::string& name, RankSet members, int index,
                     ChannelKind kind = ChannelKind::kCollectives) {
    (*this)[rank].channels.push_back({.name = name,
                                      .kind = kind,
                                      .members = members,
                                      .index = index,
                                      .enqueued = kDone,
                                      .joined = kDone,
                                      .sent = kDone,
                                      .completed = kDone,
                                      .whole = kDone,
                                      .operation = ChannelOperation::kAllGather});
    return (*this)[rank].channels.back();
  }
  // Adds a one-way edge between two stages; returns its index in the records of both.
  int connect(int source, int target, const std::string& name = "pp forward") {
    add(source, name, {source, target - source, 2}, 0, ChannelKind::kSend);
    add(target, name, {source, target - source, 2}, 1, ChannelKind::kReceive);
    return static_cast<int>((*this)[source].channels.size()) - 1;
  }
  ChannelRecord& channel(int rank, std::string_view name) {
    return *std::find_if((*this)[rank].channels.begin(), (*this)[rank].channels.end(),
                         [&](const ChannelRecord& c) { return c.name == name; });
  }
  // The rank has reached the channel's next operation.
  void joins(int rank, std::string_view name) {
    ChannelRecord& c = channel(rank, name);
    c.enqueued = c.whole = std::max(c.enqueued, c.completed + 1);
    c.joined = c.completed + 1;
    if (c.kind == ChannelKind::kCollectives) c.sent = c.joined;
    if (c.kind == ChannelKind::kHost) (*this)[rank].host_state = HostState::kAwaitsJob;
  }
  void join_but(int rank, std::string_view name) {
    for (RankRecord& r : all)
      if (r.world_rank != rank) joins(r.world_rank, name);
    channel(rank, name).enqueued = kDone + 1;
  }
  // All streams have finished their work.
  void idle(int rank) { (*this)[rank].action_entered = (*this)[rank].action_running = (*this)[rank].actions_enqueued; }

  std::vector<RankRecord> all;
};

inline testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "no \"" << part << "\" in\n" << text;
}

inline std::vector<int> named(const HangVerdict& verdict) {
  std::vector<int> ranks;
  for (const HangSuspect& suspect : verdict.suspects) ranks.push_back(suspect.world_rank);
  return ranks;
}

}  // namespace tri::hand_written
