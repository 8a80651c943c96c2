#include "lib/schedule/plan.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "io/base/error.h"
#include "lib/schedule/zb_v.h"

namespace tri {

namespace {

// Returns the k-th forward or backward of every stage: chunk-major inside each group of `group` microbatches, so that a
// chunk is left only when `group` results are in transfer through the other stages (Narayanan et al. 2021, fig. 4).
// Backward visits the chunks from last to first. With one chunk: microbatch k.
Action nth(ActionKind kind, int k, int group, int chunks) {
  const int group_index = k / (group * chunks);
  const int in_group = k % (group * chunks);
  const int chunk = in_group / group;
  return {kind, group_index * group + in_group % group, kind == ActionKind::kBackward ? chunks - 1 - chunk : chunk};
}

// The form of every schedule here: `warmup` forwards, one-forward-one-backward pairs, the remaining backwards. The last
// group is planned as if it were full, and microbatches that do not exist are skipped, so the others keep an order that
// is known to work.
Plan warmup_pairs_cooldown(Axis pp, int num_microbatches, int chunks, int warmup) {
  const int groups = (num_microbatches + pp.size - 1) / pp.size;
  const int total = chunks == 1 ? num_microbatches : groups * pp.size * chunks;
  warmup = std::min(warmup, total);
  Plan plan;
  plan.reserve(2 * num_microbatches * chunks);
  const auto push = [&](ActionKind kind, int k) {
    const Action action = nth(kind, k, pp.size, chunks);
    if (action.microbatch < num_microbatches) plan.push_back(action);
  };
  for (int k = 0; k < warmup; ++k) push(ActionKind::kForward, k);
  for (int k = warmup; k < total; ++k) {
    push(ActionKind::kForward, k);
    push(ActionKind::kBackward, k - warmup);
  }
  for (int k = total - warmup; k < total; ++k) push(ActionKind::kBackward, k);
  return plan;
}

// All forwards come first, then all backwards (Huang et al. 2019).
Plan gpipe(Axis pp, int num_microbatches, int) {
  return warmup_pairs_cooldown(pp, num_microbatches, 1, num_microbatches);
}

// A stage holds no more microbatches than there are stages from it to the end (Narayanan et al. 2019,
// PipeDream-Flush).
Plan one_f_one_b(Axis pp, int num_microbatches, int) {
  return warmup_pairs_cooldown(pp, num_microbatches, 1, pp.size - 1 - pp.rank);
}

// Interleaved 1F1B (Narayanan et al. 2021): v chunks per rank divide the bubble by v. The first backward can start once
// the first microbatch has passed through all chunks. That takes (v - 1) * p forwards for the chunks before the last;
// then, as neighbours alternate forward and backward, two forwards for each later stage.
Plan interleaved(Axis pp, int num_microbatches, int chunks) {
  return warmup_pairs_cooldown(pp, num_microbatches, chunks, 2 * (pp.size - 1 - pp.rank) + (chunks - 1) * pp.size);
}

// ZB-H1 (Qi et al. 2023, section 2): 1F1B whose weight gradients are computed later, so that gradients of inputs reach
// the first stage sooner. A stage delays the weights of as many microbatches as there are stages before it. So no stage
// keeps the activations of more than pp microbatches, as 1F1B's first stage does, and the delayed weight gradients fill
// the end of the step, where 1F1B waits. Bubble: (pp-1) (F + B - W).
Plan zb_h1(Axis pp, int num_microbatches, int) {
  const Plan whole = one_f_one_b(pp, num_microbatches, 1);
  Plan plan;
  plan.reserve(3 * static_cast<size_t>(num_microbatches));
  int weights = 0;
  for (const Action& action : whole) {
    plan.push_back(action);
    if (action.kind == ActionKind::kBackward && action.microbatch >= pp.rank)
      plan.push_back({ActionKind::kWeight, weights++});
  }
  while (weights < num_microbatches) plan.push_back({ActionKind::kWeight, weights++});
  return plan;
}

struct ScheduleRow {
  Schedule schedule;
  int least_chunks, most_chunks;
  bool splits_backward;
  bool folds;
  Plan (*make)(Axis pp, int num_microbatches, int chunks);
  // Makes the plans of all pp ranks together; then `make` is null.
  std::vector<Plan> (*make_all)(int pp_size, int num_microbatches, const std::vector<StageCost>& costs) = nullptr;
};

constexpr int kAnyChunks = std::numeric_limits<int>::max();

constexpr ScheduleRow kRows[] = {
    {Schedule::kGpipe, 1, 1, false, false, gpipe},
    {Schedule::k1F1B, 1, 1, false, false, one_f_one_b},
    {Schedule::kInterleaved, 1, kAnyChunks, false, false, interleaved},
    {Schedule::kZbH1, 1, 1, true, false, zb_h1},
    {Schedule::kZbV, 2, 2, true, true, nullptr, zb_v_plans},
};

const ScheduleRow& row_of(Schedule schedule) {
  const auto* row = std::ranges::find(kRows, schedule, &ScheduleRow::schedule);
  TRI_REQUIRE(row != std::end(kRows), "schedule {} has no row", static_cast<int>(schedule));
  return *row;
}

void require_sizes(Axis pp, int num_microbatches, int chunks) {
  TRI_REQUIRE(pp.rank >= 0 && pp.rank < pp.size && num_microbatches > 0 && chunks > 0,
              "pp {} of {}, num_microbatches {}, chunks {}", pp.rank, pp.size, num_microbatches, chunks);
}

// Returns the receive for the input of `compute`; none at the ends of the pipeline and at a turn.
std::optional<Action> receive_for(const Action& compute, Axis pp, int chunks) {
  if (compute.kind == ActionKind::kForward && !is_first_virtual_stage(pp, compute.chunk) &&
      !turns_before(pp, compute.chunk))
    return Action{ActionKind::kRecvForward, compute.microbatch, compute.chunk};
  if (compute.kind == ActionKind::kBackward && !is_last_virtual_stage(pp, compute.chunk, chunks) &&
      !turns_after(pp, compute.chunk))
    return Action{ActionKind::kRecvBackward, compute.microbatch, compute.chunk};
  return std::nullopt;
}

// Returns the send of the output of `compute`; none at the ends of the pipeline and at a turn.
std::optional<Action> send_of(const Action& compute, Axis pp, int chunks) {
  if (compute.kind == ActionKind::kForward && !is_last_virtual_stage(pp, compute.chunk, chunks) &&
      !turns_after(pp, compute.chunk))
    return Action{ActionKind::kSendForward, compute.microbatch, compute.chunk};
  if (compute.kind == ActionKind::kBackward && !is_first_virtual_stage(pp, compute.chunk) &&
      !turns_before(pp, compute.chunk))
    return Action{ActionKind::kSendBackward, compute.microbatch, compute.chunk};
  return std::nullopt;
}

// A microbatch returns to the rank's second chunk after 2 (pp.size - rank) - 1 forwards of other virtual stages, and
// every rank computes one of each chunk in turn.
Plan folded_forward_only(Axis pp, int num_microbatches) {
  const int ahead = pp.size - pp.rank;
  Plan plan;
  for (int k = 0; k < num_microbatches + ahead; ++k) {
    if (k >= ahead) plan.push_back({ActionKind::kForward, k - ahead, 1});
    if (k < num_microbatches) plan.push_back({ActionKind::kForward, k, 0});
  }
  return plan;
}

bool contains(const Plan& plan, ActionKind kind, int chunk) {
  return std::ranges::any_of(plan, [&](const Action& a) { return a.kind == kind && a.chunk == chunk; });
}

// The maximum number of microbatches between the issue of `begin` of one chunk and the end of `end` of another.
int max_between(const Plan& plan, int begin_chunk, ActionKind begin, int end_chunk, ActionKind end) {
  int alive = 0, most = 0;
  for (const Action& action : plan) {
    if (action.chunk == begin_chunk && action.kind == begin) most = std::max(most, ++alive);
    if (action.chunk == end_chunk && action.kind == end) --alive;
  }
  return most;
}

int max_between(const Plan& plan, int chunk, ActionKind begin, ActionKind end) {
  return max_between(plan, chunk, begin, chunk, end);
}

}  // namespace

bool takes_chunks(Schedule schedule) { return schedule == Schedule::kAuto || row_of(schedule).most_chunks > 1; }

bool takes_chunks(Schedule schedule, int chunks) {
  if (schedule == Schedule::kAuto) return chunks > 0;
  const ScheduleRow& row = row_of(schedule);
  return row.least_chunks <= chunks && chunks <= row.most_chunks;
}

bool folds(Schedule schedule) { return schedule != Schedule::kAuto && row_of(schedule).folds; }

bool splits_backward(Schedule schedule) { return schedule != Schedule::kAuto && row_of(schedule).splits_backward; }

Plan make_plan(Schedule schedule, Axis pp, int num_microbatches, int chunks, const std::vector<StageCost>& costs) {
  const ScheduleRow& row = row_of(schedule);
  require_sizes(pp, num_microbatches, chunks);
  TRI_REQUIRE(takes_chunks(schedule, chunks), "schedule {} with {} chunks", enum_name(schedule), chunks);
  if (row.make != nullptr) return row.make(pp, num_microbatches, chunks);
  return std::move(make_plans(schedule, pp.size, num_microbatches, chunks, costs)[static_cast<size_t>(pp.rank)]);
}

std::vector<Plan> make_plans(Schedule schedule, int pp_size, int num_microbatches, int chunks,
                             const std::vector<StageCost>& costs) {
  const ScheduleRow& row = row_of(schedule);
  if (row.make_all == nullptr) {
    std::vector<Plan> plans;
    for (int rank = 0; rank < pp_size; ++rank)
      plans.push_back(make_plan(schedule, {rank, pp_size}, num_microbatches, chunks));
    return plans;
  }
  require_sizes({0, pp_size}, num_microbatches, chunks);
  TRI_REQUIRE(takes_chunks(schedule, chunks), "schedule {} with {} chunks", enum_name(schedule), chunks);
  if (!costs.empty()) return row.make_all(pp_size, num_microbatches, costs);
  const std::vector<StageCost> equal(static_cast<size_t>(pp_size) * static_cast<size_t>(chunks), equal_parts(schedule));
  return row.make_all(pp_size, num_microbatches, equal);
}

double ideal_bubble(int pp, int num_microbatches, int chunks) {
  return static_cast<double>(pp - 1) / (static_cast<double>(chunks) * num_microbatches);
}

Plan forward_only(Axis pp, int num_microbatches, int chunks) {
  require_sizes(pp, num_microbatches, chunks);
  if (pp.folded) return folded_forward_only(pp, num_microbatches);
  Plan plan = warmup_pairs_cooldown(pp, num_microbatches, chunks, 0);
  std::erase_if(plan, [](const Action& action) { return action.kind == ActionKind::kBackward; });
  return plan;
}

// A kernel's first launch waits until the device's work ends, also the receives that were issued before it. So with one
// microbatch, as in generation, a receive must not be issued before the action on which it depends.
Plan with_transfers(const Plan& compute, Axis pp, int chunks) {
  Plan plan;
  plan.reserve(3 * compute.size());
  const auto push = [&](const std::optional<Action>& transfer) {
    if (transfer) plan.push_back(*transfer);
  };
  // What a microbatch's next action receives is computed from this one's results.
  const auto depends = [](const Action& next, const Action& action) {
    return next.microbatch == action.microbatch && action.kind != ActionKind::kWeight;
  };
  if (!compute.empty()) push(receive_for(compute.front(), pp, chunks));
  for (size_t i = 0; i < compute.size(); ++i) {
    const bool has_next = i + 1 < compute.size(), is_late = has_next && depends(compute[i + 1], compute[i]);
    if (has_next && !is_late) push(receive_for(compute[i + 1], pp, chunks));
    plan.push_back(compute[i]);
    push(send_of(compute[i], pp, chunks));
    if (is_late) push(receive_for(compute[i + 1], pp, chunks));
  }
  return plan;
}

int virtual_stage(Axis pp, int chunk) {
  return chunk * pp.size + (pp.folded && chunk == 1 ? pp.size - 1 - pp.rank : pp.rank);
}

int virtual_stage(Schedule schedule, Axis pp, int chunk) {
  return virtual_stage(pipeline_axis(schedule, pp.rank, pp.size), chunk);
}

int rank_of_stage(Schedule schedule, int pp, int virtual_stage) {
  const int rank = virtual_stage % pp;
  return folds(schedule) && virtual_stage >= pp ? pp - 1 - rank : rank;
}

bool is_first_virtual_stage(Axis pp, int chunk) { return pp.first() && chunk == 0; }

bool is_last_virtual_stage(Axis pp, int chunk, int chunks) { return pp.ends_here() && chunk == chunks - 1; }

ActionKind last_use(const Plan& plan, int chunk) {
  return contains(plan, ActionKind::kBackward, chunk) ? ActionKind::kBackward : ActionKind::kForward;
}

int max_in_flight(const Plan& plan, int chunk) {
  const bool splits = contains(plan, ActionKind::kWeight, chunk);
  return max_between(plan, chunk, ActionKind::kForward, splits ? ActionKind::kWeight : last_use(plan, chunk));
}

int max_weights_due(const Plan& plan, int chunk) {
  if (!contains(plan, ActionKind::kWeight, chunk)) return 0;
  return max_between(plan, chunk, ActionKind::kBackward, ActionKind::kWeight);
}

int max_inputs(const Plan& plan, Axis pp, int chunk) {
  const ActionKind end = last_use(plan, chunk);
  if (pp.folded && !is_first_virtual_stage(pp, chunk) && end == ActionKind::kBackward) {
    const auto is_forward = [&](const Action& a) { return a.kind == ActionKind::kForward && a.chunk == chunk; };
    return std::min(zb_v_inputs(pp, chunk), static_cast<int>(std::ranges::count_if(plan, is_forward)));
  }
  if (turns_before(pp, chunk)) return max_between(plan, chunk - 1, ActionKind::kForward, chunk, end);
  const bool receives = contains(plan, ActionKind::kRecvForward, chunk);
  return max_between(plan, chunk, receives ? ActionKind::kRecvForward : ActionKind::kForward, end);
}

std::string to_string(const Action& action) {
  std::string text = fmt::format("{}{}", enum_name(action.kind), action.microbatch);
  if (action.chunk > 0) text += fmt::format(".{}", action.chunk);
  return text;
}

std::string to_string(const Plan& plan) {
  std::string text;
  for (const Action& action : plan) {
    if (!text.empty()) text += ' ';
    text += to_string(action);
  }
  return text;
}

}  // namespace tri
