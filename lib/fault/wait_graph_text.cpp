// Formats the wait-for graph as text.
#include <fmt/format.h>

#include <algorithm>

#include "lib/fault/rank_text.h"
#include "lib/fault/wait_graph.h"

namespace tri {

std::string WaitGraph::short_place(int rank) const {
  const RankRecord* r = record(rank);
  if (r == nullptr) {  // every record contains the grid of the job
    const auto any = std::find_if(records_.begin(), records_.end(), [](const RankRecord* other) { return other; });
    if (any == records_.end()) return fmt::format("rank {}", rank);
    r = *any;
  }
  return fmt::format("rank {} [{}]", rank, r->grid.place(rank));
}

std::string WaitGraph::place(int rank) const {
  return record(rank) == nullptr ? short_place(rank) : to_string_place(*record(rank));
}

std::span<const WaitGraph::Wait> WaitGraph::waits_of(int rank) const {
  const auto begin = std::partition_point(waits_.begin(), waits_.end(), [&](const Wait& w) { return w.rank < rank; });
  const auto end = std::partition_point(begin, waits_.end(), [&](const Wait& w) { return w.rank == rank; });
  return {begin, end};
}

bool WaitGraph::is_member(const Rendezvous& m, int rank) const {
  if (m.stage == Stage::kConnected) {
    const auto members = connection_members(*record(m.group));
    return members.empty() || std::find(members.begin(), members.end(), rank) != members.end();
  }
  const RankSet& set = groups_[static_cast<size_t>(m.group)].members;
  if (set.stride == 0) return rank == set.first;
  const int index = (rank - set.first) / set.stride;
  return index >= 0 && index < set.size && set.rank(index) == rank;
}

// An operation's name is known only if it is the last one that a member has enqueued.
std::string WaitGraph::operation_text(const Rendezvous& m) const {
  if (m.stage == Stage::kConnected) return fmt::format("connection {}", record(m.group)->connection_name);
  const Group& group = groups_[static_cast<size_t>(m.group)];
  const bool is_edge = group.kind == ChannelKind::kSend || group.kind == ChannelKind::kReceive;
  std::string_view name = is_edge ? "transfer" : group.kind == ChannelKind::kHost ? "call" : "operation";
  for (int member = 0; !is_edge && member < group.members.size; ++member)
    if (const ChannelRecord* channel = channel_of(group, member);
        channel != nullptr && channel->enqueued == m.number && channel->operation != ChannelOperation::kNone) {
      name = enum_name(channel->operation);
      break;
    }
  return fmt::format("{} {} on {}", name, m.number, group.name);
}

std::string WaitGraph::rendezvous_text(int node) const { return operation_text(rendezvous_at(node)); }

std::vector<int> WaitGraph::rendezvous_members(int node) const {
  const Rendezvous& m = rendezvous_at(node);
  std::vector<int> members = members_of(m);
  if (m.stage != Stage::kConnected) return members;
  std::erase_if(members, [&](int rank) { return !is_behind(m, rank) && record(rank)->connection != m.connection; });
  return members;
}

std::vector<int> WaitGraph::rendezvous_waiting(int node) const {
  const Rendezvous& m = rendezvous_at(node);
  std::vector<int> ranks;
  for (const int rank : members_of(m)) {
    const RankRecord* r = record(rank);
    if (r == nullptr) continue;
    if (m.stage == Stage::kConnected) {
      if (r->connection == m.connection) ranks.push_back(rank);
      continue;
    }
    const Group& group = groups_[static_cast<size_t>(m.group)];
    const int member = group.index_of(rank);
    const ChannelRecord* channel = channel_of(group, member);
    if (channel != nullptr && comes_before(channel->completed, m.number)) ranks.push_back(rank);
  }
  return ranks;
}

std::optional<HangEdge> WaitGraph::rendezvous_mismatch(int node) const {
  const Rendezvous& m = rendezvous_at(node);
  if (m.stage == Stage::kConnected) return std::nullopt;
  const Group& group = groups_[static_cast<size_t>(m.group)];
  if (group.kind == ChannelKind::kSend || group.kind == ChannelKind::kReceive) return std::nullopt;
  const ChannelRecord* first = nullptr;
  int first_rank = 0;
  for (int member = 0; member < group.members.size; ++member) {
    const ChannelRecord* channel = channel_of(group, member);
    if (channel == nullptr || channel->enqueued != m.number) continue;
    const int rank = group.members.rank(member);
    if (first == nullptr) {
      first = channel;
      first_rank = rank;
    } else if (channel->operation != first->operation) {
      return HangEdge{
          .from = first_rank,
          .to = rank,
          .text = fmt::format("operation {} on {} is {} for rank {} and {} for rank {}", m.number, group.name,
                              enum_name(first->operation), first_rank, enum_name(channel->operation), rank)};
    }
  }
  return std::nullopt;
}

const WaitGraph::Rendezvous* WaitGraph::rendezvous_between(int from_rank, int to_rank) const {
  for (const Wait& wait : waits_of(from_rank)) {
    const Rendezvous& m = all_rendezvous_[static_cast<size_t>(wait.rendezvous)];
    if (is_member(m, to_rank) && is_behind(m, to_rank)) return &m;
  }
  return nullptr;
}

std::string WaitGraph::awaited_text(int from_rank, int to_rank) const {
  if (const Rendezvous* m = rendezvous_between(from_rank, to_rank)) return operation_text(*m);
  int loader = 0;
  const RankRecord* from = record(from_rank);
  if (from->host_state == HostState::kAwaitsData)
    if (const LoaderRecord* own = awaited_loader(from_rank, &loader); own != nullptr && own->reader == to_rank)
      return fmt::format("batch {} of its {} tokens", own->wanted, loader == 0 ? "training" : "validation");
  return "";
}

std::string WaitGraph::edge_text(int from_rank, int to_rank) const {
  if (const Rendezvous* m = rendezvous_between(from_rank, to_rank)) {
    std::string text = fmt::format("rank {} waits for {} of rank {}", from_rank, operation_text(*m), to_rank);
    if (m->stage == Stage::kConnected) return text + ", which has not reached it";
    if (m->stage == Stage::kArrived) return text + ", which has started it";
    const Group& group = groups_[static_cast<size_t>(m->group)];
    const ChannelRecord* channel = channel_of(group, group.index_of(to_rank));
    if (record(to_rank) == nullptr) return text + ", which left no flight record";
    if (channel == nullptr) return text + ", which has not created this channel yet";
    return text + fmt::format(", which is at {}", m->stage == Stage::kSent ? channel->sent : channel->joined);
  }
  const std::string awaited = awaited_text(from_rank, to_rank);
  if (!awaited.empty())
    return fmt::format("rank {} waits for {} from the reader of rank {}", from_rank, awaited, to_rank);
  for (size_t loader = 0; record(to_rank) != nullptr && loader < 2; ++loader)
    if (record(to_rank)->loaders[loader].reader == from_rank)
      return fmt::format("the reader of rank {} waits for rank {}, which is at batch {}", from_rank, to_rank,
                         record(to_rank)->loaders[loader].wanted);
  return fmt::format("rank {} waits for rank {}", from_rank, to_rank);
}

std::vector<std::string> WaitGraph::waits_text(int rank) const {
  std::vector<std::string> texts;
  const RankRecord* r = record(rank);
  if (r == nullptr || lost(rank)) return texts;
  for (const Wait& wait : waits_of(rank)) {
    const Rendezvous& m = all_rendezvous_[static_cast<size_t>(wait.rendezvous)];
    if (m.stage == Stage::kArrived) {
      texts.push_back(operation_text(m) + ", which all members have started");
      continue;
    }
    std::vector<int> behind;
    for (const int member : members_of(m))
      if (is_behind(m, member)) behind.push_back(member);
    texts.push_back(fmt::format("{} of {}", operation_text(m), ranks_text(behind)));
  }
  int loader = 0;
  if (r->host_state == HostState::kAwaitsData)
    if (const LoaderRecord* own = awaited_loader(rank, &loader))
      texts.push_back(fmt::format("batch {} of the reader of rank {}", own->wanted, own->reader));
  return texts;
}

std::string WaitGraph::waits_key(int rank) const {
  std::string key;
  if (record(rank) == nullptr || lost(rank)) return key;
  for (const Wait& wait : waits_of(rank))
    key += fmt::format("{}{}", key.empty() ? "" : ", ",
                       wait.channel < 0 ? record(rank)->connection_name
                                        : record(rank)->channels[static_cast<size_t>(wait.channel)].name);
  if (record(rank)->host_state == HostState::kAwaitsData) key += key.empty() ? "data" : ", data";
  return key;
}

}  // namespace tri
