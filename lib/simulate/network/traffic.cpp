#include "lib/simulate/network/traffic.h"

#include <algorithm>
#include <numeric>

#include "io/base/random.h"

namespace tri {
namespace {

class Traffic {
 public:
  Traffic(const Workload& w, const Cluster& c, const std::vector<int>& places) : w_(w), c_(c), places_(places) {}

  // Groups of `size` ranks, `stride` apart: rings in rank order.
  AxisTraffic rings(TransferAxis axis, int stride, int size) const {
    AxisTraffic traffic{axis, std::string(enum_name(axis)),      w_.ranks() / size,
                        size, members_on_node(c_, stride, size), {}};
    for (int group = 0; group < traffic.groups; ++group)
      add_ring(group, first_of(group, stride, size), stride, traffic);
    return traffic;
  }

  AxisTraffic messages(bool forward) const {
    const int stride = w_.stage_stride(), columns = w_.ranks_of_stage();
    AxisTraffic traffic{TransferAxis::kPp,
                        forward ? "pp forward" : "pp backward",
                        columns,
                        w_.pp,
                        members_on_node(c_, stride, w_.pp),
                        {}};
    // The last stage sends to the first one's next chunk. The second chunks of a folded pipeline use the same
    // neighbours in the other direction.
    const bool closes = w_.chunks > 1 && w_.pp > 2 && !folds(w_.schedule);
    for (int column = 0; column < columns; ++column) {
      const int first = first_of(column, stride, w_.pp);
      for (int stage = 0; stage + (closes ? 0 : 1) < w_.pp; ++stage) {
        const int rank = first + stage * stride, next = first + (stage + 1) % w_.pp * stride;
        add(column, forward ? rank : next, forward ? next : rank, traffic);
      }
    }
    return traffic;
  }

 private:
  // Returns the first rank of a group of `size` ranks, `stride` apart.
  static int first_of(int group, int stride, int size) { return group / stride * stride * size + group % stride; }
  int machine_of(int rank) const { return rank / c_.node.ranks; }
  int adapter_of(int machine, int index) const { return places_[static_cast<size_t>(machine)] * c_.node.ranks + index; }

  void add(int group, int from, int to, AxisTraffic& traffic) const {
    if (machine_of(from) == machine_of(to)) return;
    traffic.connections.push_back(
        {group, adapter_of(machine_of(from), from % c_.node.ranks), adapter_of(machine_of(to), to % c_.node.ranks)});
  }

  // Connects each machine to the next through the adapters of the members that both have: one rail each.
  void add_ring(int group, int first, int stride, AxisTraffic& traffic) const {
    const int k = traffic.on_node, machines = (traffic.ranks + k - 1) / k;
    if (machines < 2) return;
    for (int i = 0; i < machines; ++i)
      for (int j = 0; j < k; ++j) {
        const int from = std::min(i * k + j, traffic.ranks - 1),
                  to = std::min((i + 1) % machines * k + j, traffic.ranks - 1);
        add(group, first + from * stride, first + to * stride, traffic);
      }
  }

  const Workload& w_;
  const Cluster& c_;
  const std::vector<int>& places_;
};

}  // namespace

std::vector<int> place_machines(int machines, Placement placement, uint64_t seed) {
  std::vector<int> places(static_cast<size_t>(machines));
  std::iota(places.begin(), places.end(), 0);
  if (placement == Placement::kPacked) return places;
  const uint64_t key = derive_key(seed, "placement");
  for (size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[random_u64(key, i) % i]);
  return places;
}

std::vector<AxisTraffic> traffic_of(const Workload& w, const Cluster& c, const std::vector<int>& places) {
  const Traffic traffic(w, c, places);
  std::vector<AxisTraffic> all;
  if (w.tp > 1) all.push_back(traffic.rings(TransferAxis::kTp, 1, w.tp));
  if (w.cp > 1) all.push_back(traffic.rings(TransferAxis::kCp, w.grid().stride("cp"), w.cp));
  if (w.pp > 1) {
    all.push_back(traffic.messages(true));
    all.push_back(traffic.messages(false));
  }
  if (w.reducing() > 1) all.push_back(traffic.rings(TransferAxis::kDp, w.reducing_stride(), w.reducing()));
  return all;
}

int machines_of(const Workload& w, const Cluster& c) { return (w.ranks() + c.node.ranks - 1) / c.node.ranks; }

}  // namespace tri
