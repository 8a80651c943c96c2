// Replaces hopper_attention_*.cu in a build without code for sm_90a: attention then uses mma.sync.
#include "kernels/cuda/flash_attention.h"

namespace tri::cuda {

bool built_for_hopper() { return false; }

void hopper_attention_forward(const AttentionForward&, CudaStream&) {
  TRI_REQUIRE(false, "hopper_attention_forward in a build without sm_90a");
}
void hopper_attention_backward(const AttentionBackward&, CudaStream&) {
  TRI_REQUIRE(false, "hopper_attention_backward in a build without sm_90a");
}

}  // namespace tri::cuda
