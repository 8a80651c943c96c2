#include "lib/simulate/column.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "io/base/error.h"
#include "lib/schedule/pipeline.h"

namespace tri {
namespace {

constexpr double kUnknown = -1;
constexpr double kSameRhythm = 1e-9;

// What the plans of a pipeline determine without durations: the order of each stage's actions and their buffers.
class Shape {
 public:
  // An event of the walk: a message into a rank, or the rank's next action.
  enum class Event { kForwardMessage, kBackwardMessage, kAction };
  struct Step {
    int rank;
    Event event;
  };
  struct Stage {
    Plan plan;
    std::vector<int> max_inputs;               // [chunk]
    std::vector<size_t> round_starts;          // coupled: index of each round's first action; the plan's size is last
    std::vector<int> forward_in, backward_in;  // slots that a neighbour sends here, in the order of both sides
    std::vector<int> outputs, dinputs;         // slots that use one of the ring's two buffers, in order
  };

  Shape(Schedule schedule, int stages, int chunks, int num_microbatches)
      : schedule_(schedule), p_(stages), v_(chunks), m_(num_microbatches) {
    forward_round_.assign(static_cast<size_t>(p_) * v_ * m_, 0);
    backward_round_ = forward_round_;
    for (int rank = 0; rank < p_; ++rank) add_stage(rank);
  }

  bool is_of(const ColumnCosts& c) const {
    return schedule_ == c.schedule && p_ == c.stages && v_ == c.chunks && m_ == c.num_microbatches;
  }
  const Stage& stage(int rank) const { return stages_[rank]; }
  size_t forward_round(int slot) const { return forward_round_[slot]; }
  size_t backward_round(int slot) const { return backward_round_[slot]; }
  int slot(int virtual_stage, int microbatch) const { return virtual_stage * m_ + microbatch; }
  // The steps in an order that respects all dependencies. Dependencies do not depend on durations, so the first walk of
  // each kind of transfers finds an order for all later ones. Empty before that.
  std::vector<Step>& order(StageTransfers transfers) { return orders_[static_cast<size_t>(transfers)]; }

 private:
  void add_stage(int rank) {
    Stage stage{.plan = make_plan(schedule_, {rank, p_}, m_, v_)};
    // Inputs alive at once, as max_inputs counts them on the plan with transfers: a receive is issued one compute
    // action before its forward.
    std::vector<int> alive(v_, 0);
    stage.max_inputs.assign(v_, 1);
    const auto begin_input = [&](const Action& action) {
      stage.max_inputs[action.chunk] = std::max(stage.max_inputs[action.chunk], ++alive[action.chunk]);
    };
    const auto received = [&](const Action& a) { return a.kind == ActionKind::kForward && a.chunk * p_ + rank > 0; };
    if (!stage.plan.empty() && received(stage.plan.front())) begin_input(stage.plan.front());
    const int last = p_ * v_ - 1;
    for (size_t i = 0; i < stage.plan.size(); ++i) {
      if (i + 1 < stage.plan.size() && received(stage.plan[i + 1])) begin_input(stage.plan[i + 1]);
      const Action& action = stage.plan[i];
      if (action.kind == ActionKind::kForward && !received(action)) begin_input(action);
      if (action.kind == ActionKind::kBackward) --alive[action.chunk];
      if (action.kind == ActionKind::kWeight) continue;  // sends and receives nothing
      const int stage_index = action.chunk * p_ + rank;
      const bool forward = action.kind == ActionKind::kForward;
      const int here = slot(stage_index, action.microbatch);
      if (forward && stage_index > 0) stage.forward_in.push_back(here);
      if (!forward && stage_index < last) stage.backward_in.push_back(here);
      if (forward && stage_index < last) stage.outputs.push_back(here);
      if (!forward && stage_index > 0) stage.dinputs.push_back(here);
    }
    add_rounds(rank, stage);
    stages_.push_back(std::move(stage));
  }

  void add_rounds(int rank, Stage& stage) {
    for (size_t i = 0; i < stage.plan.size();) {
      const bool pair = v_ > 1 && stage.plan[i].kind == ActionKind::kForward && i + 1 < stage.plan.size() &&
                        stage.plan[i + 1].kind == ActionKind::kBackward;
      for (size_t member = i; member < i + (pair ? 2 : 1); ++member) {
        const Action& action = stage.plan[member];
        (action.kind == ActionKind::kForward ? forward_round_
                                             : backward_round_)[slot(action.chunk * p_ + rank, action.microbatch)] =
            stage.round_starts.size();
      }
      stage.round_starts.push_back(i);
      i += pair ? 2 : 1;
    }
    stage.round_starts.push_back(stage.plan.size());
  }

  Schedule schedule_;
  int p_, v_, m_;
  std::vector<Stage> stages_;
  std::vector<size_t> forward_round_, backward_round_;  // [slot]
  std::array<std::vector<Step>, 3> orders_;             // [StageTransfers]
};

// The shapes of the last pipelines of this thread. A prediction times the same pipeline with and without transfers, and
// a search returns to the same stages with other durations.
std::shared_ptr<Shape> shape_of(const ColumnCosts& costs) {
  constexpr size_t kKept = 8;
  thread_local std::vector<std::shared_ptr<Shape>> last;  // newest first
  const auto known = std::ranges::find_if(last, [&](const auto& shape) { return shape->is_of(costs); });
  if (known != last.end()) {
    std::rotate(last.begin(), known, known + 1);
  } else {
    last.insert(last.begin(),
                std::make_shared<Shape>(costs.schedule, costs.stages, costs.chunks, costs.num_microbatches));
    if (last.size() > kKept) last.pop_back();
  }
  return last.front();
}

class Column {
 public:
  explicit Column(const ColumnCosts& costs)
      : c_(costs),
        kept_(shape_of(costs)),
        shape_(*kept_),
        p_(costs.stages),
        v_(costs.chunks),
        m_(costs.num_microbatches),
        virtual_stages_(p_ * v_),
        stages_(p_),
        forward_links_(p_),
        backward_links_(p_) {
    const size_t slots = static_cast<size_t>(virtual_stages_) * m_;
    forward_end_.assign(slots, kUnknown);
    backward_end_.assign(slots, kUnknown);
    forward_arrival_.assign(slots, kUnknown);
    backward_arrival_.assign(slots, kUnknown);
    times_.busy.assign(p_, 0.0);
    times_.end.assign(p_, 0.0);
    times_.first_forward.assign(virtual_stages_, 0.0);
    times_.last_backward.assign(virtual_stages_, 0.0);
  }

  // The time that pp microbatches took on the last virtual stage, after run(): the last ones, or those that ended
  // `earlier` microbatches before.
  double last_group(int earlier) const {
    const int last = slot(virtual_stages_ - 1, m_ - 1 - earlier);
    return backward_end_[last] - backward_end_[last - p_];
  }

  ColumnTimes run() {
    std::vector<Shape::Step>& order = kept_->order(c_.transfers);
    if (order.empty()) {
      find_order(order);
    } else {
      for (const Shape::Step& step : order) take(step.rank, step.event);
    }
    for (int rank = 0; rank < p_; ++rank) times_.makespan = std::max(times_.makespan, times_.end[rank]);
    return times_;
  }

 private:
  struct Stage {
    size_t next = 0;  // action of its plan
    double free_at = 0;
    size_t next_output = 0, next_dinput = 0;
  };

  // The link into a stage from one neighbour.
  struct Link {
    size_t next = 0;
    double free_at = 0;
  };

  int slot(int virtual_stage, int microbatch) const { return shape_.slot(virtual_stage, microbatch); }

  // Runs every step whose dependencies are met until none is left, and records their order.
  void find_order(std::vector<Shape::Step>& order) {
    size_t left = 0;
    for (int rank = 0; rank < p_; ++rank) left += shape_.stage(rank).plan.size();
    while (left > 0) {
      const size_t before = order.size();
      // Goes up and down again, because activations flow one way and gradients the other.
      for (int rank = 0; rank < p_; ++rank) advance(rank, order, left);
      for (int rank = p_ - 1; rank >= 0; --rank) advance(rank, order, left);
      TRI_REQUIRE(order.size() > before, "deadlock in the plan of {} stages, {} chunks and {} microbatches", p_, v_,
                  m_);
    }
  }

  // Advances a stage as far as possible.
  void advance(int rank, std::vector<Shape::Step>& order, size_t& left) {
    for (const auto event : {Shape::Event::kForwardMessage, Shape::Event::kBackwardMessage, Shape::Event::kAction})
      while (take(rank, event)) {
        order.push_back({rank, event});
        if (event == Shape::Event::kAction) --left;
      }
  }

  // Runs the step if possible. Returns whether it did.
  bool take(int rank, Shape::Event event) {
    switch (event) {
      case Shape::Event::kForwardMessage:
        return deliver(rank, forward_links_[rank], true);
      case Shape::Event::kBackwardMessage:
        return deliver(rank, backward_links_[rank], false);
      case Shape::Event::kAction:
        return compute(rank);
    }
    return false;
  }

  // Delivers the next message to `rank`: forward from the previous virtual stage, backward from the next one.
  bool deliver(int rank, Link& link, bool forward) {
    const Shape::Stage& shape = shape_.stage(rank);
    const std::vector<int>& order = forward ? shape.forward_in : shape.backward_in;
    if (link.next == order.size()) return false;
    const int here = order[link.next];
    const int stage_index = here / m_, microbatch = here % m_;
    const double sent = forward ? forward_end_[here - m_] : backward_end_[here + m_];
    if (sent == kUnknown) return false;
    double start = std::max(sent, link.free_at);
    if (forward) {
      // The input buffer is free once its previous microbatch has finished backward.
      const int inputs = shape.max_inputs[stage_index / p_];
      if (microbatch >= inputs) {
        const double freed = backward_end_[here - inputs];
        if (freed == kUnknown) return false;
        start = std::max(start, freed);
      }
    } else if (link.next >= 2) {
      const double freed = backward_end_[order[link.next - 2]];
      if (freed == kUnknown) return false;
      start = std::max(start, freed);
    }
    if (c_.transfers == StageTransfers::kCoupled) {
      const Stage& stage = stages_[rank];
      const size_t round_start = shape.round_starts[forward ? shape_.forward_round(here) : shape_.backward_round(here)];
      if (stage.next < round_start) return false;  // not posted yet
      start = std::max(start, stage.free_at);
    }
    const double end = start + c_.transfer;
    (forward ? forward_arrival_ : backward_arrival_)[here] = end;
    link.free_at = end;
    ++link.next;
    return true;
  }

  bool compute(int rank) {
    Stage& stage = stages_[rank];
    const Shape::Stage& shape = shape_.stage(rank);
    if (stage.next == shape.plan.size()) return false;
    const Action& action = shape.plan[stage.next];
    const bool forward = action.kind == ActionKind::kForward;
    const int stage_index = action.chunk * p_ + rank, here = slot(stage_index, action.microbatch);
    double start = stage.free_at;
    const auto wait_for = [&](double time) {
      start = std::max(start, time);
      return time != kUnknown;
    };
    if (action.kind == ActionKind::kWeight) {
      if (c_.transfers != StageTransfers::kConcurrent && !wait_for(send_end(rank, shape.plan[stage.next - 1])))
        return false;
      const double time = c_.weight[stage_index];
      times_.busy[rank] += time;
      times_.end[rank] = stage.free_at = times_.last_backward[stage_index] = start + time;
      ++stage.next;
      return true;
    }
    const bool receives = forward ? stage_index > 0 : stage_index + 1 < virtual_stages_;
    const bool sends = forward ? stage_index + 1 < virtual_stages_ : stage_index > 0;
    if (receives && !wait_for((forward ? forward_arrival_ : backward_arrival_)[here])) return false;
    if (forward && stage_index == 0) {  // the first stage fills an input buffer itself
      const int inputs = shape.max_inputs[0];
      if (action.microbatch >= inputs && !wait_for(backward_end_[slot(0, action.microbatch - inputs)])) return false;
    }
    if (sends) {  // one of two buffers, whose last message must have been sent
      const std::vector<int>& users = forward ? shape.outputs : shape.dinputs;
      const size_t index = forward ? stage.next_output : stage.next_dinput;
      if (index >= 2 && !wait_for(arrival_of(users[index - 2], forward))) return false;
    }
    if (c_.transfers == StageTransfers::kBlocked && stage.next > 0 &&
        !wait_for(send_end(rank, shape.plan[stage.next - 1])))
      return false;
    if (c_.transfers == StageTransfers::kCoupled && !wait_for(exchange_end(rank))) return false;
    const double time = (forward ? c_.forward : c_.backward)[stage_index];
    if (forward && action.microbatch == 0) times_.first_forward[stage_index] = start;
    const double end = start + time;
    (forward ? forward_end_ : backward_end_)[here] = end;
    if (!forward) times_.last_backward[stage_index] = end;
    if (sends) ++(forward ? stage.next_output : stage.next_dinput);
    times_.busy[rank] += time;
    times_.end[rank] = stage.free_at = end;
    ++stage.next;
    return true;
  }

  // Returns when the message that left `here` arrived at its neighbour.
  double arrival_of(int here, bool forward) const {
    return forward ? forward_arrival_[here + m_] : backward_arrival_[here - m_];
  }

  // Returns the end of the message sent after `action`, or 0 if there is none.
  double send_end(int rank, const Action& action) const {
    const bool forward = action.kind == ActionKind::kForward;
    const int stage_index = action.chunk * p_ + rank, here = slot(stage_index, action.microbatch);
    if (action.kind == ActionKind::kWeight) return 0;
    if (forward ? stage_index + 1 == virtual_stages_ : stage_index == 0) return 0;
    return arrival_of(here, forward);
  }

  // If the stage's next action begins a round, returns when all messages before it have ended: those that the previous
  // round sends and those that this round reads. kUnknown: not yet.
  double exchange_end(int rank) const {
    const Shape::Stage& shape = shape_.stage(rank);
    const size_t next = stages_[rank].next;
    const Action& action = shape.plan[next];
    const int here = slot(action.chunk * p_ + rank, action.microbatch);
    const size_t round = action.kind == ActionKind::kForward ? shape_.forward_round(here) : shape_.backward_round(here);
    if (shape.round_starts[round] != next) return 0;
    double end = 0;
    const auto include = [&](double time) {
      end = std::max(end, time);
      return time != kUnknown;
    };
    for (size_t i = round > 0 ? shape.round_starts[round - 1] : next; i < next; ++i)
      if (!include(send_end(rank, shape.plan[i]))) return kUnknown;
    for (size_t i = next; i < shape.round_starts[round + 1]; ++i) {
      const Action& member = shape.plan[i];
      const bool forward = member.kind == ActionKind::kForward;
      const int stage_index = member.chunk * p_ + rank;
      if (forward ? stage_index == 0 : stage_index + 1 == virtual_stages_) continue;
      if (!include((forward ? forward_arrival_ : backward_arrival_)[slot(stage_index, member.microbatch)]))
        return kUnknown;
    }
    return end;
  }

  const ColumnCosts& c_;
  std::shared_ptr<Shape> kept_;
  const Shape& shape_;
  const int p_, v_, m_, virtual_stages_;
  std::vector<Stage> stages_;
  std::vector<Link> forward_links_, backward_links_;                                     // [rank]: links into it
  std::vector<double> forward_end_, backward_end_, forward_arrival_, backward_arrival_;  // [slot]; kUnknown: not yet
  ColumnTimes times_;
};

}  // namespace

namespace {

// Returns costs that the walk can process.
ColumnCosts walkable(const ColumnCosts& costs) {
  TRI_REQUIRE(costs.stages > 0 && costs.chunks > 0 && costs.num_microbatches > 0 &&
                  costs.forward.size() == static_cast<size_t>(costs.stages) * costs.chunks &&
                  costs.backward.size() == costs.forward.size() &&
                  (!splits_backward(costs.schedule) || costs.weight.size() == costs.forward.size()),
              "{} stages, {} chunks, {} microbatches, {} costs", costs.stages, costs.chunks, costs.num_microbatches,
              costs.forward.size());
  ColumnCosts walked = costs;
  // Rounds of incomplete groups would wait for each other. Megatron-LM does not split the backward pass.
  const bool in_rounds =
      !splits_backward(costs.schedule) && (costs.chunks == 1 || costs.num_microbatches % costs.stages == 0);
  if (costs.transfers == StageTransfers::kCoupled && !in_rounds) walked.transfers = StageTransfers::kBlocked;
  return walked;
}

// Whether a full pipeline becomes periodic within two groups. That requires equal virtual stages (except for the
// embedding and the head on the first and the last), messages that hide behind each of them, and whole groups of chunks
// that do not wait for messages. GPipe has two periods, because all backwards follow all forwards.
bool keeps_a_rhythm(const ColumnCosts& costs) {
  const size_t last = costs.forward.size() - 1, inner = std::min<size_t>(1, last);
  const double forward = costs.forward[inner], backward = costs.backward[inner];
  for (size_t stage = 0; stage <= last; ++stage) {
    const bool end = stage == 0 || stage == last;
    if (end ? costs.forward[stage] < forward || costs.backward[stage] < backward
            : costs.forward[stage] != forward || costs.backward[stage] != backward)
      return false;
    if (!costs.weight.empty() &&
        (end ? costs.weight[stage] < costs.weight[inner] : costs.weight[stage] != costs.weight[inner]))
      return false;
  }
  if (costs.transfer > forward || costs.schedule == Schedule::kGpipe) return false;
  const bool whole_groups = costs.num_microbatches % costs.stages == 0 && costs.transfers != StageTransfers::kBlocked;
  return costs.chunks == 1 || whole_groups;
}

// Returns the seconds of a microbatch on each rank of a pipeline that is not folded.
std::vector<double> work_of_ranks(const ColumnCosts& costs) {
  std::vector<double> work(costs.stages, 0.0);
  for (size_t stage = 0; stage < costs.forward.size(); ++stage)
    work[stage % costs.stages] +=
        costs.forward[stage] + costs.backward[stage] + (costs.weight.empty() ? 0 : costs.weight[stage]);
  return work;
}

// Whether the first rank has at least half the excess of the last one over the others. It then falls behind for many
// groups, which shows only when the pipeline drains.
bool ends_are_about_as_slow(const std::vector<double>& work) {
  const double least = *std::ranges::min_element(work);
  return 2 * (work.front() - least) >= work.back() - least;
}

// Times a folded pipeline of the first `simulated` microbatches. Each further one takes the time of the slowest rank.
ColumnTimes time_folded(const ColumnCosts& costs, int simulated) {
  const int p = costs.stages, virtual_stages = p * costs.chunks;
  std::vector<StageCost> stages;
  for (int stage = 0; stage < virtual_stages; ++stage)
    stages.push_back({costs.forward[stage], costs.backward[stage], costs.transfer, costs.weight[stage]});
  const std::vector<Plan> plans =
      plans_of_all_stages(costs.schedule, p, simulated, costs.chunks, costs.plan.empty() ? stages : costs.plan);
  const Overlap overlap = costs.transfers == StageTransfers::kConcurrent ? Overlap::kOn : Overlap::kOff;
  const PipelineRun run = simulate_pipeline(plans, costs.chunks, stages, overlap, placement_of(costs.schedule));
  TRI_REQUIRE(run.deadlock.empty(), "{}", run.deadlock);
  ColumnTimes times{.makespan = run.makespan,
                    .busy = run.busy,
                    .end = std::vector<double>(p, 0.0),
                    .first_forward = std::vector<double>(virtual_stages, run.makespan),
                    .last_backward = std::vector<double>(virtual_stages, 0.0)};
  std::vector<double> work(p, 0.0);
  for (int stage = 0; stage < virtual_stages; ++stage)
    work[rank_of_stage(costs.schedule, p, stage)] +=
        stages[stage].forward + stages[stage].backward + stages[stage].weight;
  for (const PipelineSpan& span : run.spans) {
    if (!is_compute(span.action.kind)) continue;
    const int stage = virtual_stage(costs.schedule, {span.stage, p}, span.action.chunk);
    times.end[span.stage] = std::max(times.end[span.stage], span.end);
    if (span.action.kind == ActionKind::kForward)
      times.first_forward[stage] = std::min(times.first_forward[stage], span.start);
    else
      times.last_backward[stage] = std::max(times.last_backward[stage], span.end);
  }
  const int more = costs.num_microbatches - simulated;
  const double later = more * *std::ranges::max_element(work);
  times.makespan += later;
  for (double& end : times.end) end += later;
  for (double& end : times.last_backward) end += later;
  for (int rank = 0; rank < p; ++rank) times.busy[rank] += more * work[rank];
  return times;
}

}  // namespace

ColumnTimes time_whole_column(const ColumnCosts& costs) {
  if (folds(costs.schedule)) return time_folded(costs, costs.num_microbatches);
  const ColumnCosts walked = walkable(costs);
  return Column(walked).run();
}

ColumnTimes time_column(const ColumnCosts& costs) {
  const int p = costs.stages;
  if (folds(costs.schedule)) return time_folded(costs, std::min(costs.num_microbatches, 6 * p));
  // Two full groups of microbatches, plus the remainder of the division into groups. Before them, a plan that splits
  // the backward pass has a group in which weight gradients are delayed.
  const int few = (splits_backward(costs.schedule) ? 3 : 2) * p + costs.num_microbatches % p;
  if (costs.num_microbatches <= few || !keeps_a_rhythm(costs)) return time_whole_column(costs);
  ColumnCosts shorter = walkable(costs);
  shorter.num_microbatches = few;
  Column column(shorter);
  ColumnTimes times = column.run();
  // A pipeline drains behind its last virtual stage, which stays periodic until its end. If it is periodic by then,
  // each additional group takes the same time.
  const double group = column.last_group(0);
  for (int earlier = 1; earlier < p; ++earlier)
    if (std::abs(group - column.last_group(earlier)) > kSameRhythm * group) return time_whole_column(costs);
  // A slower rank in front of the last one has only been ahead until now.
  const std::vector<double> work = work_of_ranks(costs);
  if (group < p * *std::ranges::max_element(work) * (1 - kSameRhythm)) return time_whole_column(costs);
  if (costs.num_microbatches - few > p && ends_are_about_as_slow(work)) {
    const double before = times.makespan;
    shorter.num_microbatches += p;
    times = Column(shorter).run();
    if (std::abs(times.makespan - before - group) > kSameRhythm * group) return time_whole_column(costs);
  }
  const int groups = (costs.num_microbatches - shorter.num_microbatches) / p;
  times.makespan += groups * group;
  for (double& end : times.end) end += groups * group;
  for (double& end : times.last_backward) end += groups * group;
  for (int rank = 0; rank < p; ++rank) times.busy[rank] += groups * p * work[rank];
  return times;
}

}  // namespace tri
