// Best-fit packing: every token once, full samples, few cuts, and a dataset that reads such samples.
#include "lib/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "io/base/random.h"
#include "lib/data/dataset.h"
#include "lib/data/documents.h"
#include "lib/data/packed_windows.h"
#include "lib/data/target_mask.h"
#include "tests/data/token_files.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

TEST(Packing, documents_that_fit_are_whole) {
  // Lengths 3 5 2 6 8 in samples of 8: 8 alone, 5 + 3, 6 + 2.
  const std::vector<int64_t> bounds = {100, 103, 108, 110, 116, 124};
  const auto samples = pack_documents(bounds, 8);
  EXPECT_EQ(samples, (std::vector<std::vector<Extent>>{{{100, 3}, {103, 5}}, {{108, 2}, {110, 6}}, {{116, 8}}}));
  // 5, 5 and 6 in two samples: the last placed is cut.
  EXPECT_EQ(pack_documents(std::vector<int64_t>{0, 5, 10, 16}, 8),
            (std::vector<std::vector<Extent>>{{{0, 5}, {5, 3}}, {{8, 2}, {10, 6}}}));
}

TEST(Packing, every_token_is_in_one_full_sample) {
  for (uint64_t run = 0; run < 50; ++run) {
    const int64_t length = 1 + static_cast<int64_t>(random_u64(run, 0) % 64),
                  count = 1 + static_cast<int64_t>(run % 20);
    std::vector<int64_t> bounds{7};
    for (uint64_t i = 1; bounds.back() < 7 + length * count; ++i)
      bounds.push_back(
          std::min(7 + length * count, bounds.back() + 1 + static_cast<int64_t>(random_u64(run, i) % 100)));
    const auto samples = pack_documents(bounds, length);
    ASSERT_EQ(static_cast<int64_t>(samples.size()), count);
    std::vector<bool> seen(static_cast<size_t>(length * count), false);
    for (const std::vector<Extent>& sample : samples) {
      int64_t tokens = 0;
      for (const Extent& extent : sample) {
        tokens += extent.count;
        for (int64_t t = extent.first; t < extent.first + extent.count; ++t) {
          ASSERT_FALSE(seen[static_cast<size_t>(t - 7)]);
          seen[static_cast<size_t>(t - 7)] = true;
        }
      }
      EXPECT_EQ(tokens, length);
    }
  }
}

TEST(Packing, a_dataset_reads_whole_documents) {
  constexpr int kSeqLen = 32;
  const TemporaryFolder folder;
  auto writer = value_or_throw(TokenFileWriter::create(folder / "a", TokenType::kI32));
  int32_t next = 0;
  std::vector<int64_t> starts;
  for (uint64_t d = 0; d < 3000; ++d) {
    starts.push_back(next);
    std::vector<int32_t> document;
    for (uint64_t i = 0; i < 1 + random_u64(5, d) % 31; ++i) document.push_back(next++);
    writer.add_document(document);
  }
  value_or_throw(writer.finish());
  const auto open = [&](Packing packing) {
    return value_or_throw(Dataset::open({{folder / "a", 1.0}}, kSeqLen, 0.1, 1, 1 << 30, {.packing = packing}));
  };
  const Dataset packed = open(Packing::kBestFit), stream = open(Packing::kStream);
  const int64_t samples = packed.num_samples(Split::kTrain) + packed.num_samples(Split::kValidation);
  ASSERT_EQ(samples, num_samples(next, kSeqLen));
  ASSERT_GT(samples, 2 * kWindowSamples);
  std::vector<int> seen(static_cast<size_t>(next), 0);
  int64_t cuts = 0, stream_cuts = 0;
  std::vector<int32_t> tokens(kSeqLen + 1);
  const auto begins = [&](int32_t token) { return std::ranges::binary_search(starts, token); };
  for (const Split split : {Split::kTrain, Split::kValidation})
    for (int64_t i = 0; i < packed.num_samples(split); ++i) {
      packed.sample(split, i, tokens);
      for (size_t t = 0; t < kSeqLen; ++t) {
        ++seen[static_cast<size_t>(tokens[t])];
        // A part that does not begin a document was cut from one.
        if ((t == 0 || tokens[t] != tokens[t - 1] + 1) && !begins(tokens[t])) ++cuts;
      }
      EXPECT_EQ(tokens[kSeqLen], tokens[kSeqLen - 1] + 1) << "the last target follows the last token";
      stream.sample(split, i, tokens);
      stream_cuts += !begins(tokens[0]);
    }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), samples * kSeqLen);
  EXPECT_LT(cuts, stream_cuts / 5);
}

TEST(Packing, windows_are_packed_once_while_they_fit_into_memory) {
  constexpr int kSeqLen = 8;
  const TemporaryFolder folder;
  write_counting(folder / "a", 3 * kWindowSamples * kSeqLen + 100);
  const int64_t tokens = 3 * kWindowSamples * kSeqLen + 100, samples = num_samples(tokens, kSeqLen);
  const auto documents = std::make_shared<const DocumentIndex>(value_or_throw(DocumentIndex::open(folder / "a")));
  const auto windows = [&](int64_t bytes) {
    return std::make_unique<PackedWindows>(documents, tokens, kSeqLen, std::make_shared<PackedWindowCache>(bytes));
  };
  const auto large = windows(1 << 20), small = windows(1);
  for (const int64_t stride : {int64_t{1}, int64_t{kWindowSamples + 1}})  // in order, and from window to window
    for (int64_t i = 0; i < samples; ++i) {
      const int64_t sample = i * stride % samples, first = sample / kWindowSamples * kWindowSamples,
                    end = std::min(first + kWindowSamples, samples);
      const auto expected = pack_documents(documents->bounds(first * kSeqLen, end * kSeqLen), kSeqLen);
      EXPECT_EQ(large->sample(sample), expected[static_cast<size_t>(sample - first)]);
      EXPECT_EQ(small->sample(sample), expected[static_cast<size_t>(sample - first)]);
    }
  EXPECT_EQ(large->num_packed(), 4);
  EXPECT_GT(small->num_packed(), samples) << "it keeps the last window alone";
}

TEST(Packing, sources_share_the_memory_for_their_windows) {
  constexpr int kSeqLen = 8, kSources = 100;
  const TemporaryFolder folder;
  const int64_t tokens = 2 * kWindowSamples * kSeqLen + 100;
  write_counting(folder / "a", static_cast<int>(tokens));
  const auto documents = std::make_shared<const DocumentIndex>(value_or_throw(DocumentIndex::open(folder / "a")));
  const auto cache = std::make_shared<PackedWindowCache>(1 << 16);
  std::vector<std::unique_ptr<PackedWindows>> sources;
  for (int i = 0; i < kSources; ++i)
    sources.push_back(std::make_unique<PackedWindows>(documents, tokens, kSeqLen, cache));
  for (int i = 0; i < kSources; ++i)
    for (const int64_t sample : {int64_t{0}, int64_t{kWindowSamples}}) {
      PackedWindows& source = *sources[static_cast<size_t>(i)];
      EXPECT_EQ(source.sample(sample), sources.front()->sample(sample));
      EXPECT_LE(cache->bytes(), 1 << 16);
    }
  EXPECT_EQ(sources.back()->num_packed(), 2);
  sources.back()->sample(0);
  EXPECT_EQ(sources.back()->num_packed(), 2) << "the newest windows are kept";
}

// Documents end every 37 tokens, and where a cut document is followed by another one.
TEST(Documents, samples_say_where_their_documents_start) {
  constexpr int kSeqLen = 50;
  const TemporaryFolder folder;
  write_counting(folder / "a", 50 * 300 + 1);
  write_counting(folder / "b", 4000, 50000 * 37);
  for (const Packing packing : {Packing::kStream, Packing::kBestFit})
    for (const bool eod_loss : {true, false}) {
      const auto open = [&](bool documents) {
        return value_or_throw(
            Dataset::open({{folder / "a", 1.0}, {folder / "b", 1.0}}, kSeqLen, 0.1, 1, 1 << 30,
                          {.packing = packing, .documents = documents, .eod_loss = !documents || eod_loss}));
      };
      const Dataset plain = open(false), with = open(true);
      EXPECT_EQ(plain.order(), with.order());
      int64_t documents = 0, masked_targets = 0;
      for (const Split split : {Split::kTrain, Split::kValidation})
        for (int64_t i = 0; i < with.num_samples(split); ++i) {
          std::vector<int32_t> expected(kSeqLen + 1), tokens(kSeqLen + 1), starts(kSeqLen);
          plain.sample(split, i, expected);
          const int64_t bytes = with.sample(split, i, tokens, starts);
          EXPECT_EQ(bytes, (kSeqLen + 1) * 4);
          EXPECT_EQ(starts, with.document_starts(split, i));
          int32_t start = 0;
          for (int t = 0; t <= kSeqLen; ++t) {
            const auto at = static_cast<size_t>(t);
            const bool begins = t > 0 && (expected[at] % 37 == 0 || expected[at] != expected[at - 1] + 1);
            if (begins) start = t;
            if (t < kSeqLen) {
              ASSERT_EQ(starts[at], start) << "sample " << i << ", token " << t;
            }
            documents += begins;
            masked_targets += tokens[at] < 0;
            ASSERT_EQ(tokens[at], begins && !eod_loss ? masked(expected[at]) : expected[at]);
          }
          std::vector<int32_t> alone(kSeqLen + 1);
          with.sample(split, i, alone);
          ASSERT_EQ(alone, tokens) << "without starts";
        }
      EXPECT_GT(documents, with.num_samples(Split::kTrain));
      EXPECT_EQ(masked_targets, eod_loss ? 0 : documents);
    }
}

TEST(Documents, a_file_of_one_document_is_refused) {
  const TemporaryFolder folder;
  write_counting(folder / "one", 37);
  write_counting(folder / "two", 38);
  const auto open = [&](const char* name) {
    return Dataset::open({{folder / name, 1.0}}, 8, 0, 1, 1 << 30, {.documents = true});
  };
  EXPECT_TRUE(open("two"));
  const auto refused = open("one");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("data.sources: " + (folder / "one") + ": the file has 1 document"),
            std::string::npos)
      << refused.error().message;
}

TEST(Documents, pairs_are_those_of_a_mask) {
  constexpr int kSeqLen = 64;
  for (uint64_t draw = 0; draw < 20; ++draw) {
    std::vector<int32_t> starts;
    for (int sample = 0; sample < 3; ++sample)
      for (int t = 0, start = 0; t < kSeqLen; ++t) {
        if (random_u64(draw, starts.size()) % (2 + draw) == 0) start = t;
        starts.push_back(start);
      }
    for (const int window : {0, 1, 5, 64, 100}) {
      AttentionPairs expected;
      for (size_t first = 0; first < starts.size(); first += kSeqLen)
        for (int query = 0; query < kSeqLen; ++query) {
          int64_t length = 0;  // of the query's document
          for (int key = 0; key < kSeqLen; ++key) {
            if (starts[first + static_cast<size_t>(key)] != starts[first + static_cast<size_t>(query)]) continue;
            ++length;
            expected.causal += key <= query && (window == 0 || key > query - window);
          }
          expected.band += window == 0 ? length : std::min<int64_t>(window, length);
        }
      EXPECT_EQ(attention_pairs(starts, kSeqLen, window), expected) << "window " << window << ", draw " << draw;
    }
  }
}

}  // namespace
}  // namespace tri
