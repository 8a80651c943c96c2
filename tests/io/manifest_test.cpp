#include "io/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include "tests/io/checkpoint_files.h"

#include <limits>

namespace tri {
namespace {

// Two tensors: "a" (2, 4) u8 in two files, "b" (3) f32.
Manifest small() {
  Manifest manifest{.attempt = "x1", .step = 7};
  manifest.info.texts = {{"config", "line\n\"quoted\" \\ ü\t"}, {"version", "1"}};
  manifest.info.lists = {
      {"amax", {0.0f, 1.0f, 3.14159274f, 1e-38f, std::numeric_limits<float>::denorm_min(), 448.0f, 3.4e38f}}};
  manifest.info.numbers = {{"samples", int64_t{1} << 62}, {"negative", -5}};
  manifest.files = {{"shard_00000.h5", 100, 1}, {"shard_00001.h5", 50, ~uint64_t{0}}};
  manifest.tensors = {{"a",
                       StoredType::kU8,
                       {2, 4},
                       {{"shard_00000.h5", "a/at_0_0", 10, {{0, 0}, {2, 3}}, 5},
                        {"shard_00001.h5", "a/at_0_3", 0, {{0, 3}, {2, 1}}, 6}}},
                      {"b/c", StoredType::kF32, {3}, {{"shard_00000.h5", "b/c/at_0", 16, {{0}, {3}}, 7}}}};
  return manifest;
}

TEST(Manifest, comes_back_as_it_was) {
  const TemporaryFolder dir;
  const Manifest manifest = small();
  const auto written = write_manifest(dir.path(), manifest);
  ASSERT_TRUE(written) << written.error().message;
  const auto read = read_manifest(dir.path());
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read.value(), manifest);
  EXPECT_EQ(read.value().find("b/c")->shape, Coordinates{3});
  EXPECT_EQ(read.value().find("b"), nullptr);
}

TEST(Manifest, faults_are_named) {
  const std::tuple<std::string, void (*)(Manifest&), std::string> table[] = {
      {"share missing", [](Manifest& m) { m.tensors[0].shards.pop_back(); }, "contain 6 of 8 elements"},
      {"overlap",
       [](Manifest& m) {
         m.tensors[0].shards[1].region = {{0, 2}, {2, 1}};
       },
       "overlap"},
      {"outside", [](Manifest& m) { m.tensors[0].shards[1].region.start[1] = 4; }, "not inside shape"},
      {"no dims", [](Manifest& m) { m.tensors[1].shape.clear(); }, "0 dims"},
      {"huge", [](Manifest& m) { m.tensors[1].shape[0] = int64_t{1} << 62; }, "tensor b/c: the shape"},
      {"unknown file", [](Manifest& m) { m.tensors[0].shards[0].file = "other"; }, "file other is not listed"},
      {"path", [](Manifest& m) { m.files[0].name = "../x"; }, "a file of this folder cannot have this name"},
      {"file twice", [](Manifest& m) { m.files[1].name = m.files[0].name; }, "listed twice"},
      {"behind the end", [](Manifest& m) { m.tensors[0].shards[0].offset = 95; }, "not inside shard_00000.h5"},
      {"shared bytes", [](Manifest& m) { m.tensors[0].shards[0].offset = 14; }, "share bytes"},
      {"order", [](Manifest& m) { std::swap(m.tensors[0], m.tensors[1]); }, "not sorted by name"},
      {"name", [](Manifest& m) { m.tensors[0].name = "a/../b"; }, "not a valid name of a tensor"},
      {"folder", [](Manifest& m) { m.tensors[0].name = "b"; }, "cannot be a folder of another"},
      {"text", [](Manifest& m) { m.info.texts["x"] = "\xff"; }, "UTF-8"}};
  for (const auto& [name, change, message] : table) {
    const TemporaryFolder dir;
    Manifest manifest = small();
    change(manifest);
    const auto written = write_manifest(dir.path(), manifest);
    ASSERT_FALSE(written) << name;
    EXPECT_NE(written.error().message.find(message), std::string::npos) << name << ": " << written.error().message;
    EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << name;
  }
}

// The reader's checks hold by themselves: a text with a valid checksum but invalid contents is refused.
TEST(Manifest, sealed_nonsense_is_refused_without_a_crash) {
  const TemporaryFolder dir(parent_in_memory());
  ASSERT_TRUE(write_manifest(dir.path(), small()));
  const std::string path = dir / kManifestName, good = read_all(path), key = "\n\"checksum\": \"";
  const auto seal = [&](std::string text) {
    const size_t at = text.find(key);
    if (at == std::string::npos || at + key.size() + 16 > text.size()) return text;
    text.replace(at + key.size(), 16, std::string(16, '0'));
    return text.replace(at + key.size(), 16, hex64(xxh3_64(text)));
  };
  write_all(path, seal(good));
  ASSERT_TRUE(read_manifest(dir.path())) << "the test seals wrongly";
  int refused = 0, read = 0;
  for (uint64_t i = 0; i < 2000; ++i) {
    Draw draw(i);
    std::string text = good;
    for (int64_t flips = 1 + draw(3); flips > 0; --flips)
      text[static_cast<size_t>(draw(static_cast<int64_t>(text.size())))] = "0-1\"[]{},:x9"[draw(12)];
    if (draw(8) == 0) text.resize(static_cast<size_t>(draw(static_cast<int64_t>(text.size()))));
    write_all(path, seal(text));
    const auto result = read_manifest(dir.path());
    ++(result ? read : refused);
    if (!result) {
      EXPECT_NE(result.error().message.find(path), std::string::npos);
    }
  }
  EXPECT_GT(refused, 1200);
  EXPECT_GT(read, 20);
  write_all(path, seal(good.substr(0, 12) + "2" + good.substr(13)));
  const auto other = read_manifest(dir.path());
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("the format is 2, but this program reads 1"), std::string::npos)
      << other.error().message;
  EXPECT_EQ(other.error().os_error, kOtherFormat);
}

TEST(Manifest, text_that_is_not_utf8_is_an_error_before_any_tensor_is_written) {
  Manifest manifest{.attempt = "a", .step = 0};
  manifest.info.texts["config"] = "caf\u00e9";
  EXPECT_TRUE(manifest_text(manifest));
  manifest.info.texts["config"] = "caf\xe9";
  EXPECT_FALSE(manifest_text(manifest));
}

TEST(Manifest, writers_that_disagree_are_refused) {
  const auto shard = [](int writer, int64_t size) {
    ShardRecord record;
    record.file.name = shard_name(writer);
    record.tensors.push_back(TensorRecord{.name = "w", .type = StoredType::kF32, .shape = {size}, .shards = {}});
    return record;
  };
  Manifest manifest;
  ASSERT_TRUE(manifest.add(shard(0, 4)));
  const auto added = manifest.add(shard(1, 5));
  ASSERT_FALSE(added);
  EXPECT_NE(added.error().message.find("tensor w: it is f32 [5] in shard_00001.h5, but f32 [4]"), std::string::npos)
      << added.error().message;
}

}  // namespace
}  // namespace tri
