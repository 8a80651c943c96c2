// Claims about the rules of boundary buffers, over every schedule, pp <= 4, chunks <= 3 and num_microbatches <= 12.
// executor_test.cpp and tests/simulate/pipeline_test.cpp check that the executor and the simulator keep them.
#include "lib/schedule/buffer_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "io/base/error.h"

namespace tri {
namespace {

template <class Check>  // check(plan, pp, chunks)
void for_all_plans(Check check) {
  for (const Schedule schedule : kSchedules)
    for (int chunks = 1; chunks <= 3; ++chunks)
      for (int size = 1; size <= 4; ++size)
        for (int rank = 0; rank < size; ++rank)
          for (int num_microbatches = 1; num_microbatches <= 12; ++num_microbatches) {
            if (!takes_chunks(schedule, chunks)) continue;
            const Axis pp = pipeline_axis(schedule, rank, size);
            SCOPED_TRACE(fmt::format("{} stage {} of {}, num_microbatches {}, chunks {}", enum_name(schedule), rank,
                                     size, num_microbatches, chunks));
            check(with_transfers(make_plan(schedule, pp, num_microbatches, chunks), pp, chunks), pp, chunks);
            check(with_transfers(forward_only(pp, num_microbatches, chunks), pp, chunks), pp, chunks);
          }
}

bool happens(const Plan& plan, ActionKind kind, int chunk) {
  return std::ranges::any_of(plan, [&](const Action& a) { return a.kind == kind && a.chunk == chunk; });
}

size_t position(const Plan& plan, const Action& action) { return std::ranges::find(plan, action) - plan.begin(); }

// Returns the rules whose buffers the plan fills: a forward-only plan receives no gradients.
std::vector<BufferRule> rules_in_use(const Plan& plan, Axis pp, int chunk, int chunks) {
  std::vector<BufferRule> rules = buffer_rules(pp, chunk, chunks, last_use(plan, chunk));
  std::erase_if(rules, [&](const BufferRule& rule) { return !happens(plan, rule.fills, rule.fills_chunk); });
  return rules;
}

TEST(BufferRules, each_transfer_uses_one_buffer) {
  for_all_plans([](const Plan& plan, Axis pp, int chunks) {
    for (const Action& action : plan) {
      int filled = 0, read = 0;
      for (const BufferRule& rule : rules_in_use(plan, pp, action.chunk, chunks)) {
        filled += rule.is_filled_by(action);
        read += rule.is_read_by(action);
      }
      const bool receives = action.kind == ActionKind::kRecvForward || action.kind == ActionKind::kRecvBackward;
      const bool sends = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kSendBackward;
      if (!receives && !sends) continue;
      EXPECT_EQ(filled, receives ? 1 : 0) << to_string(action);
      EXPECT_EQ(read, sends ? 1 : 0) << to_string(action);
    }
  });
}

TEST(BufferRules, a_buffer_is_filled_then_read_then_released) {
  for_all_plans([](const Plan& plan, Axis pp, int chunks) {
    for (const Action& action : plan)
      for (const BufferRule& rule : rules_in_use(plan, pp, action.chunk, chunks)) {
        const auto at = [&](ActionKind kind, int chunk) { return position(plan, {kind, action.microbatch, chunk}); };
        EXPECT_LE(at(rule.fills, rule.fills_chunk), at(rule.reads, rule.chunk)) << to_string(action);
        EXPECT_LE(at(rule.reads, rule.chunk), at(rule.releases, rule.chunk)) << to_string(action);
        EXPECT_LT(at(rule.releases, rule.chunk), plan.size()) << to_string(action);
      }
  });
}

// Buffers are used round-robin: the order of filling must equal the order of releasing, and no ring may need more
// buffers than it has, by the clock of the host that issues the plan.
TEST(BufferRules, slots_suffice_and_no_ring_runs_out) {
  for_all_plans([](const Plan& plan, Axis pp, int chunks) {
    std::map<std::pair<BufferRing, int>, std::vector<Action>> filled, released;  // by ring and chunk of the inputs
    for (const Action& action : plan)
      for (const BufferRule& rule : rules_in_use(plan, pp, action.chunk, chunks)) {
        const std::pair ring{rule.ring, rule.ring == BufferRing::kInputs ? rule.chunk : route_of(pp, rule.chunk)};
        const Action microbatch{ActionKind::kForward, action.microbatch, rule.chunk};  // identifies it
        if (rule.is_filled_by(action)) {
          filled[ring].push_back(microbatch);
          EXPECT_LE(filled[ring].size() - released[ring].size(),
                    static_cast<size_t>(ring_size(rule.ring, max_inputs(plan, pp, rule.chunk))))
              << to_string(action);
        }
        if (rule.is_released_by(action)) released[ring].push_back(microbatch);
      }
    EXPECT_EQ(filled, released);
  });
}

}  // namespace
}  // namespace tri
