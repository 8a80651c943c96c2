// Flat buffers: the place of each parameter of a chunk in one contiguous array, split into buckets for the dp
// collectives. Parameters are in reverse order of use, the order in which the backward pass completes gradients. Every
// tensor starts at a multiple of kBlock, and the size of a bucket that is sharded over n ranks (sharded_over) is a
// multiple of n · kBlock, so that slice r belongs to rank r of them whatever tensors it holds.
//
// A bucket holds parameters whose gradients are reduced over the same axes. Small parameters (norms, biases) that dp
// alone completes have separate buckets, since their gradients complete throughout the backward pass. Matrices that are
// stored in FP8 have separate buckets as well, at the beginning of the buffer, which are gathered as bytes, and so have
// matrices that Muon updates, and those of ParamSpec::undelayed. Other matrices used before and after them do not share
// a bucket, which would stay open in between.
#pragma once

#include <vector>

#include "lib/model/parameter.h"

namespace tri {

// The axes of the collectives that reduce and gather buckets, called "dp" in names and comments. A bucket uses those
// over which its parameters are reduced.
inline constexpr AxisSet kBucketAxes = kTokenAxes;
// The same with those of the parameters of layers with experts.
inline constexpr AxisSet kReducingAxes = kBucketAxes | kRowAxes;

struct Bucket {
  AxisSet reduced;         // ParamSpec::reduced, without axes of one rank
  bool matrices = false;   // if remaining() is empty: GEMMs write the gradients; otherwise small kernels add to them
  bool quantized = false;  // matrices that are stored in FP8 (ParamSpec::fp8_slot)
  bool muon = false;       // matrices that Muon updates (ParamSpec::muon)
  int64_t first = 0;       // element of the flat buffer
  int64_t size = 0;        // elements
  std::vector<int> parameters;  // indices into the chunk's list

  // Returns the axes over which its own collectives reduce and gather it, and over which ZeRO shards it.
  AxisSet sharded_over() const { return reduced - remaining(); }
  // Returns the axes over which its gradients must still be summed after the bucket was reduced.
  AxisSet remaining() const { return reduced - kReducingAxes; }
};

// Returns Bucket::sharded_over() of the bucket of a parameter.
AxisSet slicing_axes(const ParamSpec& spec, const Mesh& mesh);

// A rank's slice of a bucket.
struct SliceRange {
  int64_t begin = 0;  // element of the flat buffer
  int64_t place = 0;  // element of buffers that hold only the slices of a chunk
  int64_t size = 0;   // elements
};

struct FlatLayout {
  std::vector<Bucket> buckets;
  std::vector<int64_t> offset;  // [parameter], elements from the buffer's start
  std::vector<int> bucket_of;   // [parameter]
  int64_t size = 0;             // elements of the buffer
  int64_t quantized = 0;        // elements stored in FP8, the first of the buffer
};

// Closes a bucket as soon as it holds `bucket_elements`; a tensor is never split over buckets.
FlatLayout make_flat_layout(const std::vector<ParamSpec>& specs, const Mesh& mesh, int64_t bucket_elements);

// Returns the slice of each bucket that belongs to the mesh's rank: its part of bucket.sharded_over(), or all of it.
enum class Slices { kSharded, kWhole };
std::vector<SliceRange> slice_ranges(const FlatLayout& layout, const Mesh& mesh, Slices slices);

// Returns the owner of each block of kBlock elements: the parameter's index, or -1 for padding between tensors.
std::vector<int> block_owners(const FlatLayout& layout, const std::vector<ParamSpec>& specs, const Mesh& mesh);

}  // namespace tri
