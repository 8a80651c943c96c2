// Faults that tests plant into the doctor's own work, to see them found and named.
#pragma once

#include <chrono>
#include <string>

#include "io/base/error.h"

namespace tri {

// Of one rank.
struct PlantedFaults {
  std::chrono::microseconds slow_copy{0};       // before each copy that this rank makes into a peer's memory
  std::chrono::microseconds throttled_link{0};  // before each transfer of this rank's over a group
  bool wrong_bits = false;                      // a bit of a weight flips in the second training of the mini-step
  bool full_disk = false;                       // files end at 64 KiB, as on a disk that is full
  int pretend_nodes = 0;  // the ranks stand on so many nodes, in equal runs: pretended for all ranks alike
};

// From "RANK/FAULT[=NUMBER] ...", with blanks between; RANK may be "*". FAULT: slow-copy=MICROSECONDS,
// throttled-link=MICROSECONDS, wrong-bits, full-disk, nodes=NUMBER. "": none.
Result<PlantedFaults> planted_faults(const std::string& text, int world_rank);

}  // namespace tri
