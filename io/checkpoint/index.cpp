#include "io/checkpoint/index.h"

#include <limits>

#include "io/base/file.h"
#include "io/base/hash.h"
#include "io/checkpoint/hdf5_image.h"

namespace tri {
namespace {

Hid make_parents(const std::string& path) {
  Hid links(TRI_HDF5(H5Pcreate(H5P_LINK_CREATE), path), H5Pclose);
  TRI_HDF5(H5Pset_create_intermediate_group(links, 1), path);
  return links;
}

// Escapes `name`, because %b stands for a number in names of sources.
std::string without_pattern(const std::string& name) {
  std::string text;
  for (const char c : name) text += c == '%' ? std::string("%%") : std::string(1, c);
  return text;
}

void set_fill(hid_t creation, StoredType type, const std::string& path) {
  if (type == StoredType::kF32 || type == StoredType::kBf16) {
    const float value = std::numeric_limits<float>::quiet_NaN();
    TRI_HDF5(H5Pset_fill_value(creation, H5T_NATIVE_FLOAT, &value), path);
    return;
  }
  const int64_t value = type == StoredType::kI64   ? std::numeric_limits<int64_t>::max()
                        : type == StoredType::kI32 ? std::numeric_limits<int32_t>::max()
                                                   : std::numeric_limits<uint8_t>::max();
  TRI_HDF5(H5Pset_fill_value(creation, H5T_NATIVE_INT64, &value), path);
}

void add_tensor(hid_t file, const TensorRecord& tensor, const std::string& path) {
  const std::vector<hsize_t> shape(tensor.shape.begin(), tensor.shape.end());
  const int dims = static_cast<int>(shape.size());
  const Hid space(TRI_HDF5(H5Screate_simple(dims, shape.data(), nullptr), path), H5Sclose);
  const Hid creation(TRI_HDF5(H5Pcreate(H5P_DATASET_CREATE), path), H5Pclose);
  set_fill(creation, tensor.type, path);
  for (const StoredShard& shard : tensor.shards) {
    const std::vector<hsize_t> start(shard.region.start.begin(), shard.region.start.end());
    const std::vector<hsize_t> extent(shard.region.extent.begin(), shard.region.extent.end());
    const std::vector<hsize_t> one(shape.size(), 1);
    TRI_HDF5(H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, one.data(), extent.data()), path);
    const Hid source(TRI_HDF5(H5Screate_simple(dims, extent.data(), nullptr), path), H5Sclose);
    TRI_HDF5(H5Pset_virtual(creation, space, without_pattern(shard.file).c_str(),
                            without_pattern(shard.dataset).c_str(), source),
             path);
  }
  TRI_HDF5(H5Sselect_all(space), path);
  const Hid type = hdf5_type(tensor.type, path), links = make_parents(path);
  const Hid made(TRI_HDF5(H5Dcreate2(file, tensor.name.c_str(), type, space, links, creation, H5P_DEFAULT), path),
                 H5Dclose);
  hdf5_attribute(made, "type", enum_name(tensor.type), path);
}

void add_scalar(hid_t file, const std::string& name, hid_t type, const void* value, const std::string& path) {
  const Hid space(TRI_HDF5(H5Screate(H5S_SCALAR), path), H5Sclose), links = make_parents(path);
  const Hid made(TRI_HDF5(H5Dcreate2(file, name.c_str(), type, space, links, H5P_DEFAULT, H5P_DEFAULT), path),
                 H5Dclose);
  TRI_HDF5(H5Dwrite(made, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, value), path);
}

void add_number(hid_t file, const std::string& name, int64_t value, const std::string& path) {
  add_scalar(file, "info/" + name, H5T_STD_I64LE, &value, path);
}

void add_text(hid_t file, const std::string& name, const std::string& text, const std::string& path) {
  const Hid type(TRI_HDF5(H5Tcopy(H5T_C_S1), path), H5Tclose);
  TRI_HDF5(H5Tset_size(type, text.size() + 1), path);
  TRI_HDF5(H5Tset_cset(type, H5T_CSET_UTF8), path);
  add_scalar(file, "info/" + name, type, text.c_str(), path);
}

}  // namespace

Result<FileRecord> write_index(const std::string& folder, const Manifest& manifest) {
  const std::string path = folder + "/" + kIndexName;
  Hdf5Image image;
  auto built = with_hdf5([&] {
    image = Hdf5Image::create(path);
    for (const TensorRecord& tensor : manifest.tensors) add_tensor(image.file(), tensor, path);
    add_number(image.file(), "step", manifest.step, path);
    add_text(image.file(), "attempt", manifest.attempt, path);
    for (const auto& [key, value] : manifest.info.numbers) add_number(image.file(), key, value, path);
    for (const auto& [key, text] : manifest.info.texts) add_text(image.file(), key, text, path);
    image.close();
  });
  if (!built) return built.error();
  std::string content(static_cast<size_t>(image.bytes()), '\0');
  image.read(content.data(), image.bytes(), 0);
  if (auto written = write_file(path, content, manifest.attempt); !written) return written.error();
  return FileRecord{.name = kIndexName, .bytes = image.bytes(), .checksum = xxh3_64(content)};
}

}  // namespace tri
