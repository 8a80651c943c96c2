// Best-fit packing (data.packing: best_fit): samples of whole documents, as far as they fit.
//
// Windows of kWindowSamples consecutive samples of a token file are packed separately: the documents of a window, cut
// at its ends, are arranged into as many samples as the window has. So every token is in exactly one sample, no sample
// is padded, and a sample depends only on its window: no pass over the index is needed to find it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tri {

inline constexpr int64_t kWindowSamples = 256;

// Consecutive tokens of a file.
struct Extent {
  int64_t first = 0, count = 0;
  bool operator==(const Extent&) const = default;
};

// Packs the documents between neighbouring `bounds` (ascending; the first and last are the ends of the window) into
// samples of `seq_len` tokens. The window must have a whole number of samples. Returns the extents of each sample, in
// the order of the file.
//
// Documents of seq_len tokens or more fill samples of their own; their remainders and the shorter documents are placed
// from the longest to the shortest, each into the fullest sample that has space for all of it. What fits nowhere is cut
// to fill the emptiest samples.
std::vector<std::vector<Extent>> pack_documents(std::span<const int64_t> bounds, int64_t seq_len);

}  // namespace tri
