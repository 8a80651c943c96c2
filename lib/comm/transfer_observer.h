// Observes a rank's transfers before each of them.
#pragma once

#include "kernels/core/device.h"

namespace tri {

class TransferObserver {
 public:
  virtual ~TransferObserver() = default;
  // Called by the thread that enqueues, before it enqueues a transfer of this rank on `stream`; work enqueued here
  // comes first. Returns whether to make the transfer: a test may suppress it.
  virtual bool before_transfer(Stream& stream) = 0;
};

}  // namespace tri
