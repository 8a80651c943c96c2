// How long the parts of a model take on one rank, for one microbatch: the kernels of a layer in the order in which
// lib/model/block_order.h runs them, each GEMM by its tiles and waves or by a measured table, the rest by the bytes
// that it moves; and the tensor-parallel transfers alongside them.
#pragma once

#include "lib/simulate/collectives.h"
#include "lib/simulate/gemm_times.h"
#include "lib/simulate/workload.h"

namespace tri {

// Seconds by what they are spent on.
struct PassTimes {
  double gemm = 0, attention = 0, memory = 0;
  double tp = 0;  // exposed: compute waits for it, or is slower alongside it

  double total() const { return gemm + attention + memory + tp; }
  PassTimes& operator+=(const PassTimes& other);
  friend PassTimes operator*(double factor, PassTimes times);
};

struct LayerTimes {
  PassTimes forward, backward;  // recompute is part of backward
};

LayerTimes layer_times(const Workload& workload, const LayerSpec& layer, const Cluster& cluster,
                       const TransferTimes& transfers);

// What the first virtual stage does besides its layers, and the last: head and loss run in its backward action.
LayerTimes embedding_times(const Workload& workload, const Cluster& cluster, const TransferTimes& transfers);
LayerTimes head_times(const Workload& workload, const Cluster& cluster, const TransferTimes& transfers);

}  // namespace tri
