// One copy into a peer's memory, ordered with the peer's streams by two flags that carry numbers of transfers.
#pragma once

#include <cstdint>

#include "kernels/core/device.h"

namespace tri {

struct PeerCopy {
  void* to = nullptr;          // in the peer's memory
  const void* from = nullptr;  // in this rank's
  int64_t bytes = 0;
  const uint32_t* ready = nullptr;  // in this rank's memory; the peer sets it once `to` may be overwritten
  uint32_t* arrived = nullptr;      // in the peer's memory; set once the bytes are there
  uint32_t number = 0;              // of this transfer, for both flags
};

// Enqueues the copy on `stream`: it waits for the peer to be ready, copies, and reports the arrival.
void copy_to_peer(const PeerCopy& copy, Stream& stream);

}  // namespace tri
