#include "tests/io/skipped_sleeps.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace {

thread_local const tri::SkippedSleeps::Instead* t_instead = nullptr;

}  // namespace

namespace tri {

SkippedSleeps::SkippedSleeps(Instead instead) : instead_(std::move(instead)) { t_instead = &instead_; }
SkippedSleeps::~SkippedSleeps() { t_instead = nullptr; }

}  // namespace tri

// In place of the C library's, which std::this_thread::sleep_for calls.
extern "C" int nanosleep(const timespec* duration, timespec* left) {
  if (t_instead == nullptr) return static_cast<int>(::syscall(SYS_nanosleep, duration, left));
  using namespace std::chrono;
  (*t_instead)(duration_cast<milliseconds>(seconds(duration->tv_sec) + nanoseconds(duration->tv_nsec)));
  return 0;
}
