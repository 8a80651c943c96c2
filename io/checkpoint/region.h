// Rectangles of a tensor in global coordinates, and copies between arrays that hold different ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tri {

using Coordinates = std::vector<int64_t>;  // one number per dim, outermost first

// Elements start[d] <= x[d] < start[d] + extent[d] of a tensor. An array "of a region" holds them densely, row-major.
struct Region {
  Coordinates start, extent;
  bool operator==(const Region&) const = default;
};

int64_t num_elements(const Coordinates& extent);  // product
bool inside(const Region& region, const Coordinates& shape);
std::string to_string(const Coordinates& values);  // "[2, 3]"
std::string to_string(const Region& region);       // "[0:2, 4:8]"

// Returns the elements of both; nullopt if there are none. Requires equal numbers of dims.
std::optional<Region> intersect(const Region& a, const Region& b);

// Returns elements [first, last) of the row-major flattened tensor as regions, in order: at most 2 * dims - 1, each
// contiguous in the flat tensor, so that a flat slice of an optimizer's buffer is the concatenation of their arrays.
std::vector<Region> regions_of_range(const Coordinates& shape, int64_t first, int64_t last);

// Iterates over the elements that `a` and `b` share, in the longest runs that are contiguous in both arrays, ascending.
// Offsets and lengths count elements.
//   for (RunCursor run(common, a, b); !run.done(); run.next()) copy(run.a_offset(), run.b_offset(), run.length());
class RunCursor {
 public:
  RunCursor(const Region& common, const Region& a, const Region& b);  // requires `common` to lie in both

  bool done() const { return remaining_ == 0; }
  void next();
  int64_t a_offset() const { return a_offset_; }
  int64_t b_offset() const { return b_offset_; }
  int64_t length() const { return length_; }
  int64_t remaining() const { return remaining_; }  // runs, this one included

 private:
  struct Dim {
    int64_t extent, index, a_stride, b_stride;
  };
  std::vector<Dim> outer_;  // innermost first
  int64_t length_ = 1, remaining_ = 1, a_offset_ = 0, b_offset_ = 0;
};

// Copies the common elements from the array of `from` to the array of `to`; returns their number.
int64_t copy_region(const Region& from, const void* from_data, const Region& to, void* to_data, int64_t element_bytes);

}  // namespace tri
