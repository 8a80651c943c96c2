#include "io/base/network_ports.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>

#include "io/base/file.h"
#include "io/base/text_file.h"

namespace tri {
namespace {

constexpr uint64_t kWord = 4;  // InfiniBand counts data in words of four bytes

std::vector<std::string> sorted_names(const std::string& folder) {
  auto names = list_folder(folder);
  if (!names) return {};
  std::sort(names.value().begin(), names.value().end());
  return std::move(names).value();
}

uint64_t count_in(const std::string& path) {
  const std::string text = first_line_of(path);
  uint64_t count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count;
}

// Returns the sum modulo 2^64, or kUnreadable if one of the counts is.
uint64_t sum_of(std::initializer_list<uint64_t> counts) {
  uint64_t sum = 0;
  for (const uint64_t count : counts) {
    if (count == NetworkPort::kUnreadable) return count;
    sum += count;
  }
  return sum;
}
uint64_t times(uint64_t factor, uint64_t count) { return count == NetworkPort::kUnreadable ? count : factor * count; }

void read_lanes(NetworkPort& port, const std::string& device) {
  const auto lanes_in = [&](const char* name) -> std::optional<int> {
    const auto lanes = number_in(device + name);
    return lanes && *lanes > 0 && *lanes <= 32 ? std::optional(static_cast<int>(*lanes)) : std::nullopt;  // 255: none
  };
  port.pcie_lanes = lanes_in("/current_link_width");
  port.most_pcie_lanes = lanes_in("/max_link_width");
}

NetworkPort ethernet_port(const std::string& folder, const std::string& name) {
  NetworkPort port{.card = name, .state = first_line_of(folder + "/operstate"), .rate = number_in(folder + "/speed")};
  port.carrier_changes = count_in(folder + "/carrier_changes");
  port.received = count_in(folder + "/statistics/rx_bytes");
  port.sent = count_in(folder + "/statistics/tx_bytes");
  port.receive_errors = count_in(folder + "/statistics/rx_errors");
  port.transmit_errors = count_in(folder + "/statistics/tx_errors");
  // RDMA over Ethernet bypasses the kernel and its statistics.
  const std::string devices = folder + "/device/infiniband";
  for (const std::string& device : sorted_names(devices))
    for (const std::string& number : sorted_names(devices + "/" + device + "/ports")) {
      const std::string counters = devices + "/" + device + "/ports/" + number + "/counters";
      port.received = sum_of({port.received, times(kWord, count_in(counters + "/port_rcv_data"))});
      port.sent = sum_of({port.sent, times(kWord, count_in(counters + "/port_xmit_data"))});
    }
  read_lanes(port, folder + "/device");
  return port;
}

NetworkPort infiniband_port(const std::string& card, const std::string& name, const std::string& number) {
  const std::string folder = card + "/ports/" + number, counters = folder + "/counters";
  NetworkPort port{
      .card = name, .port = number, .state = first_line_of(folder + "/state"), .rate = number_in(folder + "/rate")};
  port.link_downed = count_in(counters + "/link_downed");
  port.carrier_changes = times(2, port.link_downed);
  port.received = times(kWord, count_in(counters + "/port_rcv_data"));
  port.sent = times(kWord, count_in(counters + "/port_xmit_data"));
  port.receive_errors = count_in(counters + "/port_rcv_errors");
  port.symbol_errors = count_in(counters + "/symbol_error");
  port.integrity_errors = count_in(counters + "/local_link_integrity_errors");
  read_lanes(port, card + "/device");
  return port;
}

}  // namespace

std::optional<double> number_in(const std::string& path) {
  const std::string text = first_line_of(path);
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return end == text.c_str() ? std::nullopt : std::optional(number);
}

uint64_t NetworkPort::errors() const { return sum_of({receive_errors, transmit_errors, symbol_errors}); }

std::vector<NetworkPort> network_ports(const std::string& sys) {
  std::vector<NetworkPort> ports;
  const std::string ethernet = sys + "/class/net/", infiniband = sys + "/class/infiniband/";
  for (const std::string& name : sorted_names(ethernet))
    if (struct stat device{}; ::stat((ethernet + name + "/device").c_str(), &device) == 0)  // else it is virtual
      ports.push_back(ethernet_port(ethernet + name, name));
  for (const std::string& name : sorted_names(infiniband))
    for (const std::string& number : sorted_names(infiniband + name + "/ports"))
      ports.push_back(infiniband_port(infiniband + name, name, number));
  return ports;
}

}  // namespace tri
