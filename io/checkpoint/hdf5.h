// RAII handles, errors and types of HDF5. hdf5_image.h creates files.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "io/base/error.h"
#include "io/base/stored_type.h"

namespace tri {

// Owns a handle of HDF5. Use and destroy it only under hdf5_mutex().
class Hid {
 public:
  using Closer = herr_t (*)(hid_t);
  Hid() = default;
  Hid(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  Hid(Hid&& other) noexcept : id_(std::exchange(other.id_, -1)), closer_(other.closer_) {}
  Hid& operator=(Hid&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(closer_, other.closer_);
    return *this;
  }
  ~Hid() {
    if (id_ >= 0) closer_(id_);
  }
  operator hid_t() const { return id_; }
  hid_t release() { return std::exchange(id_, -1); }

 private:
  hid_t id_ = -1;
  Closer closer_ = nullptr;
};

// HDF5 has global state: only one thread of the process may use it at a time. Not a Mutex (io/base/mutex.h): a Hid or
// Hdf5Image may be destroyed inside with_hdf5, and the analysis knows no recursive mutexes.
std::recursive_mutex& hdf5_mutex();

// Throws Fatal (kFile) with `path`, the call and HDF5's error stack if `status` is negative; otherwise returns it.
hid_t hdf5_checked(hid_t status, const char* call, const std::string& path);
#define TRI_HDF5(call, path) ::tri::hdf5_checked((call), #call, (path))

// Runs `body` under the mutex and converts what TRI_HDF5 throws into an Error.
template <class Body>
Result<void> with_hdf5(Body&& body) {
  const std::lock_guard lock(hdf5_mutex());
  try {
    body();
  } catch (const Fatal& problem) {
    return Error{problem.what(), problem.code()};
  }
  return {};
}

// Returns the type in files. bf16 and f16 are floating-point types of 1 sign, 8 or 5 exponent and 7 or 10 mantissa
// bits, which all tools read as numbers.
Hid hdf5_type(StoredType type, const std::string& path);

void hdf5_attribute(hid_t object, const char* name, std::string_view text, const std::string& path);
void hdf5_attribute(hid_t object, const char* name, std::span<const int64_t> values, const std::string& path);

}  // namespace tri
