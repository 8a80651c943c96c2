// Checks of network cards as listed in /sys. Each is compared with the card of the same name on the other nodes.
#include <algorithm>

#include "io/base/network_ports.h"
#include "lib/doctor/checks.h"

namespace tri {
namespace {

// Calls `measure` for each port, on one rank of the node.
template <class Measure>
CheckResult of_ports(const CheckContext& context, const char* none, Measure measure) {
  CheckResult result;
  if (!context.speaks()) return result;
  for (const NetworkPort& port : network_ports("/sys")) {
    const std::string name = port.is_infiniband() ? port.card + " port " + port.port : port.card;
    Measurement m{.part = name, .group = name};
    if (measure(port, m)) result.measurements.push_back(std::move(m));
  }
  if (result.measurements.empty()) result.skipped = none;
  return result;
}

}  // namespace

// The rate that a port reports while it is down is not valid.
CheckResult check_infiniband(CheckContext& context) {
  return of_ports(context, "no node has an InfiniBand port", [](const NetworkPort& port, Measurement& m) {
    m.value = port.is_active() ? port.rate : 0;
    return port.is_infiniband() && m.value.has_value();
  });
}

CheckResult check_infiniband_errors(CheckContext& context) {
  return of_ports(context, "no node has an InfiniBand port", [](const NetworkPort& port, Measurement& m) {
    uint64_t errors = 0;
    for (const uint64_t count : {port.link_downed, port.symbol_errors, port.receive_errors, port.integrity_errors})
      if (count != NetworkPort::kUnreadable) errors += count;
    m.value = static_cast<double>(std::max<uint64_t>(errors, 1));  // compared as a ratio, in which none and one count
                                                                   // the same
    return port.is_infiniband() && port.is_active();
  });
}

CheckResult check_network_speed(CheckContext& context) {
  return of_ports(context, "no interface reports its speed", [](const NetworkPort& port, Measurement& m) {
    if (port.is_infiniband() || !port.is_active() || port.rate.value_or(-1) <= 0) return false;  // -1: a virtual card
    m.value = *port.rate / 1000;
    return true;
  });
}

CheckResult check_nic_width(CheckContext& context) {
  return of_ports(context, "no card reports its PCIe lanes", [](const NetworkPort& port, Measurement& m) {
    if (!port.pcie_lanes || !(port.is_infiniband() || port.is_active())) return false;
    m.value = *port.pcie_lanes;
    if (port.most_pcie_lanes) m.wanted = *port.most_pcie_lanes;
    return true;
  });
}

}  // namespace tri
