#include "lib/comm/host/host_traffic.h"

#include <atomic>

namespace tri {
namespace {

std::atomic<int64_t> g_calls{0}, g_heard_bytes{0}, g_messages{0}, g_message_bytes{0};

}  // namespace

HostTraffic host_traffic() { return {g_calls, g_heard_bytes, g_messages, g_message_bytes}; }

void count_host_call(int64_t heard_bytes) {
  ++g_calls;
  g_heard_bytes += heard_bytes;
}

void count_host_messages(int64_t messages, int64_t bytes_each) {
  g_messages += messages;
  g_message_bytes += messages * bytes_each;
}

}  // namespace tri
