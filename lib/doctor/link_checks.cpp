// Network cards, as /sys shows them. Each is compared with the card of the same name on the other nodes.
#include <cmath>

#include "lib/doctor/checks.h"
#include "lib/doctor/host_facts.h"

namespace tri {
namespace {

// What `measure` makes of each link, on one rank of the node.
template <class Measure>
CheckResult of_links(const CheckContext& context, const std::vector<NetworkLink>& links, const char* none,
                     Measure measure) {
  CheckResult result;
  if (!context.speaks()) return result;
  for (const NetworkLink& link : links) {
    Measurement m{.part = link.name, .group = link.name};
    if (measure(link, m)) result.measurements.push_back(std::move(m));
  }
  if (result.measurements.empty()) result.skipped = none;
  return result;
}

}  // namespace

CheckResult check_infiniband(CheckContext& context) {
  return of_links(context, infiniband_ports("/"), "no InfiniBand", [](const NetworkLink& link, Measurement& m) {
    m.value = link.gigabits;
    return m.value.has_value();
  });
}

CheckResult check_infiniband_errors(CheckContext& context) {
  return of_links(context, infiniband_ports("/"), "no InfiniBand", [](const NetworkLink& link, Measurement& m) {
    m.value = std::max(link.errors.value_or(0), 1.0);  // compared as a ratio: none and one are alike
    return link.up && link.errors.has_value();
  });
}

CheckResult check_network_speed(CheckContext& context) {
  return of_links(context, network_interfaces("/"), "no interface tells its speed",
                  [](const NetworkLink& link, Measurement& m) {
                    m.value = link.gigabits;
                    return m.value.has_value();
                  });
}

CheckResult check_nic_width(CheckContext& context) {
  std::vector<NetworkLink> links = infiniband_ports("/");
  for (NetworkLink& link : network_interfaces("/"))
    if (link.up) links.push_back(std::move(link));
  return of_links(context, links, "no card tells its lanes", [](const NetworkLink& link, Measurement& m) {
    if (!link.pcie_lanes) return false;
    m.value = *link.pcie_lanes;
    if (link.most_pcie_lanes) m.wanted = *link.most_pcie_lanes;
    return true;
  });
}

}  // namespace tri
