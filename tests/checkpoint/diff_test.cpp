#include "lib/checkpoint/diff.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "io/checkpoint/folder.h"
#include "io/checkpoint/shard_writer.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

using Values = std::map<std::string, std::vector<float>>;

std::string write(const TemporaryFolder& dir, const std::string& name, const Values& tensors, int64_t part) {
  const std::string folder = value_or_throw(begin_attempt(dir / name, 1, "a"));
  auto writer = value_or_throw(ShardWriter::create(folder + "/" + shard_name(0), "a"));
  for (const auto& [tensor, values] : tensors) {
    const auto size = static_cast<int64_t>(values.size());
    for (int64_t at = 0; at < size; at += part) {
      const TensorShard shard{.tensor = tensor, .shape = {size}, .region = {{at}, {std::min(part, size - at)}}};
      value_or_throw(writer.add(shard, values.data() + at));
    }
  }
  Manifest manifest{.attempt = "a", .step = 1};
  value_or_throw(manifest.add(value_or_throw(writer.finish())));
  value_or_throw(write_manifest(folder, manifest));
  value_or_throw(publish(dir / name, 1, "a"));
  return dir / name + "/step_00000001";
}

TEST(Diff, equal_values_are_equal_however_they_are_cut) {
  const TemporaryFolder dir;
  const Values values = {{"w", {1, 2, NAN, 4, -0.0f}}, {"v", std::vector<float>(1000, 3)}};
  Values other = values;
  other["w"][4] = 0.0f;
  const auto diff = value_or_throw(diff_checkpoints(write(dir, "a", values, 7), write(dir, "b", other, 3), "", 2));
  EXPECT_TRUE(diff.equal());
  EXPECT_EQ(diff.tensors.size(), 2u);
}

TEST(Diff, says_what_is_missing_what_has_another_shape_and_how_far_values_are_apart) {
  const TemporaryFolder dir;
  const std::string a = write(dir, "a", {{"both", {1, 2, 3, 4}}, {"left", {1}}, {"long", {1, 2}}, {"nan", {1, 5}}}, 2);
  const std::string b =
      write(dir, "b", {{"both", {1, 2.5f, 3, -4}}, {"long", {1, 2, 3}}, {"nan", {NAN, 5}}, {"right", {1}}}, 4);
  const auto diff = value_or_throw(diff_checkpoints(a, b, "", 3));
  EXPECT_FALSE(diff.equal());
  std::map<std::string, TensorDiff> found;
  for (const TensorDiff& tensor : diff.tensors) found[tensor.name] = tensor;
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found["both"].different, 2);
  EXPECT_EQ(found["both"].max_abs, 8);
  EXPECT_EQ(found["both"].max_relative, 2);
  EXPECT_TRUE(found["left"].a && !found["left"].b);
  EXPECT_TRUE(!found["right"].a && found["right"].b);
  EXPECT_FALSE(found["long"].equal());
  EXPECT_EQ(found["long"].elements, 0);
  EXPECT_EQ(found["nan"].different, 1);
  EXPECT_EQ(found["nan"].max_abs, INFINITY);
  EXPECT_EQ(value_or_throw(diff_checkpoints(a, b, "bo", 1)).tensors.size(), 1u);
}

TEST(Diff, large_tensors_are_compared_in_blocks) {
  const TemporaryFolder dir;
  std::vector<float> values(9 << 20, 1.0f);
  const std::string a = write(dir, "a", {{"w", values}}, 1 << 20);
  values.front() = values[5 << 20] = values.back() = 2.0f;
  const std::string b = write(dir, "b", {{"w", values}}, int64_t{1} << 30);
  const auto diff = value_or_throw(diff_checkpoints(a, b, "", 2));
  EXPECT_EQ(diff.tensors[0].different, 3);
  EXPECT_EQ(diff.tensors[0].elements, 9 << 20);
}

}  // namespace
}  // namespace tri
