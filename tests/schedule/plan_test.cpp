// Claims about plans as data, over every schedule, pp <= 8, chunks <= 4 and num_microbatches <= 32. Claims about time
// are in tests/simulate/pipeline_test.cpp.
#include "lib/schedule/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/base/error.h"
#include "lib/schedule/zb_v.h"

namespace tri {
namespace {

constexpr int kMaxStages = 8, kMaxChunks = 4, kMaxMicrobatches = 32;

// The most activations of one stage, over all chunks.
int gpipe_in_flight(Axis, int num_microbatches, int) { return num_microbatches; }
int one_f_one_b_in_flight(Axis pp, int num_microbatches, int) { return std::min(pp.size - pp.rank, num_microbatches); }
int zb_h1_in_flight(Axis pp, int num_microbatches, int) { return std::min(pp.size, num_microbatches); }
int zb_v_in_flight_at_most(Axis pp, int, int) { return 2 * pp.size; }
int interleaved_in_flight(Axis pp, int num_microbatches, int chunks) {
  return std::min(2 * (pp.size - pp.rank - 1) + (chunks - 1) * pp.size + 1, num_microbatches * chunks);
}

struct Expected {
  Schedule schedule;
  int (*in_flight)(Axis pp, int num_microbatches, int chunks);  // closed form
};
constexpr Expected kExpected[] = {{Schedule::kGpipe, gpipe_in_flight},
                                  {Schedule::k1F1B, one_f_one_b_in_flight},
                                  {Schedule::kInterleaved, interleaved_in_flight},
                                  {Schedule::kZbH1, zb_h1_in_flight},
                                  {Schedule::kZbV, zb_v_in_flight_at_most}};

template <class Check>  // check(row, pp, num_microbatches, chunks)
void for_all_plans(Check check) {
  for (const Expected& row : kExpected)
    for (int chunks = 1; chunks <= kMaxChunks; ++chunks)
      for (int size = 1; size <= kMaxStages; ++size)
        for (int rank = 0; rank < size; ++rank)
          for (int num_microbatches = 1; num_microbatches <= kMaxMicrobatches; ++num_microbatches) {
            if (!takes_chunks(row.schedule, chunks)) continue;
            if (folds(row.schedule) && num_microbatches > 9 && num_microbatches % 8 != 0) continue;  // takes long
            SCOPED_TRACE(fmt::format("{} stage {} of {}, num_microbatches {}, chunks {}", enum_name(row.schedule), rank,
                                     size, num_microbatches, chunks));
            check(row, pipeline_axis(row.schedule, rank, size), num_microbatches, chunks);
            if (::testing::Test::HasFailure()) return;  // one report is enough
          }
}

std::vector<int> microbatches_of(const Plan& plan, ActionKind kind, int chunk) {
  std::vector<int> microbatches;
  for (const Action& action : plan)
    if (action.kind == kind && action.chunk == chunk) microbatches.push_back(action.microbatch);
  return microbatches;
}

std::vector<int> counting(int count) {
  std::vector<int> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

size_t position(const Plan& plan, const Action& action) { return std::ranges::find(plan, action) - plan.begin(); }

// Returns the number of compute actions before `index`.
size_t computes_before(const Plan& plan, size_t index) {
  return std::count_if(plan.begin(), plan.begin() + index, [](const Action& a) { return is_compute(a.kind); });
}

bool splits(const Plan& plan) { return std::ranges::count(plan, ActionKind::kWeight, &Action::kind) > 0; }

int most_in_flight(const Plan& plan) {
  const ActionKind end = splits(plan) ? ActionKind::kWeight : ActionKind::kBackward;
  int alive = 0, most = 0;
  for (const Action& action : plan) {
    if (action.kind == ActionKind::kForward) most = std::max(most, ++alive);
    if (action.kind == end) --alive;
  }
  return most;
}

TEST(Plan, every_schedule_is_tested) {
  ASSERT_EQ(std::size(kExpected), kSchedules.size());
  for (const Schedule schedule : kSchedules)
    EXPECT_TRUE(std::ranges::count(kExpected, schedule, &Expected::schedule) == 1) << enum_name(schedule);
  EXPECT_EQ(kSchedules.size() + 1, EnumNames<Schedule>::table.size()) << "auto is one of the others";
  EXPECT_THROW(make_plan(Schedule::kAuto, {0, 2}, 4, 1), Fatal);
}

TEST(Plan, each_microbatch_goes_forward_once_and_backward_once_in_order) {
  for_all_plans([](const Expected& row, Axis pp, int num_microbatches, int chunks) {
    const Plan plan = make_plan(row.schedule, pp, num_microbatches, chunks);
    EXPECT_EQ(plan.size(), size_t((splits_backward(row.schedule) ? 3 : 2) * num_microbatches * chunks));
    for (int chunk = 0; chunk < chunks; ++chunk) {
      EXPECT_EQ(microbatches_of(plan, ActionKind::kForward, chunk), counting(num_microbatches));
      EXPECT_EQ(microbatches_of(plan, ActionKind::kBackward, chunk), counting(num_microbatches));
      for (int microbatch = 0; microbatch < num_microbatches; ++microbatch)
        EXPECT_LT(position(plan, {ActionKind::kForward, microbatch, chunk}),
                  position(plan, {ActionKind::kBackward, microbatch, chunk}));
    }
  });
}

TEST(Plan, weight_gradients_follow_their_backward_in_order_and_wait_in_memory_of_their_own) {
  for_all_plans([](const Expected& row, Axis pp, int num_microbatches, int chunks) {
    const Plan plan = make_plan(row.schedule, pp, num_microbatches, chunks);
    ASSERT_EQ(splits(plan), splits_backward(row.schedule));
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (!splits(plan)) {
        EXPECT_EQ(max_weights_due(plan, chunk), 0);
        continue;
      }
      EXPECT_EQ(microbatches_of(plan, ActionKind::kWeight, chunk), counting(num_microbatches));
      int due = 0, most = 0;
      for (const Action& action : plan) {
        if (action.chunk != chunk) continue;
        if (action.kind == ActionKind::kBackward) most = std::max(most, ++due);
        if (action.kind == ActionKind::kWeight) --due;
        EXPECT_GE(due, 0) << to_string(action);
      }
      EXPECT_EQ(max_weights_due(plan, chunk), most);
    }
    if (row.schedule == Schedule::kZbH1) {
      EXPECT_EQ(max_weights_due(plan, 0), std::min(pp.rank + 1, num_microbatches));
    }
  });
}

TEST(Plan, activations_in_flight_equal_the_closed_form) {
  for_all_plans([](const Expected& row, Axis pp, int num_microbatches, int chunks) {
    const Plan plan = make_plan(row.schedule, pp, num_microbatches, chunks);
    const int closed_form = row.in_flight(pp, num_microbatches, chunks);
    if (chunks == 1) {
      EXPECT_EQ(max_in_flight(plan, 0), closed_form);
    }
    if (!pp.folded && (chunks == 1 || num_microbatches % pp.size == 0)) {
      EXPECT_EQ(most_in_flight(plan), closed_form);
    } else {
      EXPECT_LE(most_in_flight(plan), closed_form);  // microbatches that do not exist take no memory
    }
  });
}

// Interleaved, whole groups. When the b-th backward is next, the stage has run warmup + 1 + b forwards. Of any n
// actions, a chunk that is the c-th of its kind to occur has n / (p v) whole groups and its share of the last one.
TEST(Plan, activations_of_each_chunk_equal_the_closed_form) {
  for (int size = 1; size <= kMaxStages; ++size)
    for (int chunks = 1; chunks <= kMaxChunks; ++chunks)
      for (int rank = 0; rank < size; ++rank)
        for (int num_microbatches = size; num_microbatches <= kMaxMicrobatches; num_microbatches += size) {
          const int total = num_microbatches * chunks;
          const int warmup = std::min(2 * (size - rank - 1) + (chunks - 1) * size, total);
          const auto met = [&](int n, int c) {
            return n / (size * chunks) * size + std::clamp(n % (size * chunks) - c * size, 0, size);
          };
          const Plan plan = make_plan(Schedule::kInterleaved, {rank, size}, num_microbatches, chunks);
          for (int chunk = 0; chunk < chunks; ++chunk) {
            int most = 0;
            for (int b = 0; b < total; ++b)
              most = std::max(most, met(std::min(warmup + 1 + b, total), chunk) - met(b, chunks - 1 - chunk));
            ASSERT_EQ(max_in_flight(plan, chunk), most) << "stage " << rank << " of " << size << ", num_microbatches "
                                                        << num_microbatches << ", chunk " << chunk << " of " << chunks;
          }
        }
}

TEST(Plan, receives_are_issued_one_compute_action_ahead_unless_they_depend_on_it_and_sends_right_after) {
  for_all_plans([](const Expected& row, Axis pp, int num_microbatches, int chunks) {
    if (num_microbatches > 12) return;
    const Plan compute = make_plan(row.schedule, pp, num_microbatches, chunks);
    const Plan plan = with_transfers(compute, pp, chunks);
    size_t transfers = 0;
    for (size_t i = 0; i < compute.size(); ++i) {
      const Action& action = compute[i];
      if (action.kind == ActionKind::kWeight) continue;  // needs no transfer
      const bool forward = action.kind == ActionKind::kForward;
      const bool first = is_first_virtual_stage(pp, action.chunk) || turns_before(pp, action.chunk);
      const bool last = is_last_virtual_stage(pp, action.chunk, chunks) || turns_after(pp, action.chunk);
      if (!(forward ? first : last)) {
        const ActionKind kind = forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward;
        const bool is_late = i > 0 && compute[i - 1].microbatch == action.microbatch &&
                             compute[i - 1].kind != ActionKind::kWeight;  // on whose results it depends
        EXPECT_EQ(computes_before(plan, position(plan, {kind, action.microbatch, action.chunk})),
                  i == 0 || is_late ? i : i - 1);
        ++transfers;
      }
      if (!(forward ? last : first)) {
        const ActionKind kind = forward ? ActionKind::kSendForward : ActionKind::kSendBackward;
        EXPECT_EQ(position(plan, {kind, action.microbatch, action.chunk}), position(plan, action) + 1);
        ++transfers;
      }
    }
    EXPECT_EQ(plan.size(), compute.size() + transfers);
  });
}

// A message on a link, identified by the virtual stage that sends it.
struct Message {
  int virtual_stage, microbatch;
  bool operator==(const Message&) const = default;
};

// Returns the messages of one queue; `hop`: from the virtual stage of the action to the sending one.
std::vector<Message> messages(const Plan& plan, ActionKind kind, Axis pp, int hop) {
  std::vector<Message> list;
  for (const Action& a : plan)
    if (a.kind == kind) list.push_back({a.chunk * pp.size + pp.rank + hop, a.microbatch});
  return list;
}

TEST(Plan, sends_and_receives_of_each_link_and_direction_have_the_same_order) {
  for_all_plans([](const Expected& row, Axis pp, int num_microbatches, int chunks) {
    if (pp.folded) return;
    const Axis next{(pp.rank + 1) % pp.size, pp.size};
    const auto same = [&](const Plan& here, const Plan& there) {
      EXPECT_EQ(messages(here, ActionKind::kSendForward, pp, 0), messages(there, ActionKind::kRecvForward, next, -1));
      EXPECT_EQ(messages(here, ActionKind::kRecvBackward, pp, +1), messages(there, ActionKind::kSendBackward, next, 0));
    };
    same(with_transfers(make_plan(row.schedule, pp, num_microbatches, chunks), pp, chunks),
         with_transfers(make_plan(row.schedule, next, num_microbatches, chunks), next, chunks));
    same(with_transfers(forward_only(pp, num_microbatches, chunks), pp, chunks),
         with_transfers(forward_only(next, num_microbatches, chunks), next, chunks));
  });
}

TEST(Plan, sends_and_receives_of_each_route_of_a_folded_pipeline_have_the_same_order) {
  for_all_plans([](const Expected& row, Axis pp, int num_microbatches, int chunks) {
    if (!pp.folded || pp.last()) return;
    const Axis next = pipeline_axis(row.schedule, pp.rank + 1, pp.size);
    const auto same = [&](const Plan& here, const Plan& there) {
      const auto all = [](const Plan& plan, ActionKind kind, int chunk) { return microbatches_of(plan, kind, chunk); };
      EXPECT_EQ(all(here, ActionKind::kSendForward, 0), all(there, ActionKind::kRecvForward, 0));
      EXPECT_EQ(all(here, ActionKind::kRecvBackward, 0), all(there, ActionKind::kSendBackward, 0));
      EXPECT_EQ(all(here, ActionKind::kRecvForward, 1), all(there, ActionKind::kSendForward, 1));
      EXPECT_EQ(all(here, ActionKind::kSendBackward, 1), all(there, ActionKind::kRecvBackward, 1));
    };
    same(with_transfers(make_plan(row.schedule, pp, num_microbatches, chunks), pp, chunks),
         with_transfers(make_plan(row.schedule, next, num_microbatches, chunks), next, chunks));
    same(with_transfers(forward_only(pp, num_microbatches, chunks), pp, chunks),
         with_transfers(forward_only(next, num_microbatches, chunks), next, chunks));
  });
}

std::vector<StageCost> costs_in(double unit, int size) {
  std::vector<StageCost> costs(static_cast<size_t>(2 * size),
                               {.forward = unit, .backward = 1.3 * unit, .weight = 0.8 * unit});
  costs.front().forward += 0.1 * unit;
  costs.back().backward += 0.5 * unit;
  return costs;
}

TEST(Plan, zb_v_keeps_no_more_activations_than_the_first_rank_of_1f1b) {
  for (int size = 2; size <= kMaxStages; ++size)
    for (const int num_microbatches : {1, size, 4 * size}) {
      const std::vector<Plan> plans = make_plans(Schedule::kZbV, size, num_microbatches, 2, costs_in(1, size));
      for (int rank = 0; rank < size; ++rank) {
        const Plan& plan = plans[static_cast<size_t>(rank)];
        EXPECT_LE(max_in_flight(plan, 0) + max_in_flight(plan, 1), 2 * std::min(size, num_microbatches));
        EXPECT_LE(most_in_flight(plan), 2 * std::min(size, num_microbatches));
      }
    }
}

TEST(Plan, zb_v_depends_on_the_proportions_of_the_parts_and_every_rank_makes_the_same) {
  constexpr int kSize = 4, kMicrobatches = 12;
  const std::vector<Plan> plans = make_plans(Schedule::kZbV, kSize, kMicrobatches, 2, costs_in(1, kSize));
  EXPECT_EQ(plans, make_plans(Schedule::kZbV, kSize, kMicrobatches, 2, costs_in(1024, kSize)));
  EXPECT_NE(plans, make_plans(Schedule::kZbV, kSize, kMicrobatches, 2));
  for (int rank = 0; rank < kSize; ++rank)
    EXPECT_EQ(make_plan(Schedule::kZbV, {rank, kSize}, kMicrobatches, 2, costs_in(1, kSize)),
              plans[static_cast<size_t>(rank)]);
  EXPECT_THROW(make_plans(Schedule::kZbV, kSize, kMicrobatches, 2, costs_in(1, kSize + 1)), Fatal);
}

TEST(Plan, a_folded_pipeline_begins_and_ends_on_rank_0) {
  for (int size = 1; size <= kMaxStages; ++size)
    for (int stage = 0; stage < 2 * size; ++stage) {
      const int rank = rank_of_stage(Schedule::kZbV, size, stage), chunk = stage / size;
      const Axis pp = pipeline_axis(Schedule::kZbV, rank, size);
      EXPECT_EQ(virtual_stage(pp, chunk), stage);
      EXPECT_EQ(is_first_virtual_stage(pp, chunk), stage == 0);
      EXPECT_EQ(is_last_virtual_stage(pp, chunk, 2), stage == 2 * size - 1);
      EXPECT_EQ(rank, stage < size ? stage : 2 * size - 1 - stage);
      EXPECT_EQ(pp.ends_here(), rank == 0);
    }
}

TEST(Plan, inputs_need_at_most_one_buffer_more_than_activations) {
  for_all_plans([](const Expected& row, Axis pp, int num_microbatches, int chunks) {
    const Plan plan = with_transfers(make_plan(row.schedule, pp, num_microbatches, chunks), pp, chunks);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int ahead = is_first_virtual_stage(pp, chunk) ? 0 : 1;
      if (!splits_backward(row.schedule)) {  // else activations outlive the input
        EXPECT_GE(max_inputs(plan, pp, chunk), max_in_flight(plan, chunk));
      }
      EXPECT_LE(
          max_inputs(plan, pp, chunk),
          std::min((pp.folded ? zb_v_in_flight(pp, chunk) : max_in_flight(plan, chunk)) + ahead, num_microbatches));
    }
  });
}

TEST(Plan, forward_only_runs_each_microbatch_once_in_order_and_keeps_nothing) {
  for (int size = 1; size <= kMaxStages; ++size)
    for (int chunks = 1; chunks <= kMaxChunks; ++chunks)
      for (int num_microbatches = 1; num_microbatches <= kMaxMicrobatches; ++num_microbatches) {
        const Axis pp{size - 1, size};
        const Plan plan = forward_only(pp, num_microbatches, chunks);
        ASSERT_EQ(plan.size(), size_t(num_microbatches * chunks));
        const Plan transfers = with_transfers(plan, pp, chunks);
        for (int chunk = 0; chunk < chunks; ++chunk) {
          ASSERT_EQ(microbatches_of(plan, ActionKind::kForward, chunk), counting(num_microbatches));
          ASSERT_EQ(max_in_flight(plan, chunk), 1);
          // One in use and one prefetched, if the next action is of the same chunk.
          ASSERT_EQ(max_inputs(transfers, pp, chunk),
                    is_first_virtual_stage(pp, chunk) ? 1 : std::min({2, size, num_microbatches}));
        }
      }
}

TEST(Plan, reads_as_text) {
  EXPECT_EQ(to_string(make_plan(Schedule::kGpipe, {0, 2}, 3, 1)), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(to_string(make_plan(Schedule::k1F1B, {0, 4}, 5, 1)), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4");
  EXPECT_EQ(to_string(make_plan(Schedule::k1F1B, {3, 4}, 3, 1)), "F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(to_string(make_plan(Schedule::kInterleaved, {1, 2}, 4, 2)),
            "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3");
  EXPECT_EQ(to_string(make_plan(Schedule::kInterleaved, {1, 2}, 3, 2)),
            "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 B1 F2.1 B2.1 B2");
  EXPECT_EQ(to_string(make_plan(Schedule::kZbH1, {0, 3}, 4, 1)), "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3");
  EXPECT_EQ(to_string(make_plan(Schedule::kZbH1, {2, 3}, 4, 1)), "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3");
  EXPECT_EQ(to_string(forward_only({0, 2}, 3, 2)), "F0 F1 F0.1 F1.1 F2 F2.1");
  EXPECT_EQ(to_string(with_transfers(make_plan(Schedule::k1F1B, {1, 3}, 2, 1), {1, 3}, 1)),
            "RF0 RF1 F0 SF0 RB0 F1 SF1 RB1 B0 SB0 B1 SB1");
  EXPECT_EQ(to_string(with_transfers(forward_only({0, 2}, 1, 2), {0, 2}, 2)), "F0 SF0 RF0.1 F0.1 SF0.1");
  EXPECT_EQ(to_string(Plan{}), "");
}

TEST(Plan, sizes_that_make_no_plan_are_refused) {
  EXPECT_THROW(make_plan(Schedule::kGpipe, {0, 2}, 4, 2), Fatal);
  EXPECT_THROW(make_plan(Schedule::k1F1B, {0, 2}, 4, 2), Fatal);
  EXPECT_THROW(make_plan(Schedule::k1F1B, {0, 2}, 0, 1), Fatal);
  EXPECT_THROW(make_plan(Schedule::kZbV, {0, 2}, 4, 1), Fatal);
  EXPECT_THROW(make_plan(Schedule::kZbV, {0, 2}, 4, 3), Fatal);
  EXPECT_THROW(make_plan(Schedule::k1F1B, {2, 2}, 4, 1), Fatal);
  EXPECT_THROW(forward_only({0, 2}, 4, 0), Fatal);
}

}  // namespace
}  // namespace tri
