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
constexpr int kNumRoutes = 2, kNumTransferKinds = 4, kNumQueues = 1 + kNumRoutes * kNumTransferKinds;

int queue_of(ActionKind kind, int route) {
  return is_compute(kind) ? 0 : route * kNumTransferKinds + static_cast<int>(kind) - 1;
}

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
      : pp_(pp),
        chunks_(chunks),
        num_microbatches_(num_microbatches),
        ends_(kNumActionKinds * chunks * num_microbatches, kNotOver) {
    issue(plan, overlap);
  }

  // Returns when the head of the queue could start as far as this stage is concerned; none if that is not yet known.
  std::optional<double> ready(ActionKind kind, int route) const {
    const Queue& queue = queues_[queue_of(kind, route)];
    if (!queue.head()) return std::nullopt;
    double start = queue.free_at;
    for (const Action& before : queue.head()->after) {
      if (end(before) == kNotOver) return std::nullopt;
      start = std::max(start, end(before));
    }
    return start;
  }

  // Removes the head of its queue. The action ends at `end`.
  void finish(ActionKind kind, int route, double end) {
    Queue& queue = queues_[queue_of(kind, route)];
    ends_[slot(queue.head()->action)] = end;
    queue.free_at = end;
    ++queue.next;
  }

  double end(const Action& action) const { return ends_[slot(action)]; }
  const Queue& queue(ActionKind kind, int route) const { return queues_[queue_of(kind, route)]; }
  const std::array<Queue, kNumQueues>& queues() const { return queues_; }

 private:
  size_t slot(const Action& action) const {
    return (static_cast<size_t>(action.kind) * chunks_ + action.chunk) * num_microbatches_ + action.microbatch;
  }
  void issue(const Plan& plan, Overlap overlap);

  Axis pp_;
  int chunks_, num_microbatches_;
  std::vector<double> ends_;  // (kNumActionKinds, chunks, num_microbatches)
  std::array<Queue, kNumQueues> queues_;
};

// Walks through the plan as the executor's host thread does, and records for each action what it must wait for.
void Stage::issue(const Plan& plan, Overlap overlap) {
  std::vector<std::vector<BufferRule>> rules;            // [chunk]
  std::array<std::vector<Ring>, kNumBufferRings> rings;  // [BufferRing][chunk], of rings per route [route]
  for (int chunk = 0; chunk < chunks_; ++chunk) {
    rules.push_back(buffer_rules(pp_, chunk, chunks_, last_use(plan, chunk)));
    const int inputs = std::max(1, max_inputs(plan, pp_, chunk));  // an invalid plan may count below 1
    for (int ring = 0; ring < kNumBufferRings; ++ring)
      rings[ring].push_back({.size = ring_size(static_cast<BufferRing>(ring), inputs)});
  }
  std::vector<Action> unsent;  // sends since the last compute action

  for (const Action& action : plan) {
    std::vector<Action> after;
    const auto same = [&](ActionKind kind, int chunk) { return Action{kind, action.microbatch, chunk}; };
    for (const BufferRule& rule : rules[action.chunk]) {
      if (rule.is_filled_by(action))
        rings[static_cast<size_t>(rule.ring)][rule.ring == BufferRing::kInputs ? rule.chunk : route_of(pp_, rule.chunk)]
            .take(same(rule.releases, rule.chunk), after);
      else if (rule.is_read_by(action))
        after.push_back(same(rule.fills, rule.fills_chunk));
      else if (rule.is_released_by(action))
        after.push_back(same(rule.reads, rule.chunk));
    }
    if (overlap == Overlap::kOff) {
      if (action.kind == ActionKind::kSendForward || action.kind == ActionKind::kSendBackward) unsent.push_back(action);
      if (is_compute(action.kind)) {
        after.insert(after.end(), unsent.begin(), unsent.end());
        unsent.clear();
      }
    }
    queues_[queue_of(action.kind, route_of(pp_, action.chunk))].entries.push_back({action, std::move(after)});
  }
}

// All stages of one pipeline, and the transfers between them.
class Pipeline {
 public:
  Pipeline(const std::vector<Plan>& plans, int chunks, const std::vector<StageCost>& costs, Overlap overlap,
           StagePlacement placement)
      : size_(static_cast<int>(plans.size())),
        folded_(placement == StagePlacement::kFolded),
        costs_(costs),
        busy_(plans.size(), 0.0) {
    int num_microbatches = 0;
    for (const Plan& plan : plans)
      for (const Action& action : plan) {
        TRI_REQUIRE(action.microbatch >= 0 && action.chunk >= 0 && action.chunk < chunks, "{} with {} chunks",
                    to_string(action), chunks);
        num_microbatches = std::max(num_microbatches, action.microbatch + 1);
      }
    for (int rank = 0; rank < size_; ++rank)
      stages_.emplace_back(plans[rank], axis(rank), chunks, num_microbatches, overlap);
  }

  // Advances every queue as far as possible, until none can advance.
  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < size_; ++rank) {
        while (compute(rank)) moved = true;
        for (int route = 0; route < num_routes(axis(rank)); ++route) {
          while (transfer(rank, ActionKind::kSendForward, route)) moved = true;
          while (transfer(rank, ActionKind::kSendBackward, route)) moved = true;
        }
      }
    }
  }

  PipelineRun result();

 private:
  bool compute(int rank);
  bool transfer(int sender, ActionKind send, int route);
  std::string stuck() const;
  std::string reason(int rank, const QueueEntry& entry) const;

  Axis axis(int rank) const { return {rank, size_, folded_}; }
  const StageCost& cost(int rank, int chunk) const { return costs_[virtual_stage(axis(rank), chunk)]; }
  const Queue& queue_of_action(int rank, const Action& action) const {
    return stages_[rank].queue(action.kind, route_of(axis(rank), action.chunk));
  }

  // The matching action on the other side of a transfer. Activations flow to the next virtual stage, gradients to the
  // previous one. Past the ends of a ring of ranks, they change the chunk.
  std::pair<int, Action> other_side(int rank, const Action& action) const {
    const bool up = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kRecvBackward;
    const int other = virtual_stage(axis(rank), action.chunk) + (up ? 1 : -1);
    constexpr std::array kOtherSide{ActionKind::kForward,     ActionKind::kBackward,     ActionKind::kSendForward,
                                    ActionKind::kRecvForward, ActionKind::kSendBackward, ActionKind::kRecvBackward,
                                    ActionKind::kWeight};
    const int at = (other + size_) % size_, chunk = (other + size_) / size_ - 1;
    return {folded_ && chunk == 1 ? size_ - 1 - at : at,
            {kOtherSide[static_cast<size_t>(action.kind)], action.microbatch, chunk}};
  }

  int size_;
  bool folded_;
  const std::vector<StageCost>& costs_;
  std::vector<Stage> stages_;
  std::vector<double> busy_;
  std::vector<PipelineSpan> spans_;
};

bool Pipeline::compute(int rank) {
  Stage& stage = stages_[rank];
  const std::optional<double> start = stage.ready(ActionKind::kForward, 0);
  if (!start) return false;
  const Action action = stage.queue(ActionKind::kForward, 0).head()->action;
  const StageCost& costs = cost(rank, action.chunk);
  const double time = action.kind == ActionKind::kForward    ? costs.forward
                      : action.kind == ActionKind::kBackward ? costs.backward
                                                             : costs.weight;
  spans_.push_back({rank, action, *start, *start + time});
  busy_[rank] += time;
  stage.finish(action.kind, 0, *start + time);
  return true;
}

// The next transfer of `sender` in this direction, if both sides have reached it. If the receiver expects another
// microbatch, the transfer is not possible: without tags the data would arrive in the wrong place.
bool Pipeline::transfer(int sender, ActionKind send, int route) {
  const std::optional<double> ready = stages_[sender].ready(send, route);
  if (!ready) return false;
  const Action action = stages_[sender].queue(send, route).head()->action;
  const auto [receiver, receive] = other_side(sender, action);
  const QueueEntry* head = stages_[receiver].queue(receive.kind, route).head();
  const std::optional<double> receiver_ready = stages_[receiver].ready(receive.kind, route);
  if (!receiver_ready || head->action != receive) return false;

  const double start = std::max(*ready, *receiver_ready);
  const double end = start + cost(sender, action.chunk).transfer;
  spans_.push_back({sender, action, start, end});
  spans_.push_back({receiver, receive, start, end});
  stages_[sender].finish(send, route, end);
  stages_[receiver].finish(receive.kind, route, end);
  return true;
}

std::string Pipeline::reason(int rank, const QueueEntry& entry) const {
  for (const Action& before : entry.after)
    if (stages_[rank].end(before) == kNotOver) return fmt::format("its own {}", to_string(before));
  const auto [peer, counterpart] = other_side(rank, entry.action);
  const QueueEntry* head = queue_of_action(peer, counterpart).head();
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

std::vector<Plan> plans_of_all_stages(Schedule schedule, int pp_size, int num_microbatches, int chunks,
                                      const std::vector<StageCost>& costs) {
  std::vector<Plan> plans = make_plans(schedule, pp_size, num_microbatches, chunks, costs);
  for (int rank = 0; rank < pp_size; ++rank) {
    Plan& plan = plans[static_cast<size_t>(rank)];
    plan = with_transfers(plan, pipeline_axis(schedule, rank, pp_size), chunks);
  }
  return plans;
}

PipelineRun simulate_pipeline(const std::vector<Plan>& plans, int chunks, const std::vector<StageCost>& costs,
                              Overlap overlap, StagePlacement placement) {
  TRI_REQUIRE(!plans.empty() && costs.size() == plans.size() * chunks, "{} plans of {} chunks, {} costs", plans.size(),
              chunks, costs.size());
  Pipeline pipeline(plans, chunks, costs, overlap, placement);
  pipeline.run();
  PipelineRun run = pipeline.result();
  for (const Plan& plan : plans) {
    auto& peaks = run.peak_activations.emplace_back();
    for (int chunk = 0; chunk < chunks; ++chunk) peaks.push_back(max_in_flight(plan, chunk));
  }
  return run;
}

}  // namespace tri
