#include "lib/simulate/network/ecmp.h"

#include "io/base/random.h"

namespace tri {

uint16_t source_port(uint64_t seed, uint64_t queue_pair) {
  constexpr uint16_t kFirst = 49152;
  return static_cast<uint16_t>(kFirst + random_u64(seed, queue_pair) % (65536 - kFirst));
}

int ecmp_link(uint64_t seed, uint64_t switch_number, const FiveTuple& flow, int links) {
  const uint64_t ports = uint64_t{flow.source_port} << 24 | uint64_t{flow.destination_port} << 8 | flow.protocol;
  const uint64_t hash = random_u64(random_u64(seed, switch_number) ^ ports, uint64_t{flow.from} << 32 | flow.to);
  return static_cast<int>(hash % static_cast<uint64_t>(links));
}

}  // namespace tri
