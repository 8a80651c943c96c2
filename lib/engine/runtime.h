// A rank's streams and communicators. One communicator an axis (pp: a one-way edge), one stream a kind of traffic:
//   compute         all kernels
//   tp              gathers and reduces of activations            (overlap_tp off: the compute stream itself)
//   tp copies       the same, into the peers' memory, where it can be opened (parallel.tp_transfers); "tp arrivals"
//                   waits for what the peers copy here
//   dp              gradient reduction, parameter gathers; the step's statistics   (overlap_dp off: the compute stream)
//   dp copies       buckets into the peers' memory, where it can be opened (parallel.dp_transfers); "dp arrivals" alike
//   four pp streams receives and sends of either direction, independent of each other: copies into the neighbour's
//                   memory, where it can be opened (parallel.pp_transfers)
// All but compute have priority: what they run is short and others wait for it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/flight_recorder/flight_recorder.h"
#include "lib/comm/connect_deadline.h"
#include "lib/comm/peer/copies.h"
#include "lib/engine/rank_context.h"
#include "lib/optim/gradient_buckets.h"
#include "lib/schedule/executor.h"

namespace tri {

class PeerArenas;

// What peers write to. Without flags: there is none of its kind.
struct SharedTensors {
  PeerCopyTensors tp, dp;  // laid out alike on all ranks of the group
  BoundaryTensors boundaries;
};

class Runtime {
 public:
  // `shared` lies in the rank's arena. Collective over the mesh. Fatal (kUsage), naming the field: copies are planned,
  // and the memory can't be opened.
  Runtime(const RankContext& rank, const SharedTensors& shared);
  ~Runtime();

  Stream& compute() { return *compute_; }
  AxisTransfers& tp() { return *tp_; }
  AxisTransfers& dp() { return *dp_; }
  GroupOnStream& world() { return *world_; }
  // The groups that sum gradients over an axis: tp, and pp on the two holders of a tied embedding.
  std::vector<AxisGroup> axis_groups();
  PipelineLinks links() const { return links_; }

  std::vector<NamedTimes> times() const;  // a stream a row, compute first; none where the backend does not measure
  void reset_times();
  // Writes into the rank's flight recorder what the streams do not write themselves (AxisTransfers::read_progress).
  // From one other thread; may hang where the device does.
  void read_progress();
  // What each stream does; any thread, may hang where the device does.
  std::vector<std::pair<std::string, StreamActivity>> activities();
  void synchronize();                    // the host waits for every stream
  std::vector<Stream*> streams() const;  // compute first
  // Before the streams' events go: waits for all work, or, when an exception is unwinding, makes it give up.
  void drain() noexcept;

 private:
  // By copies where there are tensors for them.
  std::unique_ptr<AxisTransfers> connect_axis(const char* axis, GroupOnStream collectives,
                                              const std::vector<int>& world_ranks, const PeerCopyTensors& tensors);
  void connect_stages();
  PeerArenas* arenas_of_neighbour(const std::vector<int>& world_ranks);
  // `tag`: the same on all members, and another for another group of the same ranks.
  CommGroup& add_group(const std::string& name, int tag, const std::vector<int>& world_ranks);
  CommGroup& add_collectives(const std::string& name, int tag, const std::vector<int>& world_ranks);
  // `what` is connected with these ranks while the scope lives; its deadline begins.
  [[nodiscard]] ConnectionScope connect(const std::string& what, const std::vector<int>& world_ranks);
  Stream& add_stream(const std::string& name, StreamPriority priority = StreamPriority::kHigh);

  // What it is made of, while it is made.
  struct Making {
    Making(const RankContext& r, const SharedTensors& s)
        : rank(r), shared(s), deadline(r.config.fault.connect_seconds, r.job) {}
    const RankContext& rank;
    const SharedTensors& shared;
    ConnectDeadline deadline;
  };

  Device& device_;
  std::unique_ptr<Making> making_;
  std::vector<std::unique_ptr<PeerArenas>> axis_arenas_;
  std::map<std::vector<int>, std::unique_ptr<PeerArenas>> pp_arenas_;  // by world ranks, ascending; null: cannot be had
  std::vector<std::unique_ptr<StageChannel>> channels_;
  std::vector<std::unique_ptr<CommGroup>> groups_;
  std::vector<std::unique_ptr<Stream>> streams_;
  Stream* compute_ = nullptr;
  std::unique_ptr<AxisTransfers> tp_, dp_;
  std::unique_ptr<GroupOnStream> world_, embedding_;
  PipelineLinks links_;
  std::unique_ptr<Stream> reader_;  // of progress; null: streams mark all of it, or there is no flight recorder
  std::optional<HostBuffer<uint32_t>> read_;
};

// A scope that enqueues work which reads what its caller lent: an exception that leaves it waits for that work first,
// or makes it give up.
class DrainOnThrow {
 public:
  explicit DrainOnThrow(Runtime& runtime);
  ~DrainOnThrow();
  DrainOnThrow(const DrainOnThrow&) = delete;
  DrainOnThrow& operator=(const DrainOnThrow&) = delete;

 private:
  Runtime& runtime_;
  const int exceptions_;  // under way when the scope began
};

}  // namespace tri
