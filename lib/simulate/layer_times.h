// How long the parts of a model take on one rank for one microbatch: the kernels of a layer in the order in which
// lib/model/block_order.h runs them, and the tensor-parallel transfers alongside them. A GEMM is timed by its tiles and
// waves or by a measured table, other kernels by the bytes that they move.
#pragma once

#include "lib/simulate/collectives.h"
#include "lib/simulate/gemm_times.h"
#include "lib/simulate/workload.h"

namespace tri {

// Seconds by kind of work.
struct PassTimes {
  double gemm = 0, attention = 0, memory = 0;
  double tp = 0;     // exposed: compute waits for it, or slows down alongside it
  double ep = 0;     // exposed: transfers of rows to the experts and back
  double fixed = 0;  // software.layer_us

  double total() const { return gemm + attention + memory + tp + ep + fixed; }
  PassTimes& operator+=(const PassTimes& other);
  friend PassTimes operator*(double factor, PassTimes times);
};

struct LayerTimes {
  PassTimes forward, backward;  // recompute is part of backward
  PassTimes weight;             // a kWeight action, if the schedule splits the backward pass; else part of `backward`

  LayerTimes& operator+=(const LayerTimes& other) {
    forward += other.forward;
    backward += other.backward;
    weight += other.weight;
    return *this;
  }
};

LayerTimes layer_times(const Workload& workload, const LayerSpec& layer, const Cluster& cluster,
                       const TransferTimes& transfers);

// Times of the first virtual stage in addition to its layers. Head and loss run in the last one's backward action.
LayerTimes embedding_times(const Workload& workload, const Cluster& cluster, const TransferTimes& transfers);
LayerTimes head_times(const Workload& workload, const Cluster& cluster, const TransferTimes& transfers);

}  // namespace tri
