#include "lib/comm/peer/peer_copy.h"

namespace tri {

void copy_to_peer(const PeerCopy& copy, Stream& stream) {
  stream.wait_flag(copy.ready, copy.number);
  stream.copy(copy.to, copy.from, copy.bytes);
  stream.set_flag(copy.arrived, copy.number);
}

}  // namespace tri
