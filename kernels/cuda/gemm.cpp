// out = op(a) · op(b) + beta · out + bias through cuBLASLt.
// cuBLASLt is column-major: a row-major (M, N) is its transpose (N, M), so it is asked for out^T = op(b)^T ·
// op(a)^T and nothing is copied. The bias is the BIAS epilogue (a number a row of out^T). Sums in fp32, fp32
// operands without TF32. Plans (descriptors and algorithm) are made once a shape and kept. Bound: matrix
// units, 2·M·N·K FLOPs. Mirror: kernels/cpu/gemm.cpp.
#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "kernels/cuda/check.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Fatal(ExitCode::kDevice, fmt::format("{}: {}", what, cublasLtGetStatusString(status)));
}
#define TRI_CUBLAS(call) check_blas((call), #call)

cudaDataType_t cuda_type(Dtype dtype) { return dtype == Dtype::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

struct Layout {
  cublasLtMatrixLayout_t handle = nullptr;
  Layout(Dtype dtype, int64_t rows, int64_t cols) {  // column-major, dense
    TRI_CUBLAS(cublasLtMatrixLayoutCreate(&handle, cuda_type(dtype), static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(cols), rows));
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(handle); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
};

struct Preference {
  cublasLtMatmulPreference_t handle = nullptr;
  Preference() { TRI_CUBLAS(cublasLtMatmulPreferenceCreate(&handle)); }
  ~Preference() { cublasLtMatmulPreferenceDestroy(handle); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
};

// What decides the plan: sizes, transposes, types, beta, bias, and the alignment that the pointers have in
// common.
using Key = std::tuple<int64_t, int64_t, int64_t, bool, bool, Dtype, Dtype, bool, bool, int>;

struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  Layout a, b, out;  // in cuBLASLt's order: a is the caller's b
  cublasLtMatmulAlgo_t algorithm;

  Plan(cublasLtHandle_t handle, const Gemm& g, int alignment)
      : a(g.b.dtype, g.b[1], g.b[0]), b(g.a.dtype, g.a[1], g.a[0]), out(g.out.dtype, g.out[1], g.out[0]) {
    TRI_CUBLAS(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t op_a = g.trans_b == Trans::kYes ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = g.trans_a == Trans::kYes ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, op_a);
    set(CUBLASLT_MATMUL_DESC_TRANSB, op_b);
    if (!g.bias.empty()) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(g.bias.dtype));
      set_bias(g.bias.data);
    }
    const Preference preference;
    const size_t workspace = kWorkspaceBytes;
    prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    const auto bytes = static_cast<uint32_t>(alignment);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(preference, attribute, bytes);
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    TRI_CUBLAS(cublasLtMatmulAlgoGetHeuristic(handle, operation, a.handle, b.handle, out.handle, out.handle,
                                              preference.handle, 1, &result, &found));
    if (found == 0)
      throw Fatal(ExitCode::kDevice, fmt::format("cuBLASLt has no algorithm for {} x {} into {}", g.a.shape_text(),
                                                 g.b.shape_text(), g.out.shape_text()));
    algorithm = result.algo;
  }
  ~Plan() { cublasLtMatmulDescDestroy(operation); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  void set_bias(const void* bias) { set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    TRI_CUBLAS(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
  }
  template <class T>
  static void prefer(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    TRI_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof value));
  }
};

// The handle, the workspaces (one a stream: products on one stream follow each other) and the plans of this
// process, which has one GPU. Lives as long as the process.
class Context {
 public:
  static Context& instance() {
    static Context context;
    return context;
  }

  void multiply(const Gemm& g, cudaStream_t stream) {
    std::lock_guard lock(mutex_);
    Plan& plan = plan_for(g);
    if (!g.bias.empty()) plan.set_bias(g.bias.data);
    const float alpha = 1.0f, beta = g.beta;
    TRI_CUBLAS(cublasLtMatmul(handle_, plan.operation, &alpha, g.b.data, plan.a.handle, g.a.data, plan.b.handle, &beta,
                              g.out.data, plan.out.handle, g.out.data, plan.out.handle, &plan.algorithm,
                              workspace(stream, Scratch::kGemm, kWorkspaceBytes), kWorkspaceBytes, stream));
  }

 private:
  Context() { TRI_CUBLAS(cublasLtCreate(&handle_)); }

  static int common_alignment(const Gemm& g) {
    uintptr_t bits = 256;
    for (const Tensor& tensor : {g.out, g.a, g.b}) bits |= reinterpret_cast<uintptr_t>(tensor.data);
    return static_cast<int>(bits & (~bits + 1));  // the lowest set bit
  }

  Plan& plan_for(const Gemm& g) {
    const bool ta = g.trans_a == Trans::kYes, tb = g.trans_b == Trans::kYes;
    const int alignment = common_alignment(g);
    const Key key{g.out[0],    g.out[1],       g.a[ta ? 0 : 1], ta,       tb, g.a.dtype,
                  g.out.dtype, g.beta != 0.0f, !g.bias.empty(), alignment};
    auto& plan = plans_[key];
    if (!plan) plan = std::make_unique<Plan>(handle_, g, alignment);
    return *plan;
  }

  std::mutex mutex_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace

void gemm(const Gemm& g, cudaStream_t stream) {
  if (g.out.numel() == 0) return;
  Context::instance().multiply(g, stream);
}

}  // namespace tri::cuda
