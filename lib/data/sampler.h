// Which sample is global sample i: pure functions of (seed, i). No index arrays, no state; the order does not depend on
// the layout, on the length of the run, or on where it was resumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tri {

// A keyed permutation of [0, size), evaluated at a point: a four-round Feistel network on the smallest even number of
// bits that holds `size`, walked until the value falls inside (Black & Rogaway 2002, "cycle walking").
class Permutation {
 public:
  Permutation(uint64_t key, uint64_t size);   // size >= 1
  uint64_t operator()(uint64_t index) const;  // index < size

 private:
  uint64_t key_, size_;
  int half_bits_;
};

// Sample `index` of an endless shuffled stream over `size` samples: every sample once an epoch, each epoch in an order
// of its own.
uint64_t shuffled(uint64_t seed, uint64_t size, uint64_t index);

// Mixes sources in proportion to weights. Time is cut into blocks of kBlockSamples; in each, source s has a fixed
// number of places (largest remainder), shuffled by the block's key. Any block-long stretch therefore holds the exact
// proportions, to 1 / kBlockSamples.
class Mixer {
 public:
  static constexpr int kBlockSamples = 1024;
  Mixer(uint64_t seed, const std::vector<double>& weights);  // positive weights

  struct Place {
    int source;
    uint64_t index;  // in the source's own stream
  };
  Place at(uint64_t index) const;

  int places(int source) const { return places_[static_cast<size_t>(source)]; }  // in a block; >= 1

 private:
  uint64_t seed_;
  std::vector<int> places_;
};

}  // namespace tri
