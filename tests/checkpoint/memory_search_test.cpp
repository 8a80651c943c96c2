// Which generation in memory a run resumes from, and to which node copies go.
#include "lib/checkpoint/memory_search.h"

#include <gtest/gtest.h>

#include "io/base/hash.h"
#include "lib/checkpoint/memory.h"

namespace tri {
namespace {

constexpr uint64_t kLayout = 11;
const std::vector<std::string> kHosts = {"a", "a", "b", "b"};
const MemoryHistory kHistory = {.attempt = "now", .from_attempt = "before", .from_step = 5};

SegmentSight sight(int rank, const std::string& host, bool copy, int64_t step, const std::string& attempt = "now") {
  const auto slot = static_cast<int32_t>(step % 2);
  return {.host = host,
          .file_name = fmt::format("{} {} {} {}", rank, host, copy, step),
          .copy = copy,
          .identity = {.world_rank = rank,
                       .world_size = 4,
                       .slot = slot,
                       .step = step,
                       .layout = kLayout,
                       .attempt = attempt,
                       .run_dir = "/run"}};
}

// All segments of a step: a rank's own, and its copy on the other host.
std::vector<SegmentSight> whole(int64_t step, const std::string& attempt = "now") {
  std::vector<SegmentSight> all;
  for (int rank = 0; rank < 4; ++rank) {
    all.push_back(sight(rank, rank < 2 ? "a" : "b", false, step, attempt));
    all.push_back(sight(rank, rank < 2 ? "b" : "a", true, step, attempt));
  }
  return all;
}

std::vector<SegmentSight> operator+(std::vector<SegmentSight> a, const std::vector<SegmentSight>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

int64_t chosen_step(const std::vector<SegmentSight>& sights, const MemoryHistory& history = kHistory,
                    int64_t after = 0) {
  const auto choice = choose_generation(sights, history, kLayout, after, kHosts);
  return choice ? choice->step : -1;
}

TEST(ChooseGeneration, takes_the_newest_complete_one_and_prefers_own_segments) {
  const auto choice = choose_generation(whole(8) + whole(9), kHistory, kLayout, 0, kHosts);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->step, 9);
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_FALSE(choice->sources[rank].copy);
    EXPECT_EQ(choice->sources[rank].host, kHosts[rank]);
  }
}

TEST(ChooseGeneration, takes_copies_of_a_lost_node_and_moved_ranks) {
  auto sights = whole(8);
  std::erase_if(sights, [](const SegmentSight& s) { return s.host == "a"; });
  // The remaining node is the first one of the new start; a spare is the second.
  const auto choice = choose_generation(sights, kHistory, kLayout, 0, {"b", "b", "c", "c"});
  ASSERT_TRUE(choice);
  EXPECT_TRUE(choice->sources[0].copy && choice->sources[1].copy);
  EXPECT_FALSE(choice->sources[2].copy || choice->sources[3].copy);
}

TEST(ChooseGeneration, never_mixes_generations) {
  auto newest = whole(9);
  std::erase_if(newest, [](const SegmentSight& s) { return s.identity.world_rank == 2; });
  EXPECT_EQ(chosen_step(newest), -1);
  EXPECT_EQ(chosen_step(newest + whole(8)), 8);
  auto half = whole(8);
  std::erase_if(half, [](const SegmentSight& s) { return s.identity.world_rank != 2; });
  EXPECT_EQ(chosen_step(newest + half), -1);
  // The same step of another attempt is another generation.
  auto other = whole(5, "before"), mine = whole(5);
  std::erase_if(other, [](const SegmentSight& s) { return s.identity.world_rank < 2; });
  std::erase_if(mine, [](const SegmentSight& s) { return s.identity.world_rank >= 2; });
  EXPECT_EQ(chosen_step(other + mine), -1);
}

TEST(ChooseGeneration, refuses_other_attempts_layouts_and_sizes_and_steps_that_storage_has) {
  EXPECT_EQ(chosen_step(whole(9, "long ago")), -1);
  EXPECT_EQ(chosen_step(whole(9, "before")), -1);
  EXPECT_EQ(chosen_step(whole(5, "before")), 5);
  EXPECT_EQ(chosen_step(whole(9), {}), -1);
  EXPECT_EQ(chosen_step(whole(9), kHistory, 9), -1);
  EXPECT_EQ(chosen_step(whole(9), kHistory, 8), 9);
  auto sights = whole(9);
  for (SegmentSight& s : sights) s.identity.layout = 12;
  EXPECT_EQ(chosen_step(sights), -1);
  sights = whole(9);
  for (SegmentSight& s : sights) s.identity.world_size = 8;
  EXPECT_EQ(chosen_step(sights), -1);
}

TEST(SegmentTables, are_read_as_written_and_damage_is_an_error) {
  SegmentTable table;
  const std::string data = "12345678";
  table.record.tensors.push_back({.name = "model/w", .type = StoredType::kF32, .shape = {2}, .shards = {}});
  table.info = CheckpointInfo{.texts = {{"config", "x"}}, .numbers = {{"samples", 3}}, .lists = {{"l", {1.5f}}}};
  table.record.tensors[0].shards.push_back(
      {.file = "", .dataset = "", .offset = 0, .region = {{0}, {2}}, .checksum = xxh3_64(data)});
  const std::string text = to_text(table);
  const auto read = segment_table_from(text);
  ASSERT_TRUE(read);
  EXPECT_EQ(read.value().record.tensors, table.record.tensors);
  EXPECT_EQ(*read.value().info, *table.info);
  EXPECT_FALSE(segment_table_from(std::string_view(text).substr(1)));
  EXPECT_TRUE(check_payload(table.record, data, "file"));
  EXPECT_FALSE(check_payload(table.record, "1234567", "file"));
  std::string flipped = data;
  flipped[3] ^= 1;
  const auto damaged = check_payload(table.record, flipped, "file");
  ASSERT_FALSE(damaged);
  EXPECT_NE(damaged.error().message.find("model/w"), std::string::npos) << damaged.error().message;
}

TEST(Buddies, are_on_other_hosts_and_each_rank_has_one) {
  struct Case {
    std::vector<AxisSize> sizes;
    std::vector<std::string> hosts;
    bool any;
  };
  const std::vector<Case> cases = {
      {{{"dp", 2}, {"pp", 2}}, {"a", "a", "b", "b"}, true},
      {{{"tp", 2}, {"dp", 2}}, {"a", "a", "b", "b"}, true},
      {{{"tp", 4}}, {"a", "a", "b", "b"}, true},
      {{{"dp", 4}}, {"a", "b", "a", "b"}, true},
      {{{"dp", 4}}, {"a", "a", "a", "a"}, false},
      {{{"dp", 4}}, {"a", "a", "a", "b"}, false},
      {{{"dp", 5}}, {"a", "a", "b", "b", "c"}, true},
      {{}, {"a"}, false},
  };
  for (const Case& c : cases) {
    const std::vector<int> to = buddies(make_mesh(0, c.sizes), c.hosts);
    SCOPED_TRACE(c.hosts.size());
    ASSERT_EQ(!to.empty(), c.any);
    std::vector<int> sorted = to;
    std::sort(sorted.begin(), sorted.end());
    for (size_t rank = 0; rank < to.size(); ++rank) {
      EXPECT_EQ(sorted[rank], static_cast<int>(rank));
      EXPECT_NE(c.hosts[rank], c.hosts[static_cast<size_t>(to[rank])]);
    }
  }
  // Another tp group, at the same place in it.
  EXPECT_EQ(buddies(make_mesh(0, {{"tp", 2}, {"dp", 2}}), {"a", "a", "b", "b"}), (std::vector<int>{2, 3, 0, 1}));
}

}  // namespace
}  // namespace tri
