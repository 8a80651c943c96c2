// A rank's streams and communicators: one communicator per axis (pp: a one-way edge; NCCL: axes with the same ranks and
// stream share one), one stream per kind of traffic:
//   compute         all kernels
//   tp              gathers and reduces of activations            (overlap_tp off: the compute stream itself)
//   tp copies       the same as copies into the peers' memory, if it can be opened (parallel.tp_transfers);
//                   "tp arrivals" waits for what the peers copy here
//   ep copies       rows of experts, into the peers' memory, if parallel.ep_transfers is copies; they return, and
//                   messages move them, on the compute stream
//   cp              keys, values and their gradients              (overlap_cp off: the compute stream)
//   dp              gradient reduction, parameter gathers; the step's statistics   (overlap_dp off: the compute stream)
//   dp copies       the same for buckets (parallel.dp_transfers), with "dp arrivals"
//   sums, updates   with parallel.overlap_update: sums of squared gradients, updates (may_overlap_updates)
//   four pp streams receives and sends of either direction, independent of each other: copies into the neighbour's
//                   memory, if it can be opened (parallel.pp_transfers)
// All but compute and sums have high priority: their work is short, and others wait for it.
//
// Threads: call only from the training thread, unless a function says otherwise.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/flight_recorder/flight_recorder.h"
#include "lib/comm/job/connect_deadline.h"
#include "lib/comm/peer/copies.h"
#include "lib/engine/rank_context.h"
#include "lib/optim/gradient_buckets.h"
#include "lib/schedule/executor.h"

namespace tri {

class PeerArenas;
class PeerWindows;

// The tensors that peers write to. A kind without flags does not exist.
struct SharedTensors {
  PeerCopyTensors tp, dp;  // the same layout on all ranks of the group
  BoundaryTensors boundaries;
  Tensor expert_flags;  // of PeerWindows
};

// Null: they run on the compute stream.
struct UpdateStreams {
  Stream *sums = nullptr, *updates = nullptr;
};

class Runtime {
 public:
  // `shared` is part of the rank's arena. Throws Fatal (kUsage), naming the field, if copies are planned and the memory
  // cannot be opened. Collective over the mesh.
  Runtime(const RankContext& rank, const SharedTensors& shared);
  ~Runtime();

  Stream& compute() { return *compute_; }
  AxisTransfers& tp() { return *tp_; }
  AxisTransfers& dp() { return *dp_; }
  GroupOnStream* cp() { return cp_.get(); }  // null if cp has one rank
  GroupOnStream& world() { return *world_; }
  // Returns the ranks that divide the experts of a layer, on the compute stream; null: one rank holds all.
  GroupOnStream* experts() { return experts_.get(); }
  // Returns the memory of these ranks; null: parallel.ep_transfers are not copies.
  PeerWindows* expert_windows() { return expert_windows_.get(); }
  // Returns the transfers of buckets that are reduced over kExpertAxes instead of kBucketAxes.
  std::vector<ExpertTransfers> expert_transfers();
  // Returns the ranks of the stage that hold parts of the same matrices, which Muon divides among them; on a dp or tp
  // stream.
  GroupOnStream& matrices();
  // Returns the groups that sum gradients over an axis: tp, and pp on the two holders of a tied embedding.
  std::vector<AxisGroup> axis_groups();
  PipelineLinks links() const;
  PipelineLinks returning_links() const;  // of the second chunks of a folded pipeline, else without channels
  // Returns the streams for sums of squares and updates alongside others; made by the first call, in training.
  UpdateStreams update_streams();

  std::vector<NamedTimes> times() const;  // one row per stream, compute first; none if the backend does not measure
                                          // times
  void reset_times();
  // Writes the progress that streams do not write themselves into the rank's flight recorder
  // (AxisTransfers::read_progress). One thread other than the training thread calls it. It may hang if the device does.
  void read_progress();
  // Returns what each stream is doing. Any thread may call it. It may hang if the device does.
  std::vector<std::pair<std::string, StreamActivity>> activities();
  void synchronize();                    // waits on the host for every stream
  std::vector<Stream*> streams() const;  // compute first

 private:
  // Uses copies if their tensors exist.
  std::unique_ptr<AxisTransfers> connect_axis(const char* axis, GroupOnStream collectives,
                                              const std::vector<int>& world_ranks, const PeerCopyTensors& tensors);
  void connect_experts(const std::vector<int>& world_ranks, Tensor flags);
  void connect_stages();
  PeerArenas* arenas_of_neighbour(const std::vector<int>& world_ranks);
  // `tag` is the same on all members, and differs between groups of the same ranks.
  CommGroup& add_group(const std::string& name, int tag, const std::vector<int>& world_ranks,
                       const CommGroup* same = nullptr);
  // Groups of the same ranks on the same stream share a communicator: their operations are in one order anyway.
  CommGroup& add_collectives(const std::string& name, int tag, const std::vector<int>& world_ranks,
                             const Stream& stream);
  // Marks this rank as connecting `what` with these ranks while the scope lives; starts the deadline.
  [[nodiscard]] ConnectionScope connect(const std::string& what, const std::vector<int>& world_ranks);
  Stream& add_stream(const std::string& name, StreamPriority priority = StreamPriority::kHigh);

  // State needed only during construction.
  struct Making {
    Making(const RankContext& r, const SharedTensors& s)
        : rank(r), shared(s), deadline(r.config.fault.connect_seconds, r.job) {}
    const RankContext& rank;
    const SharedTensors& shared;
    ConnectDeadline deadline;
    std::map<std::pair<const Stream*, std::vector<int>>, CommGroup*> collectives;  // the latest ones
  };

  Device& device_;
  std::unique_ptr<Making> making_;
  std::vector<std::unique_ptr<PeerArenas>> axis_arenas_;
  // by world ranks, ascending; null: cannot be opened
  std::map<std::vector<int>, std::unique_ptr<PeerArenas>> pp_arenas_;
  std::vector<std::unique_ptr<StageChannel>> channels_;
  std::vector<std::unique_ptr<CommGroup>> groups_;
  std::vector<std::unique_ptr<Stream>> streams_;
  Stream* compute_ = nullptr;
  std::unique_ptr<AxisTransfers> tp_, dp_;
  std::unique_ptr<GroupOnStream> world_, cp_, embedding_, matrices_, experts_;
  std::unique_ptr<PeerWindows> expert_windows_;
  std::vector<std::pair<AxisSet, std::unique_ptr<AxisTransfers>>> expert_transfers_;
  PipelineLinks links_, returning_links_;
  const bool overlaps_updates_;
  UpdateStreams update_streams_;
  std::unique_ptr<Stream> reader_;  // of progress; null: streams record all progress, or there is no flight recorder
  std::optional<HostBuffer<uint32_t>> read_;
};

}  // namespace tri
