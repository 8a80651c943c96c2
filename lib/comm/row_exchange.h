// The names that lib/optim still uses.
#pragma once

#include "lib/comm/peer/copies.h"

namespace tri {

using Channel = GroupOnStream;
using RowExchange = PeerCopyTransfers;
using RowExchangeTensors = PeerCopyTensors;
inline RowExchangeTensors allocate_row_exchange(const std::string& name, int members, int64_t elements, Dtype dtype,
                                                int buffers, Arena& arena) {
  return allocate_peer_copies(name, members, elements, dtype, buffers, arena);
}

}  // namespace tri
