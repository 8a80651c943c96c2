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
// Shorter runs are not worth a call each: whatever lies between them is read as well.
constexpr int64_t kStraightBytes = 256 << 10;
constexpr size_t kMaxOpen = 64;

Error for_tensor(const Error& error, const TensorRecord& tensor) {
  return {fmt::format("{} (tensor {})", error.message, tensor.name), error.code, error.os_error};
}

}  // namespace

Error damaged_piece(const std::string& path, const TensorRecord& tensor, const StoredPiece& piece, uint64_t found) {
  return file_error("{}: tensor {}, piece {} at byte {}: XXH3-64 {}, expected {}; damaged", path, tensor.name,
                    to_string(piece.region), piece.offset, hex64(found), hex64(piece.checksum));
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
    return file_error("{}: {} bytes, the manifest says {}", reader.path_, status.st_size, file.bytes);
  return reader;
}

Result<void> ShardReader::fetch(const TensorRecord& tensor, void* data, int64_t bytes, int64_t offset) const {
  if (bytes_read_) *bytes_read_ += bytes;
  auto read = read_at(file_.get(), path_, data, bytes, offset);
  return read ? read : Result<void>(for_tensor(read.error(), tensor));
}

Result<void> ShardReader::read(const TensorRecord& tensor, const StoredPiece& piece, const Region& target, void* out,
                               Checking checking) const {
  const std::optional<Region> common = intersect(piece.region, target);
  if (!common) return {};
  const int64_t run_bytes = RunCursor(*common, piece.region, target).length() * element_bytes(tensor.type);
  const bool whole = *common == piece.region;
  const bool straight = whole || checking == Checking::kTrust ? run_bytes >= kStraightBytes : false;
  char* bytes = static_cast<char*>(out);
  return straight ? read_straight(tensor, piece, target, *common, bytes, checking)
                  : read_through_buffer(tensor, piece, target, *common, bytes, checking);
}

// Each run at once to its place. The runs of a whole piece, in order, are its bytes: they are hashed where they land.
Result<void> ShardReader::read_straight(const TensorRecord& tensor, const StoredPiece& piece, const Region& target,
                                        const Region& common, char* out, Checking checking) const {
  const int64_t width = element_bytes(tensor.type);
  Xxh3 hash;
  for (RunCursor run(common, piece.region, target); !run.done(); run.next()) {
    const int64_t bytes = run.length() * width;
    for (int64_t done = 0; done < bytes;) {
      const int64_t count = std::min(kBlockBytes, bytes - done);
      char* at = out + run.b_offset() * width + done;
      auto read = fetch(tensor, at, count, piece.offset + run.a_offset() * width + done);
      if (!read) return read;
      if (checking == Checking::kChecksum) hash.update(at, static_cast<size_t>(count));
      done += count;
    }
  }
  if (checking == Checking::kChecksum && hash.digest() != piece.checksum)
    return damaged_piece(path_, tensor, piece, hash.digest());
  return {};
}

// Blocks of the piece into a buffer, the runs from there to their places. A run may span blocks.
Result<void> ShardReader::read_through_buffer(const TensorRecord& tensor, const StoredPiece& piece,
                                              const Region& target, const Region& common, char* out,
                                              Checking checking) const {
  const int64_t width = element_bytes(tensor.type);
  int64_t last = 0;  // byte of the piece behind the last that is read
  if (checking == Checking::kChecksum) {
    last = num_elements(piece.region.extent) * width;
  } else {
    for (size_t d = 0; d < common.start.size(); ++d)
      last = last * piece.region.extent[d] + common.start[d] - piece.region.start[d] + common.extent[d] - 1;
    last = (last + 1) * width;
  }
  const std::unique_ptr<char[]> buffer(new char[static_cast<size_t>(std::min(kBlockBytes, last))]);
  Xxh3 hash;
  RunCursor run(common, piece.region, target);
  int64_t run_done = 0;  // bytes of the run that are in place
  for (int64_t begin = 0; begin < last;) {
    if (checking == Checking::kTrust) begin = std::max(begin, run.a_offset() * width + run_done);
    const int64_t end = std::min(begin + kBlockBytes, last);
    if (auto read = fetch(tensor, buffer.get(), end - begin, piece.offset + begin); !read) return read;
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
  if (checking == Checking::kChecksum && hash.digest() != piece.checksum)
    return damaged_piece(path_, tensor, piece, hash.digest());
  return {};
}

Result<void> ShardReader::verify(const TensorRecord& tensor, const StoredPiece& piece) const {
  const int64_t bytes = num_elements(piece.region.extent) * element_bytes(tensor.type);
  const std::unique_ptr<char[]> buffer(new char[static_cast<size_t>(std::min(kBlockBytes, bytes))]);
  Xxh3 hash;
  for (int64_t done = 0; done < bytes;) {
    const int64_t count = std::min(kBlockBytes, bytes - done);
    if (auto read = fetch(tensor, buffer.get(), count, piece.offset + done); !read) return read;
    hash.update(buffer.get(), static_cast<size_t>(count));
    done += count;
  }
  if (hash.digest() != piece.checksum) return damaged_piece(path_, tensor, piece, hash.digest());
  return {};
}

Result<void> ShardReader::verify_structures(
    const FileRecord& file, const std::vector<std::pair<const TensorRecord*, const StoredPiece*>>& pieces) const {
  auto sorted = pieces;
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
    const auto [tensor, piece] = sorted[i];
    hash.update(&piece->checksum, sizeof piece->checksum);
    at = piece->offset + num_elements(piece->region.extent) * element_bytes(tensor->type);
  }
  if (hash.digest() != file.checksum)
    return file_error("{}: XXH3-64 of what lies between the pieces is {}, expected {}; HDF5's structures are damaged",
                      path_, hex64(hash.digest()), hex64(file.checksum));
  return {};
}

PieceReader::PieceReader(std::string folder, const std::vector<FileRecord>& files, const Retry& retry)
    : folder_(std::move(folder)), retry_(retry) {
  for (const FileRecord& file : files) files_[file.name] = file;
}

Result<std::shared_ptr<const ShardReader>> PieceReader::shard(const std::string& name) const {
  const std::lock_guard lock(open_->mutex);
  if (const auto at = open_->shards.find(name); at != open_->shards.end()) return at->second;
  auto opened = ShardReader::open(folder_, files_.at(name), bytes_read_);
  if (!opened) return opened.error();
  if (open_->shards.size() >= kMaxOpen) open_->shards.clear();  // those in use stay open until their reader is done
  auto shared = std::make_shared<const ShardReader>(std::move(opened).value());
  open_->shards[name] = shared;
  return std::shared_ptr<const ShardReader>(shared);
}

void PieceReader::forget(const std::string& name) const {
  const std::lock_guard lock(open_->mutex);
  open_->shards.erase(name);
}

template <class Act>
Result<void> PieceReader::with_shard(const TensorRecord& tensor, const StoredPiece& piece, Act act) const {
  return retried(retry_, [&]() -> Result<void> {
    auto file = shard(piece.file);
    if (!file) return for_tensor(file.error(), tensor);
    auto done = act(*file.value());
    if (!done) forget(piece.file);
    return done;
  });
}

Result<void> PieceReader::read(const TensorRecord& tensor, const StoredPiece& piece, const Region& target, void* out,
                               Checking checking) const {
  if (!intersect(piece.region, target)) return {};
  return with_shard(tensor, piece,
                    [&](const ShardReader& file) { return file.read(tensor, piece, target, out, checking); });
}

Result<void> PieceReader::fetch(const TensorRecord& tensor, const StoredPiece& piece, int64_t begin, int64_t bytes,
                                void* data) const {
  return with_shard(tensor, piece,
                    [&](const ShardReader& file) { return file.fetch(tensor, piece, begin, bytes, data); });
}

Result<CheckpointReader> CheckpointReader::open(const std::string& folder, const Retry& retry) {
  auto manifest = read_manifest(folder, retry);
  if (!manifest) return manifest.error();
  if (auto there = check_files(folder, manifest.value(), retry); !there) return there.error();
  PieceReader pieces(folder, manifest.value().files, retry);
  return CheckpointReader(std::move(manifest).value(), std::move(pieces));
}

Result<void> CheckpointReader::read(const Piece& target, void* out, Checking checking) const {
  const auto found = manifest_.find(target.tensor, target.type, target.shape);
  if (!found) return file_error("{}: {}", pieces_.folder(), found.error().message);
  TRI_REQUIRE(inside(target.region, target.shape), "{}: region {} of {}", target.tensor, to_string(target.region),
              to_string(target.shape));
  const TensorRecord& tensor = *found.value();
  for (const StoredPiece& piece : tensor.pieces)
    if (auto done = pieces_.read(tensor, piece, target.region, out, checking); !done) return done;
  return {};
}

}  // namespace tri
