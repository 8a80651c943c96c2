#include "io/checkpoint/folder.h"

#include <gtest/gtest.h>

#include <optional>

#include "io/checkpoint/verify.h"
#include "tests/io/checkpoint_files.h"
#include "tests/storage/points.h"

namespace tri {
namespace {

using Names = std::vector<std::string>;

std::vector<TestTensor> tensors_of(uint64_t seed) {
  return {make_tensor(seed, "model/w", StoredType::kF32, {6, 5}),
          make_tensor(seed, "optimizer/w/exp_avg", StoredType::kF32, {6, 5})};
}

void save(const std::string& dir, int64_t step, const std::string& attempt, uint64_t seed) {
  const auto written = write_checkpoint(dir, step, attempt, tensors_of(seed), 2, 3, seed);
  ASSERT_TRUE(written) << written.error().message;
  const auto published = publish(dir, step, attempt);
  ASSERT_TRUE(published) << published.error().message;
}

Names names_in(const std::string& dir) {
  Names names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(CheckpointFolder, publishing_shows_a_checkpoint_whole) {
  const TemporaryFolder folder;
  const std::string dir = folder / "runs/a/checkpoints";
  EXPECT_TRUE(value_or_throw(list_checkpoints(dir)).empty());
  EXPECT_FALSE(value_or_throw(newest_checkpoint(dir)));
  ASSERT_TRUE(write_checkpoint(dir, 100, "one", tensors_of(1), 2, 3, 1));
  EXPECT_EQ(names_in(dir), Names{"step_00000100.tmp.one"});
  EXPECT_FALSE(value_or_throw(newest_checkpoint(dir)));
  ASSERT_TRUE(publish(dir, 100, "one"));
  EXPECT_EQ(names_in(dir), (Names{"latest", "step_00000100"}));
  EXPECT_EQ(read_all(dir + "/latest"), "step_00000100\n");
  EXPECT_EQ(names_in(dir + "/step_00000100"),
            (Names{"checkpoint.h5", "manifest.json", "shard_00000.h5", "shard_00001.h5"}));
  const auto newest = value_or_throw(newest_checkpoint(dir));
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->path, dir + "/step_00000100");
  expect_holds(newest->path, tensors_of(1));
  save(dir, 200, "one", 2);
  EXPECT_EQ(value_or_throw(newest_checkpoint(dir))->step, 200);
  EXPECT_EQ(read_all(dir + "/latest"), "step_00000200\n");
}

TEST(CheckpointFolder, publishing_refuses_what_is_not_whole) {
  const std::pair<void (*)(const std::string&), std::string> table[] = {
      {[](const std::string& f) { std::filesystem::remove(f + "/manifest.json"); }, "manifest.json: No such file"},
      {[](const std::string& f) { std::filesystem::remove(f + "/shard_00001.h5"); }, "shard_00001.h5: No such file"},
      {[](const std::string& f) { std::filesystem::resize_file(f + "/shard_00001.h5", 100); },
       "has 100 bytes, but the manifest"},
      {[](const std::string& f) { std::filesystem::remove_all(f); }, "manifest.json: No such file"}};
  for (const auto& [damage, message] : table) {
    const TemporaryFolder dir;
    save(dir.path(), 100, "one", 1);
    ASSERT_TRUE(write_checkpoint(dir.path(), 100, "two", tensors_of(2), 2, 3, 2));
    damage(attempt_folder(dir.path(), 100, "two"));
    const auto published = publish(dir.path(), 100, "two");
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().code, ExitCode::kFile);
    EXPECT_NE(published.error().message.find(message), std::string::npos) << published.error().message;
    expect_holds(dir / "step_00000100", tensors_of(1));
  }
  const TemporaryFolder dir;
  ASSERT_TRUE(write_checkpoint(dir.path(), 100, "one", tensors_of(1), 1, 1, 1));
  std::filesystem::rename(attempt_folder(dir.path(), 100, "one"), attempt_folder(dir.path(), 101, "one"));
  EXPECT_FALSE(publish(dir.path(), 101, "one")) << "of another step";
  std::filesystem::rename(attempt_folder(dir.path(), 101, "one"), attempt_folder(dir.path(), 100, "two"));
  EXPECT_FALSE(publish(dir.path(), 100, "two")) << "of another attempt";
}

TEST(CheckpointFolder, a_step_saved_again_is_replaced) {
  for (const bool swaps : {true, false}) {
    const TemporaryFolder dir;
    std::optional<NoSwaps> none;
    if (!swaps) none.emplace();
    save(dir.path(), 100, "one", 1);
    save(dir.path(), 100, "two", 2);
    EXPECT_EQ(names_in(dir.path()), (Names{"latest", "step_00000100"}));
    expect_holds(dir / "step_00000100", tensors_of(2));
    save(dir.path(), 100, "two", 3);  // by the same attempt, for example after an error
    expect_holds(dir / "step_00000100", tensors_of(3));
  }
}

TEST(CheckpointFolder, the_newest_valid_one_is_chosen_and_others_say_why_not) {
  const TemporaryFolder dir;
  for (const int64_t step : {100, 200, 300, 400, 500, 1000}) save(dir.path(), step, "one", static_cast<uint64_t>(step));
  std::filesystem::remove(dir / "step_00001000/manifest.json");
  std::filesystem::remove(dir / "step_00000500/shard_00000.h5");
  std::filesystem::resize_file(dir / "step_00000400/checkpoint.h5", 10);
  write_all(dir / "step_00000300/manifest.json", read_all(dir / "step_00000200/manifest.json"));
  ASSERT_TRUE(write_checkpoint(dir.path(), 2000, "two", tensors_of(1), 1, 1, 1));
  std::filesystem::create_directory(dir / "step_5");        // not this program's spelling
  std::filesystem::create_directory(dir / "step_000more");  // not a checkpoint
  const auto entries = value_or_throw(list_checkpoints(dir.path()));
  const std::tuple<int64_t, bool, std::string> expected[] = {
      {2000, false, "attempt two did not finish writing it"},
      {1000, false, "step_00001000/manifest.json: No such file"},
      {500, false, "step_00000500/shard_00000.h5: No such file"},
      {400, false, "step_00000400/checkpoint.h5: the file has 10 bytes, but the manifest says"},
      {300, false, "its manifest says step 200, expected 300"},
      {200, true, ""},
      {100, true, ""}};
  ASSERT_EQ(entries.size(), std::size(expected));
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& [step, valid, why] = expected[i];
    EXPECT_EQ(entries[i].step, step);
    EXPECT_EQ(entries[i].valid, valid) << entries[i].why;
    EXPECT_NE(entries[i].why.find(why), std::string::npos) << entries[i].why;
    EXPECT_EQ(entries[i].why.empty(), valid);
  }
  testing::internal::CaptureStderr();
  EXPECT_EQ(value_or_throw(newest_checkpoint(dir.path()))->step, 200);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("step_00000500/shard_00000.h5"), std::string::npos);
}

TEST(CheckpointFolder, no_older_checkpoint_is_found_in_place_of_one_that_another_version_wrote) {
  const TemporaryFolder dir;
  save(dir.path(), 100, "one", 1);
  save(dir.path(), 200, "one", 2);
  const std::string path = dir / "step_00000200/manifest.json";
  set_other_format(path);
  const auto newest = newest_checkpoint(dir.path());
  ASSERT_FALSE(newest);
  EXPECT_EQ(newest.error().code, ExitCode::kFile);
  EXPECT_EQ(newest.error().os_error, kOtherFormat);
  EXPECT_EQ(
      newest.error().message,
      fmt::format("{}: the format is 2, but this program reads 1, because another version of trireme wrote it; use "
                  "that version, or move {} to another folder to use an older checkpoint",
                  path, dir / "step_00000200"));
  std::filesystem::rename(dir / "step_00000200", dir / "moved");
  EXPECT_EQ(value_or_throw(newest_checkpoint(dir.path()))->step, 100);
}

TEST(CheckpointFolder, a_replacement_cut_short_is_finished) {
  const TemporaryFolder dir;
  save(dir.path(), 100, "one", 1);
  ASSERT_TRUE(write_checkpoint(dir.path(), 100, "two", tensors_of(2), 1, 1, 1));
  // Simulates a kill between the two renames.
  std::filesystem::rename(dir / "step_00000100", dir / "step_00000100.old.two");
  auto newest = value_or_throw(newest_checkpoint(dir.path()));
  ASSERT_TRUE(newest);
  expect_holds(newest->path, tensors_of(1));
  ASSERT_TRUE(remove_stale_attempts(dir.path(), "three"));
  EXPECT_EQ(names_in(dir.path()), (Names{"latest", "step_00000100"}));
  expect_holds(dir / "step_00000100", tensors_of(1));

  // Simulates a kill after them: the new one stays.
  std::filesystem::rename(dir / "step_00000100", dir / "step_00000100.old.two");
  save(dir.path(), 100, "two", 2);
  ASSERT_TRUE(remove_stale_attempts(dir.path(), "three"));
  EXPECT_EQ(names_in(dir.path()), (Names{"latest", "step_00000100"}));
  expect_holds(dir / "step_00000100", tensors_of(2));
}

// A rename cannot replace a folder, so every save would fail; a run detects that before its first step.
TEST(CheckpointFolder, a_folder_in_place_of_latest_is_named) {
  const TemporaryFolder dir;
  EXPECT_TRUE(check_latest(dir / "absent"));
  EXPECT_TRUE(check_latest(dir.path().string()));
  std::filesystem::create_symlink("step_00000001", dir / "latest");
  EXPECT_TRUE(check_latest(dir.path().string())) << "a link, which a save replaces";
  std::filesystem::remove(dir / "latest");
  std::filesystem::create_directory(dir / "latest");
  const auto refused = check_latest(dir.path().string());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ExitCode::kFile);
  EXPECT_EQ(refused.error().message.find(dir / "latest: this is a folder"), 0u) << refused.error().message;
}

TEST(CheckpointFolder, stale_attempts_go_and_the_own_stays) {
  const TemporaryFolder dir;
  save(dir.path(), 100, "one", 1);
  ASSERT_TRUE(write_checkpoint(dir.path(), 200, "one", tensors_of(2), 1, 1, 1));
  ASSERT_TRUE(begin_attempt(dir.path(), 200, "two"));
  std::filesystem::create_directory(dir / "step_00000050.trash.one");
  write_all(dir / "latest.one.tmp", "half");
  write_all(dir / "notes.txt", "mine");
  const auto removed = value_or_throw(remove_stale_attempts(dir.path(), "two"));
  EXPECT_EQ(removed, (Names{"step_00000200.tmp.one", "step_00000050.trash.one", "latest.one.tmp"}));
  EXPECT_EQ(names_in(dir.path()), (Names{"latest", "notes.txt", "step_00000100", "step_00000200.tmp.two"}));

  // In a surviving attempt a writer that still runs fails by itself and disturbs nothing.
  auto orphan = ShardWriter::create(attempt_folder(dir.path(), 200, "one") + "/shard_00000.h5", "one");
  ASSERT_FALSE(orphan);
  EXPECT_NE(orphan.error().message.find("No such file"), std::string::npos) << orphan.error().message;
  EXPECT_FALSE(publish(dir.path(), 200, "one"));
}

TEST(CheckpointFolder, pruning_keeps_the_newest_and_the_milestones) {
  const TemporaryFolder dir;
  for (int64_t step = 100; step <= 900; step += 100) save(dir.path(), step, "one", static_cast<uint64_t>(step));
  std::filesystem::remove(dir / "step_00000900/manifest.json");  // it is neither counted nor removed
  const auto removed = value_or_throw(prune(dir.path(), 2, 300, "one"));
  EXPECT_EQ(removed, (Names{"step_00000500", "step_00000400", "step_00000200", "step_00000100"}));
  EXPECT_EQ(names_in(dir.path()),
            (Names{"latest", "step_00000300", "step_00000600", "step_00000700", "step_00000800", "step_00000900"}));
  expect_holds(dir / "step_00000800", tensors_of(800));
  EXPECT_EQ(value_or_throw(prune(dir.path(), 1, 0, "one")).size(), 3u);
  EXPECT_EQ(value_or_throw(newest_checkpoint(dir.path()))->step, 800);
}

TEST(CheckpointFolder, attempts_have_names_of_their_own) {
  std::set<std::string> made;
  for (int i = 0; i < 100; ++i) made.insert(new_attempt());
  EXPECT_GT(made.size(), 95u);
  for (const std::string& attempt : made) EXPECT_TRUE(valid_attempt(attempt)) << attempt;
  for (const char* bad : {"", "a/b", "a.b", "..", "a b"}) EXPECT_FALSE(valid_attempt(bad)) << bad;
  EXPECT_THROW((void)begin_attempt("/tmp", 1, "../x"), Fatal);
}

}  // namespace
}  // namespace tri
