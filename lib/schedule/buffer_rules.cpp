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
  std::vector<BufferRule> rules;
  if (!last) rules.push_back({BufferRing::kDOutputs, kRecvBackward, kBackward, kBackward});
  rules.push_back({BufferRing::kInputs, first ? kForward : kRecvForward, kForward, last_use});
  if (!last) rules.push_back({BufferRing::kOutputs, kForward, kSendForward, kSendForward});
  if (!first) rules.push_back({BufferRing::kDInputs, kBackward, kSendBackward, kSendBackward});
  return rules;
}

}  // namespace tri
