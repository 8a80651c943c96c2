#include "lib/comm/transfer_hook.h"

namespace tri {
namespace {
std::function<void(Stream&)> g_hook;
}

void set_transfer_hook(std::function<void(Stream&)> hook) { g_hook = std::move(hook); }

void before_transfer(Stream& stream) {
  if (g_hook) g_hook(stream);
}

}  // namespace tri
