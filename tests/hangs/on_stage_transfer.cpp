// Makes transfers between stages pass an OnTransfer: on_transfer.h.
#include <vector>

#include "lib/engine/runtime.h"
#include "tests/hangs/on_transfer.h"

namespace tri {

#define TRI_SYMBOL "_ZNK3tri7Runtime5linksEv"
PipelineLinks real_links(const Runtime* self) __asm__("__real_" TRI_SYMBOL);
PipelineLinks wrapped_links(const Runtime* self) __asm__("__wrap_" TRI_SYMBOL);
#undef TRI_SYMBOL

PipelineLinks wrapped_links(const Runtime* self) {
  static std::vector<std::unique_ptr<StageChannel>> channels;  // of all runtimes in the process
  PipelineLinks links = real_links(self);
  for (Link* const link : {&links.recv_forward, &links.send_forward, &links.recv_backward, &links.send_backward})
    if (link->exists()) link->channel = channels.emplace_back(observed(*link->channel)).get();
  return links;
}

}  // namespace tri
