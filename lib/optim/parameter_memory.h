// The layout of the store's tensors: the parameters as the layers see them, the buckets as the dp transfers see them,
// the slices as the optimizer sees them. All are views, except for the tables, which the constructor fills.
#pragma once

#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/fp8.h"
#include "lib/model/fp8_tensors.h"
#include "lib/optim/store_tensors.h"

namespace tri {

// One bucket of this rank.
struct BucketMemory {
  int chunk = 0;
  const Bucket* bucket = nullptr;  // in the chunk's layout
  Tensor parameters;               // (size) compute dtype, or FP8 weights
  // (size) f32. Zero 2: the buffer dedicated to the bucket; empty: it uses a buffer of the pool while it is open.
  Tensor gradients;
  SliceRange slice;
  Tensor gradient_slice;  // (slice) f32
  Tensor block_tensor;    // (size / kBlock) i32
  bool ragged = false;    // some tensor ends inside a block of kBlock elements
};

// This rank's part of one bucket, for the optimizer. All have (n) elements, n a multiple of kBlock.
struct BucketSlice {
  int bucket = 0;     // in ParameterMemory::buckets()
  AxisSet remaining;  // Bucket::remaining()
  Tensor master;      // f32: the weights that are updated
  Tensor param;  // bf16 copy to write; empty if `master` is the parameter itself, or if quantized weights are written
  Fp8SliceWeights quantized;  // FP8 weights to write, with scales, amax and counts; or empty
  Tensor grad;                // f32
  std::vector<Tensor> state;  // f32|bf16, in the order of the optimizer's row
  Tensor ema;                 // f32: average of `master`, or empty
  Tensor block_tensor;        // (n / kBlock) i32
  int64_t first_block = 0;    // in its chunk's flat buffer
  bool used_late = false;     // only after this rank's first layer has run
};

class ParameterMemory {
 public:
  // `tensors`: from allocate_store with the same `config` and `mesh`; `fp8`: from allocate_fp8, if FP8 weights are
  // stored. Waits for `compute`, which fills the tables.
  ParameterMemory(const Config& config, const Mesh& mesh, StoreTensors tensors, Stream& compute,
                  const Fp8Tensors& fp8 = {});
  ParameterMemory(const ParameterMemory&) = delete;
  ParameterMemory& operator=(const ParameterMemory&) = delete;

  const StoreTensors& tensors() const { return tensors_; }
  // [chunk][parameter]; addresses are stable.
  const std::vector<std::vector<Parameter>>& parameters() const { return parameters_; }
  const std::vector<std::string>& tensor_names() const { return tensor_names_; }  // [S]
  // Ordered by chunk, each in its layout's order.
  const std::vector<BucketMemory>& buckets() const { return buckets_; }
  // In the order of the first use of their parameters.
  const std::vector<BucketSlice>& slices() const { return slices_; }

  bool sharded() const { return sharded_; }         // zero >= 1
  int bucket_of(const Parameter& parameter) const;  // in buckets()
  // Returns the axes of several ranks that need a group which sums over them (AxisGroup): those over which parameters
  // are sharded, and the buckets' remaining axes.
  AxisSet axes_to_sum() const { return axes_to_sum_; }
  // Returns the parameter's gradient, in local shape, f32, in the gradients `full` of its bucket.
  Tensor gradient_in(Tensor full, const Parameter& parameter) const;

 private:
  void add_parameters(const Mesh& mesh);
  void add_buckets(int chunk, const Mesh& mesh, bool gradient_slices, const Fp8Tensors& fp8);
  void fill_tables(const Config& config, const Mesh& mesh, Stream& compute);

  StoreTensors tensors_;
  const bool sharded_;
  std::vector<std::vector<Parameter>> parameters_;
  std::vector<std::string> tensor_names_;
  std::vector<BucketMemory> buckets_;
  std::vector<int> first_bucket_;  // [chunk]: in buckets_
  std::vector<BucketSlice> slices_;
  AxisSet axes_to_sum_;
};

}  // namespace tri
