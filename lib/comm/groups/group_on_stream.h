// GroupOnStream: a CommGroup with the stream on which its collectives run.
#pragma once

#include <memory>

#include "kernels/core/timeline.h"
#include "lib/comm/groups/comm_group.h"

namespace tri {

// A group with the stream on which its collectives run. If that is not the caller's stream, events order the two.
class GroupOnStream {
 public:
  // `category`: how a stream's waits for the group are accounted. A group of one rank never waits: its copies are
  // compute.
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
  // `consumer` waits for the collectives enqueued so far.
  void before(Stream& consumer);

  void all_gather(Tensor out, Tensor inp);
  void reduce_scatter(Tensor out, Tensor inp);
  void all_reduce(Tensor inout, ReduceOp op);
  void broadcast(Tensor inout, int root);
  void exchange(const std::vector<CommGroup::Message>& sends, const std::vector<CommGroup::Message>& recvs);

 private:
  CommGroup* group_;
  Stream* stream_;
  std::unique_ptr<Event> ready_, done_;
  TimeCategory category_;
};

}  // namespace tri
