// What the host of a stage enqueues, and what its streams do with it.
#pragma once

#include <string>
#include <vector>

#include "tests/fault/simulated_job.h"

namespace tri {

enum class Does {
  // The host.
  kPhase,         // enters phase `value`
  kStep,          // begins the next step
  kAwaitTokens,   // of the next turn
  kEnqueue,       // the next instruction of stream `value`
  kAwaitAction,   // until action `value` is over
  kAwaitStreams,  // until all are idle
  kMeetJob,       // the channel "job"
  kSave,          // awaits the writer, then starts it
  // A stream.
  kBegin,  // action `value`: waits for its transfers
  kKernel,
  kEnd,           // of action `value`
  kJoin,          // a collective of `channel`, which the compute that follows feeds
  kFinish,        // the same: waits for it
  kTransfer,      // all of a transfer of `channel`
  kAwaitChannel,  // until its operation `value` is complete
  kAfterAction,   // until action `value` is over
};

struct Instruction {
  Does does;
  int value = 0, channel = -1;
  ChannelOperation operation = ChannelOperation::kNone;
};

struct SimulatedChannel {
  std::string name;
  ChannelKind kind;
};
// Channels of every stage, in this order; those between stages follow where the stage has them.
enum : int { kTpChannel, kDpChannel, kWorldChannel, kJobChannel, kEmbeddingChannel };
enum : int { kRecvForward = 5, kSendForward, kRecvBackward, kSendBackward, kNumSimulatedChannels };
enum : int { kCompute, kDpStream, kFirstEdgeStream, kNumSimulatedStreams = kFirstEdgeStream + 4 };

struct SimulatedProgram {
  std::vector<Instruction> host;
  std::vector<std::vector<Instruction>> streams;
  std::vector<ActionRecord> actions;
  std::vector<SimulatedChannel> channels;
  int turns = 0;  // of tokens that are read
};

SimulatedProgram make_program(const SimulatedLayout& layout, int stage);

}  // namespace tri
