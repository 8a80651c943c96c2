// Reads tensors back with any layout: each target region is assembled from the shards that hold it. Data is read by
// pread at the offsets of the manifest, without HDF5. Errors have code kFile.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "io/base/file.h"
#include "io/base/mutex.h"
#include "io/checkpoint/manifest.h"

namespace tri {

enum class Checking {
  kChecksum,  // every touched shard is read whole and its checksum verified
  kTrust,     // only what is needed is read
};

// One open file of shards. Safe for concurrent use.
class ShardReader {
 public:
  // Fails if the file is missing or its size differs from the manifest. Adds the bytes read from shards to `bytes_read`
  // (optional).
  static Result<ShardReader> open(const std::string& folder, const FileRecord& file,
                                  std::shared_ptr<std::atomic<int64_t>> bytes_read = nullptr);

  // Reads the elements that `shard` and `target` share into `out`, the array of `target`; its other elements do not
  // change. A wrong checksum is an error that names file, tensor, and both values; `out` is then partly written.
  Result<void> read(const TensorRecord& tensor, const StoredShard& shard, const Region& target, void* out,
                    Checking checking = Checking::kChecksum) const;

  // Reads the shard and verifies its checksum.
  Result<void> verify(const TensorRecord& tensor, const StoredShard& shard) const;

  // Reads `bytes` of the shard from its byte `begin`, without a check.
  Result<void> fetch(const TensorRecord& tensor, const StoredShard& shard, int64_t begin, int64_t bytes,
                     void* data) const {
    return fetch(tensor, data, bytes, shard.offset + begin);
  }

  // Verifies the bytes between `shards`, which must be all of the file's, with the file's checksum.
  Result<void> verify_structures(const FileRecord& file,
                                 const std::vector<std::pair<const TensorRecord*, const StoredShard*>>& shards) const;

 private:
  Result<void> read_straight(const TensorRecord& tensor, const StoredShard& shard, const Region& target,
                             const Region& common, char* out, Checking checking) const;
  Result<void> read_through_buffer(const TensorRecord& tensor, const StoredShard& shard, const Region& target,
                                   const Region& common, char* out, Checking checking) const;

  Result<void> fetch(const TensorRecord& tensor, void* data, int64_t bytes, int64_t offset) const;

  std::string path_;
  Descriptor file_;
  std::shared_ptr<std::atomic<int64_t>> bytes_read_;
};

// Returns the error for a shard with a wrong checksum: it names file, tensor, and both values.
Error damaged_shard(const std::string& path, const TensorRecord& tensor, const StoredShard& shard, uint64_t found);

// Reads shards of a checkpoint folder by their records, without its manifest. Opens a file, and checks its size, at its
// first use. Retries transient trouble of storage as `retry` says, and reopens the file for it: a stale handle stays
// stale. Safe for concurrent use; reads of different threads run concurrently.
class TensorReader {
 public:
  TensorReader(std::string folder, const std::vector<FileRecord>& files, const Retry& retry);

  // Reads what `shard` of `tensor` shares with `target` into the array of `target`.
  Result<void> read(const TensorRecord& tensor, const StoredShard& shard, const Region& target, void* out,
                    Checking checking = Checking::kChecksum) const;
  // Reads `bytes` of the shard from its byte `begin`, without a check.
  Result<void> fetch(const TensorRecord& tensor, const StoredShard& shard, int64_t begin, int64_t bytes,
                     void* data) const;

  const std::string& folder() const { return folder_; }
  int64_t bytes_read() const { return *bytes_read_; }  // so far, from shards

 private:
  template <class Act>
  Result<void> with_file(const TensorRecord& tensor, const StoredShard& shard, Act act) const;
  Result<std::shared_ptr<const ShardReader>> file(const std::string& name) const;
  void forget(const std::string& name) const;  // closes the file: the next use reopens it

  struct Open {
    Mutex mutex;
    std::map<std::string, std::shared_ptr<const ShardReader>> files TRI_GUARDED_BY(mutex);
  };
  std::string folder_;
  Retry retry_;
  std::map<std::string, FileRecord> files_;
  std::unique_ptr<Open> open_ = std::make_unique<Open>();
  // all open files add to it
  std::shared_ptr<std::atomic<int64_t>> bytes_read_ = std::make_shared<std::atomic<int64_t>>(0);
};

// A whole checkpoint folder opened for reading. Safe for concurrent use.
class CheckpointReader {
 public:
  // Fails if there is no valid manifest, or if a file is missing or has a wrong size. Retries transient trouble of
  // storage as `retry` says, here and in read().
  static Result<CheckpointReader> open(const std::string& folder, const Retry& retry = {});

  const Manifest& manifest() const { return manifest_; }

  // Fills `out`, the array of `target`. Fails if the checkpoint lacks the tensor, or has it with another type or shape.
  Result<void> read(const TensorShard& target, void* out, Checking checking = Checking::kChecksum) const;

  int64_t bytes_read() const { return shards_.bytes_read(); }  // so far, from shards

 private:
  CheckpointReader(Manifest manifest, TensorReader shards)
      : manifest_(std::move(manifest)), shards_(std::move(shards)) {}

  Manifest manifest_;
  TensorReader shards_;
};

}  // namespace tri
