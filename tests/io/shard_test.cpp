#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "io/checkpoint/hdf5.h"
#include "io/checkpoint/verify.h"
#include "tests/io/checkpoint_files.h"

namespace tri {
namespace {

constexpr StoredType kTypes[] = {StoredType::kF32, StoredType::kBf16, StoredType::kI64,
                                 StoredType::kI32, StoredType::kU8,   StoredType::kF16};

std::vector<TestTensor> random_tensors(uint64_t seed, int64_t max_size) {
  Draw draw(seed);
  std::vector<TestTensor> tensors;
  for (int t = 0; t < 4; ++t) {
    Coordinates shape(static_cast<size_t>(1 + draw(4)));
    for (int64_t& size : shape) size = 1 + draw(max_size);
    tensors.push_back(make_tensor(seed, fmt::format("model/layers/{}/weight", t), kTypes[draw(6)], shape));
  }
  return tensors;
}

TEST(Shard, any_region_is_assembled_from_any_shards) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const TemporaryFolder dir;
    const std::vector<TestTensor> tensors = random_tensors(seed, 9);
    Draw draw(seed + 1000);
    const auto manifest = write_checkpoint(dir.path(), 5, "a", tensors, static_cast<int>(1 + draw(3)),
                                           static_cast<size_t>(1 + draw(12)), seed);
    ASSERT_TRUE(manifest) << manifest.error().message;
    const std::string folder = attempt_folder(dir.path(), 5, "a");
    expect_holds(folder, tensors);
    const CheckpointReader reader = value_or_throw(CheckpointReader::open(folder));
    EXPECT_EQ(reader.manifest(), manifest.value());
    for (int r = 0; r < 40; ++r) {
      const TestTensor& tensor = tensors[static_cast<size_t>(draw(4))];
      const Region region = random_region(tensor.shape, draw);
      const Bytes expected = cut(tensor.bytes, tensor.shape, region, tensor.width());
      for (const Checking checking : {Checking::kChecksum, Checking::kTrust}) {
        Bytes got(expected.size(), 0xA5);
        const auto read = reader.read(tensor.shard(region), got.data(), checking);
        ASSERT_TRUE(read) << read.error().message;
        ASSERT_EQ(got, expected) << "seed " << seed << " " << to_string(region) << " of " << to_string(tensor.shape);
      }
    }
  }
}

// Uses sizes above which reading changes its method: blocks of 4 MiB, long runs directly to their destinations.
TEST(Shard, large_shards_are_assembled_too) {
  const TemporaryFolder dir;
  const std::vector<TestTensor> tensors = {make_tensor(1, "w", StoredType::kF32, {9, 300, 1100}),
                                           make_tensor(2, "v", StoredType::kBf16, {5'000'003})};
  ASSERT_TRUE(write_checkpoint(dir.path(), 5, "a", tensors, 2, 3, 7));
  const std::string folder = attempt_folder(dir.path(), 5, "a");
  expect_holds(folder, tensors);
  const CheckpointReader reader = value_or_throw(CheckpointReader::open(folder));
  const std::pair<const TestTensor*, Region> table[] = {
      {&tensors[0], {{0, 0, 7}, {9, 300, 3}}},     {&tensors[0], {{1, 0, 0}, {7, 300, 1100}}},
      {&tensors[0], {{0, 10, 0}, {9, 280, 1100}}}, {&tensors[0], {{8, 299, 1099}, {1, 1, 1}}},
      {&tensors[1], {{1'000'001}, {3'999'999}}},   {&tensors[1], {{5'000'002}, {1}}}};
  for (const auto& [tensor, region] : table)
    for (const Checking checking : {Checking::kChecksum, Checking::kTrust}) {
      Bytes got(static_cast<size_t>(num_elements(region.extent) * tensor->width()), 0xA5);
      const auto read = reader.read(tensor->shard(region), got.data(), checking);
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_TRUE(got == cut(tensor->bytes, tensor->shape, region, tensor->width())) << to_string(region);
    }
}

TEST(Shard, is_an_hdf5_file_that_says_what_it_holds) {
  const TemporaryFolder dir;
  const std::string path = dir / shard_name(3);
  const std::vector<float> values = {1.5f, -2, 0.25f, 3e38f, 0, -0.0078125f};
  std::vector<uint16_t> bf16;
  for (const float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bf16.push_back(static_cast<uint16_t>(bits >> 16));
  }
  auto writer = value_or_throw(ShardWriter::create(path, "a"));
  const TensorShard shard{"model/w", StoredType::kBf16, {8, 6}, {{4, 0}, {2, 3}}};
  value_or_throw(writer.add(shard, bf16.data()));
  EXPECT_FALSE(std::filesystem::exists(path)) << "visible before it is whole";
  const ShardRecord record = value_or_throw(writer.finish());
  EXPECT_EQ(record.file.name, "shard_00003.h5");
  EXPECT_EQ(record.file.bytes, static_cast<int64_t>(std::filesystem::file_size(path)));
  ASSERT_EQ(record.tensors.size(), 1u);
  const StoredShard& stored = record.tensors[0].shards.at(0);
  EXPECT_EQ(stored.checksum, xxh3_64(bf16.data(), 12));
  EXPECT_EQ(read_all(path).substr(static_cast<size_t>(stored.offset), 12),
            std::string(reinterpret_cast<const char*>(bf16.data()), 12));

  const auto checked = with_hdf5([&] {
    const Hid file(TRI_HDF5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), path), H5Fclose);
    const Hid dataset(TRI_HDF5(H5Dopen2(file, stored.dataset.c_str(), H5P_DEFAULT), path), H5Dclose);
    const Hid type(TRI_HDF5(H5Dget_type(dataset), path), H5Tclose);
    EXPECT_EQ(H5Tget_class(type), H5T_FLOAT);
    EXPECT_EQ(H5Tget_size(type), 2u);
    EXPECT_EQ(H5Tget_precision(type), 16u);
    std::vector<float> got(6);
    TRI_HDF5(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, got.data()), path);
    for (size_t i = 0; i < got.size(); ++i) {
      float expected;
      const uint32_t bits = uint32_t{bf16[i]} << 16;
      std::memcpy(&expected, &bits, 4);
      EXPECT_EQ(got[i], expected);
    }
    const auto numbers = [&](const char* name) {
      Coordinates out(2);
      const Hid attribute(TRI_HDF5(H5Aopen(dataset, name, H5P_DEFAULT), path), H5Aclose);
      TRI_HDF5(H5Aread(attribute, H5T_NATIVE_INT64, out.data()), path);
      return out;
    };
    const auto text = [&](const char* name) {
      const Hid attribute(TRI_HDF5(H5Aopen(dataset, name, H5P_DEFAULT), path), H5Aclose);
      const Hid stored_type(TRI_HDF5(H5Aget_type(attribute), path), H5Tclose);
      std::string out(H5Tget_size(stored_type), '\0');
      TRI_HDF5(H5Aread(attribute, stored_type, out.data()), path);
      return std::string(out.c_str());
    };
    EXPECT_EQ(numbers("global_shape"), (Coordinates{8, 6}));
    EXPECT_EQ(numbers("start"), (Coordinates{4, 0}));
    EXPECT_EQ(numbers("extent"), (Coordinates{2, 3}));
    EXPECT_EQ(text("tensor"), "model/w");
    EXPECT_EQ(text("type"), "bf16");
    EXPECT_EQ(text("xxh3_64"), hex64(stored.checksum));
  });
  EXPECT_TRUE(checked) << checked.error().message;
}

TEST(Shard, a_writer_that_is_given_up_leaves_nothing) {
  const TemporaryFolder dir;
  const TestTensor tensor = make_tensor(1, "w", StoredType::kF32, {10});
  {
    auto writer = value_or_throw(ShardWriter::create(dir / "shard.h5", "a"));
    ASSERT_TRUE(writer.add(tensor.shard({{0}, {10}}), tensor.bytes.data()));
    EXPECT_FALSE(std::filesystem::is_empty(dir.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Shard, attempts_do_not_share_temporary_files) {
  const TemporaryFolder dir;
  const TestTensor old = make_tensor(1, "w", StoredType::kF32, {10}), newer = make_tensor(2, "w", old.type, {10});
  {
    auto orphan = value_or_throw(ShardWriter::create(dir / "shard.h5", "first"));
    auto writer = value_or_throw(ShardWriter::create(dir / "shard.h5", "second"));
    ASSERT_TRUE(writer.add(newer.shard({{0}, {10}}), newer.bytes.data()));
    ASSERT_TRUE(orphan.add(old.shard({{0}, {10}}), old.bytes.data()));
    const ShardRecord record = value_or_throw(writer.finish());
    EXPECT_EQ(record.tensors[0].shards[0].checksum, xxh3_64(newer.bytes.data(), 40));
  }
  EXPECT_EQ(read_all(dir / "shard.h5").find(std::string(old.bytes.begin(), old.bytes.end())), std::string::npos);
}

TEST(Shard, programming_errors_are_detected) {
  const TemporaryFolder dir;
  auto writer = value_or_throw(ShardWriter::create(dir / "shard.h5", "a"));
  const Bytes bytes(100);
  EXPECT_THROW((void)writer.add({"w", StoredType::kU8, {4}, {{2}, {3}}}, bytes.data()), Fatal);
  EXPECT_THROW((void)writer.add({"../w", StoredType::kU8, {4}, {{0}, {4}}}, bytes.data()), Fatal);
  EXPECT_THROW((void)writer.add({"w//x", StoredType::kU8, {4}, {{0}, {4}}}, bytes.data()), Fatal);
  EXPECT_TRUE(writer.add({"w", StoredType::kU8, {4}, {{0}, {2}}}, bytes.data()));
  EXPECT_THROW((void)writer.add({"w", StoredType::kU8, {5}, {{2}, {2}}}, bytes.data()), Fatal);
  const auto twice = writer.add({"w", StoredType::kU8, {4}, {{0}, {2}}}, bytes.data());
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().message.find("HDF5 H5Dcreate2"), std::string::npos) << twice.error().message;
  const auto after = writer.finish();  // the first failure persists
  ASSERT_FALSE(after);
  EXPECT_EQ(after.error().message, twice.error().message);
}

struct Damaged {
  TemporaryFolder dir;
  std::vector<TestTensor> tensors = {make_tensor(1, "model/a", StoredType::kF32, {3, 7}),
                                     make_tensor(2, "model/b", StoredType::kBf16, {40})};
  std::string folder, shard;
  Manifest manifest;
  Damaged() {
    manifest = value_or_throw(write_checkpoint(dir.path(), 5, "a", tensors, 1, 2, 3));
    folder = attempt_folder(dir.path(), 5, "a");
    shard = folder + "/" + shard_name(0);
  }
  // Returns the text of the problems; empty if there are none.
  std::string problems() const {
    auto report = verify(folder, 1);
    if (!report) return report.error().message;
    return fmt::format("{}", fmt::join(report.value().problems, "\n"));
  }
  std::string tensor_at(int64_t byte) const {
    for (const TensorRecord& tensor : manifest.tensors)
      for (const StoredShard& shard : tensor.shards)
        if (byte >= shard.offset &&
            byte < shard.offset + num_elements(shard.region.extent) * element_bytes(tensor.type))
          return tensor.name;
    return "";
  }
};

TEST(Shard, every_flipped_bit_is_caught_and_named) {
  const Damaged damaged;
  ASSERT_EQ(damaged.problems(), "");
  const std::string good = read_all(damaged.shard);
  int in_data = 0;
  std::fstream file(damaged.shard, std::ios::in | std::ios::out | std::ios::binary);
  for (size_t byte = 0; byte < good.size(); ++byte) {
    const std::string tensor = damaged.tensor_at(static_cast<int64_t>(byte));
    for (int bit = 0; bit < 8; ++bit) {
      file.seekp(static_cast<std::streamoff>(byte)).put(static_cast<char>(good[byte] ^ (1 << bit))).flush();
      const std::string problems = damaged.problems();
      ASSERT_NE(problems.find(damaged.shard), std::string::npos) << "byte " << byte << " bit " << bit;
      if (!tensor.empty()) {
        ++in_data;
        ASSERT_NE(problems.find("tensor " + tensor + ","), std::string::npos) << problems;
        ASSERT_NE(problems.find("expected"), std::string::npos) << problems;
        const CheckpointReader reader = value_or_throw(CheckpointReader::open(damaged.folder));
        int refused = 0;
        for (const TestTensor& each : damaged.tensors) {
          Bytes got(each.bytes.size());
          const auto read = reader.read(each.shard(full_region(each.shape)), got.data());
          EXPECT_EQ(read.ok(), each.name != tensor);
          refused += !read.ok();
        }
        EXPECT_EQ(refused, 1);
      }
    }
    file.seekp(static_cast<std::streamoff>(byte)).put(good[byte]).flush();
  }
  EXPECT_EQ(in_data, (3 * 7 * 4 + 40 * 2) * 8);
  EXPECT_EQ(damaged.problems(), "");
}

TEST(Shard, truncation_and_deletion_are_caught_and_named) {
  const Damaged damaged;
  const std::string good = read_all(damaged.shard);
  for (size_t length = 0; length < good.size(); length += length < good.size() - 64 ? 61 : 1) {
    std::filesystem::resize_file(damaged.shard, length);
    EXPECT_NE(damaged.problems().find(fmt::format("{}: the file has {} bytes, but the manifest says {}", damaged.shard,
                                                  length, good.size())),
              std::string::npos)
        << damaged.problems();
    EXPECT_FALSE(CheckpointReader::open(damaged.folder));
  }
  write_all(damaged.shard, good + "x");
  EXPECT_NE(damaged.problems(), "");
  write_all(damaged.shard, good);
  ASSERT_EQ(damaged.problems(), "");

  // Truncated while it is open: the reader reaches the end.
  const CheckpointReader reader = value_or_throw(CheckpointReader::open(damaged.folder));
  const TestTensor& tensor = damaged.tensors[0];
  Bytes got(tensor.bytes.size());
  ASSERT_TRUE(reader.read(tensor.shard(full_region(tensor.shape)), got.data()));
  std::filesystem::resize_file(damaged.shard, 100);
  const auto cut_off = reader.read(tensor.shard(full_region(tensor.shape)), got.data());
  ASSERT_FALSE(cut_off);
  EXPECT_NE(cut_off.error().message.find("truncated (tensor model/a)"), std::string::npos) << cut_off.error().message;

  std::filesystem::remove(damaged.shard);
  EXPECT_NE(damaged.problems().find(damaged.shard + ": No such file"), std::string::npos) << damaged.problems();
}

TEST(Shard, every_flipped_bit_of_index_and_manifest_is_caught) {
  const Damaged damaged;
  for (const char* name : {kIndexName, kManifestName}) {
    const std::string path = damaged.folder + "/" + name, good = read_all(path);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    for (size_t byte = 0; byte < good.size(); ++byte) {
      for (int bit = 0; bit < 8; ++bit) {
        file.seekp(static_cast<std::streamoff>(byte)).put(static_cast<char>(good[byte] ^ (1 << bit))).flush();
        ASSERT_NE(damaged.problems().find(path), std::string::npos) << name << " byte " << byte << " bit " << bit;
      }
      file.seekp(static_cast<std::streamoff>(byte)).put(good[byte]).flush();
    }
  }
  EXPECT_EQ(damaged.problems(), "");
}

TEST(Shard, verify_reads_everything_with_any_number_of_threads) {
  const TemporaryFolder dir;
  const std::vector<TestTensor> tensors = random_tensors(3, 20);
  ASSERT_TRUE(write_checkpoint(dir.path(), 5, "a", tensors, 3, 9, 3));
  int64_t bytes = 0;
  for (const TestTensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.bytes.size());
  for (const int threads : {1, 2, 7}) {
    int64_t reported = 0;
    const auto report = verify(attempt_folder(dir.path(), 5, "a"), threads, [&](int64_t more) { reported += more; });
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report.value().problems, std::vector<std::string>{});
    EXPECT_EQ(report.value().bytes, bytes);
    EXPECT_EQ(report.value().files, 4);
    EXPECT_EQ(reported, bytes);
  }
}

TEST(Shard, readers_refuse_other_tensors) {
  const TemporaryFolder dir;
  const std::vector<TestTensor> tensors = {make_tensor(1, "w", StoredType::kF32, {3, 7})};
  ASSERT_TRUE(write_checkpoint(dir.path(), 5, "a", tensors, 1, 1, 3));
  const CheckpointReader reader = value_or_throw(CheckpointReader::open(attempt_folder(dir.path(), 5, "a")));
  Bytes out(1000);
  const std::pair<TensorShard, std::string> table[] = {
      {{"v", StoredType::kF32, {3, 7}, full_region({3, 7})}, "there is no tensor v"},
      {{"w", StoredType::kBf16, {3, 7}, full_region({3, 7})}, "tensor w is f32 [3, 7], expected bf16 [3, 7]"},
      {{"w", StoredType::kF32, {7, 3}, full_region({7, 3})}, "tensor w is f32 [3, 7], expected f32 [7, 3]"}};
  for (const auto& [shard, message] : table) {
    const auto read = reader.read(shard, out.data());
    ASSERT_FALSE(read);
    EXPECT_NE(read.error().message.find(message), std::string::npos) << read.error().message;
  }
}

}  // namespace
}  // namespace tri
