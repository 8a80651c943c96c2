// Which rank reads and sends what of a checkpoint: all ranks get what they requested, each shard is read once, and the
// shares grow with the job as expected.
#include "lib/checkpoint/load_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "io/checkpoint/shard_writer.h"
#include "lib/comm/host/messages.h"
#include "tests/io/checkpoint_files.h"

namespace tri {
namespace {

TEST(Blocks, are_the_shard_in_its_order_and_none_is_longer_than_allowed) {
  const std::pair<Coordinates, Coordinates> shards[] = {
      {{0}, {1}},        {{3}, {1000}},          {{5, 0}, {7, 64}},
      {{2, 3}, {50, 3}}, {{1, 2, 3}, {4, 5, 6}}, {{0, 9, 1, 0}, {3, 1, 4, 33}}};
  for (const auto& [start, extent] : shards)
    for (const int64_t most : {1, 4, 24, 100, 256, 1 << 20}) {
      const Region shard{start, extent};
      const Blocks blocks(shard, 4, most);
      SCOPED_TRACE(to_string(shard) + " by " + std::to_string(most));
      // Element i of the shard has the value i: a block's elements must be consecutive.
      std::vector<int64_t> numbers(static_cast<size_t>(num_elements(extent)));
      std::iota(numbers.begin(), numbers.end(), int64_t{0});
      int64_t next = 0;
      for (int64_t b = 0; b < blocks.count(); ++b) {
        const Region region = blocks.region(b);
        ASSERT_EQ(blocks.offset(b), 4 * next);
        ASSERT_EQ(blocks.bytes(b), 4 * num_elements(region.extent));
        ASSERT_LE(blocks.bytes(b), std::max<int64_t>(4, most));
        std::vector<int64_t> of_block(static_cast<size_t>(num_elements(region.extent)), -1);
        copy_region(shard, numbers.data(), region, of_block.data(), sizeof(int64_t));
        for (const int64_t number : of_block) ASSERT_EQ(number, next++);
        Coordinates last = region.start;
        for (size_t d = 0; d < last.size(); ++d) last[d] += region.extent[d] - 1;
        ASSERT_EQ(blocks.holding(region.start), b);
        ASSERT_EQ(blocks.holding(last), b);
      }
      ASSERT_EQ(next, num_elements(extent));
    }
}

constexpr int64_t kBlockBytes = 64;

// Checks the shares of all ranks against each other and against the requests.
void expect_served(const Manifest& manifest, const std::vector<std::vector<TensorRequest>>& requests,
                   const std::vector<Result<LoadShare>>& shares) {
  ASSERT_EQ(shares.size(), requests.size());
  std::map<std::tuple<std::string, int64_t>, std::pair<int, const ShardRead*>> readers;  // [file, offset]
  std::map<std::tuple<int, int, int64_t>, const BlockRange*> sent;                       // [reader, rank, position]
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    ASSERT_TRUE(shares[rank]) << shares[rank].error().message;
    const LoadShare& share = shares[rank].value();
    std::tuple<std::string, int64_t> before;
    for (const ShardRead& read : share.reads) {
      const std::tuple<std::string, int64_t> place{share.files[static_cast<size_t>(read.file)].name, read.offset};
      EXPECT_LT(before, place) << "files are read in long streams";
      before = place;
      EXPECT_TRUE(readers.emplace(place, std::pair(static_cast<int>(rank), &read)).second) << "read twice";
      for (const BlockRange& range : read.receivers) {
        EXPECT_NE(range.rank, static_cast<int>(rank));
        EXPECT_TRUE(sent.emplace(std::tuple(static_cast<int>(rank), range.rank, read.position), &range).second);
      }
    }
  }
  // A rank reads or receives every element of the requested regions once.
  size_t received = 0;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    const LoadShare& share = shares[rank].value();
    std::vector<std::vector<std::vector<int>>> got;  // [request][region][element]: number of times
    for (const TensorRequest& request : requests[rank]) {
      got.emplace_back();
      for (const Region& region : request.regions)
        got.back().emplace_back(static_cast<size_t>(num_elements(region.extent)), 0);
    }
    const auto take = [&](int32_t tensor, StoredType type, const Region& shard, int64_t first, int64_t last) {
      const TensorRequest& request = requests[rank][static_cast<size_t>(tensor)];
      const Blocks blocks(shard, element_bytes(type), kBlockBytes);
      for (int64_t b = first; b < (last < 0 ? blocks.count() : last); ++b) {
        const Region block = blocks.region(b);
        const std::vector<int> ones(static_cast<size_t>(num_elements(block.extent)), 1);
        for (size_t r = 0; r < request.regions.size(); ++r) {
          std::vector<int> here(got[static_cast<size_t>(tensor)][r].size(), 0);
          copy_region(block, ones.data(), request.regions[r], here.data(), sizeof(int));
          for (size_t i = 0; i < here.size(); ++i) got[static_cast<size_t>(tensor)][r][i] += here[i];
        }
      }
    };
    for (const ShardRead& read : share.reads) take(read.tensor, read.type, read.region, 0, -1);
    std::pair<int32_t, int64_t> before{-1, 0};
    for (const ShardReceipt& receipt : share.receipts) {
      const auto at = sent.find({receipt.reader, static_cast<int>(rank), receipt.position});
      ASSERT_NE(at, sent.end()) << "no rank sends it";
      EXPECT_EQ(at->second->first, receipt.first);
      EXPECT_EQ(at->second->last, receipt.last);
      EXPECT_LT(before, std::pair(receipt.reader, receipt.position)) << "not in the sender's order";
      before = {receipt.reader, receipt.position};
      take(receipt.tensor, receipt.type, receipt.region, receipt.first, receipt.last);
      ++received;
    }
    for (const auto& of_request : got)
      for (const auto& of_region : of_request)
        for (const int times : of_region) ASSERT_EQ(times, 1) << "rank " << rank;
  }
  EXPECT_EQ(received, sent.size()) << "something is sent that no rank expects";
  // Each record equals the manifest's, and no rank reads data that no rank needs.
  size_t needed = 0;
  for (const TensorRecord& tensor : manifest.tensors)
    for (const StoredShard& shard : tensor.shards) {
      std::vector<int> ranks;
      for (size_t rank = 0; rank < requests.size(); ++rank)
        for (const TensorRequest& request : requests[rank])
          for (const Region& region : request.regions)
            if (request.name == tensor.name && intersect(region, shard.region)) ranks.push_back(static_cast<int>(rank));
      needed += !ranks.empty();
      const auto at = readers.find({shard.file, shard.offset});
      ASSERT_EQ(at != readers.end(), !ranks.empty()) << tensor.name;
      if (ranks.empty()) continue;
      EXPECT_TRUE(std::count(ranks.begin(), ranks.end(), at->second.first)) << "read by one that does not need it";
      EXPECT_EQ(at->second.second->region, shard.region);
      EXPECT_EQ(at->second.second->checksum, shard.checksum);
    }
  EXPECT_EQ(readers.size(), needed);
}

TEST(LoadPlan, every_rank_gets_its_regions_and_each_shard_is_read_once) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const std::vector<Coordinates> shapes = {{40}, {9, 31}, {6, 5, 7}, {1, 1}};
    Manifest manifest;
    for (int f = 0; f < 4; ++f) manifest.files.push_back({shard_name(f), 1 << 20, 0});
    std::vector<int64_t> used(4, 0);
    for (size_t t = 0; t < shapes.size(); ++t) {
      TensorRecord& tensor = manifest.tensors.emplace_back(
          TensorRecord{fmt::format("model/{}", t), t % 2 ? StoredType::kF32 : StoredType::kBf16, shapes[t], {}});
      for (const Region& region : random_partition(shapes[t], static_cast<size_t>(1 + draw(6)), draw)) {
        const auto file = static_cast<size_t>(draw(4));
        tensor.shards.push_back({shard_name(static_cast<int>(file)), "", used[file], region, random_u64(seed, t)});
        used[file] += num_elements(region.extent) * element_bytes(tensor.type);
      }
    }
    std::vector<std::vector<TensorRequest>> requests(static_cast<size_t>(1 + draw(5)));
    for (auto& of_rank : requests)
      for (const TensorRecord& tensor : manifest.tensors) {
        if (draw(4) == 0) continue;
        const StoredType type = draw(3) == 0 ? StoredType::kF32 : tensor.type;  // converted during the load
        TensorRequest request{tensor.name, type, tensor.shape, {}};
        for (const Region& region : random_partition(tensor.shape, static_cast<size_t>(1 + draw(5)), draw))
          if (draw(3) != 0) request.regions.push_back(region);
        of_rank.push_back(request);
      }
    expect_served(manifest, requests, divide_load(manifest, requests, kBlockBytes));
  }
}

TEST(LoadPlan, what_does_not_fit_is_that_ranks_error) {
  Manifest manifest;
  manifest.files = {{"shard_00000.h5", 100, 0}};
  manifest.tensors = {{"model/w", StoredType::kF32, {3, 7}, {{"shard_00000.h5", "", 0, {{0, 0}, {3, 7}}, 0}}}};
  const TensorRequest fits{"model/w", StoredType::kF32, {3, 7}, {{{0, 0}, {3, 7}}}};
  for (const auto& [request, message] :
       {std::pair{TensorRequest{"model/v", StoredType::kF32, {3, 7}, {}}, "there is no tensor model/v"},
        {TensorRequest{"model/w", StoredType::kI32, {3, 7}, {}}, "tensor model/w is f32 [3, 7], expected i32 [3, 7]"},
        {TensorRequest{"model/w", StoredType::kF32, {7, 3}, {}},
         "tensor model/w is f32 [3, 7], expected f32 [7, 3]"}}) {
    const auto shares = divide_load(manifest, {{fits}, {fits, request}, {}}, kBlockBytes);
    ASSERT_EQ(shares.size(), 3u);
    EXPECT_TRUE(shares[0]);
    ASSERT_FALSE(shares[1]);
    EXPECT_EQ(shares[1].error().message, message);
    EXPECT_TRUE(shares[2]);
  }
}

// A job of `ranks`, each of which wrote its slice of every tensor and requests an equal slice, `shift` elements on:
// the bytes sent to each rank and the longest message, the most files that a rank opens, and the number of shards.
struct Sizes {
  size_t longest = 0, files = 0, shards = 0;
};
Sizes sizes_of(int64_t ranks, int64_t shift) {
  constexpr int64_t kTensors = 5, kWidth = 100, kSlice = 350;  // so that most slices begin and end inside a row
  Manifest manifest;
  std::vector<std::vector<TensorRequest>> requests(static_cast<size_t>(ranks));
  std::vector<int64_t> used(static_cast<size_t>(ranks), 0);
  for (int64_t rank = 0; rank < ranks; ++rank)
    manifest.files.push_back({shard_name(static_cast<int>(rank)), 1 << 20, 0});
  for (int64_t t = 0; t < kTensors; ++t) {
    const Coordinates shape{ranks * kSlice / kWidth, kWidth};
    TensorRecord tensor{fmt::format("model/{}", t), StoredType::kF32, shape, {}};
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      for (const Region& region : regions_of_range(shape, rank * kSlice, (rank + 1) * kSlice)) {
        tensor.shards.push_back({manifest.files[r].name, "", used[r], region, 0});
        used[r] += num_elements(region.extent) * 4;
      }
      const int64_t end = num_elements(shape), begin = std::min(end, rank * kSlice + shift);
      requests[r].push_back(
          {tensor.name, tensor.type, shape, regions_of_range(shape, begin, std::min(end, begin + kSlice))});
    }
    manifest.tensors.push_back(std::move(tensor));
  }
  Sizes sizes;
  for (const TensorRecord& tensor : manifest.tensors) sizes.shards += tensor.shards.size();
  for (const auto& share : divide_load(manifest, requests, 1 << 20)) {
    sizes.longest = std::max(sizes.longest, to_bytes(share).size());
    sizes.files = std::max(sizes.files, share.value().files.size());
  }
  return sizes;
}

TEST(LoadPlan, a_ranks_share_does_not_grow_with_the_job) {
  for (const int64_t shift : {0, 130}) {
    SCOPED_TRACE(shift);
    const Sizes few = sizes_of(64, shift), many = sizes_of(4096, shift);
    EXPECT_EQ(many.longest, few.longest);
    EXPECT_LE(many.files, 2u);
    EXPECT_GE(many.shards, 63 * few.shards) << "while the manifest does";
  }
}

}  // namespace
}  // namespace tri
