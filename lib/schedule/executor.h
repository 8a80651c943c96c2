// Runs any Plan. The host only enqueues: compute actions run on the compute stream, each of the four kinds of transfer
// on its own stream, and events order them by the buffers that they share (buffer_rules.h):
//   a compute action  waits for its receive, and for the send that last used its output buffer
//   a send            waits for its compute action
//   a receive         waits for the last user of its buffer; it is issued as early as with_transfers (plan.h) says
// So no transfer waits for another kind of transfer, and a stage input is kept until its backward has read it.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/core/device.h"
#include "kernels/core/timeline.h"
#include "lib/comm/groups/stage_channel.h"
#include "lib/schedule/buffer_rules.h"

namespace tri {

// The compute of a stage. Tensors are the stage's boundary, (Rl, C), and empty without a neighbour (`output` and
// `doutput` on the last virtual stage, `dinput` on the first).
class StageCompute {
 public:
  virtual ~StageCompute() = default;
  // On the first virtual stage the forward computes `input` itself (the embedding).
  virtual void forward(int chunk, int microbatch, Tensor input, Tensor output) = 0;
  virtual void backward(int chunk, int microbatch, Tensor input, Tensor doutput, Tensor dinput) = 0;
  // kWeight: what kBackward has not computed.
  virtual void weight_gradients(int chunk, int microbatch) = 0;
};

struct BoundaryTensors {
  Tensor flags;                             // (routes, 4) i32: one per end of a PeerChannel, in PipelineLinks' order
  std::vector<std::vector<Tensor>> inputs;  // [chunk][max_inputs]
  // [route][kOutputBuffers, kGradientBuffers]; none that no rule of a folded pipeline uses
  std::vector<std::vector<Tensor>> outputs, dinputs, doutputs;
};

// Allocates the boundary, each tensor (rows, width). `max_inputs[chunk]` must cover every plan that will run.
BoundaryTensors allocate_boundaries(Axis pp, int chunks, const std::vector<int>& max_inputs, int64_t rows,
                                    int64_t width, Dtype dtype, Arena& arena);

// One end of a one-way connection between neighbouring stages, with its own stream, so that other work never delays its
// transfers. Both are null if the stage has no such neighbour.
struct Link {
  StageChannel* channel = nullptr;
  Stream* stream = nullptr;

  bool exists() const { return channel != nullptr; }
  void send(Tensor tensor, int ring) const { channel->send(tensor, ring, *stream); }
  void recv(Tensor tensor, int ring) const { channel->recv(tensor, ring, *stream); }
};

// Of one route. Activations come from pp rank - 1 and go to rank + 1, gradients the other way, both modulo the size; on
// the second route of a folded pipeline, activations come from rank + 1.
struct PipelineLinks {
  Link recv_forward, send_forward, recv_backward, send_backward;
};

// What an executor needs. All references outlive the executor.
struct ExecutorContext {
  Axis pp;
  int chunks = 1;
  BoundaryTensors tensors;
  PipelineLinks links, returning;  // returning: the second route of a folded pipeline
  Stream& compute;
  Device& device;
  Overlap overlap = Overlap::kOn;  // off: the compute stream waits while the stage sends
};

// Threads: call only from the training thread.
class Executor {
 public:
  explicit Executor(const ExecutorContext& context);
  ~Executor();

  // Enqueues the whole plan (with transfers). Returns before it has run. `rows`: transfers only the first rows of the
  // boundary's tensors; 0: all. Collective over the stages of a pipeline, each with its plan of the same schedule.
  void run(const Plan& plan, StageCompute& stage, int64_t rows = 0);
  // Returns the seconds of the last run's fastest send, from when its tensor is ready to its end; 0 without one. Waits
  // for all sends.
  double fastest_send();

 private:
  struct Transfer;
  struct Buffer;
  class Ring;
  class Run;
  struct TimedSend {
    std::unique_ptr<Event> begin, end;
  };
  TimedSend& next_send();
  Ring& ring(BufferRing ring, int chunk);

  Axis pp_;
  int chunks_;
  std::array<PipelineLinks, 2> links_;  // [route]
  Stream& compute_;
  Overlap overlap_;
  std::vector<std::unique_ptr<Ring>> inputs_;                        // [chunk]
  std::vector<std::unique_ptr<Ring>> outputs_, doutputs_, dinputs_;  // [route]
  Device& device_;
  TimeCategory waits_;            // the category of compute's waits for other stages; with one stage it waits for
                                  // itself
  std::vector<TimedSend> sends_;  // of the last run; reused
  size_t num_sends_ = 0;
};

}  // namespace tri
