#include "kernels/core/arena.h"

#include "kernels/core/dims.h"

namespace tri {

Arena::Arena(Device& device, int64_t bytes)
    : device_(&device), memory_(static_cast<char*>(device.allocate(static_cast<size_t>(bytes)))), capacity_(bytes) {
  auto stream = device.make_stream("arena");
  stream->zero(Tensor(memory_, Dtype::kI32, {bytes / 4}));
  stream->synchronize();
}

Arena::~Arena() {
  if (memory_ != nullptr) device_->release(memory_);
}

Tensor Arena::take(const std::string& name, Dtype dtype, std::initializer_list<int64_t> shape) {
  // A measuring arena counts from an address that no device uses, so that slices are distinct and never null.
  constexpr uintptr_t kNowhere = uintptr_t{1} << 60;
  char* base = measuring() ? reinterpret_cast<char*>(kNowhere) : memory_;
  Tensor slice(base + used_, dtype, shape);
  const int64_t bytes = round_up(slice.bytes(), kAlignment);
  TRI_REQUIRE(measuring() || used_ + bytes <= capacity_, "an arena of {} bytes has no space for {} more bytes of {}",
              capacity_, bytes, name);
  used_ += bytes;
  for (auto& [known, total] : table_) {
    if (known == name) {
      total += bytes;
      return slice;
    }
  }
  table_.emplace_back(name, bytes);
  return slice;
}

}  // namespace tri
