#include "io/checkpoint/shard_writer.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tri {
namespace {

// A block is hashed and then written while it is still in the cache.
constexpr int64_t kWrittenBlock = 1 << 20;
// The kernel starts writing after this many bytes, so that little remains for the fsync.
constexpr int64_t kFlushBytes = 16 << 20;

std::string dataset_name(const TensorShard& shard) {
  return fmt::format("{}/at_{}", shard.tensor, fmt::join(shard.region.start, "_"));
}

// Creates an empty contiguous dataset; returns its offset in the file.
int64_t lay_out(hid_t file, const TensorShard& shard, const std::string& dataset, const std::string& path) {
  const std::vector<hsize_t> extent(shard.region.extent.begin(), shard.region.extent.end());
  const Hid type = hdf5_type(shard.type, path);
  const Hid space(TRI_HDF5(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr), path), H5Sclose);
  const Hid links(TRI_HDF5(H5Pcreate(H5P_LINK_CREATE), path), H5Pclose);
  TRI_HDF5(H5Pset_create_intermediate_group(links, 1), path);
  const Hid creation(TRI_HDF5(H5Pcreate(H5P_DATASET_CREATE), path), H5Pclose);
  TRI_HDF5(H5Pset_layout(creation, H5D_CONTIGUOUS), path);
  TRI_HDF5(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY), path);
  TRI_HDF5(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), path);
  const Hid made(TRI_HDF5(H5Dcreate2(file, dataset.c_str(), type, space, links, creation, H5P_DEFAULT), path),
                 H5Dclose);
  hdf5_attribute(made, "tensor", shard.tensor, path);
  hdf5_attribute(made, "type", enum_name(shard.type), path);
  hdf5_attribute(made, "global_shape", shard.shape, path);
  hdf5_attribute(made, "start", shard.region.start, path);
  hdf5_attribute(made, "extent", shard.region.extent, path);
  const haddr_t offset = H5Dget_offset(made);
  if (offset == HADDR_UNDEF) TRI_HDF5(-1, path);
  return static_cast<int64_t>(offset);
}

}  // namespace

std::string shard_name(int writer) { return fmt::format("shard_{:05}.h5", writer); }

Result<ShardWriter> ShardWriter::create(const std::string& path, const std::string& attempt) {
  ShardWriter writer;
  writer.path_ = path;
  const std::string temporary = fmt::format("{}.{}.tmp", path, attempt);
  writer.file_ = Descriptor(::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (writer.file_.get() < 0) return system_error(errno, "{}", temporary);
  writer.temporary_ = temporary;
  auto made = with_hdf5([&] { writer.image_ = Hdf5Image::create(path); });
  if (!made) return made.error();
  return writer;
}

ShardWriter::~ShardWriter() {
  if (file_.get() >= 0) ::unlink(temporary_.c_str());
}

Result<void> ShardWriter::add(const TensorShard& shard, const void* data) {
  TRI_REQUIRE(valid_tensor_name(shard.tensor), "\"{}\" is not a valid name of a tensor", shard.tensor);
  TRI_REQUIRE(!shard.shape.empty() && shard.shape.size() <= H5S_MAX_RANK && inside(shard.region, shard.shape),
              "{}: shard {} is not inside shape {}", shard.tensor, to_string(shard.region), to_string(shard.shape));
  if (state_) state_ = store(shard, data);
  return state_;
}

Result<void> ShardWriter::store(const TensorShard& shard, const void* data) {
  auto& tensor =
      tensors_.try_emplace(shard.tensor, TensorRecord{shard.tensor, shard.type, shard.shape, {}}).first->second;
  TRI_REQUIRE(tensor.type == shard.type && tensor.shape == shard.shape, "{}: its shards have different types or shapes",
              shard.tensor);
  const int64_t bytes = num_elements(shard.region.extent) * element_bytes(shard.type);
  StoredShard stored{
      .file = path_.substr(path_.rfind('/') + 1), .dataset = dataset_name(shard), .region = shard.region};
  auto laid = with_hdf5([&] { stored.offset = lay_out(image_.file(), shard, stored.dataset, temporary_); });
  if (!laid) return laid;

  Xxh3 hash;
  for (int64_t done = 0; done < bytes;) {
    const char* block = static_cast<const char*>(data) + done;
    const int64_t count = std::min(kWrittenBlock, bytes - done);
    hash.update(block, static_cast<size_t>(count));
    if (auto written = write_at(file_.get(), temporary_, block, count, stored.offset + done); !written)
      return Error{fmt::format("{} (tensor {})", written.error().message, shard.tensor), written.error().code,
                   written.error().os_error};
    done += count;
    if (const int64_t written = stored.offset + done; written - flushed_ >= kFlushBytes) {
      ::sync_file_range(file_.get(), flushed_, written - flushed_, SYNC_FILE_RANGE_WRITE);  // only a hint
      flushed_ = written;
    }
  }
  stored.checksum = hash.digest();
  laid = with_hdf5([&] {
    const Hid dataset(TRI_HDF5(H5Dopen2(image_.file(), stored.dataset.c_str(), H5P_DEFAULT), temporary_), H5Dclose);
    hdf5_attribute(dataset, "xxh3_64", hex64(stored.checksum), temporary_);
  });
  if (!laid) return laid;
  tensor.shards.push_back(std::move(stored));
  return {};
}

Result<ShardRecord> ShardWriter::finish() {
  if (!state_) return state_.error();
  auto record = seal();
  state_ = record ? Result<void>(file_error("{}: the file is already finished", path_)) : Result<void>(record.error());
  return record;
}

Result<ShardRecord> ShardWriter::seal() {
  ShardRecord record{.file = {.name = path_.substr(path_.rfind('/') + 1)}};
  for (auto& [name, tensor] : tensors_) record.tensors.push_back(std::move(tensor));
  std::vector<std::pair<const StoredShard*, int64_t>> shards;  // with the end of each
  for (const TensorRecord& tensor : record.tensors)
    for (const StoredShard& shard : tensor.shards)
      shards.emplace_back(&shard, shard.offset + num_elements(shard.region.extent) * element_bytes(tensor.type));
  std::sort(shards.begin(), shards.end(), [](auto a, auto b) { return a.first->offset < b.first->offset; });

  if (auto closed = with_hdf5([&] { image_.close(); }); !closed) return closed.error();
  record.file.bytes = image_.bytes();
  auto checksum = write_structures(shards);
  if (!checksum) return checksum.error();
  record.file.checksum = checksum.value();
  if (::fsync(file_.get()) != 0) return system_error(errno, "{}: fsync", temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return system_error(errno, "{}: renaming {}", path_, temporary_);
  file_.close();
  return record;
}

// Writes HDF5's structures, which are between the shards.
Result<uint64_t> ShardWriter::write_structures(const std::vector<std::pair<const StoredShard*, int64_t>>& shards) {
  Xxh3 hash;
  std::vector<char> buffer;
  int64_t at = 0;
  for (size_t i = 0; i <= shards.size(); ++i) {
    const int64_t end = i < shards.size() ? shards[i].first->offset : image_.bytes();
    TRI_REQUIRE(at <= end, "{}: a shard begins at byte {}, but others end at {}", path_, end, at);
    buffer.resize(static_cast<size_t>(end - at));
    image_.read(buffer.data(), end - at, at);
    if (auto written = write_at(file_.get(), temporary_, buffer.data(), end - at, at); !written) return written.error();
    hash.update(buffer.data(), buffer.size());
    if (i == shards.size()) break;
    hash.update(&shards[i].first->checksum, sizeof(uint64_t));
    at = shards[i].second;
  }
  return hash.digest();
}

}  // namespace tri
