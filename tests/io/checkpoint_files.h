// Small checkpoints of pseudo-random tensors, and a second, slow way to extract regions from them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "io/base/random.h"
#include "io/checkpoint/folder.h"
#include "io/checkpoint/index.h"
#include "io/checkpoint/manifest.h"
#include "io/checkpoint/shard_reader.h"
#include "io/checkpoint/shard_writer.h"
#include "tests/io/temporary_folder.h"

namespace tri {

using Bytes = std::vector<unsigned char>;

class Draw {  // consecutive numbers below a bound
 public:
  explicit Draw(uint64_t key) : key_(key) {}
  int64_t operator()(int64_t below) { return static_cast<int64_t>(random_u64(key_, count_++) % below); }

 private:
  uint64_t key_, count_ = 0;
};

inline Bytes random_bytes(uint64_t seed, const std::string& name, int64_t count) {
  Bytes bytes(static_cast<size_t>(count));
  const uint64_t key = derive_key(seed, name);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(random_u64(key, i) >> 7);
  return bytes;
}

// Extracts a region element by element, by coordinates; shares no code with copy_region.
inline Bytes cut(const Bytes& whole, const Coordinates& shape, const Region& region, int64_t width) {
  Bytes out;
  Coordinates at = region.start;
  for (int64_t i = 0; i < num_elements(region.extent); ++i) {
    int64_t flat = 0;
    for (size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + at[d];
    out.insert(out.end(), whole.begin() + flat * width, whole.begin() + (flat + 1) * width);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < region.start[d] + region.extent[d]) break;
      at[d] = region.start[d];
    }
  }
  return out;
}

inline Region full_region(const Coordinates& shape) { return {Coordinates(shape.size(), 0), shape}; }

inline Region random_region(const Coordinates& shape, Draw& draw) {
  Region region = full_region(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    region.start[d] = draw(shape[d]);
    region.extent[d] = 1 + draw(shape[d] - region.start[d]);
  }
  return region;
}

// Splits regions at random until there are `count` or only single elements remain.
inline std::vector<Region> random_partition(const Coordinates& shape, size_t count, Draw& draw) {
  std::vector<Region> regions = {full_region(shape)};
  for (int tries = 0; regions.size() < count && tries < 1000; ++tries) {
    Region& chosen = regions[static_cast<size_t>(draw(static_cast<int64_t>(regions.size())))];
    const auto dim = static_cast<size_t>(draw(static_cast<int64_t>(shape.size())));
    if (chosen.extent[dim] < 2) continue;
    Region rest = chosen;
    const int64_t kept = 1 + draw(chosen.extent[dim] - 1);
    chosen.extent[dim] = kept;
    rest.start[dim] += kept;
    rest.extent[dim] -= kept;
    regions.push_back(rest);
  }
  return regions;
}

struct TestTensor {
  std::string name;
  StoredType type;
  Coordinates shape;
  Bytes bytes;
  int64_t width() const { return element_bytes(type); }
  TensorShard shard(const Region& region) const { return {name, type, shape, region}; }
};

inline TestTensor make_tensor(uint64_t seed, const std::string& name, StoredType type, const Coordinates& shape) {
  return {name, type, shape, random_bytes(seed, name, num_elements(shape) * element_bytes(type))};
}

// Writes `tensors` in `shards` shards each, spread over `writers`, with index and manifest, but does not publish them.
// Returns the first failure.
inline Result<Manifest> write_checkpoint(const std::string& dir, int64_t step, const std::string& attempt,
                                         const std::vector<TestTensor>& tensors, int writers, size_t shards,
                                         uint64_t seed, int64_t mark = 0) {
  auto folder = begin_attempt(dir, step, attempt);
  if (!folder) return folder.error();
  Draw draw(seed);
  std::vector<std::vector<std::pair<const TestTensor*, Region>>> shares(static_cast<size_t>(writers));
  for (const TestTensor& tensor : tensors)
    for (const Region& region : random_partition(tensor.shape, shards, draw))
      shares[static_cast<size_t>(draw(writers))].emplace_back(&tensor, region);
  Manifest manifest{.attempt = attempt, .step = step};
  manifest.info.numbers["mark"] = mark;
  manifest.info.texts["config"] = "run:\n  name: \"ä\"\n";
  for (int w = 0; w < writers; ++w) {
    auto writer = ShardWriter::create(folder.value() + "/" + shard_name(w), attempt);
    if (!writer) return writer.error();
    for (const auto& [tensor, region] : shares[static_cast<size_t>(w)]) {
      const Bytes bytes = cut(tensor->bytes, tensor->shape, region, tensor->width());
      if (auto added = writer.value().add(tensor->shard(region), bytes.data()); !added) return added.error();
    }
    auto record = writer.value().finish();
    if (!record) return record.error();
    if (auto added = manifest.add(record.value()); !added) return added.error();
  }
  auto index = write_index(folder.value(), manifest);
  if (!index) return index.error();
  manifest.files.push_back(index.value());
  if (auto written = write_manifest(folder.value(), manifest); !written) return written.error();
  return manifest;
}

// Gives a manifest, which keeps a valid checksum, the format of another version of the program.
inline void set_other_format(const std::string& path) {
  const std::string format = "\"format\": 1", key = "\n\"checksum\": \"";
  std::string text = read_all(path);
  const size_t at = text.find(format), checksum = text.find(key) + key.size();
  ASSERT_NE(at, text.npos) << text;
  text[at + format.size() - 1] = '2';
  text.replace(checksum, 16, std::string(16, '0'));
  write_all(path, text.replace(checksum, 16, hex64(xxh3_64(text))));
}

inline void expect_holds(const std::string& folder, const std::vector<TestTensor>& tensors) {
  auto reader = CheckpointReader::open(folder);
  ASSERT_TRUE(reader) << reader.error().message;
  ASSERT_EQ(reader.value().manifest().tensors.size(), tensors.size());
  for (const TestTensor& tensor : tensors) {
    Bytes got(tensor.bytes.size(), 0xA5);
    const auto read = reader.value().read(tensor.shard(full_region(tensor.shape)), got.data());
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(got, tensor.bytes) << tensor.name;
  }
}

}  // namespace tri
