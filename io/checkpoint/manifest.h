// manifest.json: what a checkpoint folder holds, down to the byte offset of every shard. It is written last, carries a
// checksum of itself, and a folder without a valid one is no checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"
#include "io/base/retry.h"
#include "io/base/stored_type.h"
#include "io/checkpoint/region.h"

namespace tri {

constexpr const char* kManifestName = "manifest.json";
constexpr const char* kIndexName = "checkpoint.h5";

// A rectangle of a named global tensor, as one writer stores it.
struct TensorShard {
  std::string tensor;  // components joined by '/': "model/layers/0/attention/qkv/weight"
  StoredType type = StoredType::kF32;
  Coordinates shape;  // of the whole tensor, 1 to 32 dims
  Region region;      // what of it is here; inside the shape
};

// Where a shard lies: `bytes` of its elements, row-major, at `offset` of `file`.
struct StoredShard {
  std::string file;       // in the checkpoint's folder
  std::string dataset;    // its path in the HDF5 file
  int64_t offset = 0;     // bytes
  Region region;          // of the tensor
  uint64_t checksum = 0;  // XXH3-64 of its bytes
  bool operator==(const StoredShard&) const = default;
};

struct TensorRecord {
  std::string name;
  StoredType type = StoredType::kF32;
  Coordinates shape;
  std::vector<StoredShard> shards;
  bool operator==(const TensorRecord&) const = default;
};

// `checksum`: XXH3-64 over the file from begin to end, in which each shard is replaced by its own checksum (8 bytes,
// little-endian). So every bit of the file is covered, and each byte of data is hashed once.
struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  uint64_t checksum = 0;
  bool operator==(const FileRecord&) const = default;
};

// What one writer wrote. Writers send it as text to the one that writes the manifest.
struct ShardRecord {
  FileRecord file;
  std::vector<TensorRecord> tensors;
  bool operator==(const ShardRecord&) const = default;
};
std::string to_text(const ShardRecord& record);
Result<ShardRecord> shard_record_from_text(std::string_view text);

// The run's state in addition to tensors: versions, the config, counters. Text is UTF-8.
struct CheckpointInfo {
  std::map<std::string, std::string> texts;
  std::map<std::string, int64_t> numbers;
  std::map<std::string, std::vector<float>> lists;  // finite numbers, which come back bit for bit
  bool operator==(const CheckpointInfo&) const = default;
};

struct Manifest {
  std::string attempt;  // who wrote it: folder.h
  int64_t step = 0;
  CheckpointInfo info;
  std::vector<FileRecord> files;
  std::vector<TensorRecord> tensors;  // by name

  // Adds a writer's files and shards. Error when the writers disagree about a tensor.
  Result<void> add(const ShardRecord& shard);
  const TensorRecord* find(std::string_view tensor) const;  // null when there is none. Requires order by name
  // The same; Error when there is none, or it has another type or shape.
  Result<const TensorRecord*> find(std::string_view tensor, StoredType type, const Coordinates& shape) const;
  bool operator==(const Manifest&) const = default;
};

// Names that may be used: components of printable characters, none of them empty, "." or "..".
bool valid_tensor_name(std::string_view name);

// Every tensor covered by its shards, whole and nowhere twice; every shard inside its file and apart from the others;
// names valid and unique. Error naming the first fault.
Result<void> check(const Manifest& manifest);

// All files are there and have their sizes. Error naming the first that has not. Transient trouble of storage is
// tried again.
Result<void> check_files(const std::string& folder, const Manifest& manifest, const Retry& retry = {});

// Checks, then returns what manifest.json holds. Error: it contradicts itself, or holds text that is not UTF-8.
Result<std::string> manifest_text(const Manifest& manifest);

// Writes it to FOLDER/manifest.json, atomically and durably.
Result<void> write_manifest(const std::string& folder, const Manifest& manifest);

// The checked manifest of a folder. Contents of the other files are not looked at. Transient trouble of storage is
// tried again.
Result<Manifest> read_manifest(const std::string& folder, const Retry& retry = {});

}  // namespace tri
