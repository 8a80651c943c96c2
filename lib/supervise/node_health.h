// What a node's hardware reports without root privileges: network ports, GPUs through NVML, and the kernel's messages
// if they are readable. A driver that hangs blocks only the thread that queries it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/file.h"
#include "io/base/mutex.h"
#include "io/nvml/nvml.h"
#include "lib/supervise/agent_messages.h"

namespace tri {

// Reads the ports under `sys`/class/net, without the loopback and virtual ones, and under `sys`/class/infiniband.
std::vector<PortSight> read_ports(const std::string& sys = "/sys");

// The node's GPUs through NVML (io/nvml), except for those of other jobs; none without a driver. Not thread-safe.
class GpuWatch {
 public:
  GpuWatch();
  // Waits at most this long for new XIDs. A GPU that does not respond is `lost`. NVLink counters, which take many
  // calls, are read in every kLinksEvery-th call.
  std::vector<GpuSight> look(int milliseconds);

 private:
  static constexpr int kLinksEvery = 10;
  std::unique_ptr<Nvml> nvml_;  // null: not available
  std::vector<GpuSight> gpus_;
  std::vector<int> indices_;  // NVML's index of each
  int looks_ = 0;
};

void add_xid(GpuSight& gpu, int xid);  // keeps the newest kMostXids, and counts all

// Parses "NVRM: Xid (PCI:0000:18:00): 79, ..." into {"0000:18:00.0", 79}; pci is empty for other lines.
struct KernelXid {
  std::string pci;
  int xid = 0;
};
KernelXid kernel_xid(std::string_view line);

// Returns the new lines of /dev/kmsg; none if it is not readable.
class KernelLog {
 public:
  explicit KernelLog(const std::string& path = "/dev/kmsg");
  std::vector<std::string> lines();

 private:
  Descriptor file_;
};

// A thread that reads ports and GPUs about once a second, and its last result. If a driver hangs, the thread is
// abandoned.
class HealthWatch {
 public:
  struct Seen {
    std::vector<PortSight> ports;
    std::vector<GpuSight> gpus;
    double age = 0;  // seconds since then
  };
  HealthWatch();
  ~HealthWatch();
  Seen last() const;

 private:
  struct Shared {
    Mutex mutex;
    bool over TRI_GUARDED_BY(mutex) = false;
    Seen seen TRI_GUARDED_BY(mutex);
    std::chrono::steady_clock::time_point time TRI_GUARDED_BY(mutex) = std::chrono::steady_clock::now();
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace tri
