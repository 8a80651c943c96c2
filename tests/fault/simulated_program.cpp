#include "tests/fault/simulated_program.h"

#include <map>

namespace tri {
namespace {

constexpr int kBuckets = 2, kBuffers = 2;

class ProgramMaker {
 public:
  ProgramMaker(const SimulatedLayout& layout, int stage) : layout_(layout), pp_{stage, layout.pp} {
    const ChannelKind axis = layout.copies ? ChannelKind::kCopies : ChannelKind::kCollectives;
    program_.channels = {{"tp", axis},
                         {"dp", axis},
                         {"world", ChannelKind::kCollectives},
                         {"job", ChannelKind::kHost},
                         {"embedding", ChannelKind::kCollectives},
                         {"pp forward", ChannelKind::kReceive},
                         {"pp forward", ChannelKind::kSend},
                         {"pp backward", ChannelKind::kReceive},
                         {"pp backward", ChannelKind::kSend}};
    program_.streams.resize(kNumSimulatedStreams);
  }

  SimulatedProgram make() {
    for (int step = 0; step < layout_.steps; ++step) {
      host(Does::kPhase, static_cast<int>(RunPhase::kStep));
      host(Does::kStep);
      host(Does::kAwaitTokens);
      ++program_.batches;
      const Schedule schedule = layout_.chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
      run(make_plan(schedule, pp_, layout_.num_microbatches, layout_.chunks), true);
      update();
      host(Does::kAwaitAction, static_cast<int>(program_.actions.size()));
      host(Does::kMeetJob);
      host(Does::kPhase, static_cast<int>(RunPhase::kCheckpoint));
      host(Does::kAwaitStreams);
      host(Does::kSave);
      host(Does::kMeetJob);
      host(Does::kPhase, static_cast<int>(RunPhase::kEvaluation));
      run(forward_only(pp_, layout_.num_microbatches, layout_.chunks), false);
      host(Does::kAwaitStreams);
      host(Does::kMeetJob);
    }
    host(Does::kPhase, static_cast<int>(RunPhase::kFinish));
    host(Does::kSave);
    host(Does::kMeetJob);
    return std::move(program_);
  }

 private:
  void host(Does does, int value = 0) { program_.host.push_back({does, value}); }
  void enqueue(int stream, Instruction instruction) {
    program_.streams[static_cast<size_t>(stream)].push_back(instruction);
    host(Does::kEnqueue, stream);
  }
  void transfer(int stream, int channel, ChannelOperation operation) {
    ++count_[channel];
    enqueue(stream, {Does::kTransfer, 0, channel, operation});
  }
  int begin_action(ComputeKind kind, const Action& action, std::vector<ActionRecord::Wait> waits) {
    const auto number = static_cast<int>(program_.actions.size()) + 1;
    program_.actions.push_back({.number = static_cast<uint32_t>(number),
                                .kind = kind,
                                .chunk = action.chunk,
                                .microbatch = action.microbatch,
                                .waits = std::move(waits)});
    enqueue(kCompute, {Does::kBegin, number});
    return number;
  }

  void run(const Plan& compute, bool trains) {
    std::map<std::pair<int, int>, uint32_t> forward_in, backward_in;  // [chunk, microbatch]: number of the operation
    std::vector<uint32_t> sends[2];                                   // forward, backward
    int last = 0, backwards = 0;
    bool is_first = true;
    for (const Action& action : with_transfers(compute, pp_, layout_.chunks)) {
      const std::pair key{action.chunk, action.microbatch};
      switch (action.kind) {
        case ActionKind::kRecvForward:
          transfer(kFirstEdgeStream, kRecvForward, ChannelOperation::kReceive);
          forward_in[key] = count_[kRecvForward];
          break;
        case ActionKind::kRecvBackward:
          transfer(kFirstEdgeStream + 2, kRecvBackward, ChannelOperation::kReceive);
          backward_in[key] = count_[kRecvBackward];
          break;
        case ActionKind::kSendForward:
        case ActionKind::kSendBackward: {
          const bool forward = action.kind == ActionKind::kSendForward;
          const int stream = kFirstEdgeStream + (forward ? 1 : 3), channel = forward ? kSendForward : kSendBackward;
          enqueue(stream, {Does::kAfterAction, last});
          transfer(stream, channel, ChannelOperation::kSend);
          sends[forward ? 0 : 1].push_back(count_[channel]);
          break;
        }
        case ActionKind::kWeight:  // not in these schedules
          break;
        case ActionKind::kForward:
        case ActionKind::kBackward: {
          const bool forward = action.kind == ActionKind::kForward;
          const auto& in = forward ? forward_in : backward_in;
          std::vector<ActionRecord::Wait> waits;
          if (const auto found = in.find(key); found != in.end())
            waits.push_back({forward ? kRecvForward : kRecvBackward, found->second});
          const auto& sent = sends[forward ? 0 : 1];
          if (sent.size() >= kBuffers)  // waits for its output buffer
            waits.push_back({forward ? kSendForward : kSendBackward, sent[sent.size() - kBuffers]});
          last = begin_action(forward ? ComputeKind::kForward : ComputeKind::kBackward, action, waits);
          if (is_first && count_[kDpChannel] > 0) await(kDpChannel);
          is_first = false;
          block();
          backwards += forward ? 0 : 1;
          enqueue(kCompute, {Does::kEnd, last});
          if (trains && backwards > layout_.chunks * (layout_.num_microbatches - 1)) reduce(last);
          break;
        }
      }
    }
  }

  void await(int channel) { enqueue(kCompute, {Does::kAwaitChannel, static_cast<int>(count_[channel]), channel}); }

  // Gather, compute, and a reduce-scatter whose copies leave while the compute runs.
  void block() {
    if (layout_.tp > 1) transfer(kCompute, kTpChannel, ChannelOperation::kAllGather);
    enqueue(kCompute, {Does::kKernel});
    if (layout_.tp == 1) return;
    if (!layout_.copies) return transfer(kCompute, kTpChannel, ChannelOperation::kReduceScatter);
    ++count_[kTpChannel];
    enqueue(kCompute, {Does::kJoin, 0, kTpChannel, ChannelOperation::kReduceScatter});
    enqueue(kCompute, {Does::kKernel});
    enqueue(kCompute, {Does::kFinish, 0, kTpChannel, ChannelOperation::kReduceScatter});
  }

  void reduce(int action) {
    if (layout_.dp == 1) return;
    enqueue(kDpStream, {Does::kAfterAction, action});
    transfer(kDpStream, kDpChannel, ChannelOperation::kReduceScatter);
  }

  void update() {
    const int number = begin_action(ComputeKind::kUpdate, {ActionKind::kBackward, 0}, {});
    if (layout_.dp > 1) await(kDpChannel);
    if (pp_.size > 1 && (pp_.first() || pp_.last())) {
      enqueue(kDpStream, {Does::kAfterAction, number - 1});
      transfer(kDpStream, kEmbeddingChannel, ChannelOperation::kAllReduce);
    }
    enqueue(kDpStream, {Does::kAfterAction, number - 1});
    transfer(kDpStream, kWorldChannel, ChannelOperation::kAllReduce);
    await(kWorldChannel);
    enqueue(kCompute, {Does::kKernel});
    enqueue(kCompute, {Does::kEnd, number});
    if (layout_.dp == 1) return;
    enqueue(kDpStream, {Does::kAfterAction, number});
    for (int i = 0; i < kBuckets; ++i) transfer(kDpStream, kDpChannel, ChannelOperation::kAllGather);
  }

  const SimulatedLayout& layout_;
  const Axis pp_;
  SimulatedProgram program_;
  std::map<int, uint32_t> count_;  // number of operations by channel
};

}  // namespace

SimulatedProgram make_program(const SimulatedLayout& layout, int stage) { return ProgramMaker(layout, stage).make(); }

}  // namespace tri
