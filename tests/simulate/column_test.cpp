// Compares the fast column with the simulator of pipelines, and its extension with stepping through every microbatch.
#include "lib/simulate/column.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <vector>

#include "io/base/enum_names.h"
#include "io/base/error.h"
#include "lib/schedule/pipeline.h"

namespace tri {
namespace {

ColumnCosts uneven_costs(Schedule schedule, int stages, int chunks, int num_microbatches, double transfer) {
  ColumnCosts costs{.schedule = schedule, .stages = stages, .chunks = chunks, .num_microbatches = num_microbatches};
  costs.transfer = transfer;
  for (int i = 0; i < stages * chunks; ++i) {
    costs.forward.push_back(1);
    costs.backward.push_back(splits_backward(schedule) ? 1 : 2);
    if (splits_backward(schedule)) costs.weight.push_back(1.125);
  }
  costs.forward.front() = 1.25;   // includes the embedding
  costs.backward.back() += 0.75;  // includes the head
  return costs;
}

PipelineRun reference(const ColumnCosts& costs) {
  std::vector<StageCost> stage_costs;
  for (size_t i = 0; i < costs.forward.size(); ++i)
    stage_costs.push_back(
        {costs.forward[i], costs.backward[i], costs.transfer, costs.weight.empty() ? 0 : costs.weight[i]});
  return simulate_pipeline(plans_of_all_stages(costs.schedule, costs.stages, costs.num_microbatches, costs.chunks),
                           costs.chunks, stage_costs,
                           costs.transfers == StageTransfers::kConcurrent ? Overlap::kOn : Overlap::kOff);
}

// Folded pipelines are timed by the simulator of pipelines.
std::vector<Schedule> unfolded_schedules() {
  std::vector<Schedule> schedules;
  std::ranges::copy_if(kSchedules, std::back_inserter(schedules), [](Schedule schedule) { return !folds(schedule); });
  return schedules;
}

TEST(Column, equals_the_simulator_of_pipelines) {
  for (const Schedule schedule : unfolded_schedules())
    for (int chunks = 1; chunks <= (takes_chunks(schedule) ? 4 : 1); ++chunks)
      for (int stages = 1; stages <= 6; ++stages)
        for (const int num_microbatches : {1, 2, 3, 5, 8, 12, 17})
          for (const double transfer : {0.0, 0.25, 1.5, 4.0})
            for (const StageTransfers transfers : {StageTransfers::kConcurrent, StageTransfers::kBlocked}) {
              SCOPED_TRACE(fmt::format("{} p {} v {} m {} transfer {} mode {}", enum_name(schedule), stages, chunks,
                                       num_microbatches, transfer, static_cast<int>(transfers)));
              ColumnCosts costs = uneven_costs(schedule, stages, chunks, num_microbatches, transfer);
              costs.transfers = transfers;
              const PipelineRun run = reference(costs);
              const ColumnTimes times = time_whole_column(costs);
              double end = 0;  // a pipeline's makespan also includes the last message
              for (const PipelineSpan& span : run.spans)
                if (is_compute(span.action.kind)) end = std::max(end, span.end);
              ASSERT_DOUBLE_EQ(times.makespan, end);
              for (int rank = 0; rank < stages; ++rank) ASSERT_DOUBLE_EQ(times.busy[rank], run.busy[rank]);
              for (const PipelineSpan& span : run.spans) {
                const int stage = span.action.chunk * stages + span.stage;
                if (span.action == Action{ActionKind::kForward, 0, span.action.chunk}) {
                  ASSERT_DOUBLE_EQ(times.first_forward[stage], span.start);
                }
                const ActionKind last = splits_backward(schedule) ? ActionKind::kWeight : ActionKind::kBackward;
                if (span.action == Action{last, num_microbatches - 1, span.action.chunk}) {
                  ASSERT_DOUBLE_EQ(times.last_backward[stage], span.end);
                }
              }
            }
}

TEST(Column, extended_steady_state_equals_every_microbatch) {
  for (const Schedule schedule : unfolded_schedules())
    for (const int chunks : takes_chunks(schedule) ? std::vector{1, 2, 3, 6} : std::vector{1})
      for (const int stages : {1, 2, 4, 8})
        for (const int num_microbatches : {3, 16, 37, 64, 101, 192})
          for (const double transfer : {0.0, 0.1, 0.5, 1.5, 4.0})
            for (const StageTransfers transfers :
                 {StageTransfers::kConcurrent, StageTransfers::kBlocked, StageTransfers::kCoupled}) {
              SCOPED_TRACE(fmt::format("{} p {} v {} m {} transfer {} mode {}", enum_name(schedule), stages, chunks,
                                       num_microbatches, transfer, static_cast<int>(transfers)));
              ColumnCosts costs = uneven_costs(schedule, stages, chunks, num_microbatches, transfer);
              costs.transfers = transfers;
              const ColumnTimes whole = time_whole_column(costs), extended = time_column(costs);
              const auto near = [&](double a, double b) { return std::abs(a - b) <= 1e-9 * whole.makespan; };
              EXPECT_TRUE(near(whole.makespan, extended.makespan)) << whole.makespan << " " << extended.makespan;
              for (int i = 0; i < stages * chunks; ++i) {
                EXPECT_TRUE(near(whole.first_forward[i], extended.first_forward[i]));
                EXPECT_TRUE(near(whole.last_backward[i], extended.last_backward[i]));
              }
            }
}

// A slow stage in the middle lets a pipeline reach its steady state late, or differ from its last stage's first rhythm.
TEST(Column, uneven_stages_are_walked_through) {
  for (const int chunks : {1, 2, 3})
    for (const int stages : {2, 3, 4, 8})
      for (const int num_microbatches : {16, 37, 96, 192})
        for (const StageTransfers transfers :
             {StageTransfers::kConcurrent, StageTransfers::kBlocked, StageTransfers::kCoupled})
          for (const int slow : {0, stages * chunks / 2, stages * chunks - 1}) {
            ColumnCosts costs = uneven_costs(chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B, stages, chunks,
                                             num_microbatches, 0.1);
            costs.transfers = transfers;
            costs.forward[slow] = 1.5;
            const double whole = time_whole_column(costs).makespan;
            EXPECT_NEAR(time_column(costs).makespan / whole, 1, 1e-9)
                << "p " << stages << " v " << chunks << " m " << num_microbatches << " slow " << slow;
          }
}

// The plan of more microbatches may differ at its end.
TEST(Column, extended_folded_pipelines_are_close_to_every_microbatch) {
  for (const int stages : {2, 4, 8})
    for (const int num_microbatches : {stages, 10 * stages, 64})
      for (const double transfer : {0.0, 0.1}) {
        const ColumnCosts costs = uneven_costs(Schedule::kZbV, stages, 2, num_microbatches, transfer);
        const ColumnTimes whole = time_whole_column(costs), extended = time_column(costs);
        EXPECT_NEAR(extended.makespan / whole.makespan, 1, 0.02) << stages << ' ' << num_microbatches;
        for (int rank = 0; rank < stages; ++rank) EXPECT_NEAR(extended.busy[rank] / whole.busy[rank], 1, 1e-9);
      }
}

// The first stage does more by the embedding, and the last by the head. If both are about as slow, one of them falls
// behind for many groups before the pipeline is periodic.
TEST(Column, random_first_and_last_stages_are_extended_within_a_thousandth) {
  std::mt19937 random(7);
  const auto between = [&](double low, double high) { return low + (high - low) * random() / 4294967296.0; };
  for (const Schedule schedule : {Schedule::k1F1B, Schedule::kZbH1, Schedule::kInterleaved})
    for (int i = 0; i < 1000; ++i) {
      const bool splits = splits_backward(schedule), in_chunks = schedule == Schedule::kInterleaved;
      ColumnCosts costs{.schedule = schedule};
      costs.stages = static_cast<int>(between(2, 7));
      costs.chunks = in_chunks ? 2 : 1;
      costs.num_microbatches = static_cast<int>(between(3, 16)) * costs.stages + (in_chunks ? 0 : i % costs.stages);
      const size_t stages = static_cast<size_t>(costs.stages) * costs.chunks;
      costs.transfer = i % 2 * between(0, 0.2);
      costs.forward.assign(stages, 1.0);
      costs.backward.assign(stages, splits ? between(0.8, 1.3) : between(1.6, 2.6));
      if (splits) costs.weight.assign(stages, between(0.6, 1.1));
      const double first = between(0, 0.5), last = i % 3 == 0 ? between(0, 1) : first * between(0.6, 1.3);
      costs.forward.front() += first / 2;
      costs.backward.front() += first / 2;
      costs.forward.back() += last / 4;
      costs.backward.back() += last * 3 / 4;
      EXPECT_NEAR(time_column(costs).makespan / time_whole_column(costs).makespan, 1, 1e-3)
          << enum_name(schedule) << " p " << costs.stages << " m " << costs.num_microbatches << " transfer "
          << costs.transfer << " backward " << costs.backward[1] << " first " << first << " last " << last;
    }
}

// Both ends' rhythms are periodic after three groups, but the first rank, the slowest, has only been ahead by then.
TEST(Column, a_slow_first_stage_is_not_overlooked) {
  ColumnCosts costs{.schedule = Schedule::kZbH1, .stages = 5, .chunks = 1, .num_microbatches = 70};
  costs.forward = {1.225, 1, 1, 1, 1.175};
  costs.backward = {1.415, 1.19, 1.19, 1.19, 1.365};
  costs.weight.assign(5, 0.78);
  EXPECT_NEAR(time_column(costs).makespan / time_whole_column(costs).makespan, 1, 1e-9);
}

TEST(Column, couplings_only_cost) {
  for (const int chunks : {1, 3}) {
    ColumnCosts costs = uneven_costs(Schedule::kInterleaved, 4, chunks, 32, 0.25);
    const double alongside = time_column(costs).makespan;
    for (const StageTransfers transfers : {StageTransfers::kBlocked, StageTransfers::kCoupled}) {
      costs.transfers = transfers;
      EXPECT_GT(time_column(costs).makespan, alongside);
    }
  }
}

}  // namespace
}  // namespace tri
