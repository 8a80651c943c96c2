// Maps a global sample index i to a sample: pure functions of (seed, i), without index arrays or state. The order does
// not depend on the layout, on the length of the run, or on where it was resumed.
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

// Returns sample `index` of an endless shuffled stream over `size` samples: every sample occurs once per epoch, and
// each epoch has a different order.
uint64_t shuffled(uint64_t seed, uint64_t size, uint64_t index);

// Mixes any number of sources in proportion to their weights: returns which source global sample i comes from, and
// which sample of that source's own stream it is, as a function of (seed, weights, i) that takes O(log n) for n
// sources.
//
// A balanced binary tree over the sources, in order, distributes the samples. If the smaller side of a node has share q
// of the node's weight, it gets  round(q·x)  of the first x samples that reach the node, and the other side gets the
// rest: both counts only grow. So after any N samples, source s has had  T_s(N) = w_s·N / sum(w),  up to half a sample
// per level of the tree: the shares are exact in the long run, to the precision of doubles (weights below 2^-64 of a
// node never occur).
//
// The stream is divided into blocks of kBlockSamples. A block holds T_s(end) - T_s(begin) samples of source s, in the
// order of sources, which are then shuffled by the block's key. Weights that are multiples of 1/kBlockSamples of their
// sum have the same number in each block. A single source is not shuffled here: sample i is its sample i.
class Mixer {
 public:
  static constexpr int kBlockSamples = 1024;
  Mixer(uint64_t seed, const std::vector<double>& weights);  // weights and their sum must be positive and finite
  bool operator==(const Mixer&) const = default;             // equal mixers give equal sequences

  struct Place {
    int source;
    uint64_t index;  // in the source's own stream, without gaps or repetitions
    bool operator==(const Place&) const = default;
  };
  Place at(uint64_t index) const;  // index < 2^63

  // Returns how many samples of `source` the first `blocks` blocks hold.
  uint64_t count(int source, uint64_t blocks) const;

 private:
  // A node over the sources [begin, end), at least two; the left side is [begin, middle).
  struct Node {
    int left, right;  // nodes; -1 - s: source s
    int middle;       // first source of the right side
    bool left_is_smaller;
    uint64_t share;  // the smaller side's share of the node's weight, in units of 2^-64; at most 2^63

    bool operator==(const Node&) const = default;
    // Returns how many of the first `samples` samples that reach the node go to its left side.
    uint64_t to_left(uint64_t samples) const;
  };
  struct Subtree {
    int root;
    double weight;
  };
  Subtree build(const std::vector<double>& weights, int begin, int end);

  uint64_t seed_;
  int root_;
  std::vector<Node> nodes_;
};

}  // namespace tri
