#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "io/base/log.h"
#include "io/checkpoint/hdf5.h"
#include "io/checkpoint/hdf5_image.h"
#include "io/ranks/ranks_file.h"
#include "io/ranks/ranks_layout.h"

namespace tri {
namespace {

constexpr int64_t kFewestWindows = 64;  // capacity of a newly laid out file

std::string quantity_names() {
  std::string names;
  for (const auto& [quantity, name] : EnumNames<RankQuantity>::table)
    names += (names.empty() ? "" : ",") + std::string(name);
  return names;
}

int64_t row_bytes(const RankMesh& mesh) {
  return int64_t{mesh.world_size()} * kNumRankQuantities * static_cast<int64_t>(sizeof(float));
}

struct Dataset {
  int64_t offset = 0, bytes = 0;
};

// Creates a contiguous dataset whose space is allocated but not written.
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
  const Hid group(
      TRI_HDF5(H5Gcreate2(file, ranks_group_name(attempt).c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), path),
      H5Gclose);
  hdf5_attribute(group, "attempt", mesh.attempt, path);
  hdf5_attribute(group, "schedule", mesh.schedule, path);
  hdf5_attribute(group, "quantities", quantity_names(), path);
  std::string names;  // slowest first, like the dimensions of the datasets
  std::vector<int64_t> sizes;
  for (auto axis = mesh.grid.axes.rbegin(); axis != mesh.grid.axes.rend(); ++axis) {
    names += (names.empty() ? "" : ",") + axis->name;
    sizes.push_back(axis->size);
  }
  const int64_t microbatches[] = {mesh.num_microbatches}, chunks[] = {mesh.chunks};
  hdf5_attribute(group, "axes", names, path);
  hdf5_attribute(group, "mesh", sizes, path);
  hdf5_attribute(group, "num_microbatches", microbatches, path);
  hdf5_attribute(group, "chunks", chunks, path);
  const auto count = static_cast<hsize_t>(windows);
  const std::vector<hsize_t> ranks(sizes.begin(), sizes.end());
  std::vector<hsize_t> times{count};
  times.insert(times.end(), ranks.begin(), ranks.end());
  times.push_back(kNumRankQuantities);
  const Hid host = ranks_text_type(kRankHostBytes, path), gpu = ranks_text_type(kRankGpuBytes, path);
  return {.first_step = lay_out_dataset(group, "first_step", H5T_STD_I64LE, {count}, path),
          .last_step = lay_out_dataset(group, "last_step", H5T_STD_I64LE, {count}, path),
          .time = lay_out_dataset(group, "time", H5T_IEEE_F64LE, {count}, path),
          .times = lay_out_dataset(group, "times", H5T_IEEE_F32LE, times, path),
          .host = lay_out_dataset(group, "host", host, ranks, path),
          .gpu = lay_out_dataset(group, "gpu", gpu, ranks, path),
          .stage_flops =
              lay_out_dataset(group, "stage_flops", H5T_IEEE_F64LE, {static_cast<hsize_t>(mesh.stages())}, path)};
}

// Stores each text in `width` bytes, truncated if it is longer.
std::string packed(const RankMesh& mesh, std::string RankMesh::Place::*text, int64_t width) {
  std::string bytes(static_cast<size_t>(mesh.world_size() * width), '\0');
  for (size_t rank = 0; rank < mesh.places.size(); ++rank) {
    const std::string& name = mesh.places[rank].*text;
    name.copy(bytes.data() + rank * static_cast<size_t>(width), std::min(name.size(), static_cast<size_t>(width) - 1));
  }
  return bytes;
}

Result<void> write_ranks(int fd, const std::string& path, const GroupLayout& layout, const RankMesh& mesh) {
  const std::string hosts = packed(mesh, &RankMesh::Place::host, kRankHostBytes),
                    gpus = packed(mesh, &RankMesh::Place::gpu, kRankGpuBytes);
  if (auto done = write_at(fd, path, hosts.data(), layout.host.bytes, layout.host.offset); !done) return done;
  if (auto done = write_at(fd, path, gpus.data(), layout.gpu.bytes, layout.gpu.offset); !done) return done;
  std::vector<double> flops = mesh.stage_flops;
  flops.resize(static_cast<size_t>(mesh.stages()));
  return write_at(fd, path, flops.data(), layout.stage_flops.bytes, layout.stage_flops.offset);
}

// Writes the image except the times of windows, most of which may be empty.
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

// Merges windows, weighted by their steps.
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

// Writes the last step last: it marks the rest as present.
Result<void> write_window(int fd, const std::string& path, int64_t index, const RankWindow& window, int64_t first_step,
                          int64_t last_step, int64_t time, int64_t times) {
  const int64_t number = index * int64_t{sizeof(int64_t)};
  const auto bytes = static_cast<int64_t>(window.ranks.size() * sizeof(RankTimes));
  if (auto done = write_at(fd, path, window.ranks.data(), bytes, times + index * bytes); !done) return done;
  if (auto done = write_at(fd, path, &window.first_step, sizeof(int64_t), first_step + number); !done) return done;
  if (auto done = write_at(fd, path, &window.time, sizeof(double), time + number); !done) return done;
  return write_at(fd, path, &window.last_step, sizeof(int64_t), last_step + number);
}

struct Target {
  int fd;
  const std::string& path;
  const GroupLayout& layout;
};

// Copies the windows of an attempt, `merge` neighbours as one; returns their new number.
Result<int64_t> copy_windows(const RanksReader& from, int attempt, int64_t windows, int64_t merge, const Target& to) {
  int64_t used = 0;
  std::vector<RankWindow> several;
  for (int64_t w = 0; w < windows; ++w) {
    auto window = from.read(attempt, w);
    if (!window) return window.error();
    // A machine that crashed may have stored a window's number but not its times.
    if (window.value().ranks[0][RankQuantity::kStep] > 0) several.push_back(std::move(window).value());
    const bool full = static_cast<int64_t>(several.size()) == merge || w + 1 == windows;
    if (several.empty() || !full) continue;
    auto written = write_window(to.fd, to.path, used, merged(several), to.layout.first_step.offset,
                                to.layout.last_step.offset, to.layout.time.offset, to.layout.times.offset);
    if (!written) return written.error();
    ++used;
    several.clear();
  }
  return used;
}

}  // namespace

Result<RanksWriter> RanksWriter::open(const std::string& path, const RankMesh& mesh, int64_t most_bytes) {
  RanksWriter writer;
  writer.path_ = path;
  writer.mesh_ = mesh;
  writer.most_bytes_ = most_bytes;
  if (auto earlier = RanksReader::open(path); !earlier && earlier.error().os_error != ENOENT) {
    log_warn("{}; it was renamed to {}.damaged, and a new file begins", earlier.error().message, path);
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

Result<void> RanksWriter::sync() {
  return ::fsync(file_.get()) == 0 ? Result<void>() : system_error(errno, "{}: fsync", path_);
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

  // Doubles the number of windows merged into one until all fit.
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
    const int64_t schema[] = {kRanksSchema};
    hdf5_attribute(image.file(), "schema", schema, path_);
    for (size_t a = 0; a < sources.size(); ++a) {
      const bool own = a + 1 == sources.size();
      const int64_t windows = merged_windows(sources[a]) + (own ? more : 0);
      groups.push_back(
          lay_out_group(image.file(), static_cast<int>(a), sources[a].mesh, std::max<int64_t>(1, windows), temporary));
    }
    image.close();
  });
  if (laid) laid = write_structures(file.get(), temporary, image, groups);
  int64_t used = 0;
  for (size_t a = 0; laid && a < sources.size(); ++a) {
    laid = write_ranks(file.get(), temporary, groups[a], sources[a].mesh);
    if (!laid || sources[a].windows == 0) {
      used = 0;
      continue;
    }
    const auto copied = copy_windows(earlier.value(), static_cast<int>(a), sources[a].windows, merge,
                                     {file.get(), temporary, groups[a]});
    if (!copied) return copied.error();
    used = copied.value();
  }
  if (!laid) return laid;
  if (::fsync(file.get()) != 0) return system_error(errno, "{}: fsync", temporary);
  if (::rename(temporary.c_str(), path_.c_str()) != 0) return system_error(errno, "{}: renaming {}", path_, temporary);
  const GroupLayout& own = groups.back();
  layout_ = {.mesh = mesh_,
             .capacity = own.last_step.bytes / int64_t{sizeof(int64_t)},
             .first_step = own.first_step.offset,
             .last_step = own.last_step.offset,
             .time = own.time.offset,
             .times = own.times.offset,
             .num_quantities = kNumRankQuantities,
             .columns = {}};
  file_ = std::move(file);
  used_ = used;
  begun_ = true;
  return {};
}

}  // namespace tri
