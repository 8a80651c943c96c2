// shard_00003.h5: the shards of one writer, contiguous datasets of a serial HDF5 file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "io/base/file.h"
#include "io/base/hash.h"
#include "io/checkpoint/hdf5_image.h"
#include "io/checkpoint/manifest.h"

namespace tri {

std::string shard_name(int writer);  // shard_00003.h5

// Streams shards to PATH.ATTEMPT.tmp; finish() makes the contents durable and renames the file. publish() (folder.h)
// later makes the names of all shard files durable. Without finish() the file is removed. The first failure is kept:
// later calls return it again. Not thread-safe; several writers may run in several threads (only HDF5's small part is
// serialised).
class ShardWriter {
 public:
  // Creates the file, replacing one that the same attempt has left. Fails if that is not possible.
  static Result<ShardWriter> create(const std::string& path, const std::string& attempt);
  ShardWriter(ShardWriter&&) noexcept = default;
  ~ShardWriter();

  // Hashes and writes num_elements(shard.region.extent) elements, row-major. Requires a valid shard whose region begins
  // where no other shard of the tensor in this file begins.
  Result<void> add(const TensorShard& shard, const void* data);

  // Returns what the manifest stores of the file. Call once, after the last add().
  Result<ShardRecord> finish();

 private:
  ShardWriter() = default;
  Result<void> store(const TensorShard& shard, const void* data);
  Result<ShardRecord> seal();
  Result<uint64_t> write_structures(const std::vector<std::pair<const StoredShard*, int64_t>>& shards);

  std::string path_, temporary_;
  Descriptor file_;
  Hdf5Image image_;
  int64_t flushed_ = 0;  // the kernel was requested to write the bytes before it
  std::map<std::string, TensorRecord> tensors_;
  Result<void> state_;  // the first failure
};

}  // namespace tri
