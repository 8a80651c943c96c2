#include "io/checkpoint/shard_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/base/hash.h"

namespace tri {
namespace {

constexpr int64_t kBlockBytes = 4 << 20;
// Shorter runs do not justify a call each, so the bytes between them are read as well.
constexpr int64_t kStraightBytes = 256 << 10;
constexpr size_t kMaxOpen = 64;

Error for_tensor(const Error& error, const TensorRecord& tensor) {
  return {fmt::format("{} (tensor {})", error.message, tensor.name), error.code, error.os_error};
}

}  // namespace

Error damaged_shard(const std::string& path, const TensorRecord& tensor, const StoredShard& shard, uint64_t found) {
  return file_error("{}: tensor {}, shard {} at byte {} is damaged: XXH3-64 is {}, expected {}", path, tensor.name,
                    to_string(shard.region), shard.offset, hex64(found), hex64(shard.checksum));
}

Result<ShardReader> ShardReader::open(const std::string& folder, const FileRecord& file,
                                      std::shared_ptr<std::atomic<int64_t>> bytes_read) {
  ShardReader reader;
  reader.bytes_read_ = std::move(bytes_read);
  reader.path_ = folder + "/" + file.name;
  reader.file_ = Descriptor(::open(reader.path_.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (reader.file_.get() < 0 || ::fstat(reader.file_.get(), &status) != 0)
    return system_error(errno, "{}", reader.path_);
  if (status.st_size != file.bytes)
    return file_error("{}: the file has {} bytes, but the manifest says {}", reader.path_, status.st_size, file.bytes);
  return reader;
}

Result<void> ShardReader::fetch(const TensorRecord& tensor, void* data, int64_t bytes, int64_t offset) const {
  if (bytes_read_) *bytes_read_ += bytes;
  auto read = read_at(file_.get(), path_, data, bytes, offset);
  return read ? read : Result<void>(for_tensor(read.error(), tensor));
}

Result<void> ShardReader::read(const TensorRecord& tensor, const StoredShard& shard, const Region& target, void* out,
                               Checking checking) const {
  const std::optional<Region> common = intersect(shard.region, target);
  if (!common) return {};
  const int64_t run_bytes = RunCursor(*common, shard.region, target).length() * element_bytes(tensor.type);
  const bool whole = *common == shard.region;
  const bool straight = whole || checking == Checking::kTrust ? run_bytes >= kStraightBytes : false;
  char* bytes = static_cast<char*>(out);
  return straight ? read_straight(tensor, shard, target, *common, bytes, checking)
                  : read_through_buffer(tensor, shard, target, *common, bytes, checking);
}

// Reads each run directly to its destination. The runs of a whole shard, in order, are its bytes and are hashed there.
Result<void> ShardReader::read_straight(const TensorRecord& tensor, const StoredShard& shard, const Region& target,
                                        const Region& common, char* out, Checking checking) const {
  const int64_t width = element_bytes(tensor.type);
  Xxh3 hash;
  for (RunCursor run(common, shard.region, target); !run.done(); run.next()) {
    const int64_t bytes = run.length() * width;
    for (int64_t done = 0; done < bytes;) {
      const int64_t count = std::min(kBlockBytes, bytes - done);
      char* at = out + run.b_offset() * width + done;
      auto read = fetch(tensor, at, count, shard.offset + run.a_offset() * width + done);
      if (!read) return read;
      if (checking == Checking::kChecksum) hash.update(at, static_cast<size_t>(count));
      done += count;
    }
  }
  if (checking == Checking::kChecksum && hash.digest() != shard.checksum)
    return damaged_shard(path_, tensor, shard, hash.digest());
  return {};
}

// Reads blocks of the shard into a buffer and copies runs to their destinations. A run may span blocks.
Result<void> ShardReader::read_through_buffer(const TensorRecord& tensor, const StoredShard& shard,
                                              const Region& target, const Region& common, char* out,
                                              Checking checking) const {
  const int64_t width = element_bytes(tensor.type);
  int64_t last = 0;  // end of the last byte that is read, within the shard
  if (checking == Checking::kChecksum) {
    last = num_elements(shard.region.extent) * width;
  } else {
    for (size_t d = 0; d < common.start.size(); ++d)
      last = last * shard.region.extent[d] + common.start[d] - shard.region.start[d] + common.extent[d] - 1;
    last = (last + 1) * width;
  }
  const std::unique_ptr<char[]> buffer(new char[static_cast<size_t>(std::min(kBlockBytes, last))]);
  Xxh3 hash;
  RunCursor run(common, shard.region, target);
  int64_t run_done = 0;  // bytes of the run that have been copied
  for (int64_t begin = 0; begin < last;) {
    if (checking == Checking::kTrust) begin = std::max(begin, run.a_offset() * width + run_done);
    const int64_t end = std::min(begin + kBlockBytes, last);
    if (auto read = fetch(tensor, buffer.get(), end - begin, shard.offset + begin); !read) return read;
    if (checking == Checking::kChecksum) hash.update(buffer.get(), static_cast<size_t>(end - begin));
    while (!run.done()) {
      const int64_t from = run.a_offset() * width + run_done, run_end = (run.a_offset() + run.length()) * width;
      if (from >= end) break;
      const int64_t count = std::min(run_end, end) - from;
      std::memcpy(out + run.b_offset() * width + run_done, buffer.get() + (from - begin), static_cast<size_t>(count));
      run_done += count;
      if (from + count < run_end) break;
      run.next();
      run_done = 0;
    }
    begin = end;
  }
  if (checking == Checking::kChecksum && hash.digest() != shard.checksum)
    return damaged_shard(path_, tensor, shard, hash.digest());
  return {};
}

Result<void> ShardReader::verify(const TensorRecord& tensor, const StoredShard& shard) const {
  const int64_t bytes = num_elements(shard.region.extent) * element_bytes(tensor.type);
  const std::unique_ptr<char[]> buffer(new char[static_cast<size_t>(std::min(kBlockBytes, bytes))]);
  Xxh3 hash;
  for (int64_t done = 0; done < bytes;) {
    const int64_t count = std::min(kBlockBytes, bytes - done);
    if (auto read = fetch(tensor, buffer.get(), count, shard.offset + done); !read) return read;
    hash.update(buffer.get(), static_cast<size_t>(count));
    done += count;
  }
  if (hash.digest() != shard.checksum) return damaged_shard(path_, tensor, shard, hash.digest());
  return {};
}

Result<void> ShardReader::verify_structures(
    const FileRecord& file, const std::vector<std::pair<const TensorRecord*, const StoredShard*>>& shards) const {
  auto sorted = shards;
  std::sort(sorted.begin(), sorted.end(), [](auto a, auto b) { return a.second->offset < b.second->offset; });
  Xxh3 hash;
  const std::unique_ptr<char[]> buffer(new char[static_cast<size_t>(kBlockBytes)]);
  int64_t at = 0;
  for (size_t i = 0; i <= sorted.size(); ++i) {
    const int64_t end = i < sorted.size() ? sorted[i].second->offset : file.bytes;
    while (at < end) {
      const int64_t count = std::min(kBlockBytes, end - at);
      if (auto read = read_at(file_.get(), path_, buffer.get(), count, at); !read) return read.error();
      hash.update(buffer.get(), static_cast<size_t>(count));
      at += count;
    }
    if (i == sorted.size()) break;
    const auto [tensor, shard] = sorted[i];
    hash.update(&shard->checksum, sizeof shard->checksum);
    at = shard->offset + num_elements(shard->region.extent) * element_bytes(tensor->type);
  }
  if (hash.digest() != file.checksum)
    return file_error("{}: HDF5's structures are damaged: XXH3-64 of the bytes between the shards is {}, expected {}",
                      path_, hex64(hash.digest()), hex64(file.checksum));
  return {};
}

TensorReader::TensorReader(std::string folder, const std::vector<FileRecord>& files, const Retry& retry)
    : folder_(std::move(folder)), retry_(retry) {
  for (const FileRecord& file : files) files_[file.name] = file;
}

Result<std::shared_ptr<const ShardReader>> TensorReader::file(const std::string& name) const {
  const MutexLock lock(open_->mutex);
  if (const auto at = open_->files.find(name); at != open_->files.end()) return at->second;
  auto opened = ShardReader::open(folder_, files_.at(name), bytes_read_);
  if (!opened) return opened.error();
  if (open_->files.size() >= kMaxOpen) open_->files.clear();  // files in use stay open until their reader finishes
  auto shared = std::make_shared<const ShardReader>(std::move(opened).value());
  open_->files[name] = shared;
  return std::shared_ptr<const ShardReader>(shared);
}

void TensorReader::forget(const std::string& name) const {
  const MutexLock lock(open_->mutex);
  open_->files.erase(name);
}

template <class Act>
Result<void> TensorReader::with_file(const TensorRecord& tensor, const StoredShard& shard, Act act) const {
  return retried(retry_, [&]() -> Result<void> {
    auto opened = file(shard.file);
    if (!opened) return for_tensor(opened.error(), tensor);
    auto done = act(*opened.value());
    if (!done) forget(shard.file);
    return done;
  });
}

Result<void> TensorReader::read(const TensorRecord& tensor, const StoredShard& shard, const Region& target, void* out,
                                Checking checking) const {
  if (!intersect(shard.region, target)) return {};
  return with_file(tensor, shard,
                   [&](const ShardReader& file) { return file.read(tensor, shard, target, out, checking); });
}

Result<void> TensorReader::fetch(const TensorRecord& tensor, const StoredShard& shard, int64_t begin, int64_t bytes,
                                 void* data) const {
  return with_file(tensor, shard,
                   [&](const ShardReader& file) { return file.fetch(tensor, shard, begin, bytes, data); });
}

Result<CheckpointReader> CheckpointReader::open(const std::string& folder, const Retry& retry) {
  auto manifest = read_manifest(folder, retry);
  if (!manifest) return manifest.error();
  if (auto there = check_files(folder, manifest.value(), retry); !there) return there.error();
  TensorReader shards(folder, manifest.value().files, retry);
  return CheckpointReader(std::move(manifest).value(), std::move(shards));
}

Result<void> CheckpointReader::read(const TensorShard& target, void* out, Checking checking) const {
  const auto found = manifest_.find(target.tensor, target.type, target.shape);
  if (!found) return file_error("{}: {}", shards_.folder(), found.error().message);
  TRI_REQUIRE(inside(target.region, target.shape), "{}: region {} is not inside shape {}", target.tensor,
              to_string(target.region), to_string(target.shape));
  const TensorRecord& tensor = *found.value();
  for (const StoredShard& shard : tensor.shards)
    if (auto done = shards_.read(tensor, shard, target.region, out, checking); !done) return done;
  return {};
}

}  // namespace tri
