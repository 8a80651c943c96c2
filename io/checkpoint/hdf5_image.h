// An HDF5 file image in memory, which HDF5 never writes to disk: the library (1.10) crashes at exit after a close that
// could not write to a full disk. It lays its structures out in memory, and the caller copies them to the disk with
// calls whose errors can be reported. The space of contiguous datasets is only reserved: their bytes go straight to the
// disk, at H5Dget_offset.
#pragma once

#include <memory>
#include <string>

#include "io/checkpoint/hdf5.h"

namespace tri {

class Hdf5Image {
 public:
  // Creates a file of format 1.10. Requires hdf5_mutex(); throws Fatal. `path`: the future file, for messages.
  static Hdf5Image create(const std::string& path);
  Hdf5Image();
  Hdf5Image(Hdf5Image&& other) noexcept;
  Hdf5Image& operator=(Hdf5Image&& other) noexcept;
  ~Hdf5Image();  // takes the mutex

  hid_t file() const { return file_; }
  void close();  // requires hdf5_mutex(); throws Fatal

  // After close(): the size of the file, and what HDF5 wrote; zeros elsewhere.
  int64_t bytes() const;
  void read(void* data, int64_t bytes, int64_t offset) const;

  class Pages;  // the memory

 private:
  std::string path_;
  std::unique_ptr<Pages> pages_;
  Hid file_;
};

}  // namespace tri
