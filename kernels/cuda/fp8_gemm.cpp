// out = inverse_a · inverse_b · (a · b^T) + beta · out + bias through cuBLASLt: kernels/fp8.h.
// cuBLASLt is column-major: it is asked for out^T (N, M) = b^T^T · a^T, its A being the caller's b (K, N) transposed and
// its B the caller's a (K, M): the one form (TN) that it has for FP8 on sm_90. Scales are read from device memory, one a
// tensor. A shape runs the first heuristic. Bound: matrix units, 2·M·N·K FLOPs. Mirror: kernels/cpu/fp8.cpp.
#include "kernels/cuda/fp8_gemm.h"

#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda/context.h"
#include "kernels/cuda/gemm_plan.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/workspace.h"
#include "kernels/workspace.h"

namespace tri::cuda {
namespace {

cudaDataType_t cuda_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kE4M3:
      return CUDA_R_8F_E4M3;
    case Dtype::kE5M2:
      return CUDA_R_8F_E5M2;
    case Dtype::kBF16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

// (M, N, K, a, b, out, beta, bias, accumulation, alignment of the pointers in bytes)
using Key = std::tuple<int64_t, int64_t, int64_t, Dtype, Dtype, Dtype, bool, bool, Fp8Accumulation, int>;

Key key_of(const Fp8Gemm& g) {
  uintptr_t bits = 256;
  for (const Tensor& tensor : {g.out, g.a, g.b}) bits |= reinterpret_cast<uintptr_t>(tensor.data);
  return {g.out[0],    g.out[1],       g.a[1],          g.a.dtype,      g.b.dtype,
          g.out.dtype, g.beta != 0.0f, !g.bias.empty(), g.accumulation, static_cast<int>(bits & (~bits + 1))};
}

class Plan {
 public:
  Plan(const Fp8Gemm& g, int alignment, cublasLtHandle_t handle) {
    a_ = layout(g.b);
    b_ = layout(g.a);
    out_ = layout(g.out);
    TRI_CUBLAS(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(g.accumulation == Fp8Accumulation::kFast ? 1 : 0));
    if (!g.bias.empty()) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(g.bias.dtype));
    }
    set_pointers(g);
    choose(g, alignment, handle);
  }
  ~Plan() {
    cublasLtMatmulDescDestroy(operation_);
    for (cublasLtMatrixLayout_t layout : {a_, b_, out_}) cublasLtMatrixLayoutDestroy(layout);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  void run(const Fp8Gemm& g, cublasLtHandle_t handle, CudaStream& stream) {
    set_pointers(g);
    const float alpha = 1.0f, beta = g.beta;
    TRI_CUBLAS(cublasLtMatmul(handle, operation_, &alpha, g.b.data, a_, g.a.data, b_, &beta, g.out.data, out_,
                              g.out.data, out_, &algorithm_, workspace(stream, Scratch::kGemm, kGemmWorkspaceBytes),
                              kGemmWorkspaceBytes, stream));
  }

 private:
  // A row-major (rows, columns) is a dense column-major (columns, rows).
  static cublasLtMatrixLayout_t layout(const Tensor& tensor) {
    cublasLtMatrixLayout_t made = nullptr;
    TRI_CUBLAS(cublasLtMatrixLayoutCreate(&made, cuda_type(tensor.dtype), static_cast<uint64_t>(tensor[1]),
                                          static_cast<uint64_t>(tensor[0]), tensor[1]));
    return made;
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    TRI_CUBLAS(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value));
  }

  void set_pointers(const Fp8Gemm& g) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(g.inverse_b.data));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(g.inverse_a.data));
    if (!g.bias.empty()) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(g.bias.data));
  }

  void choose(const Fp8Gemm& g, int alignment, cublasLtHandle_t handle) {
    cublasLtMatmulPreference_t preference = nullptr;
    TRI_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      TRI_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kGemmWorkspaceBytes});
    // Where K is split over blocks, sums are added in fp32: the compute type is that.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           g.out.dtype == Dtype::kF32
               ? uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK}
               : uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE} | uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(attribute, static_cast<uint32_t>(alignment));
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    const auto status =
        cublasLtMatmulAlgoGetHeuristic(handle, operation_, a_, b_, out_, out_, preference, 1, &result, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0 || result.state != CUBLAS_STATUS_SUCCESS)
      throw Fatal(ExitCode::kDevice, fmt::format("cuBLASLt has no FP8 GEMM of {} by {} into {} on this GPU",
                                                 g.a.shape_text(), g.b.shape_text(), g.out.shape_text()));
    algorithm_ = result.algo;
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, out_ = nullptr;  // in cuBLASLt's order: a_ is the caller's b
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace

struct Fp8GemmEngine::State {
  std::mutex mutex;
  cublasLtHandle_t handle = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans;

  State() { TRI_CUBLAS(cublasLtCreate(&handle)); }
  ~State() {
    plans.clear();  // before their library's handle
    cublasLtDestroy(handle);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Fp8GemmEngine::Fp8GemmEngine() : state_(std::make_unique<State>()) {}
Fp8GemmEngine::~Fp8GemmEngine() = default;

void Fp8GemmEngine::multiply(const Fp8Gemm& g, CudaStream& stream) {
  std::lock_guard lock(state_->mutex);
  const Key key = key_of(g);
  std::unique_ptr<Plan>& plan = state_->plans[key];
  if (!plan) plan = std::make_unique<Plan>(g, std::get<int>(key), state_->handle);
  plan->run(g, state_->handle, stream);
}

void fp8_gemm(const Fp8Gemm& g, CudaStream& stream) { stream.context().fp8_gemms().multiply(g, stream); }

}  // namespace tri::cuda
