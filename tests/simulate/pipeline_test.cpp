// Pipelines in simulated time, over every schedule, pp <= 8, chunks <= 4 and num_microbatches <= 32. Times are small
// integers or halves, so that sums are exact and equality means equality.
#include "lib/schedule/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "io/base/error.h"
#include "lib/schedule/buffer_rules.h"

namespace tri {
namespace {

constexpr int kMaxStages = 8, kMaxChunks = 4, kMaxMicrobatches = 32;

// The same work with the backward pass in two halves, if the schedule splits it.
StageCost split(Schedule schedule, StageCost cost) {
  if (!splits_backward(schedule)) return cost;
  cost.weight = cost.backward /= 2;
  return cost;
}

std::vector<StageCost> same_cost(int virtual_stages, StageCost cost) {
  return std::vector<StageCost>(virtual_stages, cost);
}

PipelineRun simulate(Schedule schedule, int size, int num_microbatches, int chunks, StageCost cost, Overlap overlap) {
  return simulate_pipeline(plans_of_all_stages(schedule, size, num_microbatches, chunks), chunks,
                           same_cost(size * chunks, split(schedule, cost)), overlap, placement_of(schedule));
}

template <class Check>  // check(schedule, size, num_microbatches, chunks)
void for_all_pipelines(Check check) {
  for (const Schedule schedule : kSchedules)
    for (int chunks = 1; chunks <= kMaxChunks; ++chunks)
      for (int size = 1; size <= kMaxStages; ++size)
        for (int num_microbatches = 1; num_microbatches <= kMaxMicrobatches; ++num_microbatches) {
          if (!takes_chunks(schedule, chunks)) continue;
          SCOPED_TRACE(fmt::format("{} p {}, m {}, v {}", enum_name(schedule), size, num_microbatches, chunks));
          check(schedule, size, num_microbatches, chunks);
          if (::testing::Test::HasFailure()) return;  // one report is enough
        }
}

constexpr Overlap kBothModes[] = {Overlap::kOn, Overlap::kOff};

size_t num_actions(const std::vector<Plan>& plans) {
  size_t count = 0;
  for (const Plan& plan : plans) count += plan.size();
  return count;
}

TEST(Pipeline, no_schedule_deadlocks_and_every_action_takes_place) {
  for_all_pipelines([](Schedule schedule, int size, int num_microbatches, int chunks) {
    const std::vector<Plan> plans = plans_of_all_stages(schedule, size, num_microbatches, chunks);
    for (const Overlap overlap : kBothModes) {
      const PipelineRun run = simulate_pipeline(plans, chunks, same_cost(size * chunks, split(schedule, {1, 2, 0.5})),
                                                overlap, placement_of(schedule));
      EXPECT_EQ(run.deadlock, "");
      EXPECT_EQ(run.spans.size(), num_actions(plans));
    }
  });
}

TEST(Pipeline, bubble_is_p_minus_1_over_v_m) {
  for_all_pipelines([](Schedule schedule, int size, int num_microbatches, int chunks) {
    const PipelineRun run = simulate(schedule, size, num_microbatches, chunks, {1, 2, 0}, Overlap::kOn);
    const int groups = (num_microbatches + size - 1) / size;
    const int padded = chunks == 1 ? num_microbatches : groups * size;
    for (const double busy : run.busy) EXPECT_EQ(busy, 3.0 * num_microbatches * chunks);
    if (splits_backward(schedule)) return;
    if (padded == num_microbatches) {
      EXPECT_EQ(run.makespan, 3.0 * (num_microbatches * chunks + size - 1));
      EXPECT_DOUBLE_EQ(run.bubble, ideal_bubble(size, num_microbatches, chunks));
      EXPECT_DOUBLE_EQ(run.bubble, (size - 1.0) / (chunks * num_microbatches));
    } else {
      EXPECT_LE(run.makespan, 3.0 * (padded * chunks + size - 1));
    }
  });
}

// Qi et al. 2023, table 2: ZB-H1. The delayed weight gradients of fewer microbatches than stages do not fill all of it.
TEST(Pipeline, bubble_of_zb_h1_is_p_minus_1_times_f_plus_b_minus_w) {
  for (const StageCost cost : {StageCost{1, 1, 0, 1}, StageCost{2, 2.5, 0, 1.5}, StageCost{1.25, 1.5, 0, 1}})
    for (int size = 1; size <= kMaxStages; ++size)
      for (int num_microbatches = 1; num_microbatches <= kMaxMicrobatches; ++num_microbatches) {
        const PipelineRun run = simulate_pipeline(plans_of_all_stages(Schedule::kZbH1, size, num_microbatches, 1), 1,
                                                  same_cost(size, cost), Overlap::kOn);
        const double work = num_microbatches * (cost.forward + cost.backward + cost.weight);
        const double bubble = (size - 1) * (cost.forward + cost.backward - cost.weight) +
                              std::max(0, size - num_microbatches) * cost.weight;
        ASSERT_EQ(run.makespan, work + bubble) << "p " << size << ", m " << num_microbatches;
        for (const std::vector<int>& peak : run.peak_activations)
          ASSERT_EQ(peak.front(), std::min(size, num_microbatches));
      }
}

// Where the parts take as long, and there are enough microbatches, only the first chunk's forwards on the way to the
// last rank cost time.
TEST(Pipeline, bubble_of_zb_v_is_below_that_of_zb_h1) {
  constexpr Schedule kZbV = Schedule::kZbV, kZbH1 = Schedule::kZbH1;
  for (const StageCost cost : {StageCost{1, 1, 0, 1}, StageCost{1, 1.25, 0, 0.875}, StageCost{1, 1.5, 0, 0.75}})
    for (int size = 2; size <= kMaxStages; ++size)
      for (const int num_microbatches : {size, 2 * size, 4 * size}) {
        const std::vector<StageCost> whole = same_cost(size, cost),
                                     half = same_cost(2 * size, {.forward = cost.forward / 2,
                                                                 .backward = cost.backward / 2,
                                                                 .weight = cost.weight / 2});
        const double zb_h1 =
            simulate_pipeline(plans_of_all_stages(kZbH1, size, num_microbatches, 1), 1, whole, Overlap::kOn).bubble;
        const double zb_v = simulate_pipeline(plans_of_all_stages(kZbV, size, num_microbatches, 2, half), 2, half,
                                              Overlap::kOn, StagePlacement::kFolded)
                                .bubble;
        const double work = num_microbatches * (cost.forward + cost.backward + cost.weight);
        EXPECT_LT(zb_v, zb_h1) << size << " stages, " << num_microbatches << " microbatches";
        EXPECT_GE(zb_v, (size - 1) * cost.forward / 2 / work * (1 - 1e-12));
      }
}

TEST(Pipeline, zb_v_never_deadlocks_whatever_its_parts_take) {
  for (int size = 1; size <= 6; ++size)
    for (const int num_microbatches : {1, 2, 3, size, 2 * size + 1, 4 * size})
      for (int seed = 0; seed < 12; ++seed) {
        std::vector<StageCost> costs;
        for (int s = 0; s < 2 * size; ++s)
          costs.push_back({.forward = 1.0 + (7 * s + seed) % 5,
                           .backward = 1.0 + (3 * s + 2 * seed) % 7,
                           .weight = 0.25 * ((s + seed) % 9)});
        const std::vector<Plan> plans = plans_of_all_stages(Schedule::kZbV, size, num_microbatches, 2, costs);
        for (const Overlap overlap : kBothModes) {
          const PipelineRun run = simulate_pipeline(plans, 2, costs, overlap, StagePlacement::kFolded);
          ASSERT_EQ(run.deadlock, "") << size << ' ' << num_microbatches << ' ' << seed;
          ASSERT_EQ(run.spans.size(), num_actions(plans));
        }
      }
}

TEST(Pipeline, peak_activations_are_those_of_the_plans) {
  const PipelineRun run = simulate(Schedule::k1F1B, 4, 8, 1, {1, 2, 0}, Overlap::kOn);
  EXPECT_EQ(run.peak_activations, (std::vector<std::vector<int>>{{4}, {3}, {2}, {1}}));
  const PipelineRun interleaved = simulate(Schedule::kInterleaved, 2, 4, 2, {1, 2, 0}, Overlap::kOn);
  EXPECT_EQ(interleaved.peak_activations, (std::vector<std::vector<int>>{{4, 2}, {3, 1}}));
}

TEST(Pipeline, forward_only_never_deadlocks_and_has_the_same_bubble) {
  for (int size = 1; size <= kMaxStages; ++size)
    for (int chunks = 1; chunks <= kMaxChunks; ++chunks)
      for (int num_microbatches = 1; num_microbatches <= kMaxMicrobatches; ++num_microbatches)
        for (const Overlap overlap : kBothModes) {
          std::vector<Plan> plans;
          for (int rank = 0; rank < size; ++rank)
            plans.push_back(with_transfers(forward_only({rank, size}, num_microbatches, chunks), {rank, size}, chunks));
          const PipelineRun run = simulate_pipeline(plans, chunks, same_cost(size * chunks, {1, 2, 0}), overlap);
          ASSERT_EQ(run.deadlock, "") << size << ' ' << num_microbatches << ' ' << chunks;
          ASSERT_EQ(run.spans.size(), num_actions(plans));
          if (chunks == 1 || num_microbatches % size == 0) {
            ASSERT_EQ(run.makespan, num_microbatches * chunks + size - 1);
          }
        }
}

TEST(Pipeline, forward_only_of_a_folded_pipeline_waits_only_for_its_first_microbatch) {
  for (int size = 1; size <= kMaxStages; ++size)
    for (int num_microbatches = 1; num_microbatches <= kMaxMicrobatches; ++num_microbatches)
      for (const Overlap overlap : kBothModes) {
        std::vector<Plan> plans;
        for (int rank = 0; rank < size; ++rank) {
          const Axis pp = pipeline_axis(Schedule::kZbV, rank, size);
          plans.push_back(with_transfers(forward_only(pp, num_microbatches, 2), pp, 2));
        }
        const PipelineRun run =
            simulate_pipeline(plans, 2, same_cost(2 * size, {1, 2, 0}), overlap, StagePlacement::kFolded);
        ASSERT_EQ(run.deadlock, "") << size << ' ' << num_microbatches;
        ASSERT_EQ(run.spans.size(), num_actions(plans));
        ASSERT_EQ(run.makespan, 2 * (num_microbatches - 1) + 2 * size) << size << ' ' << num_microbatches;
      }
}

// Returns the most spans [start, end) that overlap.
int most_alive(const std::vector<std::pair<double, double>>& intervals) {
  std::vector<std::pair<double, int>> events;  // at equal times, ends precede starts
  for (const auto& [start, end] : intervals) {
    events.push_back({start, +1});
    events.push_back({end, -1});
  }
  std::ranges::sort(events);
  int alive = 0, most = 0;
  for (const auto& [time, change] : events) most = std::max(most, alive += change);
  return most;
}

using SpanKey = std::tuple<int, ActionKind, int, int>;  // stage, kind, microbatch, chunk

// Checks the rules of the queues on the resulting times.
void check_times(const PipelineRun& run, const std::vector<Plan>& plans, int chunks, Schedule schedule) {
  const int size = static_cast<int>(plans.size());
  std::map<SpanKey, PipelineSpan> spans;
  for (const PipelineSpan& s : run.spans) spans[{s.stage, s.action.kind, s.action.microbatch, s.action.chunk}] = s;
  for (int rank = 0; rank < size; ++rank) {
    const Axis pp = pipeline_axis(schedule, rank, size);
    std::map<std::pair<int, int>, double> queue_end;  // route and queue -> end of the previous action
    using Intervals = std::map<int, std::vector<std::pair<double, double>>>;  // by route
    Intervals gradients, outputs, output_gradients;
    std::map<int, std::vector<std::pair<double, double>>> inputs;  // by chunk
    for (const Action& a : plans[rank]) {
      const auto at = [&](ActionKind kind) { return spans.at({rank, kind, a.microbatch, a.chunk}); };
      const PipelineSpan span = at(a.kind);
      const int route = route_of(pp, a.chunk);
      const std::pair queue = is_compute(a.kind) ? std::pair{0, 0} : std::pair{route, static_cast<int>(a.kind)};
      EXPECT_GE(span.start, queue_end[queue]) << to_string(a);
      queue_end[queue] = span.end;
      const bool first = is_first_virtual_stage(pp, a.chunk) || turns_before(pp, a.chunk);
      const bool last = is_last_virtual_stage(pp, a.chunk, chunks) || turns_after(pp, a.chunk);
      switch (a.kind) {
        case ActionKind::kForward:
          if (!first) {
            EXPECT_GE(span.start, at(ActionKind::kRecvForward).end);
          }
          if (turns_before(pp, a.chunk)) {
            EXPECT_GE(span.start, spans.at({rank, ActionKind::kForward, a.microbatch, 0}).end);
          }
          if (!last) outputs[route].push_back({span.start, at(ActionKind::kSendForward).end});
          break;
        case ActionKind::kBackward:
          EXPECT_GE(span.start, at(ActionKind::kForward).end);
          if (!last) {
            EXPECT_GE(span.start, at(ActionKind::kRecvBackward).end);
          }
          if (turns_after(pp, a.chunk)) {
            EXPECT_GE(span.start, spans.at({rank, ActionKind::kBackward, a.microbatch, 1}).end);
          }
          if (!first) output_gradients[route].push_back({span.start, at(ActionKind::kSendBackward).end});
          break;
        case ActionKind::kWeight:
          EXPECT_GE(span.start, at(ActionKind::kBackward).end);
          break;
        case ActionKind::kRecvForward:
          inputs[a.chunk].push_back({span.start, at(ActionKind::kBackward).end});
          break;
        case ActionKind::kRecvBackward:
          gradients[route].push_back({span.start, at(ActionKind::kBackward).end});
          break;
        case ActionKind::kSendForward: {
          EXPECT_GE(span.start, at(ActionKind::kForward).end);
          const int chunk = pp.folded ? a.chunk : a.chunk + (rank == size - 1);
          const int receiver = pp.folded && a.chunk == 1 ? rank - 1 : (rank + 1) % size;
          const PipelineSpan other = spans.at({receiver, ActionKind::kRecvForward, a.microbatch, chunk});
          EXPECT_TRUE(other.start == span.start && other.end == span.end) << to_string(a);
          break;
        }
        case ActionKind::kSendBackward: {
          EXPECT_GE(span.start, at(ActionKind::kBackward).end);
          const int chunk = pp.folded ? a.chunk : a.chunk - (rank == 0);
          const int receiver = pp.folded && a.chunk == 1 ? rank + 1 : (rank + size - 1) % size;
          const PipelineSpan other = spans.at({receiver, ActionKind::kRecvBackward, a.microbatch, chunk});
          EXPECT_TRUE(other.start == span.start && other.end == span.end) << to_string(a);
          break;
        }
      }
    }
    for (const auto& [route, alive] : gradients) EXPECT_LE(most_alive(alive), kGradientBuffers);
    for (const auto& [route, alive] : outputs) EXPECT_LE(most_alive(alive), kOutputBuffers);
    for (const auto& [route, alive] : output_gradients) EXPECT_LE(most_alive(alive), kOutputBuffers);
    for (const auto& [chunk, alive] : inputs) EXPECT_LE(most_alive(alive), max_inputs(plans[rank], pp, chunk));
  }
}

TEST(Pipeline, queues_rendezvous_and_buffers_are_respected) {
  for_all_pipelines([](Schedule schedule, int size, int num_microbatches, int chunks) {
    if (num_microbatches % 5 > 1) return;
    const std::vector<Plan> plans = plans_of_all_stages(schedule, size, num_microbatches, chunks);
    std::vector<StageCost> costs;
    for (int s = 0; s < size * chunks; ++s) costs.push_back(split(schedule, {1.0 + s % 3, 2.0 + s % 2, 0.5 * (s % 4)}));
    for (const Overlap overlap : kBothModes)
      check_times(simulate_pipeline(plans, chunks, costs, overlap, placement_of(schedule)), plans, chunks, schedule);
  });
}

TEST(Pipeline, times_of_a_small_pipeline_are_those_worked_out_by_hand) {
  // Two stages, one microbatch: F, transfer, F, B, transfer, B, without overlap.
  const std::vector<StageCost> costs = {{1, 2, 0.5}, {3, 5, 0.25}};
  for (const Overlap overlap : kBothModes) {
    const PipelineRun run = simulate_pipeline(plans_of_all_stages(Schedule::k1F1B, 2, 1, 1), 1, costs, overlap);
    EXPECT_EQ(run.makespan, 1 + 0.5 + 3 + 5 + 0.25 + 2);
    EXPECT_EQ(run.busy, (std::vector<double>{3, 8}));
    EXPECT_DOUBLE_EQ(run.bubble, (2 * 11.75 - 11) / 11);
  }
}

double makespan(Schedule schedule, int size, int num_microbatches, int chunks, double transfer, Overlap overlap) {
  return simulate(schedule, size, num_microbatches, chunks, {1, 2, transfer}, overlap).makespan;
}

TEST(Pipeline, without_overlap_slow_transfers_cost_more) {
  for_all_pipelines([](Schedule schedule, int size, int num_microbatches, int chunks) {
    const double on = makespan(schedule, size, num_microbatches, chunks, 0.5, Overlap::kOn);
    const double off = makespan(schedule, size, num_microbatches, chunks, 0.5, Overlap::kOff);
    EXPECT_LE(on, off);
    if (size > 1 && num_microbatches % size == 0 && !folds(schedule)) {  // its waits may hide the sends
      EXPECT_LT(on, off);
    }
  });
}

// With overlap only the path of the first microbatch through all virtual stages and back costs time. 1F1B is the
// exception: its neighbours wait for each other's result in every pair, so part of each transfer stays exposed.
TEST(Pipeline, with_overlap_transfers_cost_only_their_latency_except_in_1f1b) {
  for_all_pipelines([](Schedule schedule, int size, int num_microbatches, int chunks) {
    if (num_microbatches % size != 0 || splits_backward(schedule)) return;
    const double on = makespan(schedule, size, num_microbatches, chunks, 0.5, Overlap::kOn);
    const double latency = 2 * 0.5 * (size * chunks - 1);
    const double expected = 3.0 * (num_microbatches * chunks + size - 1) + latency;
    if (schedule == Schedule::k1F1B && size > 1 && num_microbatches > size) {
      EXPECT_GT(on, expected);
    } else if (schedule != Schedule::k1F1B && size > 1) {
      EXPECT_EQ(on, expected);
    }
  });
}

TEST(Pipeline, plans_that_wait_for_each_other_are_reported_with_their_stages) {
  // Stage 0 waits for the first gradient before its second forward; stage 1 needs both forwards first.
  const Axis first{0, 2}, last{1, 2};
  const Plan eager = with_transfers(
      {{ActionKind::kForward, 0}, {ActionKind::kBackward, 0}, {ActionKind::kForward, 1}, {ActionKind::kBackward, 1}},
      first, 1);
  const Plan patient = with_transfers(make_plan(Schedule::kGpipe, last, 2, 1), last, 1);
  const PipelineRun run = simulate_pipeline({eager, patient}, 1, same_cost(2, {}), Overlap::kOn);
  EXPECT_EQ(run.deadlock,
            "stage 0: B0 waits for its own RB0\n"
            "stage 0: SF1 waits for its own F1\n"
            "stage 0: RB0 waits for SB0 of stage 1, which is waiting too\n"
            "stage 1: F1 waits for its own RF1\n"
            "stage 1: RF1 waits for SF1 of stage 0, which is waiting too\n"
            "stage 1: SB0 waits for its own B0\n");
  EXPECT_EQ(run.busy, (std::vector<double>{1, 1}));
}

TEST(Pipeline, transfers_out_of_order_are_a_deadlock_not_a_mixup) {
  std::vector<Plan> plans = plans_of_all_stages(Schedule::kGpipe, 2, 2, 1);
  std::ranges::swap(*std::ranges::find(plans[1], Action{ActionKind::kRecvForward, 0}),
                    *std::ranges::find(plans[1], Action{ActionKind::kRecvForward, 1}));
  const PipelineRun run = simulate_pipeline(plans, 1, same_cost(2, {}), Overlap::kOn);
  EXPECT_NE(run.deadlock.find("stage 0: SF0 waits for RF0 of stage 1, where RF1 comes first\n"), std::string::npos)
      << run.deadlock;
}

TEST(Pipeline, a_missing_send_is_reported) {
  std::vector<Plan> plans = plans_of_all_stages(Schedule::k1F1B, 3, 4, 1);
  std::erase(plans[1], Action{ActionKind::kSendForward, 3});
  const PipelineRun run = simulate_pipeline(plans, 1, same_cost(3, {}), Overlap::kOn);
  EXPECT_NE(run.deadlock.find("stage 2: RF3 waits for SF3 of stage 1, which is missing in that stage's plan\n"),
            std::string::npos)
      << run.deadlock;
}

// Two results wait in the output buffers for a slow receiver; the next forward must wait for one of the buffers.
TEST(Pipeline, a_forward_waits_for_its_output_buffer) {
  const auto start_of_fifth = [](double receiver_forward) {
    std::vector<Plan> plans;
    for (int rank = 0; rank < 2; ++rank) plans.push_back(with_transfers(forward_only({rank, 2}, 6, 1), {rank, 2}, 1));
    const PipelineRun run = simulate_pipeline(plans, 1, {{1, 2, 0}, {receiver_forward, 2, 0}}, Overlap::kOn);
    for (const PipelineSpan& span : run.spans)
      if (span.stage == 0 && span.action == Action{ActionKind::kForward, 4}) return span.start;
    return -1.0;
  };
  EXPECT_EQ(start_of_fifth(1), 4);
  // The receiver has 2 inputs: 0 and 1 arrive at 1 and 2, input 2 when forward 0 ends, at 101; F4 takes its buffer.
  EXPECT_EQ(start_of_fifth(100), 101);
}

TEST(Pipeline, costs_that_do_not_fit_the_plans_are_refused) {
  EXPECT_THROW(simulate_pipeline(plans_of_all_stages(Schedule::k1F1B, 2, 2, 1), 1, same_cost(3, {}), Overlap::kOn),
               Fatal);
  EXPECT_THROW(simulate_pipeline({}, 1, {}, Overlap::kOn), Fatal);
}

}  // namespace
}  // namespace tri
