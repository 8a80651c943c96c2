// What is told of a rank's transfers before each of them.
#pragma once

#include "kernels/core/device.h"

namespace tri {

class TransferObserver {
 public:
  virtual ~TransferObserver() = default;
  // The next thing that goes to `stream` is a transfer of this rank. Called by the thread that enqueues it; what is
  // enqueued here comes first. Returns whether the transfer is made: a test may have it left out.
  virtual bool before_transfer(Stream& stream) = 0;
};

}  // namespace tri
