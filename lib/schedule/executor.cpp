#include "lib/schedule/executor.h"

#include <algorithm>
#include <array>
#include <map>

#include "kernels/core/span_recorder.h"
#include "kernels/core/timeline.h"
#include "lib/comm/groups/compute_progress.h"

namespace tri {

BoundaryTensors allocate_boundaries(Axis pp, int chunks, const std::vector<int>& max_inputs, int64_t rows,
                                    int64_t width, Dtype dtype, Arena& arena) {
  const auto take = [&](std::vector<Tensor>& list, int count, const char* name) {
    for (int i = 0; i < count; ++i) list.push_back(arena.take(name, dtype, {rows, width}));
  };
  BoundaryTensors tensors;
  for (int chunk = 0; chunk < chunks; ++chunk)
    take(tensors.inputs.emplace_back(), max_inputs[static_cast<size_t>(chunk)], "stage inputs");
  const int routes = num_routes(pp);
  if (pp.size > 1) tensors.flags = arena.take("transfer buffers", Dtype::kI32, {int64_t{routes} * 4});
  for (int route = 0; route < routes; ++route) {
    const auto take_ring = [&](std::vector<std::vector<Tensor>>& rings, BufferRing ring) {
      const auto is_its = [&](const BufferRule& rule) { return rule.ring == ring && rule.chunk == route; };
      const bool used =
          !pp.folded || std::ranges::any_of(buffer_rules(pp, route, chunks, ActionKind::kBackward), is_its);
      take(rings.emplace_back(), (pp.folded || pp.size > 1) && used ? ring_size(ring, 0) : 0, "transfer buffers");
    };
    take_ring(tensors.outputs, BufferRing::kOutputs);
    take_ring(tensors.dinputs, BufferRing::kDInputs);
    take_ring(tensors.doutputs, BufferRing::kDOutputs);
  }
  return tensors;
}

// A transfer between stages, by its number on its channel; a null channel: no transfer.
struct Executor::Transfer {
  const ChannelProgress* channel = nullptr;
  uint32_t number = 0;

  void awaited_by_action() const {
    if (channel != nullptr) channel->awaited_by_action(number);
  }
};

struct Executor::Buffer {
  Tensor tensor;
  std::unique_ptr<Event> filled;  // its producer (receive or compute) is done
  std::unique_ptr<Event> freed;   // its last user (compute or send) is done
  Transfer received, sent;        // the last transfers, for which compute waits before the buffer is filled, or freed
  bool in_use = false;            // by the host's order: taken, and free() is not enqueued yet

  void free(Stream& user) {
    user.record(*freed);
    in_use = false;
  }
};

// Buffers used round robin. Every user of a kind of buffer takes and frees them in the same order.
class Executor::Ring {
 public:
  Ring(const std::vector<Tensor>& tensors, Device& device, TimeCategory waits) : waits_(waits) {
    for (const Tensor& tensor : tensors) buffers_.push_back({tensor, device.make_event(), device.make_event()});
  }
  // Returns the next buffer; later work on `user` waits until it is free.
  Buffer& take(Stream& user) {
    TRI_REQUIRE(!buffers_.empty(), "a transfer without buffers");
    Buffer& buffer = buffers_[next_++ % buffers_.size()];
    TRI_REQUIRE(!buffer.in_use, "more than {} buffers in use", buffers_.size());
    buffer.in_use = true;
    const TimeCategoryScope scope(user, waits_);
    user.wait(*buffer.freed);
    return buffer;
  }

 private:
  std::vector<Buffer> buffers_;
  size_t next_ = 0;
  TimeCategory waits_;
};

Executor::Executor(const ExecutorContext& context)
    : pp_(context.pp),
      chunks_(context.chunks),
      links_{context.links, context.returning},
      compute_(context.compute),
      overlap_(context.overlap),
      device_(context.device),
      waits_(context.pp.size > 1 ? TimeCategory::kPp : TimeCategory::kCompute) {
  const BoundaryTensors& tensors = context.tensors;
  const auto ring = [&](const std::vector<Tensor>& buffers) {
    return std::make_unique<Ring>(buffers, device_, waits_);
  };
  for (const auto& inputs : tensors.inputs) inputs_.push_back(ring(inputs));
  for (const auto& outputs : tensors.outputs) outputs_.push_back(ring(outputs));
  for (const auto& doutputs : tensors.doutputs) doutputs_.push_back(ring(doutputs));
  for (const auto& dinputs : tensors.dinputs) dinputs_.push_back(ring(dinputs));
}

Executor::~Executor() = default;

Executor::Ring& Executor::ring(BufferRing ring, int chunk) {
  const auto route = static_cast<size_t>(route_of(pp_, chunk));
  switch (ring) {
    case BufferRing::kInputs:
      return *inputs_[static_cast<size_t>(chunk)];
    case BufferRing::kOutputs:
      return *outputs_[route];
    case BufferRing::kDOutputs:
      return *doutputs_[route];
    case BufferRing::kDInputs:
      break;
  }
  return *dinputs_[route];
}

// One pass over a plan. Tracks the contents of the buffers.
class Executor::Run {
 public:
  Run(Executor& executor, StageCompute& stage, const Plan& plan, int64_t rows)
      : x_(executor), stage_(stage), rows_(rows) {
    for (int chunk = 0; chunk < x_.chunks_; ++chunk)
      rules_.push_back(buffer_rules(x_.pp_, chunk, x_.chunks_, last_use(plan, chunk)));
  }

  void issue(const Action& action) {
    const PipelineLinks& links = x_.links_[static_cast<size_t>(route_of(x_.pp_, action.chunk))];
    // A route's channel has the rings of its chunks.
    const int ring = x_.pp_.folded ? 0 : action.chunk;
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kWeight:
        return compute(action);
      case ActionKind::kRecvForward:
        return recv(action, ring, links.recv_forward);
      case ActionKind::kRecvBackward:
        return recv(action, 0, links.recv_backward);
      case ActionKind::kSendForward:
        return send(action, !x_.pp_.folded && x_.pp_.last() ? ring + 1 : ring, links.send_forward);
      case ActionKind::kSendBackward:
        return send(action, 0, links.send_backward);
    }
  }

 private:
  struct Key {
    int chunk, microbatch;
    auto operator<=>(const Key&) const = default;
  };
  // The buffers of an action by their meaning for it, [BufferRing]; null for unused ones. At the turn, the output of a
  // chunk is a buffer of the other chunk's inputs, and the gradient of its input one of the other's kDOutputs.
  struct Held {
    std::array<Buffer*, kNumBufferRings> buffers{};

    Buffer*& operator[](BufferRing ring) { return buffers[static_cast<size_t>(ring)]; }
    Tensor tensor(BufferRing ring) const {
      const Buffer* buffer = buffers[static_cast<size_t>(ring)];
      return buffer == nullptr ? Tensor{} : buffer->tensor;
    }
    // Returns the only buffer of a transfer.
    Buffer* only() const {
      for (Buffer* buffer : buffers)
        if (buffer != nullptr) return buffer;
      TRI_REQUIRE(false, "a transfer without a buffer");
      return nullptr;
    }
  };

  const std::vector<BufferRule>& rules(const Action& action) const { return rules_[static_cast<size_t>(action.chunk)]; }

  static BufferRing meaning(const BufferRule& rule, const Action& action) {
    if (rule.chunk == action.chunk) return rule.ring;
    return rule.ring == BufferRing::kInputs ? BufferRing::kOutputs : BufferRing::kDInputs;
  }

  // Returns the buffers of an action. Later work on `user` waits until it may use them.
  Held take(const Action& action, Stream& user) {
    Held held;
    for (const BufferRule& rule : rules(action)) {
      const bool fills = rule.is_filled_by(action), reads = rule.is_read_by(action);
      if (!fills && !reads && !rule.is_released_by(action)) continue;
      Buffer*& buffer = in_use_[static_cast<size_t>(rule.ring)][Key{rule.chunk, action.microbatch}];
      if (fills) buffer = &x_.ring(rule.ring, rule.chunk).take(user);
      TRI_REQUIRE(buffer != nullptr, "{} before {}", to_string(action), enum_name(rule.fills));
      if (reads && !fills) wait(user, *buffer->filled);
      if (&user == &x_.compute_) (fills ? buffer->sent : buffer->received).awaited_by_action();
      held[meaning(rule, action)] = buffer;
    }
    return held;
  }

  // Records that `user` has done the action.
  void finish(const Action& action, Stream& user, Held& held) {
    for (const BufferRule& rule : rules(action))
      if (rule.is_filled_by(action) && !rule.is_read_by(action)) user.record(*held[meaning(rule, action)]->filled);
    for (const BufferRule& rule : rules(action))
      if (rule.is_released_by(action)) held[meaning(rule, action)]->free(user);
  }

  void compute(const Action& action) {
    const bool forward = action.kind == ActionKind::kForward, weight = action.kind == ActionKind::kWeight;
    const ComputeProgress progress(forward  ? ComputeKind::kForward
                                   : weight ? ComputeKind::kWeight
                                            : ComputeKind::kBackward,
                                   action.chunk, action.microbatch);
    // With one stage there is no wait between entering an action and running it.
    if (x_.pp_.size > 1) progress.entered(x_.compute_);
    if (Timeline* const timeline = x_.compute_.timeline())
      timeline->enter_action(forward ? TimeCategory::kForward : TimeCategory::kBackward);
    Held held = take(action, x_.compute_);
    progress.running(x_.compute_);
    const SpanScope span(x_.compute_, SpanKind::kAction,
                         forward  ? "F"
                         : weight ? "W"
                                  : "B",
                         action.microbatch, action.chunk);
    const Tensor input = held.tensor(BufferRing::kInputs);
    if (forward)
      stage_.forward(action.chunk, action.microbatch, input, held.tensor(BufferRing::kOutputs));
    else if (weight)
      stage_.weight_gradients(action.chunk, action.microbatch);
    else
      stage_.backward(action.chunk, action.microbatch, input, held.tensor(BufferRing::kDOutputs),
                      held.tensor(BufferRing::kDInputs));
    finish(action, x_.compute_, held);
  }

  void recv(const Action& action, int index, const Link& link) {
    Held buffers = take(action, *link.stream);
    Buffer* held = buffers.only();
    link.recv(sent_rows(held->tensor), index);
    held->received = {&link.channel->progress(), link.channel->progress().last()};
    finish(action, *link.stream, buffers);
  }

  // `ring`: the receiver's ring.
  void send(const Action& action, int ring, const Link& link) {
    Held buffers = take(action, *link.stream);
    Buffer* held = buffers.only();
    TimedSend& times = x_.next_send();
    link.stream->record(*times.begin);
    link.send(sent_rows(held->tensor), ring);
    held->sent = {&link.channel->progress(), link.channel->progress().last()};
    link.stream->record(*times.end);
    finish(action, *link.stream, buffers);
    if (x_.overlap_ == Overlap::kOff) wait(x_.compute_, *held->freed);  // coupled: compute waits for the send
  }

  Tensor sent_rows(Tensor tensor) const { return rows_ == 0 ? tensor : tensor.rows(0, rows_); }

  void wait(Stream& user, Event& event) {
    const TimeCategoryScope scope(user, x_.waits_);
    user.wait(event);
  }

  Executor& x_;
  StageCompute& stage_;
  const int64_t rows_;                                            // of each transfer; 0: all
  std::vector<std::vector<BufferRule>> rules_;                    // [chunk]
  std::array<std::map<Key, Buffer*>, kNumBufferRings> in_use_{};  // [BufferRing]
};

Executor::TimedSend& Executor::next_send() {
  if (num_sends_ == sends_.size())
    sends_.push_back({device_.make_event(EventKind::kTimed), device_.make_event(EventKind::kTimed)});
  return sends_[num_sends_++];
}

double Executor::fastest_send() {
  double fastest = 0;
  for (size_t i = 0; i < num_sends_; ++i) {
    sends_[i].end->synchronize();
    const double seconds = sends_[i].end->seconds_after(*sends_[i].begin);
    fastest = i == 0 ? seconds : std::min(fastest, seconds);
  }
  return fastest;
}

void Executor::run(const Plan& plan, StageCompute& stage, int64_t rows) {
  num_sends_ = 0;
  Run run(*this, stage, plan, rows);
  for (const Action& action : plan) run.issue(action);
}

}  // namespace tri
