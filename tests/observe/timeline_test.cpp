#include "lib/observe/timeline/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>

#include "io/base/file.h"
#include "io/base/hash.h"
#include "kernels/core/profile.h"
#include "kernels/core/timeline.h"
#include "lib/comm/groups/channel_progress.h"
#include "lib/comm/host/messages.h"
#include "lib/observe/timeline/hang_trace.h"
#include "lib/parallel/mesh.h"
#include "lib/schedule/pipeline.h"
#include "tests/hangs/stream_task.h"
#include "tests/io/temporary_folder.h"
#include "tests/observe/perfetto_decoder.h"

namespace tri {
namespace {

constexpr int64_t kUnit = 1'000'000;     // nanoseconds of the simulator's unit
constexpr int64_t kLeast = 100'000'000;  // before all times

// Segments of a job as the simulator of plans times it: stages in 1F1B, and an all-reduce over dp at the end of each
// step. The rank `late` joins the all-reduce `lateness` after the others.
class SimulatedSegments {
 public:
  SimulatedSegments(int pp, int dp, int tp, int steps, int late = -1, int64_t lateness = 0)
      : pp_(pp), dp_(dp), tp_(tp), steps_(steps), late_(late), lateness_(lateness) {
    const auto plans = plans_of_all_stages(Schedule::k1F1B, pp, 2 * pp, 1);
    run_ = simulate_pipeline(plans, 1, std::vector<StageCost>(static_cast<size_t>(pp), StageCost{1, 2, 0.1}),
                             Overlap::kOn);
    EXPECT_EQ(run_.deadlock, "");
  }

  // `skew(rank)`: how far the clock of a rank's host is ahead of that of rank 0.
  template <class Skew>
  std::vector<TimelineSegment> make(Skew skew) {
    std::vector<TimelineSegment> segments;
    for (int rank = 0; rank < pp_ * dp_ * tp_; ++rank) {
      segments.push_back(make_segment(rank));
      TimelineSegment& segment = segments.back();
      const int64_t ahead = skew(rank);
      segment.clock.offset = -ahead;
      for (TimelineSpan& span : segment.spans) span.begin += ahead, span.end += ahead;
      for (TimelineTransfer& t : segment.transfers) t.joined += ahead, t.completed += ahead;
    }
    return segments;
  }

 private:
  int rank_at(int p, int d, int t) const { return (p * dp_ + d) * tp_ + t; }
  int64_t step_begin(int step) const {
    return kLeast + static_cast<int64_t>((run_.makespan + 4) * static_cast<double>(step) * kUnit);
  }

  TimelineSegment make_segment(int rank) {
    const int p = rank / (dp_ * tp_), d = rank / tp_ % dp_, t = rank % tp_;
    TimelineSegment segment{.world_rank = rank,
                            .world_size = pp_ * dp_ * tp_,
                            .place = {{"pp", p, pp_}, {"dp", d, dp_}, {"tp", t, tp_}},
                            .host = fmt::format("node{}", rank / 8),
                            .attempt = "a",
                            .steps = {1, steps_}};
    segment.streams = {
        "compute", "pp receive forward", "pp send forward", "pp receive backward", "pp send backward", "dp", "host"};
    segment.names = {"F", "B", "gemm", "step", "dp"};
    const auto edge = [&](const char* name, ChannelKind kind, int from, int to) {
      const int source = rank_at(from, d, t), target = rank_at(to, d, t);
      segment.channels.push_back({name, kind, {source, target - source, 2}, kind == ChannelKind::kReceive ? 1 : 0});
    };
    // Indexed by ActionKind - kRecvForward; those at the ends of the pipeline are never used.
    edge("pp forward", ChannelKind::kReceive, p - 1, p);
    edge("pp forward", ChannelKind::kSend, p, p + 1);
    edge("pp backward", ChannelKind::kReceive, p + 1, p);
    edge("pp backward", ChannelKind::kSend, p, p - 1);
    segment.channels.push_back({"dp", ChannelKind::kCollectives, {rank_at(p, 0, t), tp_, dp_}, d});
    std::array<uint32_t, 4> sequence{};
    for (int step = 1; step <= steps_; ++step) {
      add_actions(p, step, sequence, segment);
      add_all_reduce(rank, step, segment);
    }
    return segment;
  }

  void add_actions(int p, int step, std::array<uint32_t, 4>& sequence, TimelineSegment& segment) {
    const int64_t zero = step_begin(step);
    std::uniform_int_distribution<int64_t> early(0, kUnit / 2);
    for (const PipelineSpan& span : run_.spans) {
      if (span.stage != p) continue;
      const int64_t begin = zero + static_cast<int64_t>(span.start * kUnit),
                    end = zero + static_cast<int64_t>(span.end * kUnit);
      const int queue = static_cast<int>(span.action.kind) - static_cast<int>(ActionKind::kRecvForward);
      if (queue >= 0) {
        const ActionKind kind = span.action.kind;
        const bool receives = kind == ActionKind::kRecvForward || kind == ActionKind::kRecvBackward;
        const int index = kind == ActionKind::kRecvForward    ? 0
                          : kind == ActionKind::kSendForward  ? 1
                          : kind == ActionKind::kRecvBackward ? 2
                                                              : 3;
        segment.transfers.push_back({.joined = receives ? begin - early(random_) : begin,
                                     .completed = end,
                                     .sequence = ++sequence[static_cast<size_t>(index)],
                                     .step = step,
                                     .channel = static_cast<uint16_t>(index),
                                     .join_stream = static_cast<uint16_t>(1 + index),
                                     .arrive_stream = static_cast<uint16_t>(1 + index),
                                     .operation = receives ? ChannelOperation::kReceive : ChannelOperation::kSend});
        continue;
      }
      const bool forward = span.action.kind == ActionKind::kForward;
      constexpr int kOperations = 16;
      segment.spans.push_back({.begin = begin,
                               .end = end,
                               .step = step,
                               .name = static_cast<uint16_t>(forward ? 0 : 1),
                               .microbatch = span.action.microbatch,
                               .kind = SpanKind::kAction});
      for (int i = 0; i < kOperations; ++i)
        segment.spans.push_back({.begin = begin + (end - begin) * i / kOperations,
                                 .end = begin + (end - begin) * (i + 1) / kOperations,
                                 .step = step,
                                 .name = 2});
    }
  }

  void add_all_reduce(int rank, int step, TimelineSegment& segment) const {
    const int64_t zero = step_begin(step), ready = zero + static_cast<int64_t>(run_.makespan * kUnit),
                  joined = ready + (rank == late_ ? lateness_ : 0);
    const bool with_late = late_ >= 0 && rank % tp_ == late_ % tp_ && rank / (dp_ * tp_) == late_ / (dp_ * tp_);
    const int64_t end = ready + (with_late ? lateness_ : 0) + kUnit / 2;
    segment.transfers.push_back({.joined = joined,
                                 .completed = end,
                                 .sequence = static_cast<uint32_t>(step),
                                 .step = step,
                                 .channel = 4,
                                 .join_stream = 5,
                                 .arrive_stream = 5,
                                 .operation = ChannelOperation::kAllReduce});
    segment.spans.push_back({.begin = joined, .end = end, .step = step, .name = 4, .kind = SpanKind::kWait});
    segment.spans.push_back({.begin = zero, .end = end, .step = step, .stream = 6, .name = 3});
  }

  const int pp_, dp_, tp_, steps_, late_;
  const int64_t lateness_;
  PipelineRun run_;
  std::mt19937 random_{7};
};

TimelineSummary written(const std::vector<TimelineSegment>& segments, const StepRange& steps, const std::string& path) {
  return value_or_throw(write_timeline(segments, steps, path));
}

int64_t count(const DecodedTrace& trace, const std::string& name) {
  return std::count_if(trace.slices.begin(), trace.slices.end(), [&](const auto& s) { return s.name == name; });
}

// Each receive has one flow, from the send with its number on its channel, which begins earlier on another rank.
void expect_sends_before_receives(const DecodedTrace& trace) {
  std::map<size_t, size_t> source;
  for (const auto& flow : trace.flows) {
    const auto &out = trace.slices[flow.out], &in = trace.slices[flow.in];
    EXPECT_LT(out.begin, in.begin);
    EXPECT_NE(trace.pid(out), trace.pid(in));
    EXPECT_EQ(out.numbers.at("sequence"), in.numbers.at("sequence"));
    EXPECT_EQ(out.texts.at("channel"), in.texts.at("channel"));
    EXPECT_EQ(in.name == "receive", out.name == "send");
    EXPECT_TRUE(source.emplace(flow.in, flow.out).second) << "two flows into one slice";
  }
  for (size_t i = 0; i < trace.slices.size(); ++i)
    EXPECT_TRUE(trace.slices[i].name != "receive" || source.count(i) == 1) << "a receive without its send";
}

TEST(Timeline, every_receive_of_64_ranks_has_its_send) {
  constexpr int kPp = 8, kDp = 4, kTp = 2, kSteps = 3, kMicros = 2 * kPp;
  const TemporaryFolder folder;
  // Uses files, and host clocks that are minutes apart.
  auto segments =
      SimulatedSegments(kPp, kDp, kTp, kSteps).make([](int rank) { return rank / 8 * int64_t{60'000'000'000}; });
  for (const TimelineSegment& segment : segments) {
    const auto result = write_segment(timeline_folder(folder.path(), segment.steps), segment);
    ASSERT_TRUE(result) << result.error().message;
  }
  ASSERT_EQ(list_timelines(folder.path()), (std::vector<StepRange>{{1, kSteps}}));
  const auto read = value_or_throw(read_timeline(folder.path(), {1, kSteps}, {}));
  const TimelineSummary summary = written(read, {1, kSteps}, folder / "all.pftrace");
  const std::string bytes = read_all(folder / "all.pftrace");
  const DecodedTrace trace(bytes);
  // Needed for Perfetto's own programs: tests/mp/clients_read_what_a_run_shows.sh.
  if (const char* kept = std::getenv("TRIREME_TEST_TRACE"); kept != nullptr) value_or_throw(write_file(kept, bytes));

  EXPECT_EQ(summary.num_ranks, kPp * kDp * kTp);
  EXPECT_EQ(summary.num_hosts, 8);
  EXPECT_EQ(summary.num_unmatched + summary.num_early + summary.lost_marks, 0);
  EXPECT_EQ(trace.pid_of.size(), static_cast<size_t>(kPp * kDp * kTp));
  const int64_t edges = int64_t{2} * (kPp - 1) * kDp * kTp;
  EXPECT_EQ(count(trace, "receive"), edges * kMicros * kSteps);
  EXPECT_EQ(count(trace, "send"), edges * kMicros * kSteps);
  EXPECT_EQ(count(trace, "forward mb 3"), kPp * kDp * kTp * kSteps);
  EXPECT_EQ(static_cast<int64_t>(trace.slices.size()), summary.num_slices);
  EXPECT_EQ(static_cast<int64_t>(trace.flows.size()), summary.num_flows);
  expect_sends_before_receives(trace);
  EXPECT_LT(bytes.size(), 10u << 20);
  for (const auto& slice : trace.slices) {
    ASSERT_TRUE(slice.name != "gemm" || slice.depth == 1) << "an operation outside its action";
    ASSERT_TRUE(slice.name != "forward mb 3" || slice.numbers.at("microbatch") == 3);
  }
}

TEST(Timeline, shows_the_requested_steps_and_ranks) {
  const TemporaryFolder folder;
  auto segments = SimulatedSegments(2, 2, 1, 3).make([](int) { return 0; });
  written(segments, {2, 2}, folder / "one.pftrace");
  const DecodedTrace one(read_all(folder / "one.pftrace"));
  for (const auto& slice : one.slices) EXPECT_EQ(slice.numbers.at("step"), 2);
  EXPECT_EQ(count(one, "step 2"), 4);
  // The second stage is missing, so the first one's transfers have no other end.
  segments.resize(2);
  const TimelineSummary half = written(segments, {1, 3}, folder / "half.pftrace");
  const DecodedTrace trace(read_all(folder / "half.pftrace"));
  EXPECT_EQ(half.num_unmatched, 3 * 2 * 2 * 4);
  EXPECT_EQ(count(trace, "receive"), 3 * 2 * 4);
}

TEST(Timeline, a_late_rank_is_waited_for) {
  const TemporaryFolder folder;
  const auto segments = SimulatedSegments(1, 4, 2, 3, 4, 7 * kUnit).make([](int) { return 0; });
  const TimelineSummary summary = written(segments, {1, 3}, folder / "late.pftrace");
  // Rank 4 is [dp2 tp0]: the other ranks of its dp group wait, those with tp 1 do not.
  std::set<int> waiters;
  for (const WaitForRank& wait : summary.waits) {
    EXPECT_EQ(wait.awaited, 4);
    EXPECT_EQ(wait.axis, "dp");
    EXPECT_EQ(wait.count, 3);
    EXPECT_NEAR(wait.seconds, 3 * 7e-3, 1e-9);
    waiters.insert(wait.waiter);
  }
  EXPECT_EQ(waiters, (std::set<int>{0, 2, 6}));
  EXPECT_NE(
      timeline_text(summary, segments).find(" 7.0 ms per step  rank 6 [pp0 dp3 tp0] waits for rank 4 [pp0 dp2 tp0]"),
      std::string::npos);
  const DecodedTrace trace(read_all(folder / "late.pftrace"));
  EXPECT_EQ(count(trace, "waits for rank 4"), 3 * 3 * 2);  // of compute and of the transfers' stream
  // The all-reduce itself takes equally long on all of them.
  for (const auto& slice : trace.slices) {
    if (slice.name != "all-reduce") continue;
    EXPECT_NEAR(static_cast<double>(slice.end - slice.begin), kUnit / 2, 2);
  }
}

TEST(Timeline, wrong_clocks_are_reported_and_invert_nothing) {
  const TemporaryFolder folder;
  auto segments = SimulatedSegments(2, 1, 1, 3).make([](int) { return 0; });
  segments[1].clock = {.offset = -3 * kUnit, .error = 1000};  // receives end before their sends begin
  const TimelineSummary summary = written(segments, {1, 3}, folder / "wrong.pftrace");
  EXPECT_GT(summary.num_early, 0);
  EXPECT_NEAR(summary.clock_error, 1e-6, 1e-12);
  expect_sends_before_receives(DecodedTrace(read_all(folder / "wrong.pftrace")));
  EXPECT_NE(timeline_text(summary, segments).find("arrive before they are sent"), std::string::npos);
}

TEST(Timeline, a_recording_becomes_a_segment) {
  const TemporaryFolder folder;
  ::setenv("TRIREME_BLACK_BOXES", folder.path().c_str(), 1);
  const auto flight =
      value_or_throw(FlightRecorder::create({.world_rank = 1, .world_size = 2, .attempt = "a", .run_dir = "/r"}));
  const ProcessFlightRecorder process(flight.get());
  const auto device = value_or_throw(open_device(DeviceKind::kCpu, 0));
  const auto compute = device->make_stream("compute"), dp = device->make_stream("dp");
  ChannelProgress channel("dp", ChannelKind::kCollectives, {0, 1}, 1);
  SpanRecorder recorder(*device, 1000);
  recorder.follow(*compute);
  recorder.follow(*dp);
  channel.enqueue(ChannelOperation::kAllGather, 8);
  channel.joined(*dp);  // before the first step: its remainder is not a transfer
  recorder.begin_step(7, *compute);
  channel.completed(*dp);
  for (int m = 0; m < 2; ++m) {
    const SpanScope action(*compute, SpanKind::kAction, "F", m, 3);
    const OpScope operation(*compute, "gemm");
    idle(*compute, std::chrono::milliseconds(1));
  }
  const auto acted = device->make_event();
  compute->record(*acted);
  dp->wait(*acted);  // so that compute waits for all of what follows
  channel.enqueue(ChannelOperation::kAllReduce, 8);
  channel.joined(*dp);
  {
    const OpScope operation(*dp, "all-reduce");  // the transfer itself
    idle(*dp, std::chrono::milliseconds(2));
  }
  channel.completed(*dp);
  const auto done = device->make_event();
  dp->record(*done);
  {
    const Timeline watched(*device, *compute);
    const TimeCategoryScope waits(*compute, TimeCategory::kDp);
    compute->wait(*done);
  }
  compute->synchronize();
  dp->synchronize();
  TimelineSegment segment;
  add_recording(recorder.take(), {{"step", 7, 1, 2}}, segment);
  EXPECT_EQ(compute->spans(), nullptr);

  EXPECT_EQ(segment.streams, (std::vector<std::string>{"compute", "dp", "host"}));
  std::vector<std::string> spans;
  for (const TimelineSpan& span : segment.spans) {
    spans.push_back(fmt::format("{} {} {}.{}", segment.streams.at(span.stream), segment.names.at(span.name),
                                span.microbatch, span.chunk));
    EXPECT_EQ(span.step, 7);
    EXPECT_GT(span.end, span.begin);
  }
  EXPECT_EQ(spans, (std::vector<std::string>{"compute gemm 0.0", "compute F 0.3", "compute gemm 0.0", "compute F 1.3",
                                             "compute dp 0.0", "host step 0.0"}));
  ASSERT_EQ(segment.transfers.size(), 1u);
  EXPECT_EQ(segment.transfers[0].sequence, 2u);
  EXPECT_EQ(segment.transfers[0].operation, ChannelOperation::kAllReduce);
  EXPECT_GE(segment.transfers[0].completed - segment.transfers[0].joined, 2'000'000);
  EXPECT_EQ(segment.channels.at(segment.transfers[0].channel).name, "dp");
  EXPECT_EQ(segment.channels.at(segment.transfers[0].channel).index, 1);
  EXPECT_EQ(segment.device_error + segment.lost_marks, 1) << "the mark before the first step";
  flight->end_well();
  ::unsetenv("TRIREME_BLACK_BOXES");
}

// As written by earlier versions: three axes, without names and sizes.
struct OldSegment {
  int32_t world_rank = 9, world_size = 16, pp = 1, dp = 0, tp = 3;
  std::string host = "node1", gpu = "", attempt = "a";
  StepRange steps{3, 4};
  ClockOffset clock{5, 6};
  int64_t device_error = 7, lost_marks = 8;
  std::vector<std::string> streams{"compute"}, names{"F"}, no_channels, no_spans, no_transfers;
};
template <class Archive>
void fields(Archive& archive, OldSegment& p) {
  archive(p.world_rank, p.world_size, p.pp, p.dp, p.tp, p.host, p.gpu, p.attempt, p.steps, p.clock);
  archive(p.device_error, p.lost_marks, p.streams, p.names, p.no_channels, p.no_spans, p.no_transfers);
}

TEST(Timeline, a_segment_of_an_earlier_version_is_read) {
  const TemporaryFolder folder;
  const std::string bytes = to_bytes(OldSegment{}), path = segment_path(folder.path(), 9);
  std::ofstream(path, std::ios::binary) << "TRITIME1" << hex64(xxh3_64(bytes)) << bytes;
  const auto segment = read_segment(path);
  ASSERT_TRUE(segment) << segment.error().message;
  EXPECT_EQ(segment.value().place_text(), "pp1 dp0 tp3");
  EXPECT_EQ(segment.value().rank_on("pp"), 1);
  EXPECT_EQ(segment.value().world_size, 16);
  EXPECT_EQ(segment.value().steps.last, 4);
  EXPECT_EQ(segment.value().clock.error, 6);
  EXPECT_EQ(segment.value().lost_marks, 8);
  EXPECT_EQ(segment.value().names, std::vector<std::string>{"F"});
}

TEST(Timeline, a_damaged_segment_is_refused) {
  const TemporaryFolder folder;
  const auto segments = SimulatedSegments(1, 1, 1, 1).make([](int) { return 0; });
  ASSERT_TRUE(write_segment(folder.path(), segments[0]));
  const std::string path = segment_path(folder.path(), 0), bytes = read_all(path);
  EXPECT_TRUE(read_segment(path));
  for (size_t at = 0; at < bytes.size(); at += 97) {
    std::string damaged = bytes;
    damaged[at] ^= 0x10;
    write_all(path, damaged);
    EXPECT_FALSE(read_segment(path)) << at;
  }
  write_all(path, bytes.substr(0, bytes.size() / 2));
  EXPECT_FALSE(read_segment(path));
}

TEST(HangTrace, transfers_under_way_last_until_the_dump) {
  RankRecord record{.world_rank = 3, .world_size = 4, .host = "node1", .taken = 1763812345};
  record.channels = {{.name = "dp", .members = {1, 2, 2}, .enqueued = 8, .joined = 8, .completed = 6}};
  record.events = {{5.0, FlightEventKind::kPhase, static_cast<uint32_t>(RunPhase::kStep), 11},
                   {4.0, FlightEventKind::kAction, static_cast<uint32_t>(ComputeKind::kForward), 2},
                   {3.0, FlightEventKind::kTransfer, 0, 6},
                   {2.0, FlightEventKind::kTransfer, 0, 7},
                   {1.5, FlightEventKind::kTransfer, 0, 8},
                   {1.0, FlightEventKind::kHost, static_cast<uint32_t>(HostState::kAwaitsDevice), 11}};
  const TemporaryFolder folder;
  const auto result = write_hang_trace({&record, 1}, folder / "hang.pftrace");
  ASSERT_TRUE(result) << result.error().message;
  const DecodedTrace trace(read_all(folder / "hang.pftrace"));
  EXPECT_EQ(trace.num_instants, 2);  // the action, and the completed transfer
  std::map<std::string, double> seconds;
  for (const auto& slice : trace.slices) seconds[slice.name] = static_cast<double>(slice.end - slice.begin) * 1e-9;
  EXPECT_EQ(seconds.size(), 4u);
  EXPECT_NEAR(seconds["dp 7: joined"], 2, 1e-3);
  EXPECT_NEAR(seconds["dp 8: joined"], 1.5, 1e-3);
  EXPECT_NEAR(seconds["step"], 5, 1e-3);
  EXPECT_NEAR(seconds["awaits its device"], 1, 1e-3);
}

}  // namespace
}  // namespace tri
