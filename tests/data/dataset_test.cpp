#include "lib/data/dataset.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "lib/data/target_mask.h"
#include "tests/data/token_files.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

constexpr int kSeqLen = 8;

Dataset open_one(const std::string& prefix, double validation = 0.1, uint64_t seed = 1) {
  return value_or_throw(Dataset::open({{prefix, 1.0}}, kSeqLen, validation, seed, 1 << 30));
}

int32_t first_token(const Dataset& data, Split split, int64_t index) {
  std::vector<int32_t> tokens(kSeqLen + 1);
  data.sample(split, index, tokens);
  for (int i = 0; i <= kSeqLen; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], tokens[0] + i) << "not consecutive";
  return tokens[0];
}

TEST(Dataset, every_sample_comes_exactly_once_an_epoch_and_validation_is_apart) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);  // 125 samples
  const Dataset data = open_one(folder / "a");
  EXPECT_EQ(data.num_samples(Split::kTrain), 112);
  EXPECT_EQ(data.num_samples(Split::kValidation), 13);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<int32_t> seen;
    for (int64_t i = 0; i < 112; ++i) seen.insert(first_token(data, Split::kTrain, epoch * 112 + i));
    EXPECT_EQ(seen.size(), 112u);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), 111 * kSeqLen);
  }
  std::set<int32_t> validation;
  for (int64_t i = 0; i < 13; ++i) {
    validation.insert(first_token(data, Split::kValidation, i));
    EXPECT_EQ(first_token(data, Split::kValidation, i), first_token(data, Split::kValidation, i + 13));
  }
  EXPECT_EQ(validation.size(), 13u);
  EXPECT_EQ(*validation.begin(), 112 * kSeqLen);
}

// Weights of sources affect only training samples: a file of any length is read whole.
TEST(Dataset, whole_has_every_sample_of_every_source_exactly_once) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);        // 125 samples
  write_counting(folder / "b", 41, 100000);  // 5
  write_counting(folder / "c", 9, 200000);   // 1
  const Dataset data = value_or_throw(
      Dataset::open({{folder / "a", 1.0}, {folder / "b", 7.0}, {folder / "c", 1.0}}, kSeqLen, 0.1, 1, 1 << 30));
  ASSERT_EQ(data.num_samples(Split::kWhole), 131);
  std::set<int32_t> seen;
  for (int64_t i = 0; i < 131; ++i) seen.insert(first_token(data, Split::kWhole, i));
  EXPECT_EQ(seen.size(), 131u);
  EXPECT_TRUE(seen.contains(124 * kSeqLen) && seen.contains(100000 + 4 * kSeqLen) && seen.contains(200000));

  const Dataset one = open_one(folder / "a", 0);
  for (int64_t i = 0; i < 125; ++i)
    EXPECT_EQ(first_token(one, Split::kWhole, i), first_token(one, Split::kTrain, i)) << "sample " << i;
}

TEST(Dataset, the_order_depends_on_the_seed_and_nothing_else) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  const auto order = [&](uint64_t seed) {
    const Dataset data = open_one(folder / "a", 0.1, seed);
    std::vector<int32_t> firsts;
    for (int64_t i = 0; i < 300; ++i) firsts.push_back(first_token(data, Split::kTrain, i));
    return firsts;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(Dataset, a_moved_file_keeps_its_order) {
  const TemporaryFolder folder, elsewhere;
  write_counting(folder / "a", 1001);
  std::filesystem::copy(folder / "a.bin", elsewhere / "b.bin");
  std::filesystem::copy(folder / "a.idx", elsewhere / "b.idx");
  const Dataset here = open_one(folder / "a"), there = open_one(elsewhere / "b");
  for (int64_t i = 0; i < 200; ++i)
    EXPECT_EQ(first_token(here, Split::kTrain, i), first_token(there, Split::kTrain, i));
}

TEST(Dataset, an_added_source_changes_no_other_sources_order) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1001);
  write_counting(folder / "b", 2001, 1 << 20);
  const auto of_a = [&](const std::vector<SourceSpec>& sources) {
    const Dataset data = value_or_throw(Dataset::open(sources, kSeqLen, 0.1, 1, 1 << 30));
    // a's samples of the first three blocks, by their place in a's stream (shuffled inside a block)
    std::multiset<int32_t> firsts;
    for (int64_t i = 0; i < 1024; ++i)
      if (const int32_t first = first_token(data, Split::kTrain, i); first < 1 << 20) firsts.insert(first);
    return firsts;
  };
  const std::multiset<int32_t> mixed = of_a({{folder / "a", 1.0}, {folder / "b", 1.0}});
  EXPECT_NEAR(static_cast<double>(mixed.size()), 512, 1);
  const Dataset alone = open_one(folder / "a");
  std::multiset<int32_t> expected;
  for (size_t i = 0; i < mixed.size(); ++i) expected.insert(first_token(alone, Split::kTrain, static_cast<int64_t>(i)));
  EXPECT_EQ(mixed, expected);
}

TEST(Dataset, more_sources_than_a_block_has_samples_or_the_usual_limit_has_files) {
  const TemporaryFolder folder;
  constexpr int kSources = 1100;
  constexpr int kTokens = 3 * kSeqLen + 1;
  write_counting(folder / "0", kTokens);
  std::vector<SourceSpec> sources;
  for (int s = 0; s < kSources; ++s) {  // without the writer's fsyncs
    sources.push_back({folder / std::to_string(s), 1.0 + s % 7});
    if (s == 0) continue;
    std::filesystem::copy(folder / "0.idx", sources.back().path + ".idx");
    std::vector<int32_t> tokens(kTokens);
    std::iota(tokens.begin(), tokens.end(), s * 100);
    write_all(sources.back().path + ".bin",
              {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof tokens[0]});
  }
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const struct rlimit usual { std::min<rlim_t>(1024, before.rlim_max), before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  if (before.rlim_max < kSources + 100) GTEST_SKIP() << "skipped: no right to open so many files";
  const auto opened = Dataset::open(sources, kSeqLen, 0, 1, 1 << 30);
  ::setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_TRUE(opened) << opened.error().message;
  std::vector<int> seen(kSources);
  for (int64_t i = 0; i < 20 * kSources; ++i)
    ++seen[static_cast<size_t>(first_token(opened.value(), Split::kTrain, i) / 100)];
  for (int s = 0; s < kSources; ++s) EXPECT_NEAR(seen[static_cast<size_t>(s)], 20 * (1.0 + s % 7) / 4, 7) << s;
}

TEST(Dataset, problems_of_all_sources_come_together_at_the_start) {
  const TemporaryFolder folder;
  write_counting(folder / "short", kSeqLen);
  write_counting(folder / "large", 100, 500);
  const auto opened =
      Dataset::open({{folder / "short", 1}, {folder / "missing", 1}, {folder / "large", 1}}, kSeqLen, 0.1, 1, 300);
  ASSERT_FALSE(opened);
  const std::string& text = opened.error().message;
  EXPECT_NE(text.find("8 tokens are fewer than one sample of model.seq_len + 1 = 9"), std::string::npos) << text;
  EXPECT_NE(text.find("missing.idx"), std::string::npos) << text;
  EXPECT_NE(text.find("token 0 is 500, outside the vocabulary of 300"), std::string::npos) << text;
  EXPECT_EQ(opened.error().code, ExitCode::kFile);
}

TEST(Dataset, very_many_problems_are_counted) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 100);
  std::vector<SourceSpec> sources{{folder / "a", 1}};
  for (int s = 0; s < 250; ++s) sources.push_back({folder / "missing" + std::to_string(s), 1});
  const std::string text = Dataset::open(sources, kSeqLen, 0, 1, 1 << 20).error().message;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 100);
  EXPECT_NE(text.find("missing99.idx"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\n250 errors, of which the first 100 are shown")) << text;
  sources.resize(101);
  EXPECT_EQ(Dataset::open(sources, kSeqLen, 0, 1, 1 << 20).error().message.find("errors"), std::string::npos);
}

TEST(DatasetDeathTest, too_many_sources_for_the_limit_of_open_files_are_one_problem) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UndefinedBehaviorSanitizer reads objects through a pipe, for which no descriptors are left here";
#endif
  const TemporaryFolder folder;
  write_counting(folder / "a", 100);
  const auto open_limited = [&] {
    const struct rlimit few { 40, 40 };
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) std::_Exit(1);
    const auto opened = Dataset::open(std::vector<SourceSpec>(200, {folder / "a", 1}), kSeqLen, 0, 1, 1 << 20);
    const std::string text = opened ? "opened" : opened.error().message;
    std::fprintf(stderr, "%d lines: %s\n", static_cast<int>(1 + std::count(text.begin(), text.end(), '\n')),
                 text.c_str());
    std::_Exit(0);
  };
  EXPECT_EXIT(open_limited(), ::testing::ExitedWithCode(0),
              "^1 lines: data.sources: .*: Too many open files; [0-9]+ of 200 sources are open.*ulimit");
}

TEST(Dataset, a_token_outside_the_vocabulary_is_found_when_it_is_read) {
  const TemporaryFolder folder;
  auto writer = value_or_throw(TokenFileWriter::create(folder / "a", TokenType::kU16));
  std::vector<int32_t> tokens(4000, 1);
  tokens[2000] = 400;
  writer.add_document(tokens);
  value_or_throw(writer.finish());
  const Dataset data = value_or_throw(Dataset::open({{folder / "a", 1}}, kSeqLen, 0, 1, 300));
  std::vector<int32_t> sample(kSeqLen + 1);
  EXPECT_THROW(
      {
        for (int64_t i = 0; i < data.num_samples(Split::kTrain); ++i) data.sample(Split::kTrain, i, sample);
      },
      Fatal);
}

// The mask of a token is that of its place in the file, also in packed samples and mixtures.
TEST(Dataset, a_loss_mask_marks_tokens_that_are_no_targets) {
  const TemporaryFolder folder;
  constexpr int kTokens = 5000, kPeriod = 3;
  write_counting(folder / "a", kTokens);
  write_counting(folder / "b", kTokens, 100'000);
  const Dataset without =
      value_or_throw(Dataset::open({{folder / "a", 1}, {folder / "b", 1}}, kSeqLen, 0.1, 1, 1 << 30));
  write_mask(folder / "a", kTokens, kPeriod);
  for (const Packing packing : {Packing::kStream, Packing::kBestFit}) {
    const Dataset data = value_or_throw(
        Dataset::open({{folder / "a", 1}, {folder / "b", 1}}, kSeqLen, 0.1, 1, 1 << 30, {.packing = packing}));
    EXPECT_EQ(data.order_fields().sources[0].trained, kTokens - (kTokens + kPeriod - 1) / kPeriod);
    EXPECT_FALSE(data.order_fields().sources[1].trained);
    EXPECT_NE(data.order_fields().sources[0].fingerprint, without.order_fields().sources[0].fingerprint);
    EXPECT_EQ(data.order_fields().sources[0].shuffle_key, without.order_fields().sources[0].shuffle_key);
    EXPECT_EQ(data.order_fields().sources[1].fingerprint, without.order_fields().sources[1].fingerprint);
    std::vector<int32_t> sample(kSeqLen + 1), plain(kSeqLen + 1);
    int64_t excluded = 0;
    for (const Split split : {Split::kTrain, Split::kValidation})
      for (int64_t i = 0; i < 400; ++i) {
        data.sample(split, i, sample);
        EXPECT_GE(sample[0], 0) << "the first token is no target";
        for (size_t t = 1; t < sample.size(); ++t) {
          const int32_t token = token_of(sample[t]);
          EXPECT_EQ(sample[t] < 0, token < kTokens && token % kPeriod == 0) << token;
          excluded += sample[t] < 0;
        }
        if (packing == Packing::kBestFit) continue;
        without.sample(split, i, plain);
        std::ranges::transform(sample, sample.begin(), token_of);
        EXPECT_EQ(sample, plain) << "the tokens and their order stay";
      }
    EXPECT_GT(excluded, 0);
  }
}

TEST(Dataset, a_loss_mask_of_other_tokens_is_an_error) {
  const TemporaryFolder folder;
  write_counting(folder / "a", 1000);
  write_mask(folder / "a", 999, 2);
  const auto opened = Dataset::open({{folder / "a", 1}}, kSeqLen, 0.1, 1, 1 << 30);
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("a.mask: holds 999 bytes for 999 tokens, but"), std::string::npos);
}

}  // namespace
}  // namespace tri
