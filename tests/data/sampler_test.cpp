#include "lib/data/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

namespace tri {
namespace {

TEST(Permutation, is_one_to_one_for_every_size) {
  for (uint64_t size : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 255u, 256u, 257u, 1000u, 4097u}) {
    for (const uint64_t key : {0u, 1u, 99u}) {
      const Permutation permutation(key, size);
      std::set<uint64_t> seen;
      for (uint64_t i = 0; i < size; ++i) seen.insert(permutation(i));
      EXPECT_EQ(seen.size(), size);
      EXPECT_LT(*seen.rbegin(), size);
    }
  }
}

TEST(Permutation, keys_give_different_orders_and_no_index_stays_more_than_chance_allows) {
  constexpr uint64_t kSize = 10000;
  const Permutation a(1, kSize), b(2, kSize);
  int fixed = 0, equal = 0;
  double sum = 0;  // of i · a(i), for the correlation
  for (uint64_t i = 0; i < kSize; ++i) {
    fixed += a(i) == i;
    equal += a(i) == b(i);
    sum += static_cast<double>(i) * static_cast<double>(a(i));
  }
  EXPECT_LT(fixed, 10);
  EXPECT_LT(equal, 10);
  const double mean = (kSize - 1) / 2.0, variance = (double{kSize} * kSize - 1) / 12.0;
  EXPECT_LT(std::abs(sum / kSize - mean * mean) / variance, 0.05);
}

TEST(Shuffled, every_sample_once_an_epoch_and_epochs_differ) {
  constexpr uint64_t kSize = 777;
  std::vector<uint64_t> first, second;
  for (uint64_t i = 0; i < kSize; ++i) first.push_back(shuffled(5, kSize, i));
  for (uint64_t i = kSize; i < 2 * kSize; ++i) second.push_back(shuffled(5, kSize, i));
  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
  for (uint64_t i = 0; i < kSize; ++i) EXPECT_EQ(first[i], i);
}

TEST(Mixer, proportions_are_exact_in_every_block_and_sources_advance_without_gaps) {
  const std::vector<double> weights = {5, 3, 2, 0.001};
  const Mixer mixer(3, weights);
  EXPECT_EQ(mixer.places(0) + mixer.places(1) + mixer.places(2) + mixer.places(3), Mixer::kBlockSamples);
  EXPECT_NEAR(mixer.places(0), 512, 2);
  EXPECT_NEAR(mixer.places(1), 307, 2);
  EXPECT_GE(mixer.places(3), 1) << "a source with a small weight is never heard";
  std::vector<std::set<uint64_t>> seen(weights.size());
  constexpr int kBlocks = 5;
  for (uint64_t i = 0; i < kBlocks * Mixer::kBlockSamples; ++i) {
    const Mixer::Place place = mixer.at(i);
    EXPECT_TRUE(seen[static_cast<size_t>(place.source)].insert(place.index).second) << "an index came twice";
  }
  for (size_t s = 0; s < weights.size(); ++s) {
    EXPECT_EQ(seen[s].size(), static_cast<size_t>(kBlocks * mixer.places(static_cast<int>(s))));
    EXPECT_EQ(*seen[s].rbegin() + 1, seen[s].size()) << "an index was left out";
  }
}

TEST(Mixer, one_source_is_the_identity) {
  const Mixer mixer(3, {0.7});
  for (const uint64_t i : {0u, 5u, 1023u, 5000u}) {
    EXPECT_EQ(mixer.at(i).source, 0);
    EXPECT_EQ(mixer.at(i).index, i);
  }
}

}  // namespace
}  // namespace tri
