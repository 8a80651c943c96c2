// CommGroup: the ranks of one mesh axis (and direction) as peers of collectives and point-to-point transfers.
// Every call only enqueues on `stream`. Errors throw Fatal. A group is used from one stream at a time. Collective: its
// members issue the same collectives in the same order; sends and receives of a pair match in order (there are no tags,
// as in NCCL).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/tensor.h"
#include "lib/comm/groups/channel_progress.h"

namespace tri {

enum class ReduceOp { kSum, kMax };

// What the group has carried so far. `bytes` is this rank's payload: received by gathers and receives, sent otherwise.
struct CommCounts {
  int64_t all_gathers = 0, reduce_scatters = 0, all_reduces = 0, broadcasts = 0, sends = 0, recvs = 0, exchanges = 0;
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
  // The result has the same bits on every member.
  void all_reduce(Tensor inout, ReduceOp op, Stream& stream);
  void broadcast(Tensor inout, int root, Stream& stream);
  // A send is complete on its stream when the tensor may be overwritten.
  void send(Tensor tensor, int peer, Stream& stream);
  void recv(Tensor tensor, int peer, Stream& stream);
  // Sends and receives all of these at once; those between two members match in order. Every member calls it, also with
  // nothing to send or receive.
  struct Message {
    Tensor tensor;
    int peer = 0;
  };
  void exchange(const std::vector<Message>& sends, const std::vector<Message>& recvs, Stream& stream);

  // The progress of this group's own transfers, not of copies in their place.
  void set_progress(ChannelProgress progress) { progress_ = progress; }
  const ChannelProgress& progress() const { return progress_; }

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
  virtual void do_exchange(const std::vector<Message>& sends, const std::vector<Message>& recvs, Stream& stream);

  std::string name_;
  int rank_, size_;
  CommCounts counts_;
  ChannelProgress progress_;
};

// Returns a group of this rank alone: gathers and scatters are copies, the rest has no effect.
std::unique_ptr<CommGroup> make_self_group(const std::string& name);

}  // namespace tri
