// Folders that cannot be listed and files that cannot be read, temporarily or permanently: unknown contents are treated
// neither as absent nor as damaged.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/io/saved_checkpoints.h"
#include "tests/io/skipped_sleeps.h"

namespace tri {
namespace {

const Retry kOnce{.tries = 1};

TEST(ListingTrouble, a_folder_that_cannot_be_listed_is_an_error_and_nothing_is_removed) {
  const TemporaryFolder dir;
  for (const int64_t step : {1, 2, 3}) value_or_throw(save(dir.path(), step, "one", static_cast<uint64_t>(step), 4));
  value_or_throw(begin_attempt(dir.path(), 4, "two"));  // unfinished
  const std::vector<std::string> before = names_of(dir.path());
  const auto why = [](const auto& result) { return result ? "no error" : result.error().message; };
  const std::pair<const char*, std::function<std::string()>> calls[] = {
      {"list", [&] { return why(list_checkpoints(dir.path(), kOnce)); }},
      {"newest", [&] { return why(newest_checkpoint(dir.path(), kOnce)); }},
      {"prune", [&] { return why(prune(dir.path(), 1, 0, "three", kOnce)); }},
      {"clean", [&] { return why(remove_stale_attempts(dir.path(), "three", kOnce)); }}};
  for (const auto& [error, text] :
       {std::pair{"EIO", "Input/output error"}, {"ESTALE", "Stale file handle"}, {"EACCES", "Permission denied"}})
    for (const int point : {1, 2, 5})  // opening it, its first entry, an entry in the middle
      for (const auto& [name, call] : calls) {
        const std::string rule = fmt::format("0/list/{}/fail={}+", point, error);
        EXPECT_EQ(on_storage(dir.path(), rule, call),
                  fmt::format("{}: listing the folder: {}", dir.path().string(), text))
            << name << ", " << rule;
        EXPECT_EQ(names_of(dir.path()), before) << name << ", " << rule;
      }
}

TEST(ListingTrouble, only_a_folder_that_is_missing_or_empty_holds_nothing) {
  const TemporaryFolder dir;
  for (const std::string& folder : {dir.path().string(), dir / "missing"}) {
    EXPECT_TRUE(value_or_throw(list_checkpoints(folder)).empty()) << folder;
    EXPECT_FALSE(value_or_throw(newest_checkpoint(folder))) << folder;
    EXPECT_TRUE(value_or_throw(prune(folder, 1, 0, "one")).empty()) << folder;
    EXPECT_TRUE(value_or_throw(remove_stale_attempts(folder, "one")).empty()) << folder;
  }
  write_all(dir / "file", "no folder");
  EXPECT_EQ(list_checkpoints(dir / "file").error().os_error, ENOTDIR);
}

TEST(ListingTrouble, what_cannot_be_read_is_not_taken_for_damaged_and_stays) {
  const TemporaryFolder dir;
  for (const int64_t step : {1, 2}) value_or_throw(save(dir.path(), step, "one", static_cast<uint64_t>(step), 4));
  // Recreates the state of a replacement that was interrupted after its second rename: the new checkpoint is in place,
  // the old one next to it.
  const std::string old = dir / "step_00000002.old.one";
  std::filesystem::copy(dir / "step_00000002", old, std::filesystem::copy_options::recursive);
  const std::vector<std::string> before = names_of(dir.path());
  const auto clean = [&] {
    const auto removed = remove_stale_attempts(dir.path(), "two", kOnce);
    return removed ? "no error" : removed.error().message;
  };
  // The new one's manifest, then the old one's, fails when it is opened, then when it is read.
  for (const auto& [point, place] : {std::pair{1, "step_00000002/"}, {2, "step_00000002/"}, {3, old.c_str()}}) {
    const std::string said = on_storage(dir.path(), fmt::format("0/read/{}/fail=EIO+", point), clean);
    EXPECT_TRUE(contains(said, place) && contains(said, "Input/output error")) << point << ": " << said;
    EXPECT_EQ(names_of(dir.path()), before);
  }
  EXPECT_EQ(on_storage(dir.path(), "0/read/1/fail=EIO+",
                       [&] {
                         const auto removed = prune(dir.path(), 1, 0, "two", kOnce);
                         return removed ? fmt::format("{}", fmt::join(removed.value(), " ")) : removed.error().message;
                       }),
            "");
  EXPECT_EQ(names_of(dir.path()), before);
  EXPECT_EQ(on_storage(dir.path(), "", clean), "no error");
  EXPECT_EQ(names_of(dir.path()), (std::vector<std::string>{"latest", "step_00000001", "step_00000002"}));
}

// Returns "read" if the newest checkpoint was read completely and correctly, and the number of pauses.
std::string read_newest(const std::string& dir, const std::vector<TestTensor>& tensors, int tries) {
  int pauses = 0;
  const SkippedSleeps skipped([&](std::chrono::milliseconds) { ++pauses; });
  const Retry retry{.tries = tries};
  const auto said = [&](const std::string& text) { return fmt::format("{}, {} pauses", text, pauses); };
  const auto newest = newest_checkpoint(dir, retry);
  if (!newest) return said(newest.error().message);
  if (!newest.value()) return said("none");
  const auto reader = CheckpointReader::open(newest.value()->path, retry);
  if (!reader) return said(reader.error().message);
  for (const TestTensor& tensor : tensors) {
    Bytes got(tensor.bytes.size());
    const auto read = reader.value().read(tensor.shard(full_region(tensor.shape)), got.data());
    if (!read) return said(read.error().message);
    if (got != tensor.bytes) return said(tensor.name + " differs");
  }
  return said("read");
}

TEST(ListingTrouble, a_glitch_anywhere_in_reading_costs_a_pause_and_nothing_else) {
  const TemporaryFolder dir;
  value_or_throw(save(dir.path(), 1, "one", 11, 4));
  const std::vector<TestTensor> tensors = tensors_of(11, 4);
  int read_points = 0, list_points = 0;
  for (const auto& [phase, points] : {std::pair{"list", &list_points}, {"read", &read_points}})
    for (int point = 1;; ++point) {
      const char* error = point % 2 == 0 ? "EIO" : "ESTALE";
      const std::string said = on_storage(dir.path(), fmt::format("0/{}/{}/fail={}", phase, point, error),
                                          [&] { return read_newest(dir.path(), tensors, 2); });
      if (said == "read, 0 pauses") break;  // there are no further points
      ASSERT_EQ(said, "read, 1 pauses") << phase << " " << point;
      *points = point;
    }
  EXPECT_GE(list_points, 4) << "the folder, and its names";
  EXPECT_GE(read_points, 2 * 2 + 2 + 6) << "the manifest opened and read, twice; two shards opened; six shards read";
}

TEST(ListingTrouble, a_failure_that_lasts_ends_after_its_tries_and_one_of_rights_at_once) {
  const TemporaryFolder dir;
  value_or_throw(save(dir.path(), 1, "one", 11, 4));
  const std::vector<TestTensor> tensors = tensors_of(11, 4);
  const auto with = [&](const std::string& rule) {
    return on_storage(dir.path(), rule, [&] { return read_newest(dir.path(), tensors, 4); });
  };
  EXPECT_EQ(with("0/list/1/fail=EIO+"),
            dir.path().string() + ": listing the folder: Input/output error (tried 4 times), 3 pauses");
  EXPECT_EQ(with("0/list/1/fail=EACCES+"), dir.path().string() + ": listing the folder: Permission denied, 0 pauses");
  EXPECT_EQ(with("0/read/1/fail=ESTALE+"), "none, 3 pauses");
  const std::string late = with("0/read/7/fail=ESTALE+");  // after the manifests, in the shards
  EXPECT_TRUE(contains(late, "shard_") && contains(late, "Stale file handle") &&
              contains(late, "(tried 4 times), 3 pauses"))
      << late;
}

TEST(ListingTrouble, a_rank_whose_mount_comes_late_waits_for_it) {
  const TemporaryFolder dir;
  value_or_throw(save(dir / "mount", 1, "one", 11, 4));
  const std::string folder = dir / "mount/step_00000001";
  for (const Missing missing : {Missing::kTransient, Missing::kPermanent}) {
    std::filesystem::rename(dir / "mount", dir / "not yet");
    int pauses = 0;
    testing::internal::CaptureStderr();
    const SkippedSleeps skipped([&](std::chrono::milliseconds) {
      if (++pauses == 3) std::filesystem::rename(dir / "not yet", dir / "mount");
    });
    const auto reader = CheckpointReader::open(folder, {.missing = missing});
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(reader.ok(), missing == Missing::kTransient);
    EXPECT_EQ(pauses, missing == Missing::kTransient ? 3 : 0);
  }
}

TEST(ListingTrouble, the_newest_checkpoint_is_found_without_opening_older_ones) {
  const TemporaryFolder dir;
  for (const int64_t step : {1, 2, 3}) value_or_throw(save(dir.path(), step, "one", static_cast<uint64_t>(step), 4));
  const std::string reads = dir.path().string() + ".reads";
  EXPECT_EQ(in_child([&] {
              watch_storage(dir.path(), "", "", reads);
              return value_or_throw(newest_checkpoint(dir.path()))->path;
            }),
            dir / "step_00000003");
  std::map<std::string, int> calls;
  for (const std::string& line : lines_of_trace(reads)) ++calls[line];
  EXPECT_EQ(calls["read step_00000003/manifest.json"], 2) << "opened and read";
  EXPECT_EQ(calls["stat step_00000003/shard_00000.h5"], 1);
  for (const auto& [line, count] : calls)
    EXPECT_TRUE(line.starts_with("list") || contains(line, " step_00000003/")) << line << ", " << count << " times";
}

TEST(ListingTrouble, pruning_opens_no_checkpoint_that_is_known_to_be_whole) {
  const TemporaryFolder dir;
  for (const int64_t step : {1, 2, 3, 4}) value_or_throw(save(dir.path(), step, "one", static_cast<uint64_t>(step), 4));
  std::set<std::string> valid;
  EXPECT_EQ(value_or_throw(prune(dir.path(), 3, 0, "two", kOnce, &valid)), std::vector<std::string>{"step_00000001"});
  EXPECT_EQ(valid, (std::set<std::string>{"step_00000002", "step_00000003", "step_00000004"}));
  // From now on no manifest can be read.
  EXPECT_EQ(on_storage(dir.path(), "0/read/1/fail=EIO+",
                       [&] {
                         const auto removed = prune(dir.path(), 2, 0, "two", kOnce, &valid);
                         return removed ? fmt::format("{}", fmt::join(removed.value(), " ")) : removed.error().message;
                       }),
            "step_00000002");
}

}  // namespace
}  // namespace tri
