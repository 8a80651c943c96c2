// Replaces hopper_*.cu in a build without code for sm_90a: attention then uses mma.sync, QK-norm the kernels of
// qk_norm_rope.cu, experts' GEMMs fp32, and symmetric products a whole GEMM.
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/hopper_qk_norm_rope.h"

namespace tri::cuda {

bool built_for_hopper() { return false; }

void hopper_attention_forward(const AttentionForward&, CudaStream&) {
  TRI_REQUIRE(false, "hopper_attention_forward in a build without sm_90a");
}
void hopper_attention_backward(const AttentionBackward&, CudaStream&) {
  TRI_REQUIRE(false, "hopper_attention_backward in a build without sm_90a");
}
bool hopper_grouped_gemm_takes(const GroupedProduct&) { return false; }
void hopper_grouped_gemm(const GroupedProduct&, CudaStream&) {
  TRI_REQUIRE(false, "hopper_grouped_gemm in a build without sm_90a");
}

void hopper_grouped_gemm_fp8(const GroupedProduct&, CudaStream&) {
  TRI_REQUIRE(false, "hopper_grouped_gemm_fp8 in a build without sm_90a");
}

bool hopper_symmetric_product_takes(const SymmetricProduct&) { return false; }
void hopper_symmetric_product(const SymmetricProduct&, CudaStream&) {
  TRI_REQUIRE(false, "hopper_symmetric_product in a build without sm_90a");
}

bool hopper_qk_norm_rope_forward(const QkNormRopeForward&, CudaStream&) { return false; }
bool hopper_qk_norm_rope_backward(const QkNormRopeBackward&, CudaStream&) { return false; }

}  // namespace tri::cuda
