#include "lib/fault/dump_signal.h"

#include <atomic>

namespace tri {
namespace {

std::atomic<uint32_t> num_received{0};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

void count_request(int /*signal*/) { num_received.fetch_add(1); }

}  // namespace

DumpSignal::DumpSignal() {
  num_received = 0;
  struct sigaction action {};
  action.sa_handler = count_request;
  action.sa_flags = SA_RESTART;  // reads and writes continue; poll() and sleeps return early, as after any signal
  sigemptyset(&action.sa_mask);
  sigaction(SIGQUIT, &action, &before_);
}

DumpSignal::~DumpSignal() { sigaction(SIGQUIT, &before_, nullptr); }

uint32_t DumpSignal::received() const { return num_received; }

}  // namespace tri
