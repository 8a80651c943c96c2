// The buffers of a stage's boundary tensors, and which action waits for which because of them. The executor enforces
// these rules with events, the simulator with times.
//
// A ring's buffers are used round robin, because all kinds of actions process a ring's microbatches in the same order.
// For each microbatch one action takes the ring's next buffer and fills it, one reads it, and one is the last to use
// it. So
//   filling   waits until the buffer's previous microbatch has been released
//   reading   waits until the buffer is filled
//   the last use comes after the reading
#pragma once

#include <vector>

#include "lib/schedule/plan.h"

namespace tri {

// In the order in which an action that uses several of them waits for them and frees them.
enum class BufferRing {
  kDOutputs,  // gradients received, one ring for all chunks
  kInputs,    // activations received, or embedded on the first virtual stage; one ring per chunk
  kOutputs,   // activations to send, one ring for all chunks
  kDInputs,   // gradients to send, one ring for all chunks
};
inline constexpr int kNumBufferRings = 4;

inline constexpr int kGradientBuffers = 2;  // of kDOutputs: one in use, and one ahead
inline constexpr int kOutputBuffers = 2;    // of kOutputs, and of kDInputs
// Returns the number of buffers of a ring; `max_inputs`: most inputs of the chunk that are alive at once (plan.h).
int ring_size(BufferRing ring, int max_inputs);

// Which actions of a microbatch and chunk use a buffer of `ring`. One action may have several of the three roles.
struct BufferRule {
  BufferRing ring;
  ActionKind fills, reads, releases;
};

// Returns the rules of a chunk on this pp rank, in the order of BufferRing. `last_use`: of its inputs (plan.h).
std::vector<BufferRule> buffer_rules(Axis pp, int chunk, int chunks, ActionKind last_use);

}  // namespace tri
