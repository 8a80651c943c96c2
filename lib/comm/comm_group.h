// CommGroup: the ranks of one mesh axis (and direction) as peers of collectives and point-to-point transfers.
// Every call only enqueues on `stream`. One group is used from one stream at a time; its members issue the same
// collectives in the same order, and a sender's order is its receiver's order (NCCL has no tags; neither have we).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/device.h"
#include "kernels/core/tensor.h"
#include "kernels/core/timeline.h"
#include "lib/comm/channel_progress.h"
#include "lib/comm/transfer_observer.h"

namespace tri {

enum class ReduceOp { kSum, kMax };

// What was asked of a group so far; `bytes` is this rank's payload: received by gathers and receives, sent otherwise.
struct CommCounts {
  int64_t all_gathers = 0, reduce_scatters = 0, all_reduces = 0, broadcasts = 0, sends = 0, recvs = 0;
  int64_t bytes = 0;
};

class CommGroup {
 public:
  virtual ~CommGroup() = default;
  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const CommCounts& counts() const { return counts_; }

  // out (size · n) = the members' inp (n) in rank order. inp may be this rank's block of out.
  void all_gather(Tensor out, Tensor inp, Stream& stream);
  // out (n) = this rank's block of the sum of the members' inp (size · n), added in rank order. out may be that block
  // of inp.
  void reduce_scatter(Tensor out, Tensor inp, Stream& stream);
  // Equal bits on every member.
  void all_reduce(Tensor inout, ReduceOp op, Stream& stream);
  void broadcast(Tensor inout, int root, Stream& stream);
  // A send is complete on its stream when the tensor may be overwritten.
  void send(Tensor tensor, int peer, Stream& stream);
  void recv(Tensor tensor, int peer, Stream& stream);

  // Told of every transfer of this group; null: nobody. It outlives the group. Who makes copies in place of collectives
  // asks it with before_transfer, whether they are made.
  void set_observer(TransferObserver* observer) { observer_ = observer; }
  // Of what this group carries, not of copies in its place.
  void set_progress(ChannelProgress progress) { progress_ = progress; }
  const ChannelProgress& progress() const { return progress_; }
  bool before_transfer(Stream& stream) { return observer_ == nullptr || observer_->before_transfer(stream); }

 protected:
  CommGroup(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}

 private:
  template <class Transfer>
  void transfer(ChannelOperation operation, int64_t bytes, Stream& stream, const Transfer& run);
  virtual void do_all_gather(Tensor out, Tensor inp, Stream& stream) = 0;
  virtual void do_reduce_scatter(Tensor out, Tensor inp, Stream& stream) = 0;
  virtual void do_all_reduce(Tensor inout, ReduceOp op, Stream& stream) = 0;
  virtual void do_broadcast(Tensor inout, int root, Stream& stream) = 0;
  virtual void do_send(Tensor tensor, int peer, Stream& stream) = 0;
  virtual void do_recv(Tensor tensor, int peer, Stream& stream) = 0;

  std::string name_;
  int rank_, size_;
  CommCounts counts_;
  TransferObserver* observer_ = nullptr;
  ChannelProgress progress_;
};

// The group of this rank alone: gathers and scatters are copies, the rest is nothing.
std::unique_ptr<CommGroup> make_self_group(const std::string& name);

// A group with the stream on which its collectives run. When that is another stream than the caller's, the two are
// ordered by events; when it is the caller's (overlap off), by the stream itself.
class GroupOnStream {
 public:
  // `category`: what a stream's waits for it count as. A rank alone waits for nobody: its copies are compute.
  GroupOnStream(CommGroup& group, Stream& stream, Device& device, TimeCategory category)
      : group_(&group),
        stream_(&stream),
        ready_(device.make_event()),
        done_(device.make_event()),
        category_(group.size() > 1 ? category : TimeCategory::kCompute) {}

  CommGroup& group() const { return *group_; }
  Stream& stream() const { return *stream_; }
  int size() const { return group_->size(); }
  int rank() const { return group_->rank(); }
  TimeCategory category() const { return category_; }

  // Later collectives wait for what was enqueued on `producer` so far.
  void after(Stream& producer);
  // `consumer` waits for the collectives so far.
  void before(Stream& consumer);

  void all_gather(Tensor out, Tensor inp);
  void reduce_scatter(Tensor out, Tensor inp);
  void all_reduce(Tensor inout, ReduceOp op);
  void broadcast(Tensor inout, int root);

 private:
  CommGroup* group_;
  Stream* stream_;
  std::unique_ptr<Event> ready_, done_;
  TimeCategory category_;
};

}  // namespace tri
