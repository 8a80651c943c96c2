// Flat buffers: where each parameter of a chunk lies in one contiguous array, cut into buckets for the dp collectives.
// Parameters lie in reverse order of use, the order in which backward completes gradients. Every tensor starts at a
// multiple of kBlock and every bucket's size is a multiple of dp · kBlock, so that slice r of each bucket belongs to dp
// rank r whatever tensors lie there. A bucket holds parameters whose gradients are reduced over the same axes; of those
// that dp alone completes, the small ones (norms, biases), whose gradients backward completes all along, have buckets
// apart from the matrices'. Matrices that are kept in FP8 have buckets of their own as well, whose bytes are
// gathered, at the buffer's beginning; other matrices that are used before and after them do not share a bucket, which
// would stay open in between.
#pragma once

#include <vector>

#include "lib/model/parameter.h"

namespace tri {

// The axes of the collectives that reduce and gather buckets. Names and comments call what is along them "dp".
inline constexpr AxisSet kBucketAxes{"dp"};

struct Bucket {
  AxisSet reduced;              // ParamSpec::reduced, without axes of one rank
  bool matrices = false;        // with nothing remaining(): GEMMs write the gradients, else small kernels add to them
  bool quantized = false;       // matrices that are kept in FP8 (ParamSpec::fp8_slot)
  int64_t first = 0;            // element of the flat buffer
  int64_t size = 0;             // elements
  std::vector<int> parameters;  // indices into the chunk's list

  // The axes over which its gradients are still to be summed when the bucket has been reduced.
  AxisSet remaining() const { return reduced - kBucketAxes; }
};

struct FlatLayout {
  std::vector<Bucket> buckets;
  std::vector<int64_t> offset;  // [parameter], elements from the buffer's start
  std::vector<int> bucket_of;   // [parameter]
  int64_t size = 0;             // elements of the buffer
  int64_t quantized = 0;        // the first ones, which are kept in FP8
};

// A bucket is closed as soon as it holds `bucket_elements`; a tensor is never divided over buckets.
FlatLayout make_flat_layout(const std::vector<ParamSpec>& specs, const Mesh& mesh, int64_t bucket_elements);

// Owner of each block of kBlock elements: the parameter's index, or -1 for padding between tensors.
std::vector<int> block_owners(const FlatLayout& layout, const std::vector<ParamSpec>& specs, const Mesh& mesh);

}  // namespace tri
