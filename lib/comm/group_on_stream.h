// GroupOnStream: a CommGroup with the stream on which its collectives run.
#pragma once

#include <memory>

#include "kernels/core/timeline.h"
#include "lib/comm/comm_group.h"

namespace tri {

// A group with the stream on which its collectives run. When that is another stream than the caller's, the two are
// ordered by events; when it is the caller's (overlap off), by the stream itself.
class GroupOnStream {
 public:
  // `category`: what a stream's waits for it count as. A rank alone waits for no other rank: its copies are compute.
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
