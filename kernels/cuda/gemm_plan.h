// A GEMM in cuBLASLt's form, and the algorithm that runs it.
// Since cuBLASLt is column-major, a row-major (M, N) is its transpose (N, M): it computes out^T = op(b)^T · op(a)^T
// without copying. sm_90 supports FP8 operands only in the form used here: both with the summed dimension innermost.
// The bias is a number per row of out^T; dbias, a sum over the rows of `a`, is the sum over the columns of cuBLASLt's
// B.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/stream.h"
#include "kernels/gemm_search.h"

namespace tri::cuda {

void check_blas(cublasStatus_t status, const char* what);
#define TRI_CUBLAS(call) ::tri::cuda::check_blas((call), #call)

// cuBLASLt has refused to run an algorithm that it had proposed; nothing was enqueued.
class AlgorithmRefused : public Fatal {
 public:
  explicit AlgorithmRefused(cublasStatus_t status);
};

// A GEMM of either kind. FP8 operands come with their inverse scales in device memory: (1) f32 each.
struct PlannedGemm : Gemm {
  explicit PlannedGemm(const Gemm& g) : Gemm(g) {}
  explicit PlannedGemm(const Fp8Gemm& g)
      : Gemm{.out = g.out, .a = g.a, .b = g.b, .trans_b = Trans::kYes, .beta = g.beta, .bias = g.bias},
        inverse_a(g.inverse_a),
        inverse_b(g.inverse_b),
        accumulation(g.accumulation) {}

  Tensor inverse_a, inverse_b;
  Fp8Accumulation accumulation = Fp8Accumulation::kFp32;
};

// The key of a plan. Operands with equal keys share a plan.
struct GemmKey {
  int64_t m, n, k;
  bool trans_a, trans_b;
  Dtype a, b, out;
  bool beta, bias;
  Epilogue epilogue;
  bool dbias;
  Fp8Accumulation accumulation;
  int alignment;  // common alignment of the pointers, in bytes
  auto operator<=>(const GemmKey&) const = default;

  static GemmKey of(const PlannedGemm& g);
  std::string text() const;  // without blanks
};

// kPlain: only the GEMM and its bias. kEpilogue: with GeLU or its gradient. kFused: with the bias gradient too. kFast:
// like kPlain, with products of FP8 numbers accumulated with fewer bits (FAST_ACCUM).
enum class GemmForm { kPlain, kEpilogue, kFused, kFast };
inline constexpr GemmForm kGemmForms[] = {GemmForm::kPlain, GemmForm::kEpilogue, GemmForm::kFused, GemmForm::kFast};
// Returns the distinct forms that `g` allows; the first one runs without a search.
std::vector<GemmForm> forms_of(const PlannedGemm& g);
const char* name_of(GemmForm form);
std::optional<GemmForm> form_of_name(std::string_view name);

class GemmPlan {
 public:
  GemmPlan(const PlannedGemm& g, GemmForm form);
  ~GemmPlan();
  GemmPlan(const GemmPlan&) = delete;
  GemmPlan& operator=(const GemmPlan&) = delete;

  // Returns cuBLASLt's proposals that add in fp32, best guess first; none if it does not support this form. Throws
  // Fatal if cuBLASLt itself fails.
  std::vector<cublasLtMatmulAlgo_t> algorithms(cublasLtHandle_t handle, int most, int alignment) const;
  // Returns whether `algorithm`, chosen by an earlier run, supports this GEMM and accumulates in fp32.
  bool takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const;
  // Writes dbias, which cuBLASLt overwrites, to `dbias` (M) f32. Throws AlgorithmRefused if cuBLASLt does not run it.
  void run(cublasLtHandle_t handle, const PlannedGemm& g, const cublasLtMatmulAlgo_t& algorithm, float* dbias,
           CudaStream& stream);

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    TRI_CUBLAS(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value));
  }

  // The arguments for this call's operands, in addition to those of cublasLtMatmul.
  void set_pointers(const PlannedGemm& g);
  // Limits the multiprocessors that the GEMM uses; the algorithm stays, and with it the order of the sums.
  void set_multiprocessors(CudaStream& stream);

  GemmForm form_;
  int32_t multiprocessors_ = 0;  // 0: all
  uint32_t reduction_schemes_;   // the cublasLtReductionScheme_t that may be used
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, out_ = nullptr;  // in cuBLASLt's order: a_ is the caller's b
};

}  // namespace tri::cuda
