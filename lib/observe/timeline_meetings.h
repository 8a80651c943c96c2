// Which transfers of different ranks are one, and for whom each of them waited.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lib/observe/timeline_piece.h"

namespace tri {

// Of one rank's transfer. All times are by the clock of rank 0's host.
struct Meeting {
  int64_t joined = 0, completed = 0;
  int64_t ready = 0;  // from `joined` to here this rank waits for the source
  // The sender of a receive, the receiver of a send; of a gather or a reduce the member that came last, and with copies
  // the one whose part left last. -1: this rank itself came last, or the source is not in the pieces.
  int32_t source_piece = -1, source_transfer = -1;
  bool matched = false;  // all members are in the pieces
  bool early = false;    // completed before the source had come, by these clocks
};

// [piece][transfer], as in the pieces.
std::vector<std::vector<Meeting>> find_meetings(const std::vector<TimelinePiece>& pieces);

}  // namespace tri
