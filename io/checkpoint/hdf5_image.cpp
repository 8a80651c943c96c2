#include "io/checkpoint/hdf5_image.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

namespace tri {

// A sparse memory: pages exist only where something was written.
class Hdf5Image::Pages {
 public:
  void read(void* data, uint64_t bytes, uint64_t offset) const {
    each_page(bytes, offset, [&](uint64_t page, uint64_t at, uint64_t count, uint64_t done) {
      const auto found = pages_.find(page);
      char* out = static_cast<char*>(data) + done;
      if (found == pages_.end())
        std::memset(out, 0, count);
      else
        std::memcpy(out, found->second->data() + at, count);
    });
  }

  void write(const void* data, uint64_t bytes, uint64_t offset) {
    each_page(bytes, offset, [&](uint64_t page, uint64_t at, uint64_t count, uint64_t done) {
      auto& memory = pages_[page];
      if (!memory) memory = std::make_unique<Page>();
      std::memcpy(memory->data() + at, static_cast<const char*>(data) + done, count);
    });
    end = std::max(end, offset + bytes);
  }

  uint64_t end = 0;  // file size

 private:
  static constexpr uint64_t kPageBytes = 4096;
  using Page = std::array<char, kPageBytes>;

  // Calls f(page, offset in the page, its bytes, bytes before it).
  template <class F>
  static void each_page(uint64_t bytes, uint64_t offset, F&& f) {
    for (uint64_t done = 0; done < bytes;) {
      const uint64_t at = (offset + done) % kPageBytes, count = std::min(kPageBytes - at, bytes - done);
      f((offset + done) / kPageBytes, at, count, done);
      done += count;
    }
  }

  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
};

namespace {

// HDF5's interface for file drivers: C structures that begin with HDF5's own.
struct DriverInfo {
  Hdf5Image::Pages* pages;
};
struct DriverFile {
  H5FD_t base;
  Hdf5Image::Pages* pages;
  haddr_t allocated;  // HDF5's "end of address"
};
DriverFile& of(H5FD_t* file) { return *reinterpret_cast<DriverFile*>(file); }
const DriverFile& of(const H5FD_t* file) { return *reinterpret_cast<const DriverFile*>(file); }

H5FD_t* open_file(const char*, unsigned, hid_t access, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
  if (info == nullptr) return nullptr;
  return &(new DriverFile{.base = {}, .pages = info->pages, .allocated = 0})->base;
}
herr_t close_file(H5FD_t* file) {
  delete &of(file);
  return 0;
}
herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA |
           H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}
haddr_t get_allocated(const H5FD_t* file, H5FD_mem_t) { return of(file).allocated; }
herr_t set_allocated(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  of(file).allocated = end;
  return 0;
}
haddr_t get_end(const H5FD_t* file, H5FD_mem_t) { return of(file).pages->end; }
herr_t read_file(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t at, size_t bytes, void* data) {
  of(file).pages->read(data, bytes, at);
  return 0;
}
herr_t write_file(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t at, size_t bytes, const void* data) {
  of(file).pages->write(data, bytes, at);
  return 0;
}
herr_t truncate_file(H5FD_t* file, hid_t, hbool_t) {
  of(file).pages->end = of(file).allocated;
  return 0;
}

const H5FD_class_t& driver_class() {
  static const H5FD_class_t instance = [] {
    H5FD_class_t made{};
#if H5_VERSION_GE(1, 13, 0)
    made.version = H5FD_CLASS_VERSION;
    made.value = static_cast<H5FD_class_value_t>(512);  // in the range for unregistered drivers
#endif
    made.name = "trireme_image";
    made.maxaddr = static_cast<haddr_t>(INT64_MAX);
    made.fc_degree = H5F_CLOSE_STRONG;
    made.fapl_size = sizeof(DriverInfo);
    made.open = open_file;
    made.close = close_file;
    made.query = query;
    made.get_eoa = get_allocated;
    made.set_eoa = set_allocated;
    made.get_eof = get_end;
    made.read = read_file;
    made.write = write_file;
    made.truncate = truncate_file;
    const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(map), std::end(map), made.fl_map);
    return made;
  }();
  return instance;
}

}  // namespace

Hdf5Image Hdf5Image::create(const std::string& path) {
  TRI_HDF5(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), path);  // turned off because this program reports errors
  static const hid_t driver = TRI_HDF5(H5FDregister(&driver_class()), path);
  Hdf5Image image;
  image.path_ = path;
  image.pages_ = std::make_unique<Pages>();
  const DriverInfo info{image.pages_.get()};
  const Hid access(TRI_HDF5(H5Pcreate(H5P_FILE_ACCESS), path), H5Pclose);
  TRI_HDF5(H5Pset_driver(access, driver, &info), path);
  TRI_HDF5(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110), path);
  TRI_HDF5(H5Pset_alignment(access, 64 << 10, 4 << 10), path);  // aligns large shards to pages
  image.file_ = Hid(TRI_HDF5(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access), path), H5Fclose);
  return image;
}

Hdf5Image::Hdf5Image() = default;
Hdf5Image::Hdf5Image(Hdf5Image&& other) noexcept = default;

Hdf5Image& Hdf5Image::operator=(Hdf5Image&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(pages_, other.pages_);
  std::swap(file_, other.file_);
  return *this;
}

Hdf5Image::~Hdf5Image() {
  if (file_ < 0) return;
  const std::lock_guard lock(hdf5_mutex());
  const Hid closed = std::move(file_);
}

void Hdf5Image::close() { TRI_HDF5(H5Fclose(file_.release()), path_); }

int64_t Hdf5Image::bytes() const { return static_cast<int64_t>(pages_->end); }

void Hdf5Image::read(void* data, int64_t bytes, int64_t offset) const {
  pages_->read(data, static_cast<uint64_t>(bytes), static_cast<uint64_t>(offset));
}

}  // namespace tri
