#include "lib/schedule/buffer_rules.h"

namespace tri {

int ring_size(BufferRing ring, int max_inputs) {
  switch (ring) {
    case BufferRing::kDOutputs:
      return kGradientBuffers;
    case BufferRing::kInputs:
      return max_inputs;
    case BufferRing::kOutputs:
    case BufferRing::kDInputs:
      return kOutputBuffers;
  }
  return 0;
}

std::vector<BufferRule> buffer_rules(Axis pp, int chunk, int chunks, ActionKind last_use) {
  using enum ActionKind;
  const bool first = is_first_virtual_stage(pp, chunk), last = is_last_virtual_stage(pp, chunk, chunks);
  const bool turns_after = tri::turns_after(pp, chunk), turns_before = tri::turns_before(pp, chunk);
  const int next = chunk + 1, previous = chunk - 1;  // across the turn
  std::vector<BufferRule> rules;
  if (turns_after)
    rules.push_back({BufferRing::kDOutputs, chunk, kBackward, kBackward, kBackward, next});
  else if (!last)
    rules.push_back({BufferRing::kDOutputs, chunk, kRecvBackward, kBackward, kBackward, chunk});
  if (turns_before) rules.push_back({BufferRing::kDOutputs, previous, kBackward, kBackward, kBackward, chunk});
  if (turns_before)
    rules.push_back({BufferRing::kInputs, chunk, kForward, kForward, last_use, previous});
  else
    rules.push_back({BufferRing::kInputs, chunk, first ? kForward : kRecvForward, kForward, last_use, chunk});
  if (turns_after) rules.push_back({BufferRing::kInputs, next, kForward, kForward, last_use, chunk});
  if (!last && !turns_after)
    rules.push_back({BufferRing::kOutputs, chunk, kForward, kSendForward, kSendForward, chunk});
  if (!first && !turns_before)
    rules.push_back({BufferRing::kDInputs, chunk, kBackward, kSendBackward, kSendBackward, chunk});
  return rules;
}

int boundary_buffers(Axis pp, int chunks) {
  if (!pp.folded) return pp.size == 1 ? 0 : kGradientBuffers + 2 * kOutputBuffers;
  int buffers = 0;
  for (int chunk = 0; chunk < chunks; ++chunk)
    for (const BufferRule& rule : buffer_rules(pp, chunk, chunks, ActionKind::kBackward))
      if (rule.ring != BufferRing::kInputs && rule.chunk == chunk) buffers += ring_size(rule.ring, 0);
  return buffers;
}

}  // namespace tri
