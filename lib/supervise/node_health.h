// What a node's hardware reports, without root: network ports, GPUs through NVML, the kernel's messages if they may be
// read. A driver that hangs blocks only the thread that queries it.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/file.h"
#include "io/nvml/nvml.h"
#include "lib/supervise/agent_messages.h"

namespace tri {

// Reads the ports under `sys`/class/net, without the loopback and virtual ones, and under `sys`/class/infiniband.
std::vector<PortSight> read_ports(const std::string& sys = "/sys");

// Its GPUs, by NVML (io/nvml), except for those of other jobs; without a driver there are none. Not thread-safe.
class GpuWatch {
 public:
  GpuWatch();
  // Waits for new XIDs no longer than this. A GPU that does not answer any more is `lost`. Counters of NVLinks, which
  // are many calls, are read every `kLinksEvery` looks.
  std::vector<GpuSight> look(int milliseconds);

 private:
  static constexpr int kLinksEvery = 10;
  std::unique_ptr<Nvml> nvml_;  // null: there is none
  std::vector<GpuSight> gpus_;
  std::vector<int> indices_;  // NVML's, of each
  int looks_ = 0;
};

void add_xid(GpuSight& gpu, int xid);

// "NVRM: Xid (PCI:0000:18:00): 79, ..." -> {"0000:18:00.0", 79}; none: pci is empty.
struct KernelXid {
  std::string pci;
  int xid = 0;
};
KernelXid kernel_xid(std::string_view line);

// New lines of /dev/kmsg; nothing where that may not be read.
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
    std::mutex mutex;
    bool over = false;
    Seen seen;
    std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace tri
