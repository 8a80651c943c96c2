// Reading tensors back by any layout: each target region is put together from whatever shards hold it. Data is read
// by pread at the offsets of the manifest; HDF5 takes no part.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "io/base/file.h"
#include "io/checkpoint/manifest.h"

namespace tri {

enum class Checking {
  kChecksum,  // every touched shard is read whole and its checksum verified
  kTrust,     // only what is needed is read
};

// One open file of shards. Thread-safe.
class ShardReader {
 public:
  // Error when the file is missing or has another size than the manifest says.
  // `bytes_read` (optional) is increased by what is read of shards.
  static Result<ShardReader> open(const std::string& folder, const FileRecord& file,
                                  std::shared_ptr<std::atomic<int64_t>> bytes_read = nullptr);

  // Reads the elements that `shard` and `target` share into `out`, the array of `target`; its other elements stay as
  // they are. A wrong checksum is an error that names file, tensor, and both values; `out` is then partly written.
  Result<void> read(const TensorRecord& tensor, const StoredShard& shard, const Region& target, void* out,
                    Checking checking = Checking::kChecksum) const;

  // Reads the shard and verifies its checksum.
  Result<void> verify(const TensorRecord& tensor, const StoredShard& shard) const;

  // `bytes` of the shard, from its byte `begin` on; unchecked.
  Result<void> fetch(const TensorRecord& tensor, const StoredShard& shard, int64_t begin, int64_t bytes,
                     void* data) const {
    return fetch(tensor, data, bytes, shard.offset + begin);
  }

  // Verifies what lies between `shards`, which must be all of the file's, by the file's checksum.
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

// A shard whose bytes are not those of its checksum: names file, tensor, and both values.
Error damaged_shard(const std::string& path, const TensorRecord& tensor, const StoredShard& shard, uint64_t found);

// Reads shards of a checkpoint folder by their records, without its manifest: a file is opened, and its size compared,
// at its first use. Thread-safe; reads of different threads run at the same time. Transient trouble of storage is
// tried again by `retry`, for which the file is reopened: a stale handle stays stale.
class TensorReader {
 public:
  TensorReader(std::string folder, const std::vector<FileRecord>& files, const Retry& retry);

  // What `shard` of `tensor` shares with `target`, into the array of `target`.
  Result<void> read(const TensorRecord& tensor, const StoredShard& shard, const Region& target, void* out,
                    Checking checking = Checking::kChecksum) const;
  // `bytes` of the shard, from its byte `begin` on; unchecked.
  Result<void> fetch(const TensorRecord& tensor, const StoredShard& shard, int64_t begin, int64_t bytes,
                     void* data) const;

  const std::string& folder() const { return folder_; }
  int64_t bytes_read() const { return *bytes_read_; }  // of shards, from their files, so far

 private:
  template <class Act>
  Result<void> with_file(const TensorRecord& tensor, const StoredShard& shard, Act act) const;
  Result<std::shared_ptr<const ShardReader>> file(const std::string& name) const;
  void forget(const std::string& name) const;  // the open shard: the next use reopens it

  struct Open {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<const ShardReader>> files;  // guarded by mutex
  };
  std::string folder_;
  Retry retry_;
  std::map<std::string, FileRecord> files_;
  std::unique_ptr<Open> open_ = std::make_unique<Open>();
  std::shared_ptr<std::atomic<int64_t>> bytes_read_ = std::make_shared<std::atomic<int64_t>>(0);  // all shards add
};

// A checkpoint folder opened for reading, as a whole. Thread-safe.
class CheckpointReader {
 public:
  // Error when there is no valid manifest, or a file is missing or has a wrong size. Transient trouble of storage is
  // tried again by `retry`, here and in read().
  static Result<CheckpointReader> open(const std::string& folder, const Retry& retry = {});

  const Manifest& manifest() const { return manifest_; }

  // Fills `out`, the array of `target`. Error when the checkpoint has no such tensor, or with another type or shape.
  Result<void> read(const TensorShard& target, void* out, Checking checking = Checking::kChecksum) const;

  int64_t bytes_read() const { return shards_.bytes_read(); }  // of shards, from their files, so far

 private:
  CheckpointReader(Manifest manifest, TensorReader shards)
      : manifest_(std::move(manifest)), shards_(std::move(shards)) {}

  Manifest manifest_;
  TensorReader shards_;
};

}  // namespace tri
