// The kernels of QK-norm with rotary position embedding for sm_90a. A build without that code has no_hopper.cpp.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/qk_norm_rope.h"

namespace tri::cuda {

// Enqueues the op and returns true; returns false, without effect, if the GPU or the shape is not supported.
bool hopper_qk_norm_rope_forward(const QkNormRopeForward& args, CudaStream& stream);
bool hopper_qk_norm_rope_backward(const QkNormRopeBackward& args, CudaStream& stream);

}  // namespace tri::cuda
