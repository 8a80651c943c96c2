#include "io/ranks/ranks_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "io/base/log.h"
#include "io/checkpoint/hdf5.h"
#include "io/checkpoint/hdf5_image.h"

namespace tri {
namespace {

constexpr int64_t kFewestWindows = 64;  // that a file has room for when it is laid out
constexpr int64_t kHostBytes = 64, kGpuBytes = 32;
constexpr int64_t kMostRanks = int64_t{1} << 24;

std::string group_name(int attempt) { return fmt::format("/attempt_{:04}", attempt + 1); }

std::string quantity_names() {
  std::string names;
  for (const auto& [quantity, name] : EnumNames<RankQuantity>::table)
    names += (names.empty() ? "" : ",") + std::string(name);
  return names;
}

int64_t row_bytes(const RankMesh& mesh) {
  return int64_t{mesh.world_size()} * kNumRankQuantities * static_cast<int64_t>(sizeof(float));
}

// ---- Laying out

struct Dataset {
  int64_t offset = 0, bytes = 0;
};

Hid text_type(int64_t bytes, const std::string& path) {
  Hid type(TRI_HDF5(H5Tcopy(H5T_C_S1), path), H5Tclose);
  TRI_HDF5(H5Tset_size(type, static_cast<size_t>(bytes)), path);
  TRI_HDF5(H5Tset_strpad(type, H5T_STR_NULLPAD), path);
  TRI_HDF5(H5Tset_cset(type, H5T_CSET_UTF8), path);
  return type;
}

// A contiguous dataset whose place is numbered, and not written.
Dataset lay_out_dataset(hid_t group, const char* name, hid_t type, const std::vector<hsize_t>& extent,
                        const std::string& path) {
  const Hid space(TRI_HDF5(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr), path), H5Sclose);
  const Hid creation(TRI_HDF5(H5Pcreate(H5P_DATASET_CREATE), path), H5Pclose);
  TRI_HDF5(H5Pset_layout(creation, H5D_CONTIGUOUS), path);
  TRI_HDF5(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY), path);
  TRI_HDF5(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), path);
  const Hid made(TRI_HDF5(H5Dcreate2(group, name, type, space, H5P_DEFAULT, creation, H5P_DEFAULT), path), H5Dclose);
  const haddr_t offset = H5Dget_offset(made);
  if (offset == HADDR_UNDEF) TRI_HDF5(-1, path);
  return {static_cast<int64_t>(offset), static_cast<int64_t>(H5Dget_storage_size(made))};
}

struct GroupLayout {
  Dataset first_step, last_step, time, times, host, gpu, stage_flops;
};

GroupLayout lay_out_group(hid_t file, int attempt, const RankMesh& mesh, int64_t windows, const std::string& path) {
  const Hid group(TRI_HDF5(H5Gcreate2(file, group_name(attempt).c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), path),
                  H5Gclose);
  hdf5_attribute(group, "attempt", mesh.attempt, path);
  hdf5_attribute(group, "schedule", mesh.schedule, path);
  hdf5_attribute(group, "quantities", quantity_names(), path);
  const int64_t axes[] = {mesh.pp, mesh.dp, mesh.tp}, microbatches[] = {mesh.num_microbatches},
                chunks[] = {mesh.chunks};
  hdf5_attribute(group, "mesh", axes, path);
  hdf5_attribute(group, "num_microbatches", microbatches, path);
  hdf5_attribute(group, "chunks", chunks, path);
  const auto count = static_cast<hsize_t>(windows);
  const std::vector<hsize_t> ranks{static_cast<hsize_t>(mesh.pp), static_cast<hsize_t>(mesh.dp),
                                   static_cast<hsize_t>(mesh.tp)};
  const Hid host = text_type(kHostBytes, path), gpu = text_type(kGpuBytes, path);
  return {.first_step = lay_out_dataset(group, "first_step", H5T_STD_I64LE, {count}, path),
          .last_step = lay_out_dataset(group, "last_step", H5T_STD_I64LE, {count}, path),
          .time = lay_out_dataset(group, "time", H5T_IEEE_F64LE, {count}, path),
          .times = lay_out_dataset(group, "times", H5T_IEEE_F32LE,
                                   {count, ranks[0], ranks[1], ranks[2], kNumRankQuantities}, path),
          .host = lay_out_dataset(group, "host", host, ranks, path),
          .gpu = lay_out_dataset(group, "gpu", gpu, ranks, path),
          .stage_flops = lay_out_dataset(group, "stage_flops", H5T_IEEE_F64LE, {ranks[0]}, path)};
}

// Each text in `width` bytes, cut off where it is longer.
std::string packed(const RankMesh& mesh, std::string RankMesh::Place::*text, int64_t width) {
  std::string bytes(static_cast<size_t>(mesh.world_size() * width), '\0');
  for (size_t rank = 0; rank < mesh.places.size(); ++rank) {
    const std::string& name = mesh.places[rank].*text;
    name.copy(bytes.data() + rank * static_cast<size_t>(width), std::min(name.size(), static_cast<size_t>(width) - 1));
  }
  return bytes;
}

Result<void> write_ranks(int fd, const std::string& path, const GroupLayout& layout, const RankMesh& mesh) {
  const std::string hosts = packed(mesh, &RankMesh::Place::host, kHostBytes),
                    gpus = packed(mesh, &RankMesh::Place::gpu, kGpuBytes);
  if (auto done = write_at(fd, path, hosts.data(), layout.host.bytes, layout.host.offset); !done) return done;
  if (auto done = write_at(fd, path, gpus.data(), layout.gpu.bytes, layout.gpu.offset); !done) return done;
  std::vector<double> flops = mesh.stage_flops;
  flops.resize(static_cast<size_t>(mesh.pp));
  return write_at(fd, path, flops.data(), layout.stage_flops.bytes, layout.stage_flops.offset);
}

// The image but for the times of windows, where there may be much of nothing.
Result<void> write_structures(int fd, const std::string& path, const Hdf5Image& image,
                              const std::vector<GroupLayout>& groups) {
  std::vector<Dataset> holes;
  for (const GroupLayout& group : groups) holes.push_back(group.times);
  std::sort(holes.begin(), holes.end(), [](const Dataset& a, const Dataset& b) { return a.offset < b.offset; });
  holes.push_back({image.bytes(), 0});
  if (::ftruncate(fd, image.bytes()) != 0) return system_error(errno, "{}", path);
  std::vector<char> buffer;
  int64_t at = 0;
  for (const Dataset& hole : holes) {
    buffer.resize(static_cast<size_t>(hole.offset - at));
    image.read(buffer.data(), hole.offset - at, at);
    if (auto done = write_at(fd, path, buffer.data(), hole.offset - at, at); !done) return done;
    at = hole.offset + hole.bytes;
  }
  return {};
}

// ---- Windows

// `steps` weigh.
RankWindow merged(const std::vector<RankWindow>& windows) {
  RankWindow all{.first_step = windows.front().first_step,
                 .last_step = windows.back().last_step,
                 .time = windows.back().time,
                 .ranks = std::vector<RankTimes>(windows.front().ranks.size())};
  int64_t steps = 0;
  for (const RankWindow& window : windows) steps += window.steps();
  for (const RankWindow& window : windows) {
    const auto weight = static_cast<float>(window.steps()) / static_cast<float>(steps);
    for (size_t rank = 0; rank < all.ranks.size(); ++rank)
      for (size_t q = 0; q < kNumRankQuantities; ++q)
        all.ranks[rank].seconds[q] += weight * window.ranks[rank].seconds[q];
  }
  return all;
}

// ---- Reading

Hid attribute_of(hid_t group, const char* name, const std::string& path) {
  return Hid(TRI_HDF5(H5Aopen(group, name, H5P_DEFAULT), path), H5Aclose);
}

std::string text_attribute(hid_t group, const char* name, const std::string& path) {
  const Hid attribute = attribute_of(group, name, path);
  const Hid type(TRI_HDF5(H5Aget_type(attribute), path), H5Tclose);
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0)
    throw Fatal(ExitCode::kFile, fmt::format("{}: attribute {} is no text", path, name));
  std::string text(H5Tget_size(type), '\0');
  TRI_HDF5(H5Aread(attribute, type, text.data()), path);
  return text.substr(0, text.find('\0'));
}

std::vector<int64_t> number_attribute(hid_t group, const char* name, size_t count, const std::string& path) {
  const Hid attribute = attribute_of(group, name, path);
  const Hid space(TRI_HDF5(H5Aget_space(attribute), path), H5Sclose);
  if (H5Sget_simple_extent_npoints(space) != static_cast<hssize_t>(count))
    throw Fatal(ExitCode::kFile, fmt::format("{}: attribute {} has not {} numbers", path, name, count));
  std::vector<int64_t> values(count);
  TRI_HDF5(H5Aread(attribute, H5T_NATIVE_INT64, values.data()), path);
  return values;
}

Hid dataset_of(hid_t group, const char* name, const std::string& path) {
  return Hid(TRI_HDF5(H5Dopen2(group, name, H5P_DEFAULT), path), H5Dclose);
}

// A dataset's place, where it has the extent; its first dimension may be any.
int64_t offset_of(hid_t group, const char* name, std::vector<hsize_t> extent, hsize_t* count, const std::string& path) {
  const Hid dataset = dataset_of(group, name, path);
  const Hid space(TRI_HDF5(H5Dget_space(dataset), path), H5Sclose);
  std::vector<hsize_t> found(static_cast<size_t>(std::max(0, H5Sget_simple_extent_ndims(space))));
  TRI_HDF5(H5Sget_simple_extent_dims(space, found.data(), nullptr), path);
  if (!found.empty()) extent[0] = *count == 0 ? found[0] : *count;
  const haddr_t offset = H5Dget_offset(dataset);
  if (found != extent || offset == HADDR_UNDEF)
    throw Fatal(ExitCode::kFile, fmt::format("{}: dataset {} has another shape", path, name));
  *count = extent[0];
  return static_cast<int64_t>(offset);
}

std::vector<std::string> read_texts(hid_t group, const char* name, int64_t width, int count, const std::string& path) {
  const Hid dataset = dataset_of(group, name, path);
  const Hid space(TRI_HDF5(H5Dget_space(dataset), path), H5Sclose);
  if (H5Sget_simple_extent_npoints(space) != count)
    throw Fatal(ExitCode::kFile, fmt::format("{}: dataset {} has another shape", path, name));
  std::string bytes(static_cast<size_t>(count * width), '\0');
  TRI_HDF5(H5Dread(dataset, text_type(width, path), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()), path);
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    const std::string text = bytes.substr(static_cast<size_t>(i * width), static_cast<size_t>(width));
    texts.push_back(text.substr(0, text.find('\0')));
  }
  return texts;
}

// Of each RankQuantity the column that has its name; -1: none has.
std::vector<int> columns_of(const std::string& names, int* count) {
  std::vector<std::string> found;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    found.push_back(names.substr(at, end - at));
    at = end + 1;
  }
  *count = static_cast<int>(found.size());
  std::vector<int> columns;
  for (const auto& [quantity, name] : EnumNames<RankQuantity>::table) {
    const auto place = std::find(found.begin(), found.end(), name);
    columns.push_back(place == found.end() ? -1 : static_cast<int>(place - found.begin()));
  }
  return columns;
}

}  // namespace

std::string to_string_place(const RankMesh& mesh, int world_rank) {
  const auto rank = static_cast<size_t>(world_rank);
  const RankMesh::Place place = rank < mesh.places.size() ? mesh.places[rank] : RankMesh::Place{};
  return fmt::format("rank {} [pp{} dp{} tp{}]{}{}", world_rank, mesh.stage_of(world_rank), mesh.dp_of(world_rank),
                     mesh.tp_of(world_rank), place.host.empty() ? "" : " on " + place.host,
                     place.gpu.empty() ? "" : fmt::format(" (GPU {})", place.gpu));
}

RanksReader::Attempt RanksReader::read_attempt(int64_t group, const std::string& path) {
  Attempt attempt;
  RankMesh& mesh = attempt.mesh;
  mesh.attempt = text_attribute(group, "attempt", path);
  mesh.schedule = text_attribute(group, "schedule", path);
  attempt.columns = columns_of(text_attribute(group, "quantities", path), &attempt.num_quantities);
  const auto axes = number_attribute(group, "mesh", 3, path);
  int64_t ranks = 1;
  for (const int64_t axis : axes) {
    ranks = axis < 1 || axis > kMostRanks ? kMostRanks + 1 : ranks * axis;
    if (ranks > kMostRanks) throw Fatal(ExitCode::kFile, fmt::format("{}: a mesh of {} ranks", path, ranks));
  }
  mesh.pp = static_cast<int>(axes[0]), mesh.dp = static_cast<int>(axes[1]), mesh.tp = static_cast<int>(axes[2]);
  mesh.num_microbatches = static_cast<int>(number_attribute(group, "num_microbatches", 1, path)[0]);
  mesh.chunks = static_cast<int>(number_attribute(group, "chunks", 1, path)[0]);
  const auto hosts = read_texts(group, "host", kHostBytes, mesh.world_size(), path),
             gpus = read_texts(group, "gpu", kGpuBytes, mesh.world_size(), path);
  for (size_t rank = 0; rank < hosts.size(); ++rank) mesh.places.push_back({hosts[rank], gpus[rank]});
  hsize_t stages = static_cast<hsize_t>(mesh.pp), windows = 0;
  offset_of(group, "stage_flops", {stages}, &stages, path);
  mesh.stage_flops.resize(static_cast<size_t>(mesh.pp));
  TRI_HDF5(H5Dread(dataset_of(group, "stage_flops", path), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                   mesh.stage_flops.data()),
           path);
  attempt.first_step = offset_of(group, "first_step", {0}, &windows, path);
  attempt.last_step = offset_of(group, "last_step", {0}, &windows, path);
  attempt.time = offset_of(group, "time", {0}, &windows, path);
  attempt.times = offset_of(group, "times",
                            {0, static_cast<hsize_t>(mesh.pp), static_cast<hsize_t>(mesh.dp),
                             static_cast<hsize_t>(mesh.tp), static_cast<hsize_t>(attempt.num_quantities)},
                            &windows, path);
  attempt.capacity = static_cast<int64_t>(windows);
  return attempt;
}

Result<RanksReader> RanksReader::open(const std::string& path) {
  RanksReader reader;
  reader.path_ = path;
  auto file = InputFile::open(path);
  if (!file) return file.error();
  reader.file_ = std::move(file).value();
  auto read = with_hdf5([&] {
    TRI_HDF5(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), path);
    const Hid access(TRI_HDF5(H5Pcreate(H5P_FILE_ACCESS), path), H5Pclose);
#if H5_VERSION_GE(1, 10, 7)
    TRI_HDF5(H5Pset_file_locking(access, false, true), path);  // its writer takes no lock either
#endif
    const Hid hdf5(TRI_HDF5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), path), H5Fclose);
    for (int attempt = 0; H5Lexists(hdf5, group_name(attempt).c_str(), H5P_DEFAULT) > 0; ++attempt) {
      const Hid group(TRI_HDF5(H5Gopen2(hdf5, group_name(attempt).c_str(), H5P_DEFAULT), path), H5Gclose);
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

namespace {

// The last step comes last: it says that the rest is there.
Result<void> write_window(int fd, const std::string& path, int64_t index, const RankWindow& window, int64_t first_step,
                          int64_t last_step, int64_t time, int64_t times) {
  const int64_t number = index * int64_t{sizeof(int64_t)};
  const auto bytes = static_cast<int64_t>(window.ranks.size() * sizeof(RankTimes));
  if (auto done = write_at(fd, path, window.ranks.data(), bytes, times + index * bytes); !done) return done;
  if (auto done = write_at(fd, path, &window.first_step, sizeof(int64_t), first_step + number); !done) return done;
  if (auto done = write_at(fd, path, &window.time, sizeof(double), time + number); !done) return done;
  return write_at(fd, path, &window.last_step, sizeof(int64_t), last_step + number);
}

}  // namespace

Result<RanksWriter> RanksWriter::open(const std::string& path, const RankMesh& mesh, int64_t most_bytes) {
  RanksWriter writer;
  writer.path_ = path;
  writer.mesh_ = mesh;
  writer.most_bytes_ = most_bytes;
  if (auto earlier = RanksReader::open(path); !earlier && earlier.error().os_error != ENOENT) {
    log_warn("{}; it is set aside as {}.damaged", earlier.error().message, path);
    if (::rename(path.c_str(), (path + ".damaged").c_str()) != 0) return system_error(errno, "{}", path);
  }
  if (auto laid = writer.lay_out(kFewestWindows); !laid) return laid.error();
  return writer;
}

Result<void> RanksWriter::append(const RankWindow& window) {
  TRI_REQUIRE(static_cast<int>(window.ranks.size()) == mesh_.world_size() && window.last_step > 0,
              "a window of {} ranks to step {}", window.ranks.size(), window.last_step);
  if (used_ == layout_.capacity)
    if (auto laid = lay_out(std::max(kFewestWindows, used_)); !laid) return laid;
  auto done = write_window(file_.get(), path_, used_, window, layout_.first_step, layout_.last_step, layout_.time,
                           layout_.times);
  used_ += done.ok();
  return done;
}

Result<void> RanksWriter::lay_out(int64_t more) {
  struct Source {
    RankMesh mesh;
    int64_t windows = 0;
  };
  std::vector<Source> sources;
  auto earlier = RanksReader::open(path_);
  if (!earlier && earlier.error().os_error != ENOENT) return earlier.error();
  for (int a = 0; earlier && a < earlier.value().num_attempts(); ++a) {
    const auto windows = earlier.value().num_windows(a);
    if (!windows) return windows.error();
    sources.push_back({earlier.value().mesh(a), windows.value()});
  }
  if (!begun_) sources.push_back({mesh_, 0});

  // So many windows become one that all have their place.
  more = std::clamp<int64_t>(most_bytes_ / 4 / row_bytes(mesh_), 1, more);
  int64_t merge = 1;
  const auto merged_windows = [&](const Source& source) { return (source.windows + merge - 1) / merge; };
  const auto bytes = [&] {
    int64_t sum = more * row_bytes(mesh_);
    for (const Source& source : sources) sum += merged_windows(source) * row_bytes(source.mesh);
    return sum;
  };
  while (bytes() > most_bytes_ && merge < (int64_t{1} << 40)) merge *= 2;

  const std::string temporary = path_ + ".tmp";
  Descriptor file(::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) return system_error(errno, "{}", temporary);
  std::vector<GroupLayout> groups;
  Hdf5Image image;
  auto laid = with_hdf5([&] {
    image = Hdf5Image::create(path_);
    for (size_t a = 0; a < sources.size(); ++a) {
      const bool ours = a + 1 == sources.size();
      const int64_t windows = merged_windows(sources[a]) + (ours ? more : 0);
      groups.push_back(
          lay_out_group(image.file(), static_cast<int>(a), sources[a].mesh, std::max<int64_t>(1, windows), temporary));
    }
    image.close();
  });
  if (laid) laid = write_structures(file.get(), temporary, image, groups);
  int64_t used = 0;
  for (size_t a = 0; laid && a < sources.size(); ++a) {
    laid = write_ranks(file.get(), temporary, groups[a], sources[a].mesh);
    used = 0;
    std::vector<RankWindow> several;
    for (int64_t w = 0; laid && w < sources[a].windows; ++w) {
      auto window = earlier.value().read(static_cast<int>(a), w);
      if (!window) return window.error();
      // A machine that went down may have kept a window's number and not its times.
      if (window.value().ranks[0][RankQuantity::kStep] > 0) several.push_back(std::move(window).value());
      const bool full = static_cast<int64_t>(several.size()) == merge || w + 1 == sources[a].windows;
      if (several.empty() || !full) continue;
      laid = write_window(file.get(), temporary, used++, merged(several), groups[a].first_step.offset,
                          groups[a].last_step.offset, groups[a].time.offset, groups[a].times.offset);
      several.clear();
    }
  }
  if (!laid) return laid;
  if (::fsync(file.get()) != 0) return system_error(errno, "{}: fsync", temporary);
  if (::rename(temporary.c_str(), path_.c_str()) != 0) return system_error(errno, "{}: renaming {}", path_, temporary);
  const GroupLayout& ours = groups.back();
  layout_ = {.mesh = mesh_,
             .capacity = ours.last_step.bytes / int64_t{sizeof(int64_t)},
             .first_step = ours.first_step.offset,
             .last_step = ours.last_step.offset,
             .time = ours.time.offset,
             .times = ours.times.offset,
             .num_quantities = kNumRankQuantities,
             .columns = {}};
  file_ = std::move(file);
  used_ = used;
  begun_ = true;
  return {};
}

}  // namespace tri
