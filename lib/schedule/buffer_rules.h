// The buffers of a stage's boundary tensors, and which action waits for which because of them. The executor enforces
// these rules with events, the simulator with times.
//
// A ring's buffers are used round robin, because all kinds of actions process a ring's microbatches in the same order.
// For each microbatch one action takes the ring's next buffer and fills it, one reads it, and one is the last to use
// it. So
//   filling   waits until the buffer's previous microbatch has been released
//   reading   waits until the buffer is filled
//   the last use comes after the reading
// At the turn of a folded pipeline the first chunk's forward writes the second one's input, and the second chunk's
// backward writes the gradient that the first one reads.
#pragma once

#include <vector>

#include "lib/schedule/plan.h"

namespace tri {

// In the order in which an action that uses several of them waits for them and frees them.
enum class BufferRing {
  kDOutputs,  // gradients received, one ring per route (plan.h)
  kInputs,    // activations received, or embedded on the first virtual stage; one ring per chunk
  kOutputs,   // activations to send, one ring per route
  kDInputs,   // gradients to send, one ring per route
};
inline constexpr int kNumBufferRings = 4;

inline constexpr int kGradientBuffers = 2;  // of kDOutputs: one in use, and one ahead
inline constexpr int kOutputBuffers = 2;    // of kOutputs, and of kDInputs
// Returns the number of buffers of a ring; `max_inputs`: most inputs of the chunk that are alive at once (plan.h).
int ring_size(BufferRing ring, int max_inputs);

// Which actions of a microbatch use a buffer of `ring`. One action may have several of the three roles.
struct BufferRule {
  BufferRing ring;
  int chunk;  // of the ring, and of the actions that read and release
  ActionKind fills, reads, releases;
  int fills_chunk;  // another one at the turn

  bool is_filled_by(const Action& action) const { return fills == action.kind && fills_chunk == action.chunk; }
  bool is_read_by(const Action& action) const { return reads == action.kind && chunk == action.chunk; }
  bool is_released_by(const Action& action) const { return releases == action.kind && chunk == action.chunk; }
};

// Returns the rules in which actions of a chunk on this pp rank have a role, in the order of BufferRing. `last_use`: of
// the inputs (plan.h).
std::vector<BufferRule> buffer_rules(Axis pp, int chunk, int chunks, ActionKind last_use);

// Returns the number of buffers of this pp rank for outputs and gradients, of all chunks.
int boundary_buffers(Axis pp, int chunks);

}  // namespace tri
