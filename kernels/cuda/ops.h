// The CUDA backend: every operation as a function that launches on a CUDA stream and returns. Operands are in device
// memory; the caller has checked the shapes. Deterministic: no floating-point atomics.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/ops.h"

namespace tri::cuda {

#define TRI_ROW(name, Args) void name(const Args& args, CudaStream& stream);
TRI_FOR_EACH_OP(TRI_ROW)
#undef TRI_ROW

}  // namespace tri::cuda
