#include "io/checkpoint/hdf5.h"

namespace tri {
namespace {

// Collects the first entries, which go from the place of the failure outwards.
herr_t collect(unsigned depth, const H5E_error2_t* entry, void* text) {
  if (depth < 3) {
    auto& out = *static_cast<std::string*>(text);
    if (!out.empty()) out += "; ";
    out += fmt::format("{}: {}", entry->func_name, entry->desc);
  }
  return 0;
}

}  // namespace

std::recursive_mutex& hdf5_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

hid_t hdf5_checked(hid_t status, const char* call, const std::string& path) {
  if (status >= 0) return status;
  std::string stack;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &stack);
  const std::string_view name(call);
  throw Fatal(ExitCode::kFile, fmt::format("{}: HDF5 {}: {}", path, name.substr(0, name.find('(')), stack));
}

Hid hdf5_type(StoredType type, const std::string& path) {
  const auto copy = [&](hid_t of) { return Hid(TRI_HDF5(H5Tcopy(of), path), H5Tclose); };
  switch (type) {
    case StoredType::kF32:
      return copy(H5T_IEEE_F32LE);
    case StoredType::kI64:
      return copy(H5T_STD_I64LE);
    case StoredType::kI32:
      return copy(H5T_STD_I32LE);
    case StoredType::kU8:
      return copy(H5T_STD_U8LE);
    case StoredType::kBf16:
    case StoredType::kF16:
      break;
  }
  // The sign is the highest bit, then the exponent, then the mantissa.
  const size_t mantissa = type == StoredType::kBf16 ? 7 : 10, exponent = 15 - mantissa;
  Hid small = copy(H5T_IEEE_F32LE);
  TRI_HDF5(H5Tset_fields(small, 15, mantissa, exponent, 0, mantissa), path);
  TRI_HDF5(H5Tset_size(small, 2), path);  // after the fields, which must fit at every moment
  TRI_HDF5(H5Tset_ebias(small, (size_t{1} << (exponent - 1)) - 1), path);
  return small;
}

void hdf5_attribute(hid_t object, const char* name, std::string_view text, const std::string& path) {
  const Hid type(TRI_HDF5(H5Tcopy(H5T_C_S1), path), H5Tclose);
  TRI_HDF5(H5Tset_size(type, text.size() + 1), path);
  TRI_HDF5(H5Tset_cset(type, H5T_CSET_UTF8), path);
  const Hid space(TRI_HDF5(H5Screate(H5S_SCALAR), path), H5Sclose);
  const Hid attribute(TRI_HDF5(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT), path), H5Aclose);
  TRI_HDF5(H5Awrite(attribute, type, std::string(text).c_str()), path);
}

void hdf5_attribute(hid_t object, const char* name, std::span<const int64_t> values, const std::string& path) {
  const hsize_t count = values.size();
  const Hid space(TRI_HDF5(H5Screate_simple(1, &count, nullptr), path), H5Sclose);
  const Hid attribute(TRI_HDF5(H5Acreate2(object, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT), path),
                      H5Aclose);
  TRI_HDF5(H5Awrite(attribute, H5T_NATIVE_INT64, values.data()), path);
}

}  // namespace tri
