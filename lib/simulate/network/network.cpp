#include "lib/simulate/network/network.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace tri {
namespace {

class NetworkModel {
 public:
  NetworkModel(const Workload& w, const Cluster& c, const NetworkOptions& options)
      : w_(w),
        c_(c),
        options_(options),
        machines_(machines_of(w, c)),
        clos_(c, machines_),
        traffic_(traffic_of(w, c, place_machines(machines_, options.placement, options.seed))) {
    for (const AxisTraffic& axis : traffic_) {
      first_flow_.push_back(paths_.size());
      for (const Connection& connection : axis.connections) add_flows(connection);
    }
    first_flow_.push_back(paths_.size());
  }

  NetworkAnalysis analyse() const {
    NetworkAnalysis network{.options = options_, .machines = machines_};
    const NetworkTimes uncongested(c_, {});
    network.uncongested_s = predict_step(w_, c_, uncongested).seconds;
    const TransferLoads loads = transfer_loads(w_, c_, uncongested);
    for (const AxisTraffic& traffic : traffic_) {
      AxisNetwork axis{traffic.axis, traffic.name, traffic.groups, traffic.ranks, traffic.on_node};
      axis.connections = static_cast<int>(traffic.connections.size());
      // Transfers of tp and cp can run between any two kernels.
      const double seconds = traffic.axis == TransferAxis::kPp   ? loads.pp_direction
                             : traffic.axis == TransferAxis::kDp ? loads.dp
                                                                 : network.uncongested_s;
      if (axis.connections > 0) axis.busy = std::min(1.0, seconds / network.uncongested_s);
      add_distances(traffic, axis);
      network.axes.push_back(std::move(axis));
    }
    network.fair_s = add_shares(fair_share, &AxisNetwork::fair, network);
    network.head_of_line_s = add_shares(head_of_line, &AxisNetwork::head_of_line, network);
    add_use(network);
    network.flaps = flap_odds(c_.fabric, machines_ * c_.node.ranks);
    return network;
  }

 private:
  void add_flows(const Connection& connection) {
    for (int pair = 0; pair < c_.fabric.queue_pairs; ++pair)
      paths_.push_back(clos_.route(options_.seed, {.from = static_cast<uint32_t>(connection.from),
                                                   .to = static_cast<uint32_t>(connection.to),
                                                   .source_port = source_port(options_.seed, paths_.size())}));
  }

  // Computes the shares under one sharing rule, and the resulting step.
  double add_shares(FlowRates (*rule)(std::span<const double>, std::span<const Path>, double),
                    AxisShares AxisNetwork::*member, NetworkAnalysis& network) const {
    // An adapter distributes a connection's bytes evenly over its queue pairs.
    const double limit = c_.network.gb_per_s * 1e9 / c_.fabric.queue_pairs;
    const FlowRates together = rule(clos_.capacities(), paths_, limit);
    NetworkTimes::Shares shares;
    for (size_t i = 0; i < traffic_.size(); ++i) {
      AxisNetwork& axis = network.axes[i];
      if (axis.connections == 0) continue;
      const size_t first = first_flow_[i], count = first_flow_[i + 1] - first;
      const FlowRates alone = rule(clos_.capacities(), std::span(paths_).subspan(first, count), limit);
      AxisShares& of = axis.*member;
      of.alone = share_of(traffic_[i], alone, 0);
      of.together = share_of(traffic_[i], together, first);
      double undisturbed = 1;  // share of the time
      for (size_t other = 0; other < traffic_.size(); ++other)
        if (other != i) undisturbed *= 1 - network.axes[other].busy;
      of.in_step = undisturbed * of.alone.slowest + (1 - undisturbed) * of.together.slowest;
      shares.of(axis.axis) = std::min(shares.of(axis.axis), of.in_step);
      if (member == &AxisNetwork::fair) {
        axis.why_alone = why_slow(i, alone, 0, i, i + 1);
        axis.why_together = why_slow(i, together, first, 0, traffic_.size());
      }
    }
    return predict_step(w_, c_, NetworkTimes(c_, shares)).seconds;
  }

  // The share of connection `index` of an axis, whose flows begin at `first` in `rates`.
  double share_of_connection(size_t index, const FlowRates& rates, size_t first) const {
    const auto pairs = static_cast<size_t>(c_.fabric.queue_pairs);
    double sum = 0;
    for (size_t pair = 0; pair < pairs; ++pair) sum += rates.rate[first + index * pairs + pair];
    return sum / (c_.network.gb_per_s * 1e9);
  }

  AxisShare share_of(const AxisTraffic& traffic, const FlowRates& rates, size_t first) const {
    std::vector<double> groups(static_cast<size_t>(traffic.groups), 1.0);
    for (size_t i = 0; i < traffic.connections.size(); ++i) {
      double& group = groups[static_cast<size_t>(traffic.connections[i].group)];
      group = std::min(group, share_of_connection(i, rates, first));
    }
    AxisShare share{*std::ranges::min_element(groups), 0};
    for (const double group : groups) share.mean += group / static_cast<double>(groups.size());
    return share;
  }

  void add_distances(const AxisTraffic& traffic, AxisNetwork& axis) const {
    if (axis.connections == 0) return;
    int switches = 0, pods = 0;
    for (const Connection& connection : traffic.connections) {
      switches += clos_.switch_of(connection.from) != clos_.switch_of(connection.to) ? 1 : 0;
      pods += clos_.pod_of(connection.from) != clos_.pod_of(connection.to) ? 1 : 0;
    }
    axis.other_switch = static_cast<double>(switches) / axis.connections;
    axis.other_pod = static_cast<double>(pods) / axis.connections;
  }

  // Returns the link that limits the slowest flow of the axis' slowest connection while the axes [begin, end) send. The
  // rates of the axis' flows begin at `first_rate`.
  BusyLink why_slow(size_t axis, const FlowRates& rates, size_t first_rate, size_t begin, size_t end) const {
    constexpr double kAll = 1 - 1e-9;
    const auto pairs = static_cast<size_t>(c_.fabric.queue_pairs);
    size_t slowest = 0;  // connection
    double least = 2;
    for (size_t i = 0; i < traffic_[axis].connections.size(); ++i)
      if (const double share = share_of_connection(i, rates, first_rate); share < least) {
        least = share;
        slowest = i;
      }
    if (least >= kAll) return {};
    size_t flow = slowest * pairs;
    for (size_t pair = slowest * pairs; pair < (slowest + 1) * pairs; ++pair)
      if (rates.rate[first_rate + pair] < rates.rate[first_rate + flow]) flow = pair;
    const Path& path = paths_[first_flow_[axis] + flow];
    const int link = path.links[static_cast<size_t>(rates.bottleneck[first_rate + flow])];
    BusyLink busy{.name = clos_.link_name(link), .gb_per_s = clos_.capacities()[static_cast<size_t>(link)] * 1e-9};
    for (size_t i = begin; i < end; ++i) {
      int flows = 0;
      for (size_t other = first_flow_[i]; other < first_flow_[i + 1]; ++other)
        flows += std::ranges::count(paths_[other], link) > 0 ? 1 : 0;
      if (flows > 0) busy.flows.emplace_back(traffic_[i].name, flows);
      busy.wanted_gb_per_s += flows * c_.network.gb_per_s / c_.fabric.queue_pairs;
    }
    return busy;
  }

  void add_use(NetworkAnalysis& network) const {
    std::set<int> switches, pods, links;
    for (int adapter = 0; adapter < machines_ * c_.node.ranks; ++adapter) {
      switches.insert(clos_.switch_of(adapter));
      pods.insert(clos_.pod_of(adapter));
    }
    for (const Path& path : paths_) links.insert(path.begin(), path.end());
    network.switches_used = static_cast<int>(switches.size());
    network.pods_used = static_cast<int>(pods.size());
    network.links_used = static_cast<int>(links.size());
  }

  const Workload& w_;
  const Cluster& c_;
  const NetworkOptions options_;
  const int machines_;
  const Clos clos_;
  const std::vector<AxisTraffic> traffic_;
  std::vector<Path> paths_;         // flows of all axes, grouped by connection
  std::vector<size_t> first_flow_;  // [axis], then the total number
};

}  // namespace

Result<NetworkAnalysis> analyse_network(const Workload& w, const Cluster& c, const NetworkOptions& options) {
  if (w.model.experts > 0)
    return usage_error("model.experts: {}: --network does not simulate transfers of rows to experts; omit --network",
                       w.model.experts);
  if (c.node.adapters > 0)
    return usage_error(
        "node.adapters {}: --network simulates machines with an adapter per rank; set node.adapters to 0, and "
        "network.gb_per_s to a rank's share",
        c.node.adapters);
  if (const std::string problem = Clos::problem_of(c, machines_of(w, c)); !problem.empty())
    return usage_error("{}", problem);
  return NetworkModel(w, c, options).analyse();
}

std::string duration_note(int ranks) {
  constexpr int kSeconds = 100'000;  // from here on, the flows take seconds to share the links
  constexpr double kMinutes = 6.0 / (1 << 20);
  if (ranks <= kSeconds) return "";
  return fmt::format(
      "--network simulates every flow of {} ranks, which takes about {:.0f} min; fewer --ranks show the same effects",
      ranks, std::max(1.0, kMinutes * ranks));
}

}  // namespace tri
