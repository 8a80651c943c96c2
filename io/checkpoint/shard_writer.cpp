#include "io/checkpoint/shard_writer.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tri {
namespace {

// A block is hashed and then written while it is still in the cache.
constexpr int64_t kBlockBytes = 1 << 20;
// The kernel is asked to start writing after so many bytes, so that little is left for the fsync.
constexpr int64_t kFlushBytes = 16 << 20;

std::string dataset_name(const Piece& piece) {
  return fmt::format("{}/at_{}", piece.tensor, fmt::join(piece.region.start, "_"));
}

// An empty contiguous dataset; returns its place in the file.
int64_t lay_out(hid_t file, const Piece& piece, const std::string& dataset, const std::string& path) {
  const std::vector<hsize_t> extent(piece.region.extent.begin(), piece.region.extent.end());
  const Hid type = hdf5_type(piece.type, path);
  const Hid space(TRI_HDF5(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr), path), H5Sclose);
  const Hid links(TRI_HDF5(H5Pcreate(H5P_LINK_CREATE), path), H5Pclose);
  TRI_HDF5(H5Pset_create_intermediate_group(links, 1), path);
  const Hid creation(TRI_HDF5(H5Pcreate(H5P_DATASET_CREATE), path), H5Pclose);
  TRI_HDF5(H5Pset_layout(creation, H5D_CONTIGUOUS), path);
  TRI_HDF5(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY), path);
  TRI_HDF5(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), path);
  const Hid made(TRI_HDF5(H5Dcreate2(file, dataset.c_str(), type, space, links, creation, H5P_DEFAULT), path),
                 H5Dclose);
  hdf5_attribute(made, "tensor", piece.tensor, path);
  hdf5_attribute(made, "type", enum_name(piece.type), path);
  hdf5_attribute(made, "global_shape", piece.shape, path);
  hdf5_attribute(made, "start", piece.region.start, path);
  hdf5_attribute(made, "extent", piece.region.extent, path);
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

Result<void> ShardWriter::add(const Piece& piece, const void* data) {
  TRI_REQUIRE(valid_tensor_name(piece.tensor), "tensor \"{}\"", piece.tensor);
  TRI_REQUIRE(!piece.shape.empty() && piece.shape.size() <= H5S_MAX_RANK && inside(piece.region, piece.shape),
              "{}: piece {} of {}", piece.tensor, to_string(piece.region), to_string(piece.shape));
  if (state_) state_ = store(piece, data);
  return state_;
}

Result<void> ShardWriter::store(const Piece& piece, const void* data) {
  auto& tensor =
      tensors_.try_emplace(piece.tensor, TensorRecord{piece.tensor, piece.type, piece.shape, {}}).first->second;
  TRI_REQUIRE(tensor.type == piece.type && tensor.shape == piece.shape, "{}: pieces of different tensors",
              piece.tensor);
  const int64_t bytes = num_elements(piece.region.extent) * element_bytes(piece.type);
  StoredPiece stored{
      .file = path_.substr(path_.rfind('/') + 1), .dataset = dataset_name(piece), .region = piece.region};
  auto laid = with_hdf5([&] { stored.offset = lay_out(image_.file(), piece, stored.dataset, temporary_); });
  if (!laid) return laid;

  Xxh3 hash;
  for (int64_t done = 0; done < bytes;) {
    const char* block = static_cast<const char*>(data) + done;
    const int64_t count = std::min(kBlockBytes, bytes - done);
    hash.update(block, static_cast<size_t>(count));
    if (auto written = write_at(file_.get(), temporary_, block, count, stored.offset + done); !written)
      return Error{fmt::format("{} (tensor {})", written.error().message, piece.tensor), written.error().code,
                   written.error().os_error};
    done += count;
    if (const int64_t written = stored.offset + done; written - flushed_ >= kFlushBytes) {
      ::sync_file_range(file_.get(), flushed_, written - flushed_, SYNC_FILE_RANGE_WRITE);  // a hint
      flushed_ = written;
    }
  }
  stored.checksum = hash.digest();
  laid = with_hdf5([&] {
    const Hid dataset(TRI_HDF5(H5Dopen2(image_.file(), stored.dataset.c_str(), H5P_DEFAULT), temporary_), H5Dclose);
    hdf5_attribute(dataset, "xxh3_64", hex64(stored.checksum), temporary_);
  });
  if (!laid) return laid;
  tensor.pieces.push_back(std::move(stored));
  return {};
}

Result<ShardRecord> ShardWriter::finish() {
  if (!state_) return state_.error();
  auto record = seal();
  state_ = record ? Result<void>(file_error("{}: already finished", path_)) : Result<void>(record.error());
  return record;
}

Result<ShardRecord> ShardWriter::seal() {
  ShardRecord record{.file = {.name = path_.substr(path_.rfind('/') + 1)}};
  for (auto& [name, tensor] : tensors_) record.tensors.push_back(std::move(tensor));
  std::vector<std::pair<const StoredPiece*, int64_t>> pieces;  // and the end of each
  for (const TensorRecord& tensor : record.tensors)
    for (const StoredPiece& piece : tensor.pieces)
      pieces.emplace_back(&piece, piece.offset + num_elements(piece.region.extent) * element_bytes(tensor.type));
  std::sort(pieces.begin(), pieces.end(), [](auto a, auto b) { return a.first->offset < b.first->offset; });

  if (auto closed = with_hdf5([&] { image_.close(); }); !closed) return closed.error();
  record.file.bytes = image_.bytes();
  auto checksum = write_structures(pieces);
  if (!checksum) return checksum.error();
  record.file.checksum = checksum.value();
  if (::fsync(file_.get()) != 0) return system_error(errno, "{}: fsync", temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return system_error(errno, "{}: renaming {}", path_, temporary_);
  file_.close();
  return record;
}

// HDF5's structures lie between the pieces.
Result<uint64_t> ShardWriter::write_structures(const std::vector<std::pair<const StoredPiece*, int64_t>>& pieces) {
  Xxh3 hash;
  std::vector<char> buffer;
  int64_t at = 0;
  for (size_t i = 0; i <= pieces.size(); ++i) {
    const int64_t end = i < pieces.size() ? pieces[i].first->offset : image_.bytes();
    TRI_REQUIRE(at <= end, "{}: a piece at byte {}, others end at {}", path_, end, at);
    buffer.resize(static_cast<size_t>(end - at));
    image_.read(buffer.data(), end - at, at);
    if (auto written = write_at(file_.get(), temporary_, buffer.data(), end - at, at); !written) return written.error();
    hash.update(buffer.data(), buffer.size());
    if (i == pieces.size()) break;
    hash.update(&pieces[i].first->checksum, sizeof(uint64_t));
    at = pieces[i].second;
  }
  return hash.digest();
}

}  // namespace tri
