#include "tests/fault/simulated_job.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "tests/fault/simulated_program.h"

namespace tri {
namespace {

constexpr int kSlots = 2;              // slots of a reader's ring
constexpr double kSilentSeconds = 60;  // since the last instruction of any rank

}  // namespace

SimulatedJob::SimulatedJob(const SimulatedLayout& layout) : layout_(layout) {
  for (int stage = 0; stage < layout.pp; ++stage) programs_.push_back(make_program(layout_, stage));
  restart();
}

SimulatedJob::~SimulatedJob() = default;

RankSet SimulatedJob::members_of(const Mesh& mesh, int channel) const {
  const Axis pp = mesh.axis("pp");
  const auto at = [&](int stage) { return mesh.moved("pp", (stage + pp.size) % pp.size).world_rank; };
  const auto pair = [](int source, int target) { return RankSet{source, target - source, 2}; };
  const bool is_ring = layout_.chunks > 1;
  switch (channel) {
    case kTpChannel:
      return {mesh.moved("tp", 0).world_rank, 1, mesh.axis("tp").size};
    case kDpChannel:
      return {mesh.moved("dp", 0).world_rank, mesh.axis("tp").size, mesh.axis("dp").size};
    case kWorldChannel:
    case kJobChannel:
      return {0, 1, mesh.world_size()};
    case kEmbeddingChannel:
      return pp.size > 1 && (pp.first() || pp.last()) ? pair(at(0), at(pp.size - 1)) : RankSet{};
    case kRecvForward:
      return pp.size > 1 && (is_ring || !pp.first()) ? pair(at(pp.rank - 1), at(pp.rank)) : RankSet{};
    case kSendForward:
      return pp.size > 1 && (is_ring || !pp.last()) ? pair(at(pp.rank), at(pp.rank + 1)) : RankSet{};
    case kRecvBackward:
      return pp.size > 1 && (is_ring || !pp.last()) ? pair(at(pp.rank + 1), at(pp.rank)) : RankSet{};
    default:
      return pp.size > 1 && (is_ring || !pp.first()) ? pair(at(pp.rank), at(pp.rank - 1)) : RankSet{};
  }
}

void SimulatedJob::restart() {
  ranks_.assign(static_cast<size_t>(layout_.world_size()), {});
  groups_.clear();
  std::map<std::tuple<std::string, int, int, int>, int> index;
  for (int rank = 0; rank < layout_.world_size(); ++rank) {
    Rank& r = ranks_[static_cast<size_t>(rank)];
    r.mesh = make_mesh(rank, {{"tp", layout_.tp}, {"dp", layout_.dp}, {"pp", layout_.pp}});
    r.program = &programs_[static_cast<size_t>(r.mesh.axis("pp").rank)];
    r.streams.resize(kNumSimulatedStreams);
    r.channels.resize(kNumSimulatedChannels);
    for (int c = 0; c < kNumSimulatedChannels; ++c) {
      const RankSet members = members_of(r.mesh, c);
      r.groups.push_back(-1);
      if (members.size == 0) continue;
      const auto [found, is_new] = index.try_emplace(
          {r.program->channels[static_cast<size_t>(c)].name, members.first, members.stride, members.size},
          static_cast<int>(groups_.size()));
      if (is_new) groups_.push_back({.members = members, .joined = {}, .sent = {}});
      r.groups.back() = found->second;
    }
  }
  stuck_members_.clear();
  clock_ = 0;
}

bool SimulatedJob::is_transfer(const Rank& rank, int stream, int instruction) const {
  const Instruction& i = rank.program->streams[static_cast<size_t>(stream)][static_cast<size_t>(instruction)];
  return (i.does == Does::kTransfer || i.does == Does::kJoin) &&
         groups_[static_cast<size_t>(rank.groups[static_cast<size_t>(i.channel)])].members.size > 1;
}

int64_t SimulatedJob::places(SimulatedFaultKind kind, int world_rank) const {
  const Rank& rank = ranks_[static_cast<size_t>(world_rank)];
  const auto& program = *rank.program;
  if (kind == SimulatedFaultKind::kHostBusy) return static_cast<int64_t>(program.host.size());
  if (kind == SimulatedFaultKind::kReader) return program.batches;
  if (kind == SimulatedFaultKind::kWriter) return layout_.steps;
  int64_t count = 0;
  for (int s = 0; s < kNumSimulatedStreams; ++s)
    for (int i = 0; i < static_cast<int>(program.streams[static_cast<size_t>(s)].size()); ++i)
      count += kind == SimulatedFaultKind::kKernel
                   ? program.streams[static_cast<size_t>(s)][static_cast<size_t>(i)].does == Does::kKernel
                   : is_transfer(rank, s, i);
  return count;
}

SimulatedJob::Spot SimulatedJob::spot_of(const SimulatedFault& fault) const {
  const bool is_kernel = fault.kind == SimulatedFaultKind::kKernel;
  if (!is_kernel && fault.kind != SimulatedFaultKind::kSkipped && fault.kind != SimulatedFaultKind::kTransfer)
    return {};
  const Rank& rank = ranks_[static_cast<size_t>(fault.world_rank)];
  std::map<int, uint32_t> numbers;  // by channel
  int64_t count = 0;
  for (int s = 0; s < kNumSimulatedStreams; ++s) {
    const auto& stream = rank.program->streams[static_cast<size_t>(s)];
    for (int i = 0; i < static_cast<int>(stream.size()); ++i) {
      const Instruction& instruction = stream[static_cast<size_t>(i)];
      const bool counts = is_kernel ? instruction.does == Does::kKernel : is_transfer(rank, s, i);
      if (instruction.does == Does::kTransfer || instruction.does == Does::kJoin) ++numbers[instruction.channel];
      if (!counts || count++ != fault.when) continue;
      int last = i;
      if (instruction.does == Does::kJoin)
        while (stream[static_cast<size_t>(last)].does != Does::kFinish) ++last;
      return {s, i, last, instruction.channel, numbers[instruction.channel]};
    }
  }
  return {};
}

int64_t SimulatedJob::run(const SimulatedFault& fault, uint64_t seed) {
  restart();
  fault_ = fault;
  spot_ = spot_of(fault);
  if (fault.kind == SimulatedFaultKind::kTransfer) {
    const auto& rank = ranks_[static_cast<size_t>(fault.world_rank)];
    const RankSet& members = groups_[static_cast<size_t>(rank.groups[static_cast<size_t>(spot_.channel)])].members;
    for (int i = 0; i < members.size; ++i) stuck_members_.push_back(members.rank(i));
  }
  std::mt19937_64 random(seed);
  std::vector<int> order(ranks_.size());
  std::iota(order.begin(), order.end(), 0);
  for (bool moves = true; moves;) {
    moves = false;
    std::shuffle(order.begin(), order.end(), random);
    for (const int rank : order) {
      Rank& r = ranks_[static_cast<size_t>(rank)];
      const auto keep_on = [&](auto move, uint64_t most) {
        for (uint64_t left = most; left > 0 && !r.frozen && move(); --left) {
          moves = true;
          r.moved = ++clock_;
          const bool freezes = fault.kind == SimulatedFaultKind::kStopped || fault.kind == SimulatedFaultKind::kGone;
          if (freezes && clock_ >= fault.when) ranks_[static_cast<size_t>(fault.world_rank)].frozen = true;
        }
      };
      keep_on([&] { return move_host(rank); }, 1 + random() % 40);
      for (int s = 0; s < kNumSimulatedStreams; ++s) keep_on([&] { return move_stream(rank, s); }, 1 + random() % 8);
      keep_on([&] { return move_reader(rank); }, 1);
      keep_on([&] { return move_writer(rank); }, 1);
    }
  }
  return clock_;
}

bool SimulatedJob::has_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.host == r.program->host.size(); });
}

void SimulatedJob::count(std::vector<int>& counts, uint32_t n) {
  if (counts.size() <= n) counts.resize(n + 1);
  ++counts[n];
}

// Returns the plan's number of operation `number` of a channel, on a rank that may have skipped one.
uint32_t SimulatedJob::number_here(int rank, int channel, uint32_t number) const {
  const bool has_skipped = fault_.kind == SimulatedFaultKind::kSkipped && rank == fault_.world_rank &&
                           channel == spot_.channel && number >= spot_.number;
  return has_skipped ? number - 1 : number;
}

bool SimulatedJob::join(int rank, int channel) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  Counters& c = r.channels[static_cast<size_t>(channel)];
  Group& group = groups_[static_cast<size_t>(r.groups[static_cast<size_t>(channel)])];
  count(group.joined, ++c.joined);
  if (r.program->channels[static_cast<size_t>(channel)].kind == ChannelKind::kCollectives) count(group.sent, ++c.sent);
  return true;
}

// Returns whether anything moved; the operation has finished once `completed` equals `joined`.
bool SimulatedJob::finish(int rank, int channel) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  Counters& c = r.channels[static_cast<size_t>(channel)];
  Group& group = groups_[static_cast<size_t>(r.groups[static_cast<size_t>(channel)])];
  const uint32_t n = c.joined;
  const bool is_stuck =
      fault_.kind == SimulatedFaultKind::kTransfer && n == spot_.number &&
      &group == &groups_[static_cast<size_t>(
                    ranks_[static_cast<size_t>(fault_.world_rank)].groups[static_cast<size_t>(spot_.channel)])];
  switch (r.program->channels[static_cast<size_t>(channel)].kind) {
    case ChannelKind::kCopies:
      if (c.sent < n) {
        if (!group.all(group.joined, n)) return false;
        count(group.sent, ++c.sent);
        return true;
      }
      if (is_stuck || !group.all(group.sent, n)) return false;
      break;
    case ChannelKind::kSend:
      if (is_stuck || !group.all(group.joined, n)) return false;
      count(group.sent, ++c.sent);
      break;
    case ChannelKind::kReceive:
      if (n >= group.sent.size() || group.sent[n] == 0) return false;
      ++c.sent;
      break;
    default:
      if (is_stuck || !group.all(group.joined, n)) return false;
  }
  ++c.completed;
  return true;
}

bool SimulatedJob::move_stream(int rank, int stream) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  Stream& s = r.streams[static_cast<size_t>(stream)];
  if (s.next == s.enqueued) return false;
  const bool is_here = rank == fault_.world_rank && stream == spot_.stream;
  if (is_here && fault_.kind == SimulatedFaultKind::kKernel && s.next == spot_.instruction) return false;
  const bool is_skipped = is_here && fault_.kind == SimulatedFaultKind::kSkipped &&
                          (s.next == spot_.instruction || s.next == spot_.last_instruction);
  const Instruction& i = r.program->streams[static_cast<size_t>(stream)][static_cast<size_t>(s.next)];
  const auto value = static_cast<uint32_t>(i.value);
  const auto done = [&] {
    s.begun = false;
    ++s.next;
    return true;
  };
  if (is_skipped) return done();
  switch (i.does) {
    case Does::kBegin: {
      const bool enters = r.entered != value;
      r.entered = value;
      for (const auto& wait : r.program->actions[value - 1].waits)
        if (r.channels[static_cast<size_t>(wait.channel)].completed < number_here(rank, wait.channel, wait.sequence))
          return enters;
      r.running = value;
      return done();
    }
    case Does::kEnd:
      r.done = value;
      return done();
    case Does::kAfterAction:
      return r.done >= value && done();
    case Does::kAwaitChannel:
      return r.channels[static_cast<size_t>(i.channel)].completed >= number_here(rank, i.channel, value) && done();
    case Does::kJoin:
      return join(rank, i.channel) && done();
    case Does::kTransfer:
      if (!s.begun) return s.begun = join(rank, i.channel);
      [[fallthrough]];
    case Does::kFinish:
      if (!finish(rank, i.channel)) return false;
      return r.channels[static_cast<size_t>(i.channel)].completed < r.channels[static_cast<size_t>(i.channel)].joined ||
             done();
    default:
      return done();
  }
}

bool SimulatedJob::move_host(int rank) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  if (r.host == r.program->host.size()) return false;
  if (fault_.kind == SimulatedFaultKind::kHostBusy && rank == fault_.world_rank &&
      static_cast<int64_t>(r.host) == fault_.when)
    return false;
  const Instruction& i = r.program->host[r.host];
  const auto done = [&] {
    r.state = HostState::kWorks;
    ++r.host;
    return true;
  };
  const auto awaits = [&](HostState state, bool is_over) {
    if (is_over) return done();
    return std::exchange(r.state, state) != state;
  };
  switch (i.does) {
    case Does::kPhase:
      r.phase = static_cast<RunPhase>(i.value);
      return done();
    case Does::kStep:
      ++r.step;
      return done();
    case Does::kAwaitTokens:
      if (r.state != HostState::kAwaitsData) ++r.wanted;
      return awaits(HostState::kAwaitsData, ranks_[static_cast<size_t>(reader_of(rank))].published >= r.wanted);
    case Does::kEnqueue: {
      Stream& stream = r.streams[static_cast<size_t>(i.value)];
      if (layout_.queue > 0 && stream.enqueued - stream.next >= layout_.queue) return false;
      const Instruction& work = r.program->streams[static_cast<size_t>(i.value)][static_cast<size_t>(stream.enqueued)];
      const bool is_skipped = fault_.kind == SimulatedFaultKind::kSkipped && rank == fault_.world_rank &&
                              i.value == spot_.stream && stream.enqueued == spot_.instruction;
      ++stream.enqueued;
      if (work.does == Does::kBegin) ++r.actions_enqueued;
      if ((work.does == Does::kTransfer || work.does == Does::kJoin) && !is_skipped) {
        ++r.channels[static_cast<size_t>(work.channel)].enqueued;
        r.channels[static_cast<size_t>(work.channel)].operation = work.operation;
      }
      if (work.does == Does::kTransfer || work.does == Does::kFinish) {
        Counters& counters = r.channels[static_cast<size_t>(work.channel)];
        counters.whole = counters.enqueued;
      }
      return done();
    }
    case Does::kAwaitAction:
      return awaits(HostState::kAwaitsDevice, r.done >= static_cast<uint32_t>(i.value));
    case Does::kAwaitStreams:
      return awaits(HostState::kAwaitsDevice, std::all_of(r.streams.begin(), r.streams.end(),
                                                          [](const Stream& s) { return s.next == s.enqueued; }));
    case Does::kMeetJob:
      if (r.state != HostState::kAwaitsJob) {
        ++r.channels[kJobChannel].enqueued;
        r.state = HostState::kAwaitsJob;
        return join(rank, kJobChannel);
      }
      return finish(rank, kJobChannel) && done();
    case Does::kSave:
      if (r.writer != WriterState::kIdle) return awaits(HostState::kAwaitsCheckpoint, false);
      r.writer = WriterState::kWrites;
      ++r.saves;
      return done();
    default:
      return done();
  }
}

// Consumers copy one batch ahead of the one that they need.
bool SimulatedJob::can_read(int rank) const {
  const Rank& r = ranks_[static_cast<size_t>(rank)];
  const int end = std::min(rank + layout_.ranks_a_node, layout_.world_size());
  for (int consumer = rank; consumer < end; ++consumer)
    if (ranks_[static_cast<size_t>(consumer)].wanted + 1 + kSlots < r.published + 1) return false;
  return true;
}

bool SimulatedJob::move_reader(int rank) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  if (rank != reader_of(rank) || static_cast<int>(r.published) == r.program->batches || !can_read(rank)) return false;
  const bool is_stuck = fault_.kind == SimulatedFaultKind::kReader && reader_of(fault_.world_rank) == rank &&
                        static_cast<int64_t>(r.published) == fault_.when;
  if (is_stuck) return false;
  ++r.published;
  return true;
}

bool SimulatedJob::move_writer(int rank) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  if (r.writer == WriterState::kIdle) return false;
  if (fault_.kind == SimulatedFaultKind::kWriter && fault_.world_rank == rank && r.saves == fault_.when + 1)
    return false;
  r.writer = WriterState::kIdle;
  return true;
}

std::vector<RankRecord> SimulatedJob::records() const {
  std::vector<RankRecord> records;
  for (int rank = 0; rank < layout_.world_size(); ++rank) records.push_back(record(rank));
  return records;
}

RankRecord SimulatedJob::record(int rank) const {
  const Rank& r = ranks_[static_cast<size_t>(rank)];
  const double silent = kSilentSeconds + static_cast<double>(clock_ - r.moved) * 1e-3;
  RankRecord record{.world_rank = rank, .world_size = layout_.world_size(), .grid = r.mesh.grid};
  record.host = fmt::format("node{:02}", rank / layout_.ranks_a_node);
  record.process = 1000 + rank;
  record.process_state = ProcessState::kRuns;
  if (r.frozen)
    record.process_state = fault_.kind == SimulatedFaultKind::kGone ? ProcessState::kGone : ProcessState::kStopped;
  record.phase = r.phase;
  record.host_state = r.state;
  record.phase_seconds = record.host_seconds = record.last_event_seconds = silent;
  record.step = r.step;
  record.steps = layout_.steps;
  record.actions_enqueued = r.actions_enqueued;
  record.action_entered = r.entered;
  record.action_running = r.running;

  std::vector<int> place(kNumSimulatedChannels, -1);  // index in the record
  for (int c = 0; c < kNumSimulatedChannels; ++c) {
    if (r.groups[static_cast<size_t>(c)] < 0) continue;
    const Counters& counters = r.channels[static_cast<size_t>(c)];
    const SimulatedChannel& channel = r.program->channels[static_cast<size_t>(c)];
    const RankSet& members = groups_[static_cast<size_t>(r.groups[static_cast<size_t>(c)])].members;
    place[static_cast<size_t>(c)] = static_cast<int>(record.channels.size());
    record.channels.push_back({.name = channel.name,
                               .kind = channel.kind,
                               .members = members,
                               .index = members.size == 1 ? 0 : (rank - members.first) / members.stride,
                               .enqueued = counters.enqueued,
                               .joined = counters.joined,
                               .sent = counters.sent,
                               .completed = counters.completed,
                               .whole = counters.whole,
                               .operation = counters.operation});
  }
  if (r.entered > 0) {
    record.action = r.program->actions[r.entered - 1];
    for (auto& wait : record.action->waits) {
      wait.sequence = number_here(rank, wait.channel, wait.sequence);
      wait.channel = place[static_cast<size_t>(wait.channel)];
    }
  }
  record.loaders[0].reader = reader_of(rank);
  record.loaders[0].wanted = r.wanted;
  record.loaders[0].published = r.published;
  record.loaders[0].seconds = silent;
  if (rank == reader_of(rank))
    record.loaders[0].reader_state = static_cast<int>(r.published) == r.program->batches ? ReaderState::kDone
                                     : can_read(rank)                                    ? ReaderState::kReads
                                                      : ReaderState::kAwaitsConsumers;
  for (const int stream : {kCompute, kDpStream}) {
    const Stream& s = r.streams[static_cast<size_t>(stream)];
    record.streams.push_back({.name = stream == kCompute ? "compute" : "dp",
                              .state = s.next == s.enqueued ? StreamActivity::kIdle : StreamActivity::kBusy});
  }
  record.writer = {.state = r.writer, .progress = 1, .step = r.step, .seconds = silent};
  return record;
}

}  // namespace tri
