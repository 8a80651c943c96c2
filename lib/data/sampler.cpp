#include "lib/data/sampler.h"

#include <algorithm>
#include <cmath>

#include "io/base/error.h"
#include "io/base/random.h"

namespace tri {

Permutation::Permutation(uint64_t key, uint64_t size) : key_(key), size_(size), half_bits_(1) {
  TRI_REQUIRE(size >= 1 && size <= uint64_t{1} << 62, "a permutation of {}", size);
  while ((uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
}

uint64_t Permutation::operator()(uint64_t index) const {
  TRI_REQUIRE(index < size_, "index {} of {}", index, size_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_, right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = left ^ (random_u64(key_, right << 2 | round) & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);  // the range is at most four times the number of samples, so few iterations suffice
  return index;
}

uint64_t shuffled(uint64_t seed, uint64_t size, uint64_t index) {
  const uint64_t epoch = index / size;
  return Permutation(random_u64(seed, epoch), size)(index % size);
}

Mixer::Mixer(uint64_t seed, const std::vector<double>& weights) : seed_(derive_key(seed, "mixer")) {
  TRI_REQUIRE(!weights.empty(), "no sources");
  for (const double weight : weights) TRI_REQUIRE(weight > 0 && std::isfinite(weight), "weight {}", weight);
  const Subtree tree = build(weights, 0, static_cast<int>(weights.size()));
  TRI_REQUIRE(std::isfinite(tree.weight), "the weights' sum {}", tree.weight);
  root_ = tree.root;
}

Mixer::Subtree Mixer::build(const std::vector<double>& weights, int begin, int end) {
  if (end - begin == 1) return {-1 - begin, weights[static_cast<size_t>(begin)]};
  const int middle = begin + (end - begin) / 2;
  const Subtree left = build(weights, begin, middle), right = build(weights, middle, end);
  // Stores the smaller side's share: the other's, close to one, would lose the precision of a tiny weight.
  const double weight = left.weight + right.weight, share = std::min(left.weight, right.weight) / weight;
  nodes_.push_back({.left = left.root,
                    .right = right.root,
                    .middle = middle,
                    .left_is_smaller = left.weight <= right.weight,
                    .share = static_cast<uint64_t>(std::ldexp(share, 64))});
  return {static_cast<int>(nodes_.size()) - 1, weight};
}

uint64_t Mixer::Node::to_left(uint64_t samples) const {
  __extension__ using Wide = unsigned __int128;
  const auto smaller = static_cast<uint64_t>((static_cast<Wide>(samples) * share + (uint64_t{1} << 63)) >> 64);
  return left_is_smaller ? smaller : samples - smaller;
}

Mixer::Place Mixer::at(uint64_t index) const {
  if (nodes_.empty()) return {0, index};
  const uint64_t block = index / kBlockSamples;
  // `before`: samples before this block that reach the node; `inside`: those in the block; `place`: the one that is
  // wanted.
  uint64_t before = block * kBlockSamples, inside = kBlockSamples;
  uint64_t place = Permutation(random_u64(seed_, block), kBlockSamples)(index % kBlockSamples);
  int at = root_;
  while (at >= 0) {
    const Node& node = nodes_[static_cast<size_t>(at)];
    const uint64_t left_before = node.to_left(before), left_inside = node.to_left(before + inside) - left_before;
    if (place < left_inside) {
      at = node.left;
      before = left_before;
      inside = left_inside;
    } else {
      at = node.right;
      place -= left_inside;
      before -= left_before;
      inside -= left_inside;
    }
  }
  return {-1 - at, before + place};
}

uint64_t Mixer::count(int source, uint64_t blocks) const {
  uint64_t samples = blocks * kBlockSamples;
  for (int at = root_; at >= 0;) {
    const Node& node = nodes_[static_cast<size_t>(at)];
    const uint64_t left = node.to_left(samples);
    at = source < node.middle ? node.left : node.right;
    samples = source < node.middle ? left : samples - left;
  }
  return samples;
}

}  // namespace tri
