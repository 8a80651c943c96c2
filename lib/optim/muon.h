// Muon's step (kernels/muon.h) of whole logical matrices, which the members of a plan (muon_plan.h) divide among them.
// Window by window, each member packs its parts of the matrices and sends them to the owners, the owners iterate, and
// the parts of the results return. Transfers of the neighbouring windows, and the gathers of parameters, overlap with
// the iteration of a window.
#pragma once

#include <memory>
#include <vector>

#include "lib/comm/groups/group_on_stream.h"
#include "lib/optim/muon_plan.h"
#include "lib/optim/optimizers.h"

namespace tri {

struct MuonTensors {
  MuonPlan plan;
  // Compute dtype. [slot], each used by every kSlots-th window: the matrices that this member owns, and its parts of
  // others.
  std::vector<Tensor> whole, parts;
  Tensor x, y;          // (plan.largest) compute dtype: X before and after an iteration
  Tensor gram, powers;  // (side · side) compute dtype: A and P
  Tensor sumsq;         // (1) f32
  Tensor no_decay;      // (S) f32, all -1: the direction contains the weight decay
  Tensor peers;         // (members) f32
};

// Empty unless the config's optimizer is muon.
MuonTensors allocate_muon(const Config& config, const Mesh& mesh, const StoreTensors& store, Arena& arena);

// Computes X of the matrix whose tp shards lie one after the other in `whole`, in their place. Symmetric products whose
// side is larger than `largest_whole_side` compute one triangle.
void orthogonalize(const MuonTensors& tensors, const MuonMatrix& matrix, Tensor whole, Stream& stream,
                   int64_t largest_whole_side = kLargestWholeSide);
// Enqueues the GEMMs of this member's matrices on `recorder`, for autotuning (lib/tune).
void record_muon_gemms(const MuonTensors& tensors, Stream& recorder);

// Threads: call only from the training thread; all work is enqueued.
class Muon {
 public:
  // Opens the connections to all members. Waits for `compute`. Collective over `members`. All references outlive it.
  Muon(const ParameterMemory& memory, const MuonTensors& tensors, GroupOnStream& members, Device& device,
       Stream& compute);

  // Updates and publishes the slices of Muon's buckets. Collective over the members.
  void update(const Update& update);

 private:
  struct Window {
    std::vector<const MuonMatrix*> matrices;
    std::vector<CommGroup::Message> parts_out, parts_in, results_out, results_in;
    std::vector<const BucketSlice*> finished;  // slices whose last matrix is in this window
  };

  void add_messages(const MuonMatrix& matrix, Window& window);
  const BucketSlice& slice_of(const MuonMatrix& matrix) const;
  Tensor whole_of(const MuonMatrix& matrix) const;
  Tensor own_part(const MuonMatrix& matrix) const;
  MatrixRuns own_runs(const MuonMatrix& matrix) const;
  void exchange(const std::vector<CommGroup::Message>& out, const std::vector<CommGroup::Message>& in, Event& done,
                Stream& compute);
  void pack(size_t window, const Update& update);
  void unpack(size_t window, const Update& update);

  const ParameterMemory& memory_;
  const MuonTensors tensors_;
  GroupOnStream& members_;
  std::vector<std::vector<const BucketSlice*>> slices_;  // [chunk][bucket]
  std::vector<Window> windows_;
  std::vector<std::unique_ptr<Event>> arrived_, returned_;  // [window % 2]
};

}  // namespace tri
