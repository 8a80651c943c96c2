// A simulated step's trace, read by a decoder that is independent of its writer.
#include "lib/observe/timeline/simulated_timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lib/observe/timeline/timeline.h"
#include "tests/io/temporary_folder.h"
#include "tests/observe/perfetto_decoder.h"

namespace tri {
namespace {

Workload small_job(int chunks) {
  Workload w;
  w.model = {.layers = 32, .hidden = 4096, .heads = 32, .head_dim = 128, .kv_heads = 32, .ffn_hidden = 16384};
  w.model.vocab = 51200;
  w.model.seq_len = 2048;
  w.tp = 8;
  w.pp = 4;
  w.dp = 4;
  w.chunks = chunks;
  w.schedule = chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  w.global_batch = 32;
  return w;
}

int64_t count(const DecodedTrace& trace, const std::string& begin) {
  return std::ranges::count_if(trace.slices, [&](const auto& slice) { return slice.name.starts_with(begin); });
}

TEST(SimulatedTimeline, has_every_action_and_transfer_of_the_plan) {
  constexpr int kMicros = 8, kPp = 4;
  for (const int chunks : {1, 2}) {
    const Workload w = small_job(chunks);
    const Cluster cluster;
    const TemporaryFolder folder;
    const std::string path = folder / "step.pftrace";
    const auto summary = write_timeline(simulated_segments(w, cluster, RingTimes(cluster)), {1, 1}, path);
    ASSERT_TRUE(summary) << summary.error().message;
    EXPECT_EQ(summary.value().num_unmatched, 0);
    EXPECT_EQ(summary.value().num_early, 0);
    const DecodedTrace trace(read_all(path));
    std::set<int> ranks;
    for (const auto& slice : trace.slices) ranks.insert(trace.pid(slice) - 1);
    EXPECT_EQ(ranks, (std::set<int>{0, 32, 64, 96}));
    EXPECT_EQ(count(trace, "forward "), kPp * chunks * kMicros);
    EXPECT_EQ(count(trace, "backward "), kPp * chunks * kMicros);
    EXPECT_EQ(count(trace, "GEMMs"), 2 * kPp * chunks * kMicros);
    EXPECT_EQ(count(trace, "update"), kPp);
    const int64_t messages = 2 * (kPp * chunks - 1) * kMicros;
    EXPECT_EQ(count(trace, "receive"), messages);
    EXPECT_EQ(std::ssize(trace.flows), messages);
    for (const auto& flow : trace.flows) {
      EXPECT_LT(trace.slices[flow.out].begin, trace.slices[flow.in].begin);
      EXPECT_EQ(trace.slices[flow.out].numbers.at("sequence"), trace.slices[flow.in].numbers.at("sequence"));
    }
  }
}

// Passes of experts include the transfers of their rows.
TEST(SimulatedTimeline, parts_of_a_pass_fill_it) {
  Workload w = small_job(1);
  w.tp = 1;
  w.dp = 8;
  w.ep = 8;
  w.model.experts = 64;
  w.model.experts_per_token = 4;
  w.model.expert_hidden = 1024;
  ASSERT_EQ(problem_of(w), "");
  Cluster cluster;
  cluster.software.layer_us = 500;
  for (const TimelineSegment& segment : simulated_segments(w, cluster, RingTimes(cluster))) {
    int64_t passes = 0, parts = 0, transfers = 0;
    for (const TimelineSpan& span : segment.spans) {
      const std::string& name = segment.names[span.name];
      if (segment.streams[span.stream] != "compute" || name == "update") continue;
      (span.kind == SpanKind::kAction ? passes : parts) += span.end - span.begin;
      if (name == "ep exposed") transfers += span.end - span.begin;
    }
    EXPECT_NEAR(static_cast<double>(parts) / static_cast<double>(passes), 1, 1e-6);
    EXPECT_GT(transfers, 0);
  }
}

// World ranks and places follow the order of the axes, that of other programs' context parallelism included.
TEST(SimulatedTimeline, names_ranks_by_the_grid_of_the_job) {
  Workload w = small_job(1);
  w.dp = 2;
  w.cp = 2;
  EXPECT_EQ(w.grid().sizes(), "tp 8 x cp 2 x dp 2 x pp 4");
  const Cluster cluster;
  const auto segments = simulated_segments(w, cluster, RingTimes(cluster));
  ASSERT_EQ(std::ssize(segments), w.pp);
  for (int stage = 0; stage < w.pp; ++stage) {
    const TimelineSegment& segment = segments[static_cast<size_t>(stage)];
    EXPECT_EQ(segment.world_rank, 32 * stage);
    EXPECT_EQ(segment.place_text(), fmt::format("pp{} dp0 cp0 tp0", stage));
    EXPECT_EQ(segment.place_text(), w.grid().place(segment.world_rank));
    for (const AxisPlace& on : segment.place) EXPECT_EQ(on.size, w.grid().size(on.axis));
  }
}

// The trace ends when the model predicts the end of the step, except for stragglers.
TEST(SimulatedTimeline, lasts_as_long_as_the_prediction) {
  Cluster cluster;
  cluster.software.layer_us = 500;
  cluster.software.beside_slowdown = 0;  // of compute alongside dp: the trace shows compute without slowdown
  for (const int chunks : {1, 2})
    for (const bool overlap : {true, false}) {
      Workload w = small_job(chunks);
      w.overlap_dp = w.overlap_pp = overlap;
      const double predicted = predict_step(w, cluster, RingTimes(cluster), Stragglers::kOff).seconds;
      const auto segments = simulated_segments(w, cluster, RingTimes(cluster));
      int64_t begin = INT64_MAX, end = 0;
      for (const TimelineSegment& segment : segments)
        for (const TimelineSpan& span : segment.spans) {
          begin = std::min(begin, span.begin);
          end = std::max(end, span.end);
        }
      EXPECT_NEAR(static_cast<double>(end - begin) * 1e-9 / predicted, 1, 0.02) << chunks << overlap;
    }
}

}  // namespace
}  // namespace tri
