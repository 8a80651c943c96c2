// The work that the host of a stage enqueues, and that its streams execute.
#pragma once

#include <string>
#include <vector>

#include "tests/fault/simulated_job.h"

namespace tri {

enum class Does {
  // By the host:
  kPhase,         // enters phase `value`
  kStep,          // begins the next step
  kAwaitTokens,   // waits for the tokens of the next batch
  kEnqueue,       // enqueues the next instruction of stream `value`
  kAwaitAction,   // waits for the end of action `value`
  kAwaitStreams,  // waits until all streams are idle
  kMeetJob,       // joins the channel "job"
  kSave,          // waits for the writer, then starts it
  // By a stream:
  kBegin,  // begins action `value`: waits for its transfers
  kKernel,
  kEnd,           // ends action `value`
  kJoin,          // a collective of `channel`, with input from the compute that follows
  kFinish,        // waits for that collective
  kTransfer,      // a complete transfer of `channel`
  kAwaitChannel,  // waits until its operation `value` is complete
  kAfterAction,   // waits for the end of action `value`
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
// Channels of every stage, in this order; those between stages follow if the stage has them.
enum : int { kTpChannel, kDpChannel, kWorldChannel, kJobChannel, kEmbeddingChannel };
enum : int { kRecvForward = 5, kSendForward, kRecvBackward, kSendBackward, kNumSimulatedChannels };
enum : int { kCompute, kDpStream, kFirstEdgeStream, kNumSimulatedStreams = kFirstEdgeStream + 4 };

struct SimulatedProgram {
  std::vector<Instruction> host;
  std::vector<std::vector<Instruction>> streams;
  std::vector<ActionRecord> actions;
  std::vector<SimulatedChannel> channels;
  int batches = 0;  // of tokens that are read
};

SimulatedProgram make_program(const SimulatedLayout& layout, int stage);

}  // namespace tri
