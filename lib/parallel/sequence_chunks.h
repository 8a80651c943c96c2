// Context parallelism: which positions of a sample a cp rank processes. A sample of T positions is cut into 2 · cp
// chunks of T / (2 · cp) consecutive positions. cp rank r holds chunks r and 2 · cp - 1 - r, in this order: its T / cp
// local positions. With causal attention all ranks then have the same work (zigzag; Llama 3, arXiv 2407.21783,
// section 3.3.2).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "lib/parallel/mesh.h"

namespace tri {

// Consecutive positions of a sample that are consecutive on a cp rank too.
struct SequencePiece {
  int64_t local = 0;   // the first one, among the rank's positions
  int64_t global = 0;  // the same, in the sample
  int64_t count = 0;

  bool operator==(const SequencePiece&) const = default;
};

// The samples' positions, as cp rank `cp.rank` sees them. `seq_len` (T) is a multiple of 2 · cp.size, unless cp has one
// rank.
struct SequenceChunks {
  int64_t seq_len = 0;
  Axis cp;

  int64_t local_len() const { return seq_len / cp.size; }
  int64_t chunk_len() const { return seq_len / (2 * cp.size); }
  // Returns the first positions of this rank's two chunks.
  std::array<int64_t, 2> starts() const { return {cp.rank * chunk_len(), (2 * cp.size - 1 - cp.rank) * chunk_len()}; }
  // Returns the rank's positions, in their order: two chunks, or the whole sample.
  std::vector<SequencePiece> pieces() const {
    if (cp.size == 1) return {{0, 0, seq_len}};
    const auto [first, second] = starts();
    return {{0, first, chunk_len()}, {chunk_len(), second, chunk_len()}};
  }
  // Returns the positions of this rank whose keys the queries of cp rank `reader` attend to, with a window of `window`
  // positions (0: all earlier ones), in whole tiles of `tile` positions of the sample. In the order of pieces().
  std::vector<SequencePiece> pieces_for(int reader, int64_t window, int64_t tile) const {
    std::vector<SequencePiece> found;
    for (const SequencePiece& own : pieces())
      for (const auto& [begin, end] : of_rank(reader).keys(window, tile)) {
        const int64_t from = std::max(own.global, begin), to = std::min(own.global + own.count, end);
        if (from < to) found.push_back({own.local + from - own.global, from, to - from});
      }
    return found;
  }
  // Returns how many positions of other ranks this rank's queries attend to, as pieces_for() counts them.
  int64_t foreign_keys(int64_t window, int64_t tile) const {
    const auto [first, second] = keys(window, tile);
    return first.end - first.begin + second.end - second.begin - local_len();
  }
  // Returns the most that foreign_keys() counts for a rank, as a share of the other ranks' positions. Needs several
  // ranks.
  double share_of_foreign_keys(int64_t window, int64_t tile) const {
    if (window == 0) return 1;  // the last chunk's queries attend to all
    int64_t most = 0;
    for (int rank = 0; rank < cp.size; ++rank) most = std::max(most, of_rank(rank).foreign_keys(window, tile));
    return static_cast<double>(most) / static_cast<double>(seq_len - local_len());
  }
  // Returns the same samples as cp rank `rank` sees them.
  SequenceChunks of_rank(int rank) const { return {seq_len, {rank, cp.size}}; }
  // Returns the positions that the queries of each of this rank's chunks attend to, in whole tiles, without those of
  // the first chunk for the second.
  struct Range {
    int64_t begin = 0, end = 0;
  };
  std::array<Range, 2> keys(int64_t window, int64_t tile) const {
    const auto of_chunk = [&](int64_t start) {
      return Range{window == 0 ? 0 : std::max<int64_t>(0, start - window + 1) / tile * tile, start + chunk_len()};
    };
    const Range first = of_chunk(starts()[0]), second = of_chunk(starts()[1]);
    return {first, {std::max(first.end, second.begin), second.end}};
  }
  // Returns the cp rank that processes `position`, and its local position there.
  struct Place {
    int rank = 0;
    int64_t local = 0;
  };
  Place place_of(int64_t position) const {
    if (cp.size == 1) return {0, position};
    const int64_t chunk = position / chunk_len(), at = position % chunk_len();
    if (chunk < cp.size) return {static_cast<int>(chunk), at};
    return {static_cast<int>(2 * cp.size - 1 - chunk), chunk_len() + at};
  }
};

}  // namespace tri
