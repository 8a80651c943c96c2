// Compares pipeline schedules in equal memory.
#include "lib/simulate/schedule_rows.h"

#include <gtest/gtest.h>

#include <algorithm>

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

}  // namespace
}  // namespace tri
