#include "lib/schedule/pipeline.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <tuple>

#include "io/base/error.h"
#include "lib/schedule/buffer_rules.h"

namespace tri {

namespace {

constexpr double kNotOver = -1;  // end time of an action that has not run
constexpr int kNumQueues = 5;

int queue_of(ActionKind kind) { return is_compute(kind) ? 0 : static_cast<int>(kind) - 1; }

struct QueueEntry {
  Action action;
  std::vector<Action> after;  // actions of the same stage that must end first
};

struct Queue {
  std::vector<QueueEntry> entries;
  size_t next = 0;
  double free_at = 0;
  const QueueEntry* head() const { return next < entries.size() ? &entries[next] : nullptr; }
};

// A ring of buffers, used round robin.
struct Ring {
  int size;
  std::vector<Action> releases = {};

  // Takes the next buffer until `release` ends. Adds the action that releases its previous user, if any, to `after`.
  void take(const Action& release, std::vector<Action>& after) {
    const int taken = static_cast<int>(releases.size());
    if (taken >= size) after.push_back(releases[taken - size]);
    releases.push_back(release);
  }
};

// The plan of one stage as issued to the queues, and the end times of its actions.
class Stage {
 public:
  Stage(const Plan& plan, Axis pp, int chunks, int num_microbatches, Overlap overlap)
      : chunks_(chunks),
        num_microbatches_(num_microbatches),
        ends_(kNumActionKinds * chunks * num_microbatches, kNotOver) {
    issue(plan, pp, overlap);
  }

  // Returns when the head of the queue could start as far as this stage is concerned; none if that is not yet known.
  std::optional<double> ready(ActionKind kind) const {
    const Queue& queue = queues_[queue_of(kind)];
    if (!queue.head()) return std::nullopt;
    double start = queue.free_at;
    for (const Action& before : queue.head()->after) {
      if (end(before) == kNotOver) return std::nullopt;
      start = std::max(start, end(before));
    }
    return start;
  }

  // Removes the head of its queue. The action ends at `end`.
  void finish(ActionKind kind, double end) {
    Queue& queue = queues_[queue_of(kind)];
    ends_[slot(queue.head()->action)] = end;
    queue.free_at = end;
    ++queue.next;
  }

  double end(const Action& action) const { return ends_[slot(action)]; }
  const Queue& queue(ActionKind kind) const { return queues_[queue_of(kind)]; }
  const std::array<Queue, kNumQueues>& queues() const { return queues_; }

 private:
  size_t slot(const Action& action) const {
    return (static_cast<size_t>(action.kind) * chunks_ + action.chunk) * num_microbatches_ + action.microbatch;
  }
  void issue(const Plan& plan, Axis pp, Overlap overlap);

  int chunks_, num_microbatches_;
  std::vector<double> ends_;  // (kNumActionKinds, chunks, num_microbatches)
  std::array<Queue, kNumQueues> queues_;
};

// Walks through the plan as the executor's host thread does, and records for each action what it must wait for.
void Stage::issue(const Plan& plan, Axis pp, Overlap overlap) {
  std::vector<std::vector<BufferRule>> rules;            // [chunk]
  std::array<std::vector<Ring>, kNumBufferRings> rings;  // [BufferRing][chunk]; only inputs have a ring per chunk
  for (int chunk = 0; chunk < chunks_; ++chunk) {
    rules.push_back(buffer_rules(pp, chunk, chunks_, last_use(plan, chunk)));
    const int inputs = std::max(1, max_inputs(plan, chunk));  // an invalid plan may count below 1
    for (int ring = 0; ring < kNumBufferRings; ++ring)
      rings[ring].push_back({.size = ring_size(static_cast<BufferRing>(ring), inputs)});
  }
  std::vector<Action> unsent;  // sends since the last compute action

  for (const Action& action : plan) {
    std::vector<Action> after;
    const auto same = [&](ActionKind kind) { return Action{kind, action.microbatch, action.chunk}; };
    for (const BufferRule& rule : rules[action.chunk]) {
      if (rule.fills == action.kind)
        rings[static_cast<size_t>(rule.ring)][rule.ring == BufferRing::kInputs ? action.chunk : 0].take(
            same(rule.releases), after);
      else if (rule.reads == action.kind)
        after.push_back(same(rule.fills));
      else if (rule.releases == action.kind)
        after.push_back(same(rule.reads));
    }
    if (overlap == Overlap::kOff) {
      if (action.kind == ActionKind::kSendForward || action.kind == ActionKind::kSendBackward) unsent.push_back(action);
      if (queue_of(action.kind) == 0) {
        after.insert(after.end(), unsent.begin(), unsent.end());
        unsent.clear();
      }
    }
    queues_[queue_of(action.kind)].entries.push_back({action, std::move(after)});
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
        TRI_REQUIRE(action.microbatch >= 0 && action.chunk >= 0 && action.chunk < chunks, "{} with {} chunks",
                    to_string(action), chunks);
        num_microbatches = std::max(num_microbatches, action.microbatch + 1);
      }
    for (int rank = 0; rank < size_; ++rank)
      stages_.emplace_back(plans[rank], Axis{rank, size_}, chunks, num_microbatches, overlap);
  }

  // Advances every queue as far as possible, until none can advance.
  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < size_; ++rank) {
        while (compute(rank)) moved = true;
        while (transfer(rank, ActionKind::kSendForward)) moved = true;
        while (transfer(rank, ActionKind::kSendBackward)) moved = true;
      }
    }
  }

  PipelineRun result();

 private:
  bool compute(int rank);
  bool transfer(int sender, ActionKind send);
  std::string stuck() const;
  std::string reason(int rank, const QueueEntry& entry) const;

  const StageCost& cost(int rank, int chunk) const { return costs_[chunk * size_ + rank]; }

  // The matching action on the other side of a transfer. Activations flow to the next rank, gradients to the previous
  // one. Past the ends of the ring of ranks, they change the chunk.
  std::pair<int, Action> other_side(int rank, const Action& action) const {
    const bool up = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kRecvBackward;
    const int virtual_stage = action.chunk * size_ + rank + (up ? 1 : -1);
    constexpr std::array kOtherSide{ActionKind::kForward,     ActionKind::kBackward,     ActionKind::kSendForward,
                                    ActionKind::kRecvForward, ActionKind::kSendBackward, ActionKind::kRecvBackward,
                                    ActionKind::kWeight};
    return {(virtual_stage + size_) % size_,
            {kOtherSide[static_cast<size_t>(action.kind)], action.microbatch, (virtual_stage + size_) / size_ - 1}};
  }

  int size_;
  const std::vector<StageCost>& costs_;
  std::vector<Stage> stages_;
  std::vector<double> busy_;
  std::vector<PipelineSpan> spans_;
};

bool Pipeline::compute(int rank) {
  Stage& stage = stages_[rank];
  const std::optional<double> start = stage.ready(ActionKind::kForward);
  if (!start) return false;
  const Action action = stage.queue(ActionKind::kForward).head()->action;
  const StageCost& costs = cost(rank, action.chunk);
  const double time = action.kind == ActionKind::kForward    ? costs.forward
                      : action.kind == ActionKind::kBackward ? costs.backward
                                                             : costs.weight;
  spans_.push_back({rank, action, *start, *start + time});
  busy_[rank] += time;
  stage.finish(action.kind, *start + time);
  return true;
}

// The next transfer of `sender` in this direction, if both sides have reached it. If the receiver expects another
// microbatch, the transfer is not possible: without tags the data would arrive in the wrong place.
bool Pipeline::transfer(int sender, ActionKind send) {
  const std::optional<double> ready = stages_[sender].ready(send);
  if (!ready) return false;
  const Action action = stages_[sender].queue(send).head()->action;
  const auto [receiver, receive] = other_side(sender, action);
  const QueueEntry* head = stages_[receiver].queue(receive.kind).head();
  const std::optional<double> receiver_ready = stages_[receiver].ready(receive.kind);
  if (!receiver_ready || head->action != receive) return false;

  const double start = std::max(*ready, *receiver_ready);
  const double end = start + cost(sender, action.chunk).transfer;
  spans_.push_back({sender, action, start, end});
  spans_.push_back({receiver, receive, start, end});
  stages_[sender].finish(send, end);
  stages_[receiver].finish(receive.kind, end);
  return true;
}

std::string Pipeline::reason(int rank, const QueueEntry& entry) const {
  for (const Action& before : entry.after)
    if (stages_[rank].end(before) == kNotOver) return fmt::format("its own {}", to_string(before));
  const auto [peer, counterpart] = other_side(rank, entry.action);
  const QueueEntry* head = stages_[peer].queue(counterpart.kind).head();
  return fmt::format("{} of stage {}, {}", to_string(counterpart), peer,
                     !head                         ? "which is missing in that stage's plan"
                     : head->action != counterpart ? "where " + to_string(head->action) + " comes first"
                                                   : "which is waiting too");
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
