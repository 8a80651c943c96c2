#include "lib/schedule/executor.h"

#include <algorithm>
#include <map>

#include "kernels/core/timeline.h"

namespace tri {

BoundaryTensors allocate_boundaries(Axis pp, int chunks, const std::vector<int>& max_inputs, int64_t rows,
                                    int64_t width, Dtype dtype, Arena& arena) {
  const auto take = [&](std::vector<Tensor>& list, int count, const char* name) {
    for (int i = 0; i < count; ++i) list.push_back(arena.take(name, dtype, {rows, width}));
  };
  BoundaryTensors tensors;
  for (int chunk = 0; chunk < chunks; ++chunk)
    take(tensors.inputs.emplace_back(), max_inputs[static_cast<size_t>(chunk)], "stage inputs");
  if (pp.size > 1) {
    tensors.flags = arena.take("transfer buffers", Dtype::kI32, {4});
    take(tensors.outputs, kOutputBuffers, "transfer buffers");
    take(tensors.dinputs, kOutputBuffers, "transfer buffers");
    take(tensors.doutputs, kGradientBuffers, "transfer buffers");
  }
  return tensors;
}

struct Executor::Buffer {
  Tensor tensor;
  std::unique_ptr<Event> filled;  // its producer (receive or compute) is done
  std::unique_ptr<Event> freed;   // its last user (compute or send) is done
  bool in_use = false;            // on the host's clock: taken, and no free() enqueued yet

  void free(Stream& user) {
    user.record(*freed);
    in_use = false;
  }
};

// Buffers used in turn. Every user of a kind of buffer takes and frees them in the same order, so turns suffice.
class Executor::Ring {
 public:
  Ring(const std::vector<Tensor>& tensors, Device& device, TimeCategory waits) : waits_(waits) {
    for (const Tensor& tensor : tensors) buffers_.push_back({tensor, device.make_event(), device.make_event()});
  }
  // The next buffer; `user`'s later work waits until it is free.
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
      links_(context.links),
      compute_(context.compute),
      overlap_(context.overlap),
      device_(context.device),
      waits_(context.pp.size > 1 ? TimeCategory::kPp : TimeCategory::kCompute) {
  const BoundaryTensors& tensors = context.tensors;
  const auto ring = [&](const std::vector<Tensor>& buffers) {
    return std::make_unique<Ring>(buffers, device_, waits_);
  };
  for (const auto& inputs : tensors.inputs) inputs_.push_back(ring(inputs));
  outputs_ = ring(tensors.outputs);
  doutputs_ = ring(tensors.doutputs);
  dinputs_ = ring(tensors.dinputs);
}

Executor::~Executor() = default;

// One pass over a plan; knows which buffer holds what.
class Executor::Run {
 public:
  Run(Executor& executor, StageCompute& stage, bool forward_only)
      : x_(executor), stage_(stage), forward_only_(forward_only) {}

  void issue(const Action& action) {
    const Key key{action.chunk, action.micro};
    switch (action.op) {
      case Op::kRecvForward:
        return recv(*x_.inputs_[static_cast<size_t>(action.chunk)], action.chunk, inputs_[key], x_.links_.recv_forward);
      case Op::kRecvBackward:
        return recv(*x_.doutputs_, 0, doutputs_[key], x_.links_.recv_backward);
      case Op::kForward:
        return forward(key);
      case Op::kBackward:
        return backward(key);
      case Op::kSendForward:
        return send(outputs_[key], x_.pp_.last() ? action.chunk + 1 : action.chunk, x_.links_.send_forward);
      case Op::kSendBackward:
        return send(dinputs_[key], 0, x_.links_.send_backward);
    }
  }

 private:
  struct Key {
    int chunk, micro;
    auto operator<=>(const Key&) const = default;
  };

  void recv(Ring& ring, int index, Buffer*& held, const Link& link) {
    held = &ring.take(*link.stream);  // the receive waits for the buffer's last reader
    link.recv(held->tensor, index);
    link.stream->record(*held->filled);
  }

  // `ring`: of the receiver.
  void send(Buffer* held, int ring, const Link& link) {
    link.stream->wait(*held->filled);  // the send waits for its compute
    TimedSend& times = x_.next_send();
    link.stream->record(*times.begin);
    link.send(held->tensor, ring);
    link.stream->record(*times.end);
    held->free(*link.stream);
    if (x_.overlap_ == Overlap::kOff) wait_for_neighbour(*held->freed);  // coupled: compute stands still while sending
  }

  void wait_for_neighbour(Event& event) {
    const TimeCategoryScope scope(x_.compute_, x_.waits_);
    x_.compute_.wait(event);
  }

  void forward(Key key) {
    const bool last = is_last_virtual_stage(x_.pp_, key.chunk, x_.chunks_);
    Buffer*& input = inputs_[key];
    if (is_first_virtual_stage(x_.pp_, key.chunk))
      input = &x_.inputs_[static_cast<size_t>(key.chunk)]->take(x_.compute_);
    else
      wait_for_neighbour(*input->filled);  // compute waits for the receive
    // compute waits for the send that last used the output buffer
    Buffer* output = last ? nullptr : (outputs_[key] = &x_.outputs_->take(x_.compute_));
    stage_.forward(key.chunk, key.micro, input->tensor, output == nullptr ? Tensor{} : output->tensor);
    if (output != nullptr) x_.compute_.record(*output->filled);
    if (forward_only_) input->free(x_.compute_);
  }

  void backward(Key key) {
    const bool first = is_first_virtual_stage(x_.pp_, key.chunk);
    const bool last = is_last_virtual_stage(x_.pp_, key.chunk, x_.chunks_);
    Buffer* input = inputs_[key];
    Buffer* doutput = last ? nullptr : doutputs_[key];
    if (doutput != nullptr) wait_for_neighbour(*doutput->filled);  // compute waits for the receive
    // compute waits for the send that last used the gradient buffer
    Buffer* dinput = first ? nullptr : (dinputs_[key] = &x_.dinputs_->take(x_.compute_));
    stage_.backward(key.chunk, key.micro, input->tensor, doutput == nullptr ? Tensor{} : doutput->tensor,
                    dinput == nullptr ? Tensor{} : dinput->tensor);
    if (dinput != nullptr) x_.compute_.record(*dinput->filled);
    if (doutput != nullptr) doutput->free(x_.compute_);
    input->free(x_.compute_);
  }

  Executor& x_;
  StageCompute& stage_;
  const bool forward_only_;
  std::map<Key, Buffer*> inputs_, outputs_, doutputs_, dinputs_;
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

void Executor::run(const Plan& plan, StageCompute& stage) {
  bool forward_only = true;
  for (const Action& action : plan) forward_only &= action.op != Op::kBackward;
  num_sends_ = 0;
  Run run(*this, stage, forward_only);
  for (const Action& action : plan) run.issue(action);
}

}  // namespace tri
