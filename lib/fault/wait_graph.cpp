#include "lib/fault/wait_graph.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>

#include "io/base/file_system_call.h"
#include "io/base/file_writer.h"
#include "lib/fault/rank_text.h"
#include "lib/fault/thread_stacks.h"

namespace tri {
namespace {

using std::size_t;

// The key of a channel, which is equal on all of its members.
struct GroupKey {
  std::string_view name;
  RankSet members;
  bool operator==(const GroupKey&) const = default;
};
struct GroupKeyHash {
  size_t operator()(const GroupKey& key) const {
    const uint64_t place = static_cast<uint32_t>(key.members.first) * 0x9e3779b97f4a7c15u ^
                           static_cast<uint32_t>(key.members.stride) * 0xc2b2ae3d27d4eb4fu ^
                           static_cast<uint32_t>(key.members.size) * 0x165667b19e3779f9u;
    return std::hash<std::string_view>()(key.name) ^ (place >> 17) ^ place;
  }
};

bool is_between_stages(const ChannelRecord& channel) {
  return channel.kind == ChannelKind::kSend || channel.kind == ChannelKind::kReceive;
}

// `words` describes a thread that did not answer with its stack: "state D, in rpc_wait_bit_killable, system call 1"
// (thread_stacks.h). Returns whether the kernel runs a file call for it: by the call's number, or else by where it
// sleeps uninterruptibly.
bool is_silent_file_call(std::string_view words) {
  constexpr std::array<std::string_view, 14> kPlaces{"nfs",  "rpc_", "fuse",       "request_wait", "io_schedule",
                                                     "ceph", "gpfs", "folio_wait", "wait_on_page", "bit_wait",
                                                     "cl_",  "ll_",  "jbd2",       "submit_bio"};
  constexpr std::string_view kState = "state ", kIn = ", in ", kCall = ", system call ";
  if (!words.starts_with(kState) || words.size() <= kState.size()) return false;
  const char state = words[kState.size()];
  if (state != 'D' && state != 'S') return false;
  if (const size_t at = words.find(kCall); at != words.npos) {
    const long number = std::atol(std::string(words.substr(at + kCall.size())).c_str());
    return is_file_system_call(number);
  }
  const size_t at = words.find(kIn);
  if (state != 'D' || at == words.npos) return false;
  const std::string_view place = words.substr(at + kIn.size());
  return std::any_of(kPlaces.begin(), kPlaces.end(),
                     [&](std::string_view part) { return place.find(part) != place.npos; });
}

// Recognises "__libc_pread64+0x4f (libc.so.6)" as pread.
bool is_file_function(std::string_view symbol) {
  constexpr std::array<std::string_view, 47> kCalls{
      "read",      "pread",     "readv",           "preadv", "write",     "pwrite", "writev",  "pwritev",  "open",
      "openat",    "creat",     "close",           "fsync",  "fdatasync", "syncfs", "flock",   "rename",   "renameat",
      "renameat2", "stat",      "lstat",           "fstat",  "fstatat",   "statx",  "access",  "opendir",  "readdir",
      "getdents",  "mkdir",     "rmdir",           "unlink", "unlinkat",  "link",   "symlink", "readlink", "ftruncate",
      "truncate",  "fallocate", "posix_fallocate", "fopen",  "fclose",    "fflush", "fwrite",  "fputs",    "fread",
      "fgets",     "fseek"};
  symbol = symbol.substr(0, symbol.find_first_of("(@+ "));
  for (const std::string_view prefix : {"__GI_", "__libc_"})
    if (symbol.starts_with(prefix)) symbol.remove_prefix(prefix.size());
  symbol.remove_prefix(std::min(symbol.find_first_not_of('_'), symbol.size()));
  for (const std::string_view suffix : {"_nocancel", "64"})
    if (symbol.ends_with(suffix)) symbol.remove_suffix(suffix.size());
  return std::find(kCalls.begin(), kCalls.end(), symbol) != kCalls.end();
}

bool is_in_file_call(const StackRecord& stack) {
  constexpr size_t kInnermost = 8;
  if (stack.frames.empty()) return !stack.symbols.empty() && is_silent_file_call(stack.symbols.front());
  const auto innermost = std::span(stack.symbols).first(std::min(kInnermost, stack.symbols.size()));
  return std::any_of(innermost.begin(), innermost.end(), [](const std::string& s) { return is_file_function(s); });
}

// Whether the rank's training is inside a file call, as far as its stacks have names. In steps, evaluations and samples
// the training thread makes such calls itself; in other phases other threads may make them for it.
bool is_in_file_call(const RankRecord& record) {
  const bool runs_plans =
      record.phase == RunPhase::kStep || record.phase == RunPhase::kEvaluation || record.phase == RunPhase::kSample;
  return std::any_of(record.stacks.begin(), record.stacks.end(), [&](const StackRecord& stack) {
    const bool helps = stack.name != kFileWriterThread && !stack.name.starts_with("dump");
    return (stack.name == kTrainingThread || (!runs_plans && helps)) && is_in_file_call(stack);
  });
}

// The kind of a hang in which a host thread runs without end. A file call decides it, in every phase.
HangKind kind_of_host(const RankRecord& record) {
  return is_in_file_call(record) ? HangKind::kStorage : HangKind::kHostBusy;
}

bool compute_stream_is_busy(const RankRecord& record) {
  return std::any_of(record.streams.begin(), record.streams.end(),
                     [](const StreamRecord& s) { return s.name == "compute" && s.state == StreamActivity::kBusy; });
}

}  // namespace

WaitGraph::WaitGraph(std::span<const RankRecord> records) {
  keep_records(records);
  judge_processes();
  make_groups();
  sinks_.resize(static_cast<size_t>(world_size()) * kActivities);
  for (int rank = 0; rank < world_size(); ++rank) add_rank(rank);
  for (int rank = 0; rank < world_size(); ++rank)
    if (record(rank) != nullptr && !lost(rank))
      for (const int loader : {0, 1}) add_reader(rank, loader);
  sinks_.resize(sinks_.size() + all_rendezvous_.size());
  finish_rendezvous();
  edges_ = Adjacency(num_nodes(), list_, false);
  reversed_ = Adjacency(num_nodes(), list_, true);
}

// The size of the job is the one in most records.
void WaitGraph::keep_records(std::span<const RankRecord> records) {
  std::map<int, int> sizes;
  for (const RankRecord& r : records) ++sizes[r.world_size];
  const auto most =
      std::max_element(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  records_.resize(most == sizes.end() ? 0 : static_cast<size_t>(std::max(most->first, 0)));
  for (const RankRecord& r : records)
    if (r.world_rank >= 0 && r.world_rank < world_size()) records_[static_cast<size_t>(r.world_rank)] = &r;
}

void WaitGraph::judge_processes() {
  int gone = 0, stopped = 0, present = 0;
  for (const RankRecord* r : records_) {
    if (r == nullptr) continue;
    ++present;
    gone += r->process_state == ProcessState::kGone ? 1 : 0;
    stopped += r->process_state == ProcessState::kStopped ? 1 : 0;
  }
  const bool is_over = world_size() > 1 && gone == present;
  suspended_ = world_size() > 1 && stopped == world_size();
  lost_.resize(records_.size());
  for (size_t rank = 0; rank < records_.size(); ++rank) {
    const RankRecord* r = records_[rank];
    if (r == nullptr)
      lost_[rank] = HangKind::kProcessGone;
    else if (r->failure && !r->failure->consequence)
      lost_[rank] = HangKind::kFailed;
    else if (r->process_state == ProcessState::kStopped)
      lost_[rank] = HangKind::kProcessStopped;
    else if (r->process_state == ProcessState::kGone && !r->ended && !is_over)
      lost_[rank] = HangKind::kProcessGone;
  }
}

void WaitGraph::make_groups() {
  std::unordered_map<GroupKey, int, GroupKeyHash> index;
  group_of_.resize(records_.size());
  for (int rank = 0; rank < world_size(); ++rank) {
    if (record(rank) == nullptr) continue;
    const auto& channels = record(rank)->channels;
    auto& groups = group_of_[static_cast<size_t>(rank)];
    for (int i = 0; i < static_cast<int>(channels.size()); ++i) {
      const ChannelRecord& channel = channels[static_cast<size_t>(i)];
      const RankSet& members = channel.members;
      const int64_t last = members.first + int64_t{members.stride} * (members.size - 1);
      const bool is_sound = members.size >= 1 && members.first >= 0 && members.first < world_size() && last >= 0 &&
                            last < world_size() && (members.stride != 0 || members.size == 1) && channel.index >= 0 &&
                            channel.index < members.size && members.rank(channel.index) == rank;
      groups.push_back(-1);
      if (!is_sound) continue;
      const auto [found, is_new] = index.try_emplace({channel.name, members}, static_cast<int>(groups_.size()));
      if (is_new)
        groups_.push_back({.name = channel.name,
                           .kind = channel.kind,
                           .members = members,
                           .channels = std::vector<int>(static_cast<size_t>(members.size), -1)});
      groups.back() = found->second;
      groups_[static_cast<size_t>(found->second)].channels[static_cast<size_t>(channel.index)] = i;
    }
  }
  for (Group& group : groups_) {
    bool is_first = true;
    for (int member = 0; member < group.members.size; ++member) {
      const ChannelRecord* channel = channel_of(group, member);
      if (channel == nullptr) {
        group.is_whole = false;
        continue;
      }
      if (is_first || comes_before(channel->joined, group.lowest_joined)) group.lowest_joined = channel->joined;
      if (is_first || comes_before(channel->sent, group.lowest_sent)) group.lowest_sent = channel->sent;
      is_first = false;
    }
  }
  for (auto& consumers : consumers_) consumers.resize(records_.size());
  for (int rank = 0; rank < world_size(); ++rank)
    for (size_t loader = 0; record(rank) != nullptr && loader < 2; ++loader)
      if (const int reader = record(rank)->loaders[loader].reader; reader >= 0 && reader < world_size())
        consumers_[loader][static_cast<size_t>(reader)].push_back(rank);
}

const ChannelRecord* WaitGraph::channel_of(const Group& group, int member) const {
  const int channel = group.channels[static_cast<size_t>(member)];
  return channel < 0 ? nullptr : &record(group.members.rank(member))->channels[static_cast<size_t>(channel)];
}

void WaitGraph::add_rank(int rank) {
  const RankRecord* r = record(rank);
  if (lost(rank) || r->ended) {  // waits for any part of a lost rank wait for its process
    sink_at(rank, kHost) = lost(rank).value_or(HangKind::kUnknown);
    for (const Activity activity : {kDevice, kReader, kValidationReader, kWriter})
      edge(node(rank, activity), node(rank, kHost));
    return;
  }
  const bool device_waits = add_device(rank);
  add_host(rank, device_waits);
  if (r->writer.state != WriterState::kIdle)
    sink_at(rank, kWriter) = HangKind::kStorage;
  else if (r->host_state == HostState::kAwaitsCheckpoint)
    sink_at(rank, kWriter) = HangKind::kHostBusy;
}

// Adds what the rank's thread waits for. `device_waits`: its streams have work that is blocked.
void WaitGraph::add_host(int rank, bool device_waits) {
  const RankRecord& r = *record(rank);
  switch (r.host_state) {
    case HostState::kWorks:
      sink_at(rank, kHost) = kind_of_host(r);
      if (device_waits) edge(node(rank, kHost), node(rank, kDevice));  // a full queue may block it inside a launch
      return;
    case HostState::kAwaitsDevice:
      return edge(node(rank, kHost), node(rank, kDevice));
    case HostState::kAwaitsJob:
      for (int i = 0; i < static_cast<int>(r.channels.size()); ++i)
        if (r.channels[static_cast<size_t>(i)].kind == ChannelKind::kHost && add_channel_wait(rank, i, kHost)) return;
      sink_at(rank, kHost) = HangKind::kUnknown;
      return;
    case HostState::kAwaitsData:
      return add_data_wait(rank);
    case HostState::kAwaitsCheckpoint:
      return edge(node(rank, kHost), node(rank, kWriter));
    case HostState::kConnects:
      return add_connection(rank);
  }
  sink_at(rank, kHost) = HangKind::kUnknown;
}

// Adds what the rank's streams wait for. Returns false if they have finished their work, so that the host must
// continue.
bool WaitGraph::add_device(int rank) {
  const RankRecord& r = *record(rank);
  const bool computes = !comes_before(r.action_running, r.action_entered);
  const bool has_more = comes_before(r.action_entered, r.actions_enqueued) ||
                        (r.host_state != HostState::kAwaitsDevice && compute_stream_is_busy(r));
  bool waits = false, may_compute = true, own_part_missing = false;
  if (!computes && r.action)
    for (const ActionRecord::Wait& wait : r.action->waits) {
      if (wait.channel < 0 || wait.channel >= static_cast<int>(r.channels.size())) continue;
      if (!comes_before(r.channels[static_cast<size_t>(wait.channel)].completed, wait.sequence)) continue;
      if (add_channel_wait(rank, wait.channel, kDevice)) waits = true, may_compute = false;
    }
  const bool in_backward =
      computes && r.action && (r.action->kind == ComputeKind::kBackward || r.action->kind == ComputeKind::kWeight);
  for (int i = 0; i < static_cast<int>(r.channels.size()); ++i) {
    const ChannelRecord& channel = r.channels[static_cast<size_t>(i)];
    if (is_between_stages(channel) || channel.kind == ChannelKind::kHost) continue;
    if (add_channel_wait(rank, i, kDevice)) {
      waits = true;
      // Gradients are reduced alongside backward passes, which do not wait for the reduction. Rows of experts have been
      // moved if all ranks have joined; until this one takes them, it may compute.
      const bool in_reduction = in_backward && channel.name.starts_with("dp");
      const bool before_rows = (channel.name == "ep rows" || channel.name == "ep copies") &&
                               all_rendezvous_[static_cast<size_t>(waits_.back().rendezvous)].stage == Stage::kArrived;
      if (!in_reduction && !before_rows) may_compute = false;
    } else if (channel.kind == ChannelKind::kCopies && channel.operation == ChannelOperation::kAllGather &&
               channel.enqueued == channel.completed + 1 && channel.joined == channel.enqueued &&
               channel.sent == channel.completed && channel.whole == channel.enqueued) {
      own_part_missing = true;  // all are ready, but local rows have not been sent
    }
  }
  if (!waits && !has_more) {
    if (r.host_state != HostState::kAwaitsDevice) {
      edge(node(rank, kDevice), node(rank, kHost));
      return false;
    }
    // The last action may have ended while a transfer between stages is still in progress.
    for (int i = 0; i < static_cast<int>(r.channels.size()); ++i)
      if (is_between_stages(r.channels[static_cast<size_t>(i)]) && add_channel_wait(rank, i, kDevice)) waits = true;
    may_compute = !waits || (computes && compute_stream_is_busy(r));
  }
  if (may_compute) sink_at(rank, kDevice) = own_part_missing ? HangKind::kTransfer : HangKind::kDeviceBusy;
  return true;
}

// Adds a wait for the first incomplete operation of the channel, if the rank has reached it and waits for other ranks.
bool WaitGraph::add_channel_wait(int rank, int channel, Activity from) {
  const ChannelRecord& own = record(rank)->channels[static_cast<size_t>(channel)];
  const int group_index = group_of_[static_cast<size_t>(rank)][static_cast<size_t>(channel)];
  const uint32_t number = own.completed + 1;
  if (group_index < 0 || own.members.size < 2) return false;
  if (comes_before(own.enqueued, number) || comes_before(own.joined, number)) return false;
  const Group& group = groups_[static_cast<size_t>(group_index)];
  const bool has_sent = own.kind != ChannelKind::kHost && !comes_before(own.sent, number);
  Stage stage = has_sent ? Stage::kSent : Stage::kJoined;
  if (!any_behind(group, number, stage)) {
    // Its own blocks have not been sent, or the host has not yet made the streams wait for the other ranks' blocks.
    if (own.kind == ChannelKind::kCopies && (!has_sent || comes_before(own.whole, number))) return false;
    stage = Stage::kArrived;
  }
  const int index = rendezvous({.group = group_index, .number = number, .stage = stage});
  waits_.push_back({rank, channel, index});
  edge(node(rank, from), rendezvous_node(index));
  return true;
}

bool WaitGraph::any_behind(const Group& group, uint32_t number, Stage stage) const {
  return !group.is_whole || comes_before(stage == Stage::kSent ? group.lowest_sent : group.lowest_joined, number);
}

int WaitGraph::rendezvous(const Rendezvous& rendezvous) {
  const uint64_t key =
      uint64_t(static_cast<uint32_t>(rendezvous.group)) << 34 | uint64_t(rendezvous.stage) << 32 | rendezvous.number;
  const bool connects = rendezvous.stage == Stage::kConnected;
  const auto [found, is_new] =
      (connects ? connection_index_ : rendezvous_index_)
          .try_emplace(connects ? rendezvous.connection : key, static_cast<int>(all_rendezvous_.size()));
  if (is_new) all_rendezvous_.push_back(rendezvous);
  return found->second;
}

const LoaderRecord* WaitGraph::awaited_loader(int rank, int* loader) const {
  const RankRecord& r = *record(rank);
  const int likely = r.phase == RunPhase::kEvaluation ? 1 : 0;
  const LoaderRecord* any = nullptr;
  for (const int f : {likely, 1 - likely}) {
    const LoaderRecord& own = r.loaders[static_cast<size_t>(f)];
    if (own.reader < 0 || own.reader >= world_size()) continue;
    const RankRecord* reader = record(own.reader);
    const bool is_late =
        reader == nullptr || comes_before(reader->loaders[static_cast<size_t>(f)].published, own.wanted);
    if (any != nullptr && !is_late) continue;
    any = &own;
    *loader = f;
    if (is_late) break;
  }
  return any;
}

void WaitGraph::add_data_wait(int rank) {
  int loader = 0;
  const LoaderRecord* own = awaited_loader(rank, &loader);
  const RankRecord* reader = own == nullptr ? nullptr : record(own->reader);
  const bool is_read =
      reader != nullptr && !comes_before(reader->loaders[static_cast<size_t>(loader)].published, own->wanted);
  if (own == nullptr || (is_read && !lost(own->reader)))
    sink_at(rank, kHost) = HangKind::kDataReader;  // the tokens are read, but this rank's own thread does not take them
  else
    edge(node(rank, kHost), node(own->reader, loader == 0 ? kReader : kValidationReader));
}

void WaitGraph::add_reader(int rank, int loader) {
  const auto& consumers = consumers_[loader][static_cast<size_t>(rank)];
  if (consumers.empty() || record(rank)->ended) return;
  const Activity activity = loader == 0 ? kReader : kValidationReader;
  const LoaderRecord& reader = record(rank)->loaders[static_cast<size_t>(loader)];
  const auto wanted = [&](int consumer) { return record(consumer)->loaders[static_cast<size_t>(loader)].wanted; };
  const auto awaits_it = [&](int consumer) {
    int awaited = 0;
    return record(consumer)->host_state == HostState::kAwaitsData && awaited_loader(consumer, &awaited) != nullptr &&
           awaited == loader;
  };
  switch (reader.reader_state) {
    case ReaderState::kReads:
      sink_at(rank, activity) = HangKind::kDataReader;
      return;
    case ReaderState::kAwaitsConsumers: {
      uint32_t lowest = wanted(consumers.front());
      for (const int consumer : consumers)
        if (comes_before(wanted(consumer), lowest)) lowest = wanted(consumer);
      for (const int consumer : consumers) {
        if (wanted(consumer) != lowest) continue;
        edge(node(rank, activity), node(consumer, kHost));
        // Both wait for each other, so the consumer's own thread between them is blocked.
        if (!lost(consumer) && !record(consumer)->ended && awaits_it(consumer))
          sink_at(consumer, kHost) = HangKind::kDataReader;
      }
      return;
    }
    case ReaderState::kNone:
    case ReaderState::kDone:
      edge(node(rank, activity), node(rank, kHost));
      if (awaits_it(rank)) sink_at(rank, activity) = HangKind::kDataReader;
      return;
  }
}

void WaitGraph::add_connection(int rank) {
  const int index =
      rendezvous({.group = rank, .number = 0, .stage = Stage::kConnected, .connection = record(rank)->connection});
  waits_.push_back({rank, -1, index});
  edge(node(rank, kHost), rendezvous_node(index));
}

void WaitGraph::finish_rendezvous() {
  std::map<std::pair<int, Stage>, std::vector<int>> counted;
  for (int i = 0; i < static_cast<int>(all_rendezvous_.size()); ++i) {
    const Rendezvous& m = all_rendezvous_[static_cast<size_t>(i)];
    if (m.stage == Stage::kArrived)
      finish_arrival(i);
    else if (m.stage == Stage::kConnected)
      finish_connection(i);
    else
      counted[{m.group, m.stage}].push_back(i);
  }
  for (auto& entry : counted) finish_counters(std::move(entry.second));
}

// All members have sent, so the transfer itself is stuck, unless a member has failed since or a busy device blocks it.
void WaitGraph::finish_arrival(int index) {
  const int at = rendezvous_node(index);
  sinks_[static_cast<size_t>(at)] = HangKind::kTransfer;
  const auto waits_for = [&](int node) {
    edge(at, node);
    sinks_[static_cast<size_t>(at)].reset();
  };
  for (const int member : members_of(all_rendezvous_[static_cast<size_t>(index)])) {
    if (lost(member))
      waits_for(node(member, kHost));
    else if (sink_at(member, kDevice) == HangKind::kDeviceBusy)
      waits_for(node(member, kDevice));
  }
}

void WaitGraph::finish_connection(int index) {
  const Rendezvous& m = all_rendezvous_[static_cast<size_t>(index)];
  const int at = rendezvous_node(index);
  bool all_met = true;
  for (const int member : members_of(m)) {
    if (!is_behind(m, member)) continue;
    edge(at, node(member, kHost));
    all_met = false;
  }
  if (all_met) sinks_[static_cast<size_t>(at)] = HangKind::kTransfer;
}

// Adds the edges of one counter of one group. Each member gets an edge from the lowest-numbered rendezvous that it has
// not reached, and each rendezvous one to the previous rendezvous.
void WaitGraph::finish_counters(std::vector<int> indices) {
  const auto number = [&](int index) { return all_rendezvous_[static_cast<size_t>(index)].number; };
  std::sort(indices.begin(), indices.end(), [&](int a, int b) { return comes_before(number(a), number(b)); });
  for (size_t i = 1; i < indices.size(); ++i) edge(rendezvous_node(indices[i]), rendezvous_node(indices[i - 1]));
  const Rendezvous& any = all_rendezvous_[static_cast<size_t>(indices.front())];
  const Group& group = groups_[static_cast<size_t>(any.group)];
  for (int member = 0; member < group.members.size; ++member) {
    const int rank = group.members.rank(member);
    const ChannelRecord* channel = channel_of(group, member);
    if (channel == nullptr) {
      edge(rendezvous_node(indices.front()), node(rank, kHost));
      continue;
    }
    const uint32_t count = any.stage == Stage::kSent ? channel->sent : channel->joined;
    const auto first = std::partition_point(indices.begin(), indices.end(),
                                            [&](int index) { return !comes_before(count, number(index)); });
    if (first == indices.end()) continue;
    // If not all parts of it are enqueued, a missing part may not be either. Then the host is the cause if it runs,
    // else its streams.
    const bool may_be_for_host = any.stage == Stage::kSent && comes_before(channel->whole, number(*first));
    const bool is_for_host = lost(rank) || group.kind == ChannelKind::kHost ||
                             comes_before(channel->enqueued, number(*first)) || may_be_for_host;
    edge(rendezvous_node(*first), node(rank, is_for_host ? kHost : kDevice));
  }
}

bool WaitGraph::is_behind(const Rendezvous& m, int rank) const {
  const RankRecord* r = record(rank);
  if (m.stage == Stage::kArrived || r == nullptr) return true;
  if (m.stage == Stage::kConnected)
    return lost(rank) ||
           (r->connection != m.connection && std::find(r->connections_done.begin(), r->connections_done.end(),
                                                       m.connection) == r->connections_done.end());
  const Group& group = groups_[static_cast<size_t>(m.group)];
  const int member = group.index_of(rank);
  const ChannelRecord* channel = channel_of(group, member);
  return channel == nullptr || comes_before(m.stage == Stage::kSent ? channel->sent : channel->joined, m.number);
}

std::vector<int> WaitGraph::members_of(const Rendezvous& m) const {
  std::vector<int> members;
  if (m.stage != Stage::kConnected) {
    const RankSet& set = groups_[static_cast<size_t>(m.group)].members;
    for (int i = 0; i < set.size; ++i) members.push_back(set.rank(i));
    return members;
  }
  for (const int rank : connection_members(*record(m.group)))
    if (rank >= 0 && rank < world_size()) members.push_back(rank);
  if (!members.empty()) return members;
  for (int rank = 0; rank < world_size(); ++rank) members.push_back(rank);
  return members;
}

}  // namespace tri
