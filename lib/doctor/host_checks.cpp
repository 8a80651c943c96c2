// Checks of limits, memory, the CPU's clock and MPI's transports.
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "io/base/network_ports.h"
#include "io/base/proc.h"
#include "io/base/text_file.h"
#include "lib/doctor/checks.h"
#include "lib/doctor/host_facts.h"
#include "lib/doctor/timing.h"

namespace tri {
namespace {

constexpr double kMiB = 1048576;

CheckResult one(Measurement m) { return {.measurements = {std::move(m)}}; }
CheckResult skipped(std::string why) { return {.skipped = std::move(why)}; }

double limit_of(int resource, bool hard) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  return value == RLIM_INFINITY ? std::numeric_limits<double>::infinity() : static_cast<double>(value);
}

bool has_active_infiniband() {
  const auto ports = network_ports("/sys");
  return std::ranges::any_of(ports, [](const NetworkPort& p) { return p.is_infiniband() && p.is_active(); });
}

}  // namespace

// RDMA locks the memory that it registers, so with InfiniBand the limit must be "unlimited".
CheckResult check_locked_memory(CheckContext& context) {
  Measurement m{.part = context.part, .value = limit_of(RLIMIT_MEMLOCK, false) / kMiB};
  if (has_active_infiniband()) m.wanted = std::numeric_limits<double>::infinity();
  return one(std::move(m));
}

// Programs may raise their soft limit to the hard one, as this one does.
CheckResult check_open_files(CheckContext& context) {
  return one({.part = context.part, .value = limit_of(RLIMIT_NOFILE, true)});
}

CheckResult check_shared_memory(CheckContext& context) {
  if (!context.speaks()) return {};
  struct statvfs info {};
  if (::statvfs("/dev/shm", &info) != 0)
    return one({.problem = fmt::format("the free space of /dev/shm cannot be read: {}", std::strerror(errno))});
  const double free = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  return one({.value = free / kMiB / static_cast<double>(context.nodes.own_ranks().size())});
}

CheckResult check_free_memory(CheckContext& context) {
  if (!context.speaks()) return {};
  const auto available = available_bytes(text_of("/proc/meminfo"));
  if (!available) return skipped("/proc/meminfo does not contain MemAvailable");
  const auto bytes = static_cast<double>(within_container(*available, "/"));
  return one({.value = bytes / kMiB / static_cast<double>(context.nodes.own_ranks().size())});
}

// Counts bytes read plus bytes written, like bench kernels.
CheckResult check_memory_copy(CheckContext& context) {
  constexpr size_t kBytes = 32 << 20;  // larger than a core's share of the caches
  const auto from = std::make_unique<char[]>(kBytes), to = std::make_unique<char[]>(kBytes);
  std::memset(from.get(), 1, kBytes);
  std::memset(to.get(), 2, kBytes);
  const double seconds = best_seconds(5, [&] {
    std::memcpy(to.get(), from.get(), kBytes);
    asm volatile("" ::"r"(to.get()) : "memory");
  });
  return one({.part = context.part, .value = 2e-9 * kBytes / seconds});
}

// Each addition depends on the previous one and takes one cycle. A run of a millisecond is mostly undisturbed, even if
// other processes compete for the core, so the best of many runs shows the core's own clock.
CheckResult check_cpu_clock(CheckContext& context) {
  constexpr int kSteps = 1 << 18, kPerStep = 8;
  const double seconds = best_seconds(40, [] {
    uint64_t sum = 1;
    for (int i = 0; i < kSteps; ++i) {
      // The compiler knows neither the addend nor the sum between two additions.
#define TRI_ADD                 \
  asm volatile("" : "+r"(sum)); \
  sum += static_cast<uint64_t>(i);
      TRI_ADD TRI_ADD TRI_ADD TRI_ADD TRI_ADD TRI_ADD TRI_ADD TRI_ADD
#undef TRI_ADD
    }
    asm volatile("" ::"r"(sum));
  });
  return one({.part = context.part, .value = 1e-9 * kSteps * kPerStep / seconds});
}

CheckResult check_transports(CheckContext& context) {
  const std::string transports = transports_of(text_of("/proc/self/maps"));
  if (transports.empty()) return skipped("this MPI library has no separate component files");
  Measurement m{.part = context.part, .text = transports};
  const bool remote = context.nodes.ranks.size() > 1 && has_active_infiniband();
  if (remote && transports.find("ucx") == std::string::npos && transports.find("openib") == std::string::npos &&
      transports.find("mtl") == std::string::npos)
    m.problem = "the node has an active InfiniBand port, but MPI does not use it; its transports are " + transports;
  return one(std::move(m));
}

}  // namespace tri
