#include <algorithm>

#include "io/base/schema.h"
#include "io/checkpoint/hdf5.h"
#include "io/ranks/ranks_file.h"
#include "io/ranks/ranks_layout.h"

namespace tri {
namespace {

constexpr int64_t kMostRanks = int64_t{1} << 24;
constexpr int64_t kMostImageBytes = int64_t{64} << 20;  // larger files are read through the library

Hid attribute_of(hid_t group, const char* name, const std::string& path) {
  return Hid(TRI_HDF5(H5Aopen(group, name, H5P_DEFAULT), path), H5Aclose);
}

std::string text_attribute(hid_t group, const char* name, const std::string& path) {
  const Hid attribute = attribute_of(group, name, path);
  const Hid type(TRI_HDF5(H5Aget_type(attribute), path), H5Tclose);
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0)
    throw Fatal(ExitCode::kFile, fmt::format("{}: attribute {} is not a string", path, name));
  std::string text(H5Tget_size(type), '\0');
  TRI_HDF5(H5Aread(attribute, type, text.data()), path);
  return text.substr(0, text.find('\0'));
}

std::vector<int64_t> number_attribute(hid_t group, const char* name, size_t count, const std::string& path) {
  const Hid attribute = attribute_of(group, name, path);
  const Hid space(TRI_HDF5(H5Aget_space(attribute), path), H5Sclose);
  if (H5Sget_simple_extent_npoints(space) != static_cast<hssize_t>(count))
    throw Fatal(ExitCode::kFile, fmt::format("{}: attribute {} does not have {} numbers", path, name, count));
  std::vector<int64_t> values(count);
  TRI_HDF5(H5Aread(attribute, H5T_NATIVE_INT64, values.data()), path);
  return values;
}

Hid dataset_of(hid_t group, const char* name, const std::string& path) {
  return Hid(TRI_HDF5(H5Dopen2(group, name, H5P_DEFAULT), path), H5Dclose);
}

// Returns a dataset's offset if it has this extent; its first dimension may have any size.
int64_t offset_of(hid_t group, const char* name, std::vector<hsize_t> extent, hsize_t* count, const std::string& path) {
  const Hid dataset = dataset_of(group, name, path);
  const Hid space(TRI_HDF5(H5Dget_space(dataset), path), H5Sclose);
  std::vector<hsize_t> found(static_cast<size_t>(std::max(0, H5Sget_simple_extent_ndims(space))));
  TRI_HDF5(H5Sget_simple_extent_dims(space, found.data(), nullptr), path);
  if (!found.empty()) extent[0] = *count == 0 ? found[0] : *count;
  const haddr_t offset = H5Dget_offset(dataset);
  if (found != extent || offset == HADDR_UNDEF)
    throw Fatal(ExitCode::kFile, fmt::format("{}: dataset {} has an unexpected shape", path, name));
  *count = extent[0];
  return static_cast<int64_t>(offset);
}

std::vector<std::string> read_texts(hid_t group, const char* name, int64_t width, int count, const std::string& path) {
  const Hid dataset = dataset_of(group, name, path);
  const Hid space(TRI_HDF5(H5Dget_space(dataset), path), H5Sclose);
  if (H5Sget_simple_extent_npoints(space) != count)
    throw Fatal(ExitCode::kFile, fmt::format("{}: dataset {} has an unexpected shape", path, name));
  std::string bytes(static_cast<size_t>(count * width), '\0');
  TRI_HDF5(H5Dread(dataset, ranks_text_type(width, path), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()), path);
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    const std::string text = bytes.substr(static_cast<size_t>(i * width), static_cast<size_t>(width));
    texts.push_back(text.substr(0, text.find('\0')));
  }
  return texts;
}

// Splits a list of names at commas.
std::vector<std::string> split(const std::string& names) {
  std::vector<std::string> found;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    found.push_back(names.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

// Returns the column of each RankQuantity, found by name; -1: none.
std::vector<int> columns_of(const std::string& names, int* count) {
  const std::vector<std::string> found = split(names);
  *count = static_cast<int>(found.size());
  std::vector<int> columns;
  for (const auto& [quantity, name] : EnumNames<RankQuantity>::table) {
    const auto place = std::find(found.begin(), found.end(), name);
    columns.push_back(place == found.end() ? -1 : static_cast<int>(place - found.begin()));
  }
  return columns;
}

}  // namespace

RanksReader::Attempt RanksReader::read_attempt(int64_t group, const std::string& path) {
  Attempt attempt;
  RankMesh& mesh = attempt.mesh;
  mesh.attempt = text_attribute(group, "attempt", path);
  mesh.schedule = text_attribute(group, "schedule", path);
  attempt.columns = columns_of(text_attribute(group, "quantities", path), &attempt.num_quantities);
  const bool named = H5Aexists(group, "axes") > 0;
  const std::vector<std::string> names = split(named ? text_attribute(group, "axes", path) : "pp,dp,tp");
  const auto sizes = number_attribute(group, "mesh", names.size(), path);
  int64_t ranks = 1;
  for (const int64_t axis : sizes) {
    ranks = axis < 1 || axis > kMostRanks ? kMostRanks + 1 : ranks * axis;
    if (ranks > kMostRanks) throw Fatal(ExitCode::kFile, fmt::format("{}: a mesh of {} ranks", path, ranks));
  }
  mesh.grid.axes.clear();
  for (size_t i = names.size(); i-- > 0;) mesh.grid.axes.push_back({names[i], static_cast<int>(sizes[i])});
  mesh.num_microbatches = static_cast<int>(number_attribute(group, "num_microbatches", 1, path)[0]);
  mesh.chunks = static_cast<int>(number_attribute(group, "chunks", 1, path)[0]);
  const auto hosts = read_texts(group, "host", kRankHostBytes, mesh.world_size(), path),
             gpus = read_texts(group, "gpu", kRankGpuBytes, mesh.world_size(), path);
  for (size_t rank = 0; rank < hosts.size(); ++rank) mesh.places.push_back({hosts[rank], gpus[rank]});
  hsize_t stages = static_cast<hsize_t>(mesh.stages()), windows = 0;
  offset_of(group, "stage_flops", {stages}, &stages, path);
  mesh.stage_flops.resize(static_cast<size_t>(mesh.stages()));
  TRI_HDF5(H5Dread(dataset_of(group, "stage_flops", path), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                   mesh.stage_flops.data()),
           path);
  attempt.first_step = offset_of(group, "first_step", {0}, &windows, path);
  attempt.last_step = offset_of(group, "last_step", {0}, &windows, path);
  attempt.time = offset_of(group, "time", {0}, &windows, path);
  std::vector<hsize_t> times{0};
  times.insert(times.end(), sizes.begin(), sizes.end());
  times.push_back(static_cast<hsize_t>(attempt.num_quantities));
  attempt.times = offset_of(group, "times", times, &windows, path);
  attempt.capacity = static_cast<int64_t>(windows);
  return attempt;
}

Result<RanksReader> RanksReader::open(const std::string& path) {
  RanksReader reader;
  reader.path_ = path;
  auto file = InputFile::open(path);
  if (!file) return file.error();
  reader.file_ = std::move(file).value();
  // Read before the library's lock is taken: if this file's storage hangs, checkpoints can still write their shards.
  std::string image;
  if (const int64_t bytes = reader.file_.bytes(); bytes > 0 && bytes <= kMostImageBytes) {
    image.resize(static_cast<size_t>(bytes));
    if (auto got = reader.file_.read(image.data(), bytes, 0); !got) return got.error();
  }
  auto read = with_hdf5([&] {
    TRI_HDF5(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), path);
    const Hid access(TRI_HDF5(H5Pcreate(H5P_FILE_ACCESS), path), H5Pclose);
#if H5_VERSION_GE(1, 10, 7)
    TRI_HDF5(H5Pset_file_locking(access, false, true), path);  // its writer takes no lock either
#endif
    if (!image.empty()) {
      TRI_HDF5(H5Pset_fapl_core(access, 64 << 10, false), path);
      TRI_HDF5(H5Pset_file_image(access, image.data(), image.size()), path);
    }
    // An image needs a name that no file has.
    const char* const name = image.empty() ? path.c_str() : "/dev/null/ranks.h5";
    const Hid hdf5(TRI_HDF5(H5Fopen(name, H5F_ACC_RDONLY, access), path), H5Fclose);
    if (H5Aexists(hdf5, "schema") > 0)
      if (auto known = check_schema(path, number_attribute(hdf5, "schema", 1, path)[0], kRanksSchema); !known)
        throw Fatal(ExitCode::kFile, known.error().message);
    for (int attempt = 0; H5Lexists(hdf5, ranks_group_name(attempt).c_str(), H5P_DEFAULT) > 0; ++attempt) {
      const Hid group(TRI_HDF5(H5Gopen2(hdf5, ranks_group_name(attempt).c_str(), H5P_DEFAULT), path), H5Gclose);
      reader.attempts_.push_back(read_attempt(group, path));
    }
  });
  if (!read) return read.error();
  return reader;
}

Result<int64_t> RanksReader::num_windows(int attempt) const {
  const Attempt& of = at(attempt);
  std::vector<int64_t> last(static_cast<size_t>(of.capacity));
  if (auto read = file_.read(last.data(), of.capacity * int64_t{sizeof(int64_t)}, of.last_step); !read)
    return read.error();
  return std::find_if(last.begin(), last.end(), [](int64_t step) { return step <= 0; }) - last.begin();
}

Result<RankWindow> RanksReader::read(int attempt, int64_t window) const {
  const Attempt& of = at(attempt);
  TRI_REQUIRE(window >= 0 && window < of.capacity, "window {} of {}", window, of.capacity);
  RankWindow result;
  const int64_t number = window * int64_t{sizeof(int64_t)};
  const auto ranks = static_cast<size_t>(of.mesh.world_size()), columns = static_cast<size_t>(of.num_quantities);
  std::vector<float> row(ranks * columns);
  const auto bytes = static_cast<int64_t>(row.size() * sizeof(float));
  for (const Result<void>& done : {file_.read(&result.first_step, sizeof(int64_t), of.first_step + number),
                                   file_.read(&result.last_step, sizeof(int64_t), of.last_step + number),
                                   file_.read(&result.time, sizeof(double), of.time + number),
                                   file_.read(row.data(), bytes, of.times + window * bytes)})
    if (!done) return done.error();
  result.ranks.resize(ranks);
  for (size_t q = 0; q < kNumRankQuantities; ++q)
    if (const int column = of.columns[q]; column >= 0)
      for (size_t rank = 0; rank < ranks; ++rank)
        result.ranks[rank].seconds[q] = row[rank * columns + static_cast<size_t>(column)];
  return result;
}

Result<std::vector<RankWindow>> RanksReader::last(int attempt, int64_t count) const {
  const auto windows = num_windows(attempt);
  if (!windows) return windows.error();
  std::vector<RankWindow> result;
  for (int64_t w = std::max<int64_t>(0, windows.value() - count); w < windows.value(); ++w) {
    auto window = read(attempt, w);
    if (!window) return window.error();
    result.push_back(std::move(window).value());
  }
  return result;
}

}  // namespace tri
