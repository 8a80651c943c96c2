#include "io/checkpoint/region.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <cstring>

#include "io/base/error.h"

namespace tri {

int64_t num_elements(const Coordinates& extent) {
  int64_t count = 1;
  for (const int64_t size : extent) count *= size;
  return count;
}

bool inside(const Region& region, const Coordinates& shape) {
  if (region.start.size() != shape.size() || region.extent.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d)
    if (region.start[d] < 0 || region.extent[d] < 1 || region.extent[d] > shape[d] ||
        region.start[d] > shape[d] - region.extent[d])
      return false;
  return true;
}

std::string to_string(const Coordinates& values) { return fmt::format("[{}]", fmt::join(values, ", ")); }

std::string to_string(const Region& region) {
  // A damaged manifest may contain anything.
  if (region.start.size() != region.extent.size())
    return fmt::format("from {} of {}", to_string(region.start), to_string(region.extent));
  std::string text = "[";
  for (size_t d = 0; d < region.start.size(); ++d)
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", region.start[d], region.start[d] + region.extent[d]);
  return text + "]";
}

std::optional<Region> intersect(const Region& a, const Region& b) {
  TRI_REQUIRE(a.start.size() == b.start.size(), "regions of {} and {} dims cannot intersect", a.start.size(),
              b.start.size());
  Region common = a;
  for (size_t d = 0; d < a.start.size(); ++d) {
    const int64_t first = std::max(a.start[d], b.start[d]);
    const int64_t last = std::min(a.start[d] + a.extent[d], b.start[d] + b.extent[d]);
    if (first >= last) return std::nullopt;
    common.start[d] = first;
    common.extent[d] = last - first;
  }
  return common;
}

std::vector<Region> regions_of_range(const Coordinates& shape, int64_t first, int64_t last) {
  TRI_REQUIRE(0 <= first && first <= last && last <= num_elements(shape), "range [{}, {}) is not inside shape {}",
              first, last, to_string(shape));
  const size_t dims = shape.size();
  Coordinates stride(dims, 1);  // elements per step of dim d
  for (size_t d = dims; d-- > 1;) stride[d - 1] = stride[d] * shape[d];
  std::vector<Region> regions;
  while (first < last) {
    // The outermost dim whose border `first` is at and of which at least one whole step remains.
    size_t dim = dims - 1;
    while (dim > 0 && first % stride[dim - 1] == 0 && last - first >= stride[dim - 1]) --dim;
    Region region{Coordinates(dims), Coordinates(dims, 1)};
    int64_t rest = first;
    for (size_t d = 0; d < dims; ++d) {
      region.start[d] = rest / stride[d];
      rest %= stride[d];
      if (d > dim) region.extent[d] = shape[d];
    }
    region.extent[dim] = std::min(shape[dim] - region.start[dim], (last - first) / stride[dim]);
    first += num_elements(region.extent);
    regions.push_back(std::move(region));
  }
  return regions;
}

RunCursor::RunCursor(const Region& common, const Region& a, const Region& b) {
  bool merging = true;  // whether all inner dims are whole in both arrays
  int64_t a_stride = 1, b_stride = 1;
  for (size_t d = common.start.size(); d-- > 0;) {
    const int64_t extent = common.extent[d];
    a_offset_ += (common.start[d] - a.start[d]) * a_stride;
    b_offset_ += (common.start[d] - b.start[d]) * b_stride;
    if (merging) {
      length_ *= extent;
    } else if (extent > 1) {
      outer_.push_back({.extent = extent, .index = 0, .a_stride = a_stride, .b_stride = b_stride});
      remaining_ *= extent;
    }
    merging = merging && extent == a.extent[d] && extent == b.extent[d];
    a_stride *= a.extent[d];
    b_stride *= b.extent[d];
  }
}

void RunCursor::next() {
  --remaining_;
  for (Dim& dim : outer_) {
    a_offset_ += dim.a_stride;
    b_offset_ += dim.b_stride;
    if (++dim.index < dim.extent) return;
    a_offset_ -= dim.extent * dim.a_stride;
    b_offset_ -= dim.extent * dim.b_stride;
    dim.index = 0;
  }
}

int64_t copy_region(const Region& from, const void* from_data, const Region& to, void* to_data, int64_t element_bytes) {
  const std::optional<Region> common = intersect(from, to);
  if (!common) return 0;
  const char* source = static_cast<const char*>(from_data);
  char* target = static_cast<char*>(to_data);
  for (RunCursor run(*common, from, to); !run.done(); run.next())
    std::memcpy(target + run.b_offset() * element_bytes, source + run.a_offset() * element_bytes,
                static_cast<size_t>(run.length() * element_bytes));
  return num_elements(common->extent);
}

}  // namespace tri
