#include "io/base/clock.h"

#include <chrono>

namespace tri {

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double process_wall_seconds() {
  static const double offset = wall_seconds() - monotonic_seconds();
  return offset + monotonic_seconds();
}

}  // namespace tri
