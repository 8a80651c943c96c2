// A GEMM as cuBLASLt wants it, and the algorithm that does it.
// cuBLASLt is column-major: a row-major (M, N) is its transpose (N, M), so it is asked for out^T = op(b)^T · op(a)^T
// and nothing is copied. The bias is a number a row of out^T; dbias, a sum over the rows of our a, is the sum over the
// columns of its B.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/stream.h"
#include "kernels/gemm.h"

namespace tri::cuda {

void check_blas(cublasStatus_t status, const char* what);
#define TRI_CUBLAS(call) ::tri::cuda::check_blas((call), #call)

// What decides a plan. Equal keys: the same plan serves.
struct GemmKey {
  int64_t m, n, k;
  bool trans_a, trans_b;
  Dtype inputs, out;
  bool beta, bias;
  Epilogue epilogue;
  bool dbias;
  int alignment;  // that the pointers have in common, bytes
  auto operator<=>(const GemmKey&) const = default;

  static GemmKey of(const Gemm& g);
  std::string text() const;  // without blanks
};

// kPlain: the GEMM and its bias alone. kEpilogue: GeLU or its gradient with it. kFused: the bias gradient too.
enum class GemmForm { kPlain, kEpilogue, kFused };
std::vector<GemmForm> forms_of(const Gemm& g);  // those that differ
const char* name_of(GemmForm form);

class GemmPlan {
 public:
  GemmPlan(const Gemm& g, GemmForm form);
  ~GemmPlan();
  GemmPlan(const GemmPlan&) = delete;
  GemmPlan& operator=(const GemmPlan&) = delete;

  // cuBLASLt's proposals, best guess first, of those that add in fp32; none when it cannot do this form.
  std::vector<cublasLtMatmulAlgo_t> algorithms(cublasLtHandle_t handle, int most, int alignment) const;
  // Whether `algorithm`, chosen by an earlier run, does this GEMM, and adds in fp32.
  bool takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const;
  // dbias, which cuBLASLt overwrites, goes to `dbias` (M) f32.
  void run(cublasLtHandle_t handle, const Gemm& g, const cublasLtMatmulAlgo_t& algorithm, float* dbias,
           CudaStream& stream);

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    TRI_CUBLAS(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value));
  }

  GemmForm form_;
  uint32_t reduction_schemes_;  // cublasLtReductionScheme_t that may be used
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, out_ = nullptr;  // in cuBLASLt's order: a_ is the caller's b
};

}  // namespace tri::cuda
