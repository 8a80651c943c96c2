#include "kernels/cuda/gemm_plan.h"

#include "kernels/cuda/check.h"
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

bool has_epilogue(GemmForm form) { return form == GemmForm::kEpilogue || form == GemmForm::kFused; }

// Returns a column-major, dense layout.
cublasLtMatrixLayout_t make_layout(Dtype dtype, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  TRI_CUBLAS(cublasLtMatrixLayoutCreate(&layout, cuda_type(dtype), static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(columns), rows));
  return layout;
}

cublasLtEpilogue_t epilogue_of(const Gemm& g, GemmForm form) {
  const bool bias = !g.bias.empty();
  if (form == GemmForm::kFused && !g.dbias.empty())
    return g.epilogue == Epilogue::kGeluBackward ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_BGRADB;
  if (has_epilogue(form)) {
    if (g.epilogue == Epilogue::kGelu) return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (g.epilogue == Epilogue::kGeluBackward) return CUBLASLT_EPILOGUE_DGELU;
  }
  return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// Returns the schemes that may add the partial sums when K is split over blocks: those that add in fp32, the compute
// type. The other schemes add in the output's type.
uint32_t reduction_schemes(Dtype out) {
  if (out == Dtype::kF32) return CUBLASLT_REDUCTION_SCHEME_MASK;
  return CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

}  // namespace

std::vector<GemmForm> forms_of(const PlannedGemm& g) {
  if (g.accumulation == Fp8Accumulation::kFast) return {GemmForm::kFast, GemmForm::kPlain};
  std::vector<GemmForm> forms = {GemmForm::kPlain};
  if (g.epilogue != Epilogue::kNone) forms.push_back(GemmForm::kEpilogue);
  if (!g.dbias.empty()) forms.push_back(GemmForm::kFused);
  return forms;
}

const char* name_of(GemmForm form) {
  constexpr const char* kNames[] = {"plain", "epilogue", "fused", "fast"};
  return kNames[static_cast<int>(form)];
}

std::optional<GemmForm> form_of_name(std::string_view name) {
  for (const GemmForm form : kGemmForms)
    if (name == name_of(form)) return form;
  return std::nullopt;
}

AlgorithmRefused::AlgorithmRefused(cublasStatus_t status)
    : Fatal(ExitCode::kDevice, fmt::format("cublasLtMatmul: {}", cublasLtGetStatusString(status))) {}

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Fatal(ExitCode::kDevice, fmt::format("{}: {}", what, cublasLtGetStatusString(status)));
}

GemmKey GemmKey::of(const PlannedGemm& g) {
  const bool ta = g.trans_a == Trans::kYes, tb = g.trans_b == Trans::kYes;
  uintptr_t bits = 256;
  for (const Tensor& tensor : {g.out, g.a, g.b, g.pre, g.addend}) bits |= reinterpret_cast<uintptr_t>(tensor.data);
  const int alignment = static_cast<int>(bits & (~bits + 1));  // the lowest set bit
  return {g.out[0],
          g.out[1],
          g.a[ta ? 0 : 1],
          ta,
          tb,
          g.a.dtype,
          g.b.dtype,
          g.out.dtype,
          g.beta != 0.0f,
          !g.bias.empty(),
          g.epilogue,
          !g.dbias.empty(),
          g.accumulation,
          alignment};
}

std::string GemmKey::text() const {
  constexpr const char* kEpilogues[] = {"", ",gelu", ",gelu_backward"};
  return fmt::format("{}x{}x{},{}{},{}{},{}{}{}{}{}{},{}", m, n, k, trans_a ? 't' : 'n', trans_b ? 't' : 'n',
                     enum_name(a), a == b ? "" : fmt::format("*{}", enum_name(b)), enum_name(out), beta ? ",beta" : "",
                     bias ? ",bias" : "", kEpilogues[static_cast<int>(epilogue)], dbias ? ",dbias" : "",
                     accumulation == Fp8Accumulation::kFast ? ",fast" : "", alignment);
}

GemmPlan::GemmPlan(const PlannedGemm& g, GemmForm form)
    : form_(form), reduction_schemes_(reduction_schemes(g.out.dtype)) {
  a_ = make_layout(g.b.dtype, g.b[1], g.b[0]);
  b_ = make_layout(g.a.dtype, g.a[1], g.a[0]);
  out_ = make_layout(g.out.dtype, g.out[1], g.out[0]);
  TRI_CUBLAS(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));  // fp32 operands without TF32
  set(CUBLASLT_MATMUL_DESC_TRANSA, g.trans_b == Trans::kYes ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, g.trans_a == Trans::kYes ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(g, form));
  if (!g.bias.empty()) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(g.bias.dtype));
  if (form == GemmForm::kFused && !g.dbias.empty()) {
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.dbias.data);
  }
  if (form == GemmForm::kFast) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  set_pointers(g);
  if (has_epilogue(form) && g.epilogue != Epilogue::kNone) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.pre[1]);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, cuda_type(g.pre.dtype));
  }
}

GemmPlan::~GemmPlan() {
  cublasLtMatmulDescDestroy(operation_);
  for (cublasLtMatrixLayout_t layout : {a_, b_, out_}) cublasLtMatrixLayoutDestroy(layout);
}

void GemmPlan::set_pointers(const PlannedGemm& g) {
  if (!g.bias.empty()) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias.data);
  if (has_epilogue(form_) && g.epilogue != Epilogue::kNone) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, g.pre.data);
  if (g.inverse_a.empty()) return;
  for (const Tensor& inverse : {g.inverse_a, g.inverse_b})
    TRI_REQUIRE(reinterpret_cast<uintptr_t>(inverse.data) % 16 == 0, "a scale at {}, no multiple of sixteen bytes",
                inverse.data);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g.inverse_b.data);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g.inverse_a.data);
}

void GemmPlan::set_multiprocessors(CudaStream& stream) {
  const int32_t count = stream.leaves_room() ? own_multiprocessors(stream) : 0;
  if (count != multiprocessors_) set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, count);
  multiprocessors_ = count;
}

std::vector<cublasLtMatmulAlgo_t> GemmPlan::algorithms(cublasLtHandle_t handle, int most, int alignment) const {
  cublasLtMatmulPreference_t preference = nullptr;
  TRI_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    TRI_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kGemmWorkspaceBytes});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction_schemes_);
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, static_cast<uint32_t>(alignment));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, operation_, a_, b_, out_, out_, preference, most, results.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  // These are answers, unlike a library that is out of memory or a device that has failed.
  const bool unsupported = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
                           status == CUBLAS_STATUS_ARCH_MISMATCH;
  if (unsupported) return {};
  check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    const auto& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  return algorithms;
}

bool GemmPlan::takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result;
  uint32_t reduction = 0;
  return cublasLtMatmulAlgoCheck(handle, operation_, a_, b_, out_, out_, &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= size_t{kGemmWorkspaceBytes} &&
         cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                              sizeof reduction, nullptr) == CUBLAS_STATUS_SUCCESS &&
         (reduction & ~reduction_schemes_) == 0;
}

void GemmPlan::run(cublasLtHandle_t handle, const PlannedGemm& g, const cublasLtMatmulAlgo_t& algorithm, float* dbias,
                   CudaStream& stream) {
  set_pointers(g);
  set_multiprocessors(stream);
  if (form_ == GemmForm::kFused && !g.dbias.empty()) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, dbias);
  const float alpha = g.alpha, beta = g.beta;
  void* out = g.epilogue == Epilogue::kGelu && form_ == GemmForm::kPlain ? g.pre.data : g.out.data;
  const void* added = g.addend.empty() ? out : g.addend.data;
  const cublasStatus_t status =
      cublasLtMatmul(handle, operation_, &alpha, g.b.data, a_, g.a.data, b_, &beta, added, out_, out, out_, &algorithm,
                     workspace(stream, Scratch::kGemm, kGemmWorkspaceBytes), kGemmWorkspaceBytes, stream);
  if (status != CUBLAS_STATUS_SUCCESS) throw AlgorithmRefused(status);
}

}  // namespace tri::cuda
