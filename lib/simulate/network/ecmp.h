// Equal-cost multi-path: which of its links upwards a switch gives a flow, by a hash of what the flow's packets say.
#pragma once

#include <cstdint>

namespace tri {

// Of RoCE v2: UDP to port 4791. Adapters are known by their numbers, a queue pair by its source port.
struct FiveTuple {
  uint32_t from = 0, to = 0;
  uint16_t source_port = 0, destination_port = 4791;
  uint8_t protocol = 17;
};

// The source port of the queue pair with this number, within 49152 ... 65535 as drivers choose it.
uint16_t source_port(uint64_t seed, uint64_t queue_pair);

// The number of a link among `links`. Every switch hashes by a key of its own: with equal keys the second layer would
// repeat what the first has decided and use a part of its links only.
int ecmp_link(uint64_t seed, uint64_t switch_number, const FiveTuple& flow, int links);

}  // namespace tri
