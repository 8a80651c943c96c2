// The index as other programs read it: h5dump and h5py, if installed, and HDF5 itself.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "io/base/json.h"
#include "io/checkpoint/hdf5.h"
#include "tests/io/checkpoint_files.h"
#include "tests/io/commands.h"

namespace tri {
namespace {

// Multiples of 1/8, exact in bf16; other types have eight times the values.
struct Example {
  std::vector<TestTensor> tensors;
  std::vector<double> values;  // of each tensor
};

Example make_example() {
  const Coordinates shape = {6, 4, 5};
  Example example;
  for (int i = 0; i < 120; ++i) example.values.push_back((i - 60) / 8.0);
  const auto add = [&](const std::string& name, StoredType type, auto convert) {
    TestTensor tensor{name, type, shape, {}};
    for (const double value : example.values) {
      const auto stored = convert(value);
      const auto* bytes = reinterpret_cast<const unsigned char*>(&stored);
      tensor.bytes.insert(tensor.bytes.end(), bytes, bytes + sizeof stored);
    }
    example.tensors.push_back(tensor);
  };
  add("model/layers/0/attention/qkv/weight", StoredType::kBf16, [](double value) {
    const auto single = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &single, 4);
    return static_cast<uint16_t>(bits >> 16);
  });
  add("optimizer/layers/0/exp_avg", StoredType::kF32, [](double value) { return static_cast<float>(value); });
  add("data/long", StoredType::kI64, [](double value) { return static_cast<int64_t>(value * 8); });
  add("data/int", StoredType::kI32, [](double value) { return static_cast<int32_t>(value * 8); });
  add("data/percent%b", StoredType::kU8, [](double value) { return static_cast<uint8_t>(value * 8 + 60); });
  return example;
}

std::vector<double> expected_of(const Example& example, const TestTensor& tensor) {
  std::vector<double> values = example.values;
  for (double& value : values)
    value = tensor.type == StoredType::kU8                           ? value * 8 + 60
            : tensor.width() >= 4 && tensor.type != StoredType::kF32 ? value * 8
                                                                     : value;
  return values;
}

// Written under one name, read under another and from another working folder: sources are relative to the index.
std::string moved_checkpoint(const TemporaryFolder& dir, const Example& example) {
  const auto written = write_checkpoint(dir.path(), 5, "a", example.tensors, 3, 7, 1, 77);
  EXPECT_TRUE(written) << written.error().message;
  std::filesystem::create_directory(dir / "elsewhere");
  std::filesystem::rename(attempt_folder(dir.path(), 5, "a"), dir / "elsewhere/moved");
  return dir / "elsewhere/moved";
}

TEST(CheckpointIndex, hdf5_reads_every_tensor_whole) {
  const TemporaryFolder dir;
  const Example example = make_example();
  const std::string path = moved_checkpoint(dir, example) + "/" + kIndexName;
  const auto read = with_hdf5([&] {
    const Hid file(TRI_HDF5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), path), H5Fclose);
    for (const TestTensor& tensor : example.tensors) {
      const Hid dataset(TRI_HDF5(H5Dopen2(file, tensor.name.c_str(), H5P_DEFAULT), path), H5Dclose);
      std::vector<double> got(120, -1);
      TRI_HDF5(H5Dread(dataset, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, got.data()), path);
      EXPECT_EQ(got, expected_of(example, tensor)) << tensor.name;
    }
    int64_t mark = 0;
    const Hid dataset(TRI_HDF5(H5Dopen2(file, "info/mark", H5P_DEFAULT), path), H5Dclose);
    TRI_HDF5(H5Dread(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, &mark), path);
    EXPECT_EQ(mark, 77);
  });
  EXPECT_TRUE(read) << read.error().message;
}

TEST(CheckpointIndex, many_shards_of_one_tensor_are_one_dataset) {
  const TemporaryFolder dir;
  const std::vector<TestTensor> tensors = {make_tensor(1, "w", StoredType::kI32, {64, 64})};
  ASSERT_TRUE(write_checkpoint(dir.path(), 5, "a", tensors, 3, 2000, 1));
  const std::string path = attempt_folder(dir.path(), 5, "a") + "/" + kIndexName;
  Bytes got(tensors[0].bytes.size());
  const auto read = with_hdf5([&] {
    const Hid file(TRI_HDF5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), path), H5Fclose);
    const Hid dataset(TRI_HDF5(H5Dopen2(file, "w", H5P_DEFAULT), path), H5Dclose);
    TRI_HDF5(H5Dread(dataset, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, got.data()), path);
  });
  EXPECT_TRUE(read) << read.error().message;
  EXPECT_EQ(got, tensors[0].bytes);
}

// Returns the numbers that h5dump prints for a dataset.
std::vector<double> dumped(const std::string& path, const std::string& dataset) {
  const std::string text = output_of(fmt::format("cd / && h5dump -y -w 65535 -d '/{}' {}", dataset, path));
  std::vector<double> values;
  const size_t begin = text.find("DATA {"), end = text.find('}', begin);
  EXPECT_NE(begin, std::string::npos) << text;
  if (begin == std::string::npos) return values;
  std::string numbers = text.substr(begin + 6, end - begin - 6);
  std::replace(numbers.begin(), numbers.end(), ',', ' ');
  std::istringstream in(numbers);
  for (std::string word; in >> word;) values.push_back(std::stod(word));
  return values;
}

TEST(CheckpointIndex, h5dump_shows_numbers) {
  if (output_of("h5dump --version").rfind("h5dump", 0) != 0) GTEST_SKIP() << "skipped: no h5dump (hdf5-tools)";
  const TemporaryFolder dir;
  const Example example = make_example();
  const std::string folder = moved_checkpoint(dir, example), path = folder + "/" + kIndexName;
  for (const TestTensor& tensor : example.tensors)
    EXPECT_EQ(dumped(path, tensor.name), expected_of(example, tensor)) << tensor.name;
  EXPECT_NE(output_of(fmt::format("h5dump -d /info/config {}", path)).find("run:"), std::string::npos);
  EXPECT_NE(output_of(fmt::format("h5dump -d /info/step {}", path)).find("(0): 5"), std::string::npos);

  // A lost shard reads as values that cannot be mistaken for weights.
  const auto manifest = value_or_throw(read_manifest(folder));
  std::filesystem::remove(folder + "/" + shard_name(1));
  for (const TensorRecord& tensor : manifest.tensors) {
    int64_t lost = 0;
    for (const StoredShard& shard : tensor.shards)
      if (shard.file == shard_name(1)) lost += num_elements(shard.region.extent);
    const double fill = tensor.type == StoredType::kI64   ? 9223372036854775807.0
                        : tensor.type == StoredType::kI32 ? 2147483647.0
                                                          : 255.0;
    int64_t shown = 0;
    for (const double value : dumped(path, tensor.name)) shown += std::isnan(value) || value == fill;
    EXPECT_EQ(shown, lost) << tensor.name;
  }
}

TEST(CheckpointIndex, h5py_reads_arrays) {
  const std::string python = python_with_h5py();
  if (python.empty() && std::getenv("TRIREME_EXPECT_CLIENTS") != nullptr) FAIL() << "no h5py";
  if (python.empty()) GTEST_SKIP() << "skipped: no h5py";
  const TemporaryFolder dir;
  const Example example = make_example();
  const std::string folder = moved_checkpoint(dir, example);
  const std::string program = fmt::format(
      "import h5py, json; f = h5py.File(\"{}/{}\"); names = []; "
      "f.visititems(lambda name, d: names.append(name) if isinstance(d, h5py.Dataset) and d.dtype.kind in \"fiu\" "
      "else None); "
      "print(json.dumps({{name: [f[name].shape, f[name].dtype.kind, f[name][...].astype(\"f8\").ravel().tolist()] "
      "for name in names}}))",
      folder, kIndexName);
  const std::string text = output_of(fmt::format("cd / && {} -c '{}'", python, program));
  const auto arrays = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(arrays.is_object()) << text;
  for (const TestTensor& tensor : example.tensors) {
    ASSERT_TRUE(arrays.contains(tensor.name)) << text;
    const auto& json = arrays[tensor.name];
    EXPECT_EQ(json[0], tensor.shape);
    const bool floating = tensor.type == StoredType::kF32 || tensor.type == StoredType::kBf16;
    EXPECT_EQ(json[1], floating ? "f" : tensor.type == StoredType::kU8 ? "u" : "i");
    EXPECT_EQ(json[2].get<std::vector<double>>(), expected_of(example, tensor)) << tensor.name;
  }
}

}  // namespace
}  // namespace tri
