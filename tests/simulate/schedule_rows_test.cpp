// Compares pipeline schedules in equal memory.
#include "lib/simulate/schedule_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace tri {
namespace {

Workload gpt(int pp) {
  Workload w;
  w.model.layers = 32;
  w.model.hidden = 4096;
  w.model.heads = 32;
  w.model.vocab = 50304;
  w.model.seq_len = 2048;
  fill_derived(w.model);
  w.pp = pp;
  w.tp = 2;
  w.dp = 4;
  w.global_batch = 128;
  w.stage_buffers = true;
  return w;
}

TEST(ScheduleRows, no_row_in_equal_memory_needs_more_than_1f1b) {
  for (const int pp : {2, 4, 8}) {
    const std::vector<ScheduleRow> rows = schedule_rows(gpt(pp), Cluster{}, Stragglers::kOff);
    EXPECT_EQ(rows.front().schedule, Schedule::k1F1B);
    for (const Schedule schedule : {Schedule::kInterleaved, Schedule::kZbH1, Schedule::kZbV})
      EXPECT_GT(std::ranges::count(rows, schedule, &ScheduleRow::schedule), 0) << enum_name(schedule);
    for (const ScheduleRow& row : rows) {
      EXPECT_EQ(row.recompute == Recompute::kNone, !row.equal_memory) << enum_name(row.schedule);
      if (row.equal_memory) {
        EXPECT_EQ(row.memory_bytes <= rows.front().memory_bytes, row.fits) << enum_name(row.schedule);
      }
    }
  }
}

TEST(ScheduleRows, zb_v_has_a_smaller_bubble_than_zb_h1_and_1f1b) {
  const std::vector<ScheduleRow> rows = schedule_rows(gpt(8), Cluster{}, Stragglers::kOff);
  const auto bubble = [&](Schedule schedule) {
    return std::ranges::find(rows, schedule, &ScheduleRow::schedule)->step.parts.bubble;
  };
  EXPECT_LT(bubble(Schedule::kZbV), bubble(Schedule::kZbH1));
  EXPECT_LT(bubble(Schedule::kZbH1), bubble(Schedule::k1F1B));
  EXPECT_NE(to_text(rows).find("zb_v"), std::string::npos);
}

TEST(ScheduleRows, layers_that_do_not_divide_by_pp_are_divided_by_work) {
  Workload w = gpt(2);
  w.model.layers = 7;
  w.layers_per_chunk = {4, 3};
  const std::vector<ScheduleRow> rows = schedule_rows(w, Cluster{}, Stragglers::kOff);
  for (const Schedule schedule : {Schedule::k1F1B, Schedule::kInterleaved, Schedule::kZbH1, Schedule::kZbV})
    EXPECT_GT(std::ranges::count(rows, schedule, &ScheduleRow::schedule), 0) << enum_name(schedule);
  for (const ScheduleRow& row : rows) {
    EXPECT_EQ(std::ssize(row.layers_per_chunk), w.pp * row.chunks) << enum_name(row.schedule);
    EXPECT_EQ(std::accumulate(row.layers_per_chunk.begin(), row.layers_per_chunk.end(), 0), 7);
  }
  EXPECT_NE(to_json(rows).find("\"layers_per_chunk\":["), std::string::npos);
}

TEST(ScheduleRows, the_workloads_own_division_is_its_row) {
  Workload w = gpt(2);
  w.schedule = Schedule::kZbH1;
  w.layers_per_chunk = {20, 12};
  int own = 0;
  for (const ScheduleRow& row : schedule_rows(w, Cluster{}, Stragglers::kOff))
    if (row.schedule == w.schedule) {
      EXPECT_EQ(row.layers_per_chunk, w.layers_per_chunk);
      ++own;
    }
  EXPECT_GT(own, 0);
}

}  // namespace
}  // namespace tri
