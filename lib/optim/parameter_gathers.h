// How every dp rank gets the parameters that the others updated: each bucket's slices are all-gathered on the dp
// channel after their update (as copies into the peers' memory where it can be opened), and the compute stream waits
// for a bucket just before its first use.
#pragma once

#include <memory>
#include <vector>

#include "lib/comm/comm_group.h"
#include "lib/comm/row_exchange.h"
#include "lib/optim/parameter_memory.h"

namespace tri {

struct ParameterGathersContext {
  const Config& config;
  const ParameterMemory& memory;
  Device& device;
  Stream& compute;
  Channel& dp;
  RowExchange* exchange;  // null: buckets go through `dp`
};

class ParameterGathers {
 public:
  explicit ParameterGathers(const ParameterGathersContext& context);

  // After a slice's update was enqueued: gathers its bucket over dp.
  void publish(const BucketSlice& slice);
  // The compute stream is about to read the parameter: it waits for its bucket.
  void before_use(const Parameter& parameter);

  // Zero 0, after each dp rank's share of master weights and moments was overwritten: all ranks get all of them.
  void complete_state();

 private:
  struct State {
    std::unique_ptr<Event> gathered;  // the bucket's parameters are complete
    bool pending = false;             // ... and the compute stream has not waited for it yet
  };

  const ParameterMemory& memory_;
  const bool sharded_;  // zero >= 1
  Stream& compute_;
  Channel& dp_;
  RowExchange* exchange_;
  std::vector<State> states_;  // [bucket]
};

}  // namespace tri
