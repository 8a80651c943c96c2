// Compares the fast column with the simulator of pipelines, and its extension with stepping through every microbatch.
#include "lib/simulate/column.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
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
