#include "lib/data/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "io/base/random.h"

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

std::vector<double> random_weights(int count, double decades) {
  std::vector<double> weights;
  for (int s = 0; s < count; ++s)
    weights.push_back(std::pow(10, decades * random_uniform(17, static_cast<uint64_t>(s))));
  return weights;
}

// Half a sample per level of the tree, plus the rounding of doubles.
double allowed(size_t sources) { return 0.5 * std::ceil(std::log2(static_cast<double>(sources))) + 1e-3; }

TEST(Mixer, shares_are_exact_over_any_run) {
  const std::vector<double> table[] = {{5, 3, 2, 0.001},
                                       {1, 2},
                                       {1, 1, 1},
                                       {0.1, 0.2, 0.7},
                                       random_weights(37, 4),
                                       {1, 1e-6},
                                       {1e-9, 1e-9, 2.5e-9, 1},
                                       random_weights(3000, 6)};
  for (const std::vector<double>& weights : table) {
    const Mixer mixer(3, weights);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (const uint64_t blocks :
         {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{977}, uint64_t{1} << 20, uint64_t{1} << 30}) {
      const uint64_t samples = blocks * Mixer::kBlockSamples;
      uint64_t sum = 0;
      for (size_t s = 0; s < weights.size(); ++s) {
        const uint64_t count = mixer.count(static_cast<int>(s), blocks);
        EXPECT_NEAR(static_cast<double>(count), static_cast<double>(samples) * (weights[s] / total),
                    allowed(weights.size()))
            << "source " << s << " of " << weights.size() << ", " << blocks << " blocks";
        sum += count;
      }
      EXPECT_EQ(sum, samples);
    }
  }
}

// In a block, at() gives each source its next samples, each exactly once.
void expect_whole_block(const Mixer& mixer, size_t sources, uint64_t block) {
  std::set<std::pair<int, uint64_t>> seen;
  for (uint64_t i = block * Mixer::kBlockSamples; i < (block + 1) * Mixer::kBlockSamples; ++i) {
    const Mixer::Place place = mixer.at(i);
    ASSERT_TRUE(place.source >= 0 && static_cast<size_t>(place.source) < sources);
    ASSERT_GE(place.index, mixer.count(place.source, block));
    ASSERT_LT(place.index, mixer.count(place.source, block + 1));
    ASSERT_TRUE(seen.emplace(place.source, place.index).second) << "an index came twice";
  }
}

TEST(Mixer, sources_advance_without_gaps_from_any_block_on) {
  for (const int sources : {2, 3, 4, 5, 1024, 1025, 3000}) {
    const Mixer mixer(3, random_weights(sources, 3));
    for (const uint64_t block : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{12345}, uint64_t{1} << 40})
      expect_whole_block(mixer, static_cast<size_t>(sources), block);
  }
}

TEST(Mixer, each_of_many_sources_contributes_at_its_time) {
  constexpr int kSources = 3000;
  const Mixer mixer(3, std::vector<double>(kSources, 1.0));
  std::set<int> heard;
  for (uint64_t i = 0; i < 3 * Mixer::kBlockSamples; ++i) heard.insert(mixer.at(i).source);
  EXPECT_GT(heard.size(), 2900u) << "3,072 samples of 3,000 equal sources";
  for (uint64_t i = 3 * Mixer::kBlockSamples; i < 6 * Mixer::kBlockSamples; ++i) heard.insert(mixer.at(i).source);
  EXPECT_EQ(heard.size(), static_cast<size_t>(kSources));
}

TEST(Mixer, a_tiny_weight_is_kept_as_it_is) {
  const Mixer mixer(3, {1, 1e-9, 1e-30});
  const uint64_t billion = 1'000'000'000 / Mixer::kBlockSamples;
  EXPECT_EQ(mixer.count(1, 1), 0u) << "not inflated to a sample a block";
  EXPECT_EQ(mixer.count(1, billion), 1u);
  EXPECT_EQ(mixer.count(1, 100 * billion), 100u);
  EXPECT_EQ(mixer.count(2, 100 * billion), 0u);
  const Mixer first(3, {1e-9, 1});
  EXPECT_EQ(first.count(0, 100 * billion), 100u);
}

TEST(Mixer, is_a_function_of_seed_weights_and_index_alone) {
  const std::vector<double> weights = random_weights(100, 3);
  const Mixer one(3, weights), again(3, weights), other(4, weights);
  std::vector<Mixer::Place> forward;
  for (uint64_t i = 0; i < 5000; ++i) forward.push_back(one.at(i));
  int different = 0;
  for (uint64_t i = 5000; i-- > 0;) {  // in another order, from another object
    const Mixer::Place place = again.at(i);
    ASSERT_EQ(place.source, forward[i].source) << i;
    ASSERT_EQ(place.index, forward[i].index) << i;
    different += other.at(i).source != place.source;
  }
  EXPECT_GT(different, 2000);
}

TEST(Mixer, weights_in_1024ths_fill_every_block_alike) {
  const std::vector<std::vector<double>> table = {
      {3, 1}, {512, 256, 255, 1}, {0.25, 0.25, 0.5}, {1, 1022, 1}, {7, 9, 1008}};
  for (const std::vector<double>& weights : table) {
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    const Mixer mixer(3, weights);
    for (const uint64_t block : {uint64_t{0}, uint64_t{1}, uint64_t{77}, uint64_t{1} << 35}) {
      const Permutation shuffle(random_u64(derive_key(3, "mixer"), block), Mixer::kBlockSamples);
      for (uint64_t i = 0; i < Mixer::kBlockSamples; ++i) {
        // Its place among the sources' samples, with the sources in sequence.
        uint64_t place = shuffle(i), share = 0;
        int source = 0;
        while (place >= (share = static_cast<uint64_t>(weights[static_cast<size_t>(source)] / total * 1024))) {
          place -= share;
          ++source;
        }
        const Mixer::Place found = mixer.at(block * Mixer::kBlockSamples + i);
        ASSERT_EQ(found.source, source);
        ASSERT_EQ(found.index, block * share + place);
      }
    }
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
