// Flat buffers: where each parameter of a chunk lies in one contiguous array, cut into buckets for the dp collectives.
// Parameters lie in reverse order of use, the order in which backward completes gradients. Every tensor starts at a
// multiple of kBlock and every bucket's size is a multiple of dp · kBlock, so that slice r of each bucket belongs to dp
// rank r whatever tensors lie there. A bucket holds parameters of one GradScope; the small ones of kSplit (norms,
// biases), which backward completes all along, have buckets apart from the matrices'.
#pragma once

#include <vector>

#include "lib/model/parameter.h"

namespace tri {

struct Bucket {
  GradScope scope = GradScope::kSplit;
  bool matrices = false;        // kSplit only: GEMMs write the gradients, else small kernels add to them
  int64_t first = 0;            // element of the flat buffer
  int64_t size = 0;             // elements
  std::vector<int> parameters;  // indices into the chunk's list
};

struct FlatLayout {
  std::vector<Bucket> buckets;
  std::vector<int64_t> offset;  // [parameter], elements from the buffer's start
  std::vector<int> bucket_of;   // [parameter]
  int64_t size = 0;             // elements of the buffer
};

// A bucket is closed as soon as it holds `bucket_elements`; a tensor is never divided over buckets.
FlatLayout make_flat_layout(const std::vector<ParamSpec>& specs, int tp, int dp, int64_t bucket_elements);

// Owner of each block of kBlock elements: the parameter's index, or -1 for padding between tensors.
std::vector<int> block_owners(const FlatLayout& layout, const std::vector<ParamSpec>& specs, int tp);

}  // namespace tri
