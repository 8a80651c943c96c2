#include "lib/simulate/pipeline.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <tuple>

#include "io/base/error.h"

namespace tri {

namespace {

constexpr double kNotOver = -1;  // end time of an action that has not taken place
constexpr int kNumQueues = 5;

int queue_of(Op op) { return op == Op::kForward || op == Op::kBackward ? 0 : static_cast<int>(op) - 1; }

struct QueueEntry {
  Action action;
  std::vector<Action> after;  // actions of the same stage that must be over first
};

struct Queue {
  std::vector<QueueEntry> entries;
  size_t next = 0;
  double free_at = 0;
  const QueueEntry* head() const { return next < entries.size() ? &entries[next] : nullptr; }
};

// Buffers taken in turn.
struct Ring {
  int size;
  std::vector<Action> releases = {};

  // Takes the next buffer until `release` is over; its user before, if any, goes to `after`.
  void take(const Action& release, std::vector<Action>& after) {
    const int taken = static_cast<int>(releases.size());
    if (taken >= size) after.push_back(releases[taken - size]);
    releases.push_back(release);
  }
};

// One stage: its plan as issued to the queues, and what is over.
class Stage {
 public:
  Stage(const Plan& plan, Axis pp, int chunks, int num_microbatches, Overlap overlap)
      : chunks_(chunks), num_microbatches_(num_microbatches), ends_(kNumOps * chunks * num_microbatches, kNotOver) {
    issue(plan, pp, overlap);
  }

  // When the head of the queue could start as far as this stage is concerned; none: not yet known.
  std::optional<double> ready(Op op) const {
    const Queue& queue = queues_[queue_of(op)];
    if (!queue.head()) return std::nullopt;
    double start = queue.free_at;
    for (const Action& before : queue.head()->after) {
      if (end(before) == kNotOver) return std::nullopt;
      start = std::max(start, end(before));
    }
    return start;
  }

  // Takes the head off its queue; it ends at `end`.
  void finish(Op op, double end) {
    Queue& queue = queues_[queue_of(op)];
    ends_[slot(queue.head()->action)] = end;
    queue.free_at = end;
    ++queue.next;
  }

  double end(const Action& action) const { return ends_[slot(action)]; }
  const Queue& queue(Op op) const { return queues_[queue_of(op)]; }
  const std::array<Queue, kNumQueues>& queues() const { return queues_; }

 private:
  size_t slot(const Action& action) const {
    return (static_cast<size_t>(action.op) * chunks_ + action.chunk) * num_microbatches_ + action.micro;
  }
  void issue(const Plan& plan, Axis pp, Overlap overlap);

  int chunks_, num_microbatches_;
  std::vector<double> ends_;  // (kNumOps, chunks, num_microbatches)
  std::array<Queue, kNumQueues> queues_;
};

// Walks through the plan as the executor's host thread does, and notes for each action what it has to wait
// for.
void Stage::issue(const Plan& plan, Axis pp, Overlap overlap) {
  std::vector<Ring> inputs;
  std::vector<Op> input_release;
  for (int chunk = 0; chunk < chunks_; ++chunk) {
    inputs.push_back({.size = std::max(1, max_inputs(plan, chunk))});  // a broken plan may count below 1
    input_release.push_back(last_use(plan, chunk));
  }
  Ring gradients{kGradientBuffers}, outputs{kOutputBuffers}, output_gradients{kOutputBuffers};
  std::vector<Action> unsent;  // sends since the last compute action

  for (const Action& action : plan) {
    std::vector<Action> after;
    const auto same = [&](Op op) { return Action{op, action.micro, action.chunk}; };
    switch (action.op) {
      case Op::kForward:
        if (!is_first_virtual_stage(pp, action.chunk)) after.push_back(same(Op::kRecvForward));
        if (!is_last_virtual_stage(pp, action.chunk, chunks_)) outputs.take(same(Op::kSendForward), after);
        break;
      case Op::kBackward:
        after.push_back(same(Op::kForward));
        if (!is_last_virtual_stage(pp, action.chunk, chunks_)) after.push_back(same(Op::kRecvBackward));
        if (!is_first_virtual_stage(pp, action.chunk)) output_gradients.take(same(Op::kSendBackward), after);
        break;
      case Op::kRecvForward:
        inputs[action.chunk].take(same(input_release[action.chunk]), after);
        break;
      case Op::kRecvBackward:
        gradients.take(same(Op::kBackward), after);
        break;
      case Op::kSendForward:
        after.push_back(same(Op::kForward));
        break;
      case Op::kSendBackward:
        after.push_back(same(Op::kBackward));
        break;
    }
    if (overlap == Overlap::kOff) {
      if (action.op == Op::kSendForward || action.op == Op::kSendBackward) unsent.push_back(action);
      if (queue_of(action.op) == 0) {
        after.insert(after.end(), unsent.begin(), unsent.end());
        unsent.clear();
      }
    }
    queues_[queue_of(action.op)].entries.push_back({action, std::move(after)});
  }
}

// All stages of one pipeline, and the transfers between them.
class Pipeline {
 public:
  Pipeline(const std::vector<Plan>& plans, int chunks, const std::vector<StageCost>& costs, Overlap overlap)
      : size_(static_cast<int>(plans.size())), costs_(costs), busy_(plans.size(), 0.0) {
    int num_microbatches = 0;
    for (const Plan& plan : plans)
      for (const Action& action : plan) {
        TRI_REQUIRE(action.micro >= 0 && action.chunk >= 0 && action.chunk < chunks, "{} with {} chunks",
                    to_string(action), chunks);
        num_microbatches = std::max(num_microbatches, action.micro + 1);
      }
    for (int rank = 0; rank < size_; ++rank)
      stages_.emplace_back(plans[rank], Axis{rank, size_}, chunks, num_microbatches, overlap);
  }

  // Lets every queue go on as far as it can, until none can.
  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < size_; ++rank) {
        while (compute(rank)) moved = true;
        while (transfer(rank, Op::kSendForward)) moved = true;
        while (transfer(rank, Op::kSendBackward)) moved = true;
      }
    }
  }

  PipelineRun result();

 private:
  bool compute(int rank);
  bool transfer(int sender, Op send);
  std::string stuck() const;
  std::string reason(int rank, const QueueEntry& entry) const;

  const StageCost& cost(int rank, int chunk) const { return costs_[chunk * size_ + rank]; }

  // The other side of a transfer: activations flow to the next rank, gradients to the one before; past the
  // ends of the ring of ranks they change the chunk.
  std::pair<int, Action> other_side(int rank, const Action& action) const {
    const bool up = action.op == Op::kSendForward || action.op == Op::kRecvBackward;
    const int virtual_stage = action.chunk * size_ + rank + (up ? 1 : -1);
    constexpr std::array kOtherOp{Op::kForward,     Op::kBackward,     Op::kSendForward,
                                  Op::kRecvForward, Op::kSendBackward, Op::kRecvBackward};
    return {(virtual_stage + size_) % size_,
            {kOtherOp[static_cast<size_t>(action.op)], action.micro, (virtual_stage + size_) / size_ - 1}};
  }

  int size_;
  const std::vector<StageCost>& costs_;
  std::vector<Stage> stages_;
  std::vector<double> busy_;
  std::vector<PipelineSpan> spans_;
};

bool Pipeline::compute(int rank) {
  Stage& stage = stages_[rank];
  const std::optional<double> start = stage.ready(Op::kForward);
  if (!start) return false;
  const Action action = stage.queue(Op::kForward).head()->action;
  const StageCost& costs = cost(rank, action.chunk);
  const double time = action.op == Op::kForward ? costs.forward : costs.backward;
  spans_.push_back({rank, action, *start, *start + time});
  busy_[rank] += time;
  stage.finish(action.op, *start + time);
  return true;
}

// The next transfer of `sender` in this direction, if both sides have reached it. A receiver that expects
// another microbatch stops it: without tags the data would land in the wrong place.
bool Pipeline::transfer(int sender, Op send) {
  const std::optional<double> ready = stages_[sender].ready(send);
  if (!ready) return false;
  const Action action = stages_[sender].queue(send).head()->action;
  const auto [receiver, receive] = other_side(sender, action);
  const QueueEntry* head = stages_[receiver].queue(receive.op).head();
  const std::optional<double> receiver_ready = stages_[receiver].ready(receive.op);
  if (!receiver_ready || head->action != receive) return false;

  const double start = std::max(*ready, *receiver_ready);
  const double end = start + cost(sender, action.chunk).transfer;
  spans_.push_back({sender, action, start, end});
  spans_.push_back({receiver, receive, start, end});
  stages_[sender].finish(send, end);
  stages_[receiver].finish(receive.op, end);
  return true;
}

std::string Pipeline::reason(int rank, const QueueEntry& entry) const {
  for (const Action& before : entry.after)
    if (stages_[rank].end(before) == kNotOver) return fmt::format("its own {}", to_string(before));
  const auto [peer, counterpart] = other_side(rank, entry.action);
  const QueueEntry* head = stages_[peer].queue(counterpart.op).head();
  return fmt::format("{} of stage {}, {}", to_string(counterpart), peer,
                     !head                         ? "which that plan does not have"
                     : head->action != counterpart ? "where " + to_string(head->action) + " comes first"
                                                   : "which waits too");
}

std::string Pipeline::stuck() const {
  std::string text;
  for (int rank = 0; rank < size_; ++rank)
    for (const Queue& queue : stages_[rank].queues())
      if (const QueueEntry* head = queue.head())
        text += fmt::format("stage {}: {} waits for {}\n", rank, to_string(head->action), reason(rank, *head));
  return text;
}

PipelineRun Pipeline::result() {
  PipelineRun run;
  run.busy = busy_;
  run.spans = std::move(spans_);
  run.deadlock = stuck();
  for (const PipelineSpan& span : run.spans) run.makespan = std::max(run.makespan, span.end);
  const double busy = std::accumulate(busy_.begin(), busy_.end(), 0.0);
  if (busy > 0) run.bubble = (size_ * run.makespan - busy) / busy;
  std::ranges::stable_sort(run.spans, {}, [](const PipelineSpan& s) { return std::tuple(s.stage, s.start); });
  return run;
}

}  // namespace

std::vector<Plan> plans_of_all_stages(Schedule schedule, int pp_size, int num_microbatches, int chunks) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < pp_size; ++rank) {
    const Axis pp{rank, pp_size};
    plans.push_back(with_transfers(make_plan(schedule, pp, num_microbatches, chunks), pp, chunks));
  }
  return plans;
}

PipelineRun simulate_pipeline(const std::vector<Plan>& plans, int chunks, const std::vector<StageCost>& costs,
                              Overlap overlap) {
  TRI_REQUIRE(!plans.empty() && costs.size() == plans.size() * chunks, "{} plans of {} chunks, {} costs", plans.size(),
              chunks, costs.size());
  Pipeline pipeline(plans, chunks, costs, overlap);
  pipeline.run();
  PipelineRun run = pipeline.result();
  for (const Plan& plan : plans) {
    auto& peaks = run.peak_activations.emplace_back();
    for (int chunk = 0; chunk < chunks; ++chunk) peaks.push_back(max_in_flight(plan, chunk));
  }
  return run;
}

}  // namespace tri
