// Batches, read ahead by a thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/data/dataset.h"

namespace tri {

// Step s trains on global samples [s·GB, (s+1)·GB). Microbatch m of dp rank d holds samples (m·dp + d)·B + j of them,
// so the step's samples are the same for every dp, and so is their order over microbatches.
struct BatchShape {
  int global_batch = 1, micro_batch = 1;
  int dp_rank = 0, dp_size = 1;
  int micros() const { return global_batch / (micro_batch * dp_size); }
};

struct Batch {
  int64_t step = 0;
  std::vector<int32_t> inputs;   // (M, B, T)
  std::vector<int32_t> targets;  // (M, B, T): inputs shifted by one
};

Batch make_batch(const Dataset& dataset, Split split, int64_t step, const BatchShape& shape);

class Loader {
 public:
  // Reads at most `prefetch` batches ahead, beginning with `first_step`. `dataset` outlives the loader.
  Loader(const Dataset& dataset, Split split, BatchShape shape, int64_t first_step, int prefetch);
  ~Loader();

  // The next step's batch, valid until the following call. Rethrows what the reading thread threw.
  const Batch& next();
  double wait_seconds() const { return wait_seconds_; }  // spent in next() so far

 private:
  void run();

  const Dataset& dataset_;
  const Split split_;
  const BatchShape shape_;
  const size_t prefetch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;     // guarded by mutex_
  std::exception_ptr failure_;  // guarded by mutex_
  bool closing_ = false;        // guarded by mutex_
  int64_t next_step_;           // of the reading thread
  Batch current_;
  double wait_seconds_ = 0;
  std::thread thread_;
};

}  // namespace tri
