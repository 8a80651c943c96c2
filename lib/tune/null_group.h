// A group in which nothing is moved: layers work as in a step, alone.
#pragma once

#include "lib/comm/comm_group.h"
#include "lib/parallel/mesh.h"

namespace tri {

class NullGroup final : public CommGroup {
 public:
  explicit NullGroup(Axis axis) : CommGroup("null", axis.rank, axis.size) {}

 private:
  void do_all_gather(Tensor, Tensor, Stream&) override {}
  void do_reduce_scatter(Tensor, Tensor, Stream&) override {}
  void do_all_reduce(Tensor, ReduceOp, Stream&) override {}
  void do_broadcast(Tensor, int, Stream&) override {}
  void do_send(Tensor, int, Stream&) override {}
  void do_recv(Tensor, int, Stream&) override {}
};

}  // namespace tri
