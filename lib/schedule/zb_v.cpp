#include "lib/schedule/zb_v.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "io/base/error.h"
#include "lib/schedule/buffer_rules.h"

namespace tri {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// What a rank prefers of several actions that can start. No order is the best for all proportions of the parts.
struct Order {
  int backward_first;  // the chunk; the other one's weight gradients come first
  bool alternates;     // a forward comes before another backward
};

constexpr Order kOrders[] = {{0, false}, {0, true}, {1, false}, {1, true}};

struct Ticks {
  int64_t forward, backward, weight;
  auto operator<=>(const Ticks&) const = default;
};

// Simulates the ranks, each of which begins the first action of its order that can start. An action and the send of its
// result wait only for actions that have begun earlier here, so the plans cannot deadlock, with or without overlap:
//   a stage input  has a buffer, because its ring has as many as the sender may keep activations (zb_v_inputs)
//   a gradient     has a buffer, because a chunk is at most that many microbatches ahead of the previous virtual stage
class Walk {
 public:
  Walk(int pp_size, int num_microbatches, const std::vector<Ticks>& ticks, const Order& order)
      : p_(pp_size),
        m_(num_microbatches),
        ticks_(ticks),
        order_(order),
        stages_(static_cast<size_t>(2 * pp_size)),
        ranks_(static_cast<size_t>(pp_size)) {
    for (Stage& stage : stages_) {
      stage.forward_ends.assign(static_cast<size_t>(m_), kUnknown);
      stage.backward_ends = stage.forward_ends;
    }
    for (Rank& rank : ranks_) rank.plan.reserve(size_t{6} * static_cast<size_t>(m_));
    size_t left = size_t{6} * static_cast<size_t>(p_) * static_cast<size_t>(m_);
    while (left > 0) {
      const size_t before = left;
      for (int rank = 0; rank < p_; ++rank) {
        Rank& tried = ranks_[static_cast<size_t>(rank)];
        if (!tried.may_begin || tried.free_at > now_) continue;
        tried.may_begin = begin_next(rank);
        if (!tried.may_begin) continue;
        has_changed(rank);
        --left;
      }
      if (left == before) advance();
    }
    for (const Rank& rank : ranks_) makespan_ = std::max(makespan_, rank.free_at);
  }

  int64_t makespan() const { return makespan_; }
  std::vector<Plan> take_plans() {
    std::vector<Plan> plans;
    for (Rank& rank : ranks_) plans.push_back(std::move(rank.plan));
    return plans;
  }

 private:
  struct Stage {
    int forwards = 0, backwards = 0, weights = 0;      // begun
    std::vector<int64_t> forward_ends, backward_ends;  // [microbatch]
  };
  struct Rank {
    int64_t free_at = 0;
    bool may_begin = true;  // no attempt has failed since it or a neighbour last began or ended an action
    Plan plan = {};
  };

  int stage_of(int rank, int chunk) const { return chunk == 0 ? rank : 2 * p_ - 1 - rank; }

  // Moves on to the next end of an action.
  void advance() {
    int64_t next = kUnknown;
    for (const Rank& rank : ranks_)
      if (rank.free_at > now_) next = std::min(next, rank.free_at);
    TRI_REQUIRE(next != kUnknown, "zb_v of {} stages and {} microbatches cannot continue", p_, m_);
    now_ = next;
    for (int rank = 0; rank < p_; ++rank)
      if (ranks_[static_cast<size_t>(rank)].free_at == now_) has_changed(rank);
  }

  // What a rank can begin depends only on actions of its own and its neighbours' stages.
  void has_changed(int rank) {
    for (int near = std::max(0, rank - 1); near <= std::min(p_ - 1, rank + 1); ++near)
      ranks_[static_cast<size_t>(near)].may_begin = true;
  }

  bool begin_next(int rank) {
    const Plan& plan = ranks_[static_cast<size_t>(rank)].plan;
    const int first = order_.backward_first, second = 1 - first;
    const auto forward = [&] { return begin(rank, ActionKind::kForward, 1) || begin(rank, ActionKind::kForward, 0); };
    const bool forward_first = order_.alternates && !plan.empty() && plan.back().kind == ActionKind::kBackward;
    return (forward_first && forward()) || begin(rank, ActionKind::kBackward, first) ||
           begin(rank, ActionKind::kBackward, second) || (!forward_first && forward()) ||
           begin(rank, ActionKind::kWeight, second) || begin(rank, ActionKind::kWeight, first);
  }

  // Begins the chunk's next action of this kind, if it can start. Returns whether it did.
  bool begin(int rank, ActionKind kind, int chunk) {
    const int stage_index = stage_of(rank, chunk), last = 2 * p_ - 1;
    Stage& stage = stages_[static_cast<size_t>(stage_index)];
    int& next = kind == ActionKind::kForward    ? stage.forwards
                : kind == ActionKind::kBackward ? stage.backwards
                                                : stage.weights;
    if (next == m_) return false;
    const auto i = static_cast<size_t>(next);
    const Ticks& ticks = ticks_[static_cast<size_t>(stage_index)];
    const auto is_over = [&](const std::vector<int64_t>& ends) { return ends[i] <= now_; };
    const auto neighbour = [&](int distance) -> const Stage& {
      return stages_[static_cast<size_t>(stage_index + distance)];
    };
    int64_t end = now_ + ticks.weight;
    if (kind == ActionKind::kForward) {
      if (next - stage.weights >= zb_v_in_flight({rank, p_, true}, chunk)) return false;
      if (stage_index > 0 && !is_over(neighbour(-1).forward_ends)) return false;
      // At the turn the results are the next chunk's inputs, which are few this way.
      if (turns_after({rank, p_, true}, chunk) && next > neighbour(1).forwards) return false;
      stage.forward_ends[i] = end = now_ + ticks.forward;
    } else if (kind == ActionKind::kBackward) {
      if (!is_over(stage.forward_ends) || (stage_index < last && !is_over(neighbour(1).backward_ends))) return false;
      if (stage_index > 0 && next - neighbour(-1).backwards >= kGradientBuffers) return false;
      stage.backward_ends[i] = end = now_ + ticks.backward;
    } else if (next == stage.backwards) {
      return false;
    }
    ranks_[static_cast<size_t>(rank)].free_at = end;
    ranks_[static_cast<size_t>(rank)].plan.push_back({kind, next++, chunk});
    return true;
  }

  int p_, m_;
  const std::vector<Ticks>& ticks_;
  Order order_;
  std::vector<Stage> stages_;  // by virtual stage
  std::vector<Rank> ranks_;
  int64_t now_ = 0, makespan_ = 0;
};

// Returns the costs in integers, on a scale where the longest part has 2^20 ticks.
std::vector<Ticks> ticks_of(const std::vector<StageCost>& costs) {
  double longest = 0;
  for (const StageCost& cost : costs) longest = std::max({longest, cost.forward, cost.backward, cost.weight});
  const auto scaled = [&](double cost) {
    return longest <= 0 ? int64_t{1} : std::max<int64_t>(1, std::llround(cost / longest * (1 << 20)));
  };
  std::vector<Ticks> ticks;
  for (const StageCost& cost : costs)
    ticks.push_back(
        {.forward = scaled(cost.forward), .backward = scaled(cost.backward), .weight = scaled(cost.weight)});
  return ticks;
}

}  // namespace

std::vector<Plan> zb_v_plans(int pp_size, int num_microbatches, const std::vector<StageCost>& costs) {
  TRI_REQUIRE(static_cast<int>(costs.size()) == 2 * pp_size, "{} costs of {} virtual stages", costs.size(),
              2 * pp_size);
  const std::vector<Ticks> ticks = ticks_of(costs);
  // A search for layouts asks for the same plans again and again: they depend only on the proportions of the costs.
  constexpr size_t kMostCached = 64;
  thread_local std::map<std::tuple<int, int, std::vector<Ticks>>, std::vector<Plan>> cache;
  const std::tuple key(pp_size, num_microbatches, ticks);
  if (const auto cached = cache.find(key); cached != cache.end()) return cached->second;
  if (cache.size() == kMostCached) cache.clear();
  std::optional<Walk> best;
  for (const Order& order : kOrders) {
    Walk walk(pp_size, num_microbatches, ticks, order);
    if (!best || walk.makespan() < best->makespan()) best.emplace(std::move(walk));
  }
  return cache[key] = best->take_plans();
}

}  // namespace tri
