#include "lib/data/sampler.h"

#include <algorithm>
#include <numeric>

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
  } while (index >= size_);  // at most four times as many values as samples: a few walks
  return index;
}

uint64_t shuffled(uint64_t seed, uint64_t size, uint64_t index) {
  const uint64_t epoch = index / size;
  return Permutation(random_u64(seed, epoch), size)(index % size);
}

Mixer::Mixer(uint64_t seed, const std::vector<double>& weights) : seed_(derive_key(seed, "mixer")) {
  TRI_REQUIRE(!weights.empty() && weights.size() <= kBlockSamples, "{} sources", weights.size());
  for (const double weight : weights) TRI_REQUIRE(weight > 0, "weight {}", weight);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  // Every source has one place; the others go by largest remainder, of equal ones to the first source first.
  const auto open = static_cast<double>(kBlockSamples - static_cast<int>(weights.size()));
  std::vector<std::pair<double, int>> remainders;
  int given = 0;
  for (size_t s = 0; s < weights.size(); ++s) {
    const double share = std::max(0.0, weights[s] / total * kBlockSamples - 1);
    remainders.emplace_back(share, static_cast<int>(s));
  }
  double shares = 0;
  for (const auto& [share, source] : remainders) shares += share;
  for (auto& [share, source] : remainders) {
    share = shares > 0 ? share * open / shares : 0;
    const int whole = static_cast<int>(share);
    places_.push_back(1 + whole);
    given += 1 + whole;
    share -= whole;
  }
  std::stable_sort(remainders.begin(), remainders.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; given < kBlockSamples; i = (i + 1) % remainders.size(), ++given)
    ++places_[static_cast<size_t>(remainders[i].second)];
}

Mixer::Place Mixer::at(uint64_t index) const {
  if (places_.size() == 1) return {0, index};
  const uint64_t block = index / kBlockSamples;
  // Places in order of source, then shuffled: where does this one come from?
  auto place = static_cast<int64_t>(Permutation(random_u64(seed_, block), kBlockSamples)(index % kBlockSamples));
  int source = 0;
  while (place >= places_[static_cast<size_t>(source)]) place -= places_[static_cast<size_t>(source++)];
  return {source, block * static_cast<uint64_t>(places_[static_cast<size_t>(source)]) + static_cast<uint64_t>(place)};
}

}  // namespace tri
