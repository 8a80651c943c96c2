// What a node's hardware says of itself, without root: ports of the network, GPUs through NVML, the kernel's messages where
// they may be read. A driver that hangs holds up the thread that asks it, and nobody else.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/file.h"
#include "lib/supervise/agent_messages.h"

namespace tri {

// Ports under `sys`/class/net, but for the loopback, virtual ones left out; and under `sys`/class/infiniband.
std::vector<PortSight> read_ports(const std::string& sys = "/sys");

// Since it was made. Not thread-safe.
class GpuHealth {
 public:
  // By NVML, the library TRIREME_NVML, else libnvidia-ml.so.1; without one there are no GPUs.
  GpuHealth();
  ~GpuHealth();
  GpuHealth(const GpuHealth&) = delete;
  GpuHealth& operator=(const GpuHealth&) = delete;

  // Waits for new XIDs no longer than this.
  std::vector<GpuSight> look(int milliseconds);

 private:
  struct Nvml;
  std::unique_ptr<Nvml> nvml_;
};

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

// A thread that looks at ports and GPUs about once a second; what it saw last. It is left behind where a driver hangs.
class HealthWatch {
 public:
  struct Seen {
    std::vector<PortSight> ports;
    std::vector<GpuSight> gpus;
  };
  HealthWatch();
  ~HealthWatch();
  Seen last() const;

 private:
  struct Shared {
    std::mutex mutex;
    bool over = false;
    Seen seen;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace tri
