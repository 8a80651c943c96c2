// Equal-cost multi-path: a switch chooses the upward link of a flow by a hash of its packet headers.
#pragma once

#include <cstdint>

namespace tri {

// The fields of RoCE v2: UDP to port 4791. Adapters are identified by number, a queue pair by its source port.
struct FiveTuple {
  uint32_t from = 0, to = 0;
  uint16_t source_port = 0, destination_port = 4791;
  uint8_t protocol = 17;
};

// Returns the source port of the queue pair with this number, within 49152 ... 65535, the range that drivers use.
uint16_t source_port(uint64_t seed, uint64_t queue_pair);

// Returns the index of one of `links` links. Every switch hashes with its own key: with equal keys the second layer
// would repeat the choices of the first and use only some of its links.
int ecmp_link(uint64_t seed, uint64_t switch_number, const FiveTuple& flow, int links);

}  // namespace tri
