// Shared by the casts of flat slices: fp8_cast_slice and the optimizers' updates.
#pragma once

#include "kernels/fp8.h"

namespace tri::cpu {

// Quantizes a block of kBlock numbers of `tensor` that starts at element `first` of the slice.
void cast_block(const Fp8SliceWeights& quantized, const float* values, int64_t first, int tensor);

}  // namespace tri::cpu
