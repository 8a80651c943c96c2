// Shared by the reader and the writer of ranks.h5, in addition to ranks_file.h.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "io/checkpoint/hdf5.h"

namespace tri {

// of a name in the file, including its terminating zero
inline constexpr int64_t kRankHostBytes = 64, kRankGpuBytes = 32;

inline std::string ranks_group_name(int attempt) { return fmt::format("/attempt_{:04}", attempt + 1); }

// Returns the HDF5 type of names in the file.
inline Hid ranks_text_type(int64_t bytes, const std::string& path) {
  Hid type(TRI_HDF5(H5Tcopy(H5T_C_S1), path), H5Tclose);
  TRI_HDF5(H5Tset_size(type, static_cast<size_t>(bytes)), path);
  TRI_HDF5(H5Tset_strpad(type, H5T_STR_NULLPAD), path);
  TRI_HDF5(H5Tset_cset(type, H5T_CSET_UTF8), path);
  return type;
}

}  // namespace tri
