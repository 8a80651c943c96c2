#include "lib/simulate/network/fair_share.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "io/base/error.h"

namespace tri {
namespace {

constexpr double kRounding = 1e-9;  // shares that differ by less are equal

// The flows of each link: those of link l are flows[first[l]] ... flows[first[l + 1] - 1].
struct FlowsOfLinks {
  std::vector<size_t> first;
  std::vector<int> flows;

  FlowsOfLinks(size_t num_links, std::span<const Path> paths) : first(num_links + 1, 0) {
    for (const Path& path : paths)
      for (const int link : path) ++first[static_cast<size_t>(link) + 1];
    for (size_t link = 0; link < num_links; ++link) first[link + 1] += first[link];
    flows.resize(first.back());
    std::vector<size_t> next(first.begin(), first.end() - 1);
    for (size_t flow = 0; flow < paths.size(); ++flow)
      for (const int link : paths[flow]) flows[next[static_cast<size_t>(link)]++] = static_cast<int>(flow);
  }
};

}  // namespace

// Progressive filling: the rates of the flows on the link with the least share are fixed at that share, and the other
// flows divide the remaining capacity. This can only raise the share of another link, so a queue of outdated shares
// never misses the least one.
FlowRates fair_share(std::span<const double> capacities, std::span<const Path> paths, double limit) {
  const FlowsOfLinks of(capacities.size(), paths);
  std::vector<double> left(capacities.begin(), capacities.end());
  std::vector<size_t> open(capacities.size());
  using Entry = std::pair<double, int>;  // share, link
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  for (size_t link = 0; link < capacities.size(); ++link) {
    open[link] = of.first[link + 1] - of.first[link];
    if (open[link] > 0) queue.push({left[link] / static_cast<double>(open[link]), static_cast<int>(link)});
  }
  FlowRates rates{std::vector<double>(paths.size(), 0.0), std::vector<int>(paths.size(), -1)};
  while (!queue.empty()) {
    const auto [old_share, link] = queue.top();
    queue.pop();
    const auto l = static_cast<size_t>(link);
    if (open[l] == 0) continue;
    const double share = std::max(0.0, left[l]) / static_cast<double>(open[l]);
    if (share > old_share) {
      queue.push({share, link});
      continue;
    }
    if (share >= limit) break;  // no later flow gets less
    for (size_t i = of.first[l]; i < of.first[l + 1]; ++i) {
      const auto flow = static_cast<size_t>(of.flows[i]);
      if (rates.bottleneck[flow] >= 0) continue;
      rates.rate[flow] = share;
      for (int place = 0; place < paths[flow].size; ++place) {
        const auto passed = static_cast<size_t>(paths[flow].links[static_cast<size_t>(place)]);
        if (passed == l) rates.bottleneck[flow] = place;
        left[passed] -= share;
        --open[passed];
      }
    }
  }
  for (size_t flow = 0; flow < paths.size(); ++flow)
    if (rates.bottleneck[flow] < 0) rates.rate[flow] = limit, rates.bottleneck[flow] = 0;
  return rates;
}

FlowRates head_of_line(std::span<const double> capacities, std::span<const Path> paths, double limit) {
  FlowRates rates = fair_share(capacities, paths, limit);
  std::vector<double> paused(capacities.size(), std::numeric_limits<double>::infinity());
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t flow = 0; flow < paths.size(); ++flow)
      for (int place = 0; place < rates.bottleneck[flow]; ++place) {
        double& limit = paused[static_cast<size_t>(paths[flow].links[static_cast<size_t>(place)])];
        limit = std::min(limit, rates.rate[flow]);
      }
    for (size_t flow = 0; flow < paths.size(); ++flow)
      for (int place = 0; place < paths[flow].size; ++place) {
        const double limit = paused[static_cast<size_t>(paths[flow].links[static_cast<size_t>(place)])];
        if (limit >= rates.rate[flow] * (1 - kRounding)) continue;
        rates.rate[flow] = limit;
        rates.bottleneck[flow] = place;
        changed = true;
      }
  }
  return rates;
}

}  // namespace tri
