// manifest.json: the contents of a checkpoint folder, down to the byte offset of every shard. It is written last and
// carries its own checksum; a folder without a valid one is not a checkpoint. Errors have code kFile.
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

// A rectangle of a named global tensor, stored by one writer.
struct TensorShard {
  std::string tensor;  // components joined by '/': "model/layers/0/attention/qkv/weight"
  StoredType type = StoredType::kF32;
  Coordinates shape;  // of the whole tensor, 1 to 32 dims
  Region region;      // the stored part, inside the shape
};

// The place of a shard: `region` of a tensor, row-major, at `offset` of `file`.
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

// `checksum`: XXH3-64 over the whole file with each shard replaced by its own checksum (8 bytes, little-endian). So
// every bit of the file is covered, and each byte of data is hashed once.
struct FileRecord {
  std::string name;
  int64_t bytes = 0;
  uint64_t checksum = 0;
  bool operator==(const FileRecord&) const = default;
};

// The output of one writer.
struct ShardRecord {
  FileRecord file;
  std::vector<TensorRecord> tensors;
};

// The run's state in addition to tensors: versions, the config, counters. Text is UTF-8.
struct CheckpointInfo {
  std::map<std::string, std::string> texts;
  std::map<std::string, int64_t> numbers;
  std::map<std::string, std::vector<float>> lists;  // finite numbers, stored bit for bit
  bool operator==(const CheckpointInfo&) const = default;
};

struct Manifest {
  std::string attempt;  // the attempt that wrote it: folder.h
  int64_t step = 0;
  CheckpointInfo info;
  std::vector<FileRecord> files;
  std::vector<TensorRecord> tensors;  // by name

  // Adds a writer's files and shards. Fails if writers disagree about a tensor.
  Result<void> add(const ShardRecord& shard);
  const TensorRecord* find(std::string_view tensor) const;  // null: none. Requires order by name
  // The same; fails if there is none, or if it has another type or shape.
  Result<const TensorRecord*> find(std::string_view tensor, StoredType type, const Coordinates& shape) const;
  bool operator==(const Manifest&) const = default;
};

// Returns whether the name is valid: components of printable characters, none of them empty, "." or "..".
bool valid_tensor_name(std::string_view name);

// Checks that the shards of every tensor cover it exactly once, that every shard is inside its file and overlaps no
// other, and that names are valid and unique. The error names the first problem.
Result<void> check(const Manifest& manifest);

// Checks that all files exist with their sizes. The error names the first that does not. Retries transient trouble of
// storage.
Result<void> check_files(const std::string& folder, const Manifest& manifest, const Retry& retry = {});

// Checks the manifest, and returns the text of manifest.json. Fails if it is inconsistent, or holds text that is not
// UTF-8.
Result<std::string> manifest_text(const Manifest& manifest);

// Writes FOLDER/manifest.json, atomically and durably.
Result<void> write_manifest(const std::string& folder, const Manifest& manifest);

// Error::os_error of read_manifest() if another version of this program wrote the checkpoint: no errno has this value.
inline constexpr int kOtherFormat = -1;

// Reads and checks the manifest of a folder. Does not read the contents of the other files. Retries transient trouble
// of storage.
Result<Manifest> read_manifest(const std::string& folder, const Retry& retry = {});

}  // namespace tri
