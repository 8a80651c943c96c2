// out = epilogue(alpha · op(a) · op(b) + beta · out + bias) through cuBLASLt, sums in fp32: kernels/gemm.h,
// kernels/fp8.h, gemm_plan.h.
// Plans and choices are created once per shape and stored. A shape that autotuning has timed runs its fastest algorithm
// and form (epilogue and bias gradient fused into the GEMM or as separate kernels); other shapes run the first
// heuristic of their first form. Bound: matrix units, 2·M·N·K FLOPs. Reference: kernels/cpu/gemm.cpp.
#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <string_view>

#include "io/base/mutex.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/fill.h"
#include "kernels/cuda/gemm_plan.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace {

constexpr int kCandidates = 24;                // of cuBLASLt's heuristics, per form
constexpr double kWarmUpMicroseconds = 400e3;  // duration of GEMMs before the first timing

struct Choice {
  GemmForm form = GemmForm::kPlain;
  cublasLtMatmulAlgo_t algorithm{};
  double microseconds = 0, first_microseconds = 0;  // 0: not timed
};

// Serializes the part of a choice that is stored between runs.
std::string to_text(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}
bool from_text(std::string_view text, cublasLtMatmulAlgo_t& algorithm) {
  if (text.size() != 16 * std::size(algorithm.data)) return false;
  for (size_t i = 0; i < std::size(algorithm.data); ++i) {
    const char *const begin = text.data() + 16 * i, *const end = begin + 16;
    const auto [read, problem] = std::from_chars(begin, end, algorithm.data[i], 16);
    if (problem != std::errc() || read != end) return false;
  }
  return true;
}

struct TimedEvent {
  TimedEvent() { TRI_CUDA(cudaEventCreate(&event)); }
  ~TimedEvent() { cudaEventDestroy(event); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  cudaEvent_t event = nullptr;
};

PlannedGemm planned(const AnyGemm& any) {
  return std::visit([](const auto& gemm) { return PlannedGemm(gemm); }, any);
}

}  // namespace

struct GemmEngine::State {
  struct Entry {
    std::unique_ptr<GemmPlan> plans[std::size(kGemmForms)];  // by form
    std::unique_ptr<Choice> choice;
  };
  Mutex mutex;
  cublasLtHandle_t handle = nullptr;
  std::map<GemmKey, Entry> entries TRI_GUARDED_BY(mutex);
  // By GemmKey::text(); checked when the shape is first used.
  std::map<std::string, Choice> imported TRI_GUARDED_BY(mutex);
  std::string library;  // GPU and library version of the choices

  State() { TRI_CUBLAS(cublasLtCreate(&handle)); }
  ~State() {
    entries.clear();  // plans must be destroyed before the library's handle
    cublasLtDestroy(handle);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  GemmPlan& plan(Entry& entry, const PlannedGemm& g, GemmForm form) TRI_REQUIRES(mutex) {
    auto& plan = entry.plans[static_cast<int>(form)];
    if (!plan) plan = std::make_unique<GemmPlan>(g, form);
    return *plan;
  }

  // The first heuristic of the first form.
  Choice first_choice(Entry& entry, const PlannedGemm& g, const GemmKey& key) TRI_REQUIRES(mutex) {
    const GemmForm form = forms_of(g).front();
    const auto algorithms = plan(entry, g, form).algorithms(handle, 1, key.alignment);
    if (algorithms.empty()) throw Fatal(ExitCode::kDevice, fmt::format("cuBLASLt has no algorithm for {}", key.text()));
    return {form, algorithms.front()};
  }

  Entry& entry_of(const PlannedGemm& g) TRI_REQUIRES(mutex) {
    const GemmKey key = GemmKey::of(g);
    Entry& entry = entries[key];
    if (entry.choice) return entry;
    if (const auto kept = imported.find(key.text()); kept != imported.end())
      if (plan(entry, g, kept->second.form).takes(handle, kept->second.algorithm)) {
        entry.choice = std::make_unique<Choice>(kept->second);
        return entry;
      }
    entry.choice = std::make_unique<Choice>(first_choice(entry, g, key));
    return entry;
  }

  void run(Entry& entry, const PlannedGemm& g, const Choice& choice, CudaStream& stream) TRI_REQUIRES(mutex) {
    GemmPlan& chosen = plan(entry, g, choice.form);
    // cuBLASLt overwrites its bias gradient, but dbias must be added to.
    const bool fused_dbias = choice.form == GemmForm::kFused && !g.dbias.empty();
    const bool dbias_of_a = g.trans_a == Trans::kYes, apart = choice.form == GemmForm::kPlain;
    float* dbias = nullptr;
    if (fused_dbias)
      dbias = static_cast<float*>(workspace(stream, Scratch::kBiasGradient, static_cast<size_t>(g.dbias.bytes())));
    if (!g.dbias.empty() && !fused_dbias && dbias_of_a) bias_backward({.dbias = g.dbias, .dout = g.a}, stream);
    chosen.run(handle, g, choice.algorithm, dbias, stream);
    if (fused_dbias) accumulate({.inout = g.dbias, .inp = Tensor(dbias, Dtype::kF32, {g.dbias.numel()})}, stream);
    if (apart && g.epilogue == Epilogue::kGelu)
      activation_forward({.kind = Activation::kGelu, .out = g.out, .inp = g.pre}, stream);
    if (apart && g.epilogue == Epilogue::kGeluBackward)
      activation_backward({.kind = Activation::kGelu, .dinp = g.out, .dout = g.out, .inp = g.pre}, stream);
    if (!g.dbias.empty() && !fused_dbias && !dbias_of_a) bias_backward({.dbias = g.dbias, .dout = g.out}, stream);
  }

  // Returns the microseconds per call over `calls` consecutive calls; infinite if cuBLASLt refuses to run the algorithm
  // that it proposed. Throws Fatal if the device has failed.
  double time(Entry& entry, const PlannedGemm& g, const Choice& choice, int calls, CudaStream& stream)
      TRI_REQUIRES(mutex) {
    const TimedEvent begin, end;
    TRI_CUDA(cudaEventRecord(begin.event, stream));
    try {
      for (int call = 0; call < calls; ++call) run(entry, g, choice, stream);
    } catch (const AlgorithmRefused&) {
      cudaGetLastError();                       // clears an error that the refused launch may have left
      TRI_CUDA(cudaStreamSynchronize(stream));  // a failed device makes cuBLASLt refuse everything
      return INFINITY;
    }
    TRI_CUDA(cudaEventRecord(end.event, stream));
    TRI_CUDA(cudaEventSynchronize(end.event));
    float milliseconds = 0;
    TRI_CUDA(cudaEventElapsedTime(&milliseconds, begin.event, end.event));
    return 1e3 * milliseconds / calls;
  }

  // Returns the first heuristic, then cuBLASLt's proposals for each form, with the microseconds of a single call.
  std::vector<Choice> candidates_of(Entry& entry, const PlannedGemm& g, const GemmKey& key, CudaStream& stream)
      TRI_REQUIRES(mutex) {
    std::vector<Choice> candidates{first_choice(entry, g, key)};
    for (const GemmForm form : forms_of(g))
      for (const auto& algorithm : plan(entry, g, form).algorithms(handle, kCandidates, key.alignment))
        if (form != candidates.front().form || to_text(algorithm) != to_text(candidates.front().algorithm))
          candidates.push_back({form, algorithm});
    for (Choice& candidate : candidates) {
      candidate.microseconds = time(entry, g, candidate, 1, stream);  // the first call loads the kernel
      if (std::isfinite(candidate.microseconds)) candidate.microseconds = time(entry, g, candidate, 1, stream);
    }
    return candidates;
  }

  // Keeps the previous choice if cuBLASLt refuses every algorithm. Returns whether anything was timed.
  bool search(const PlannedGemm& g, double warm_up_microseconds, CudaStream& stream) TRI_REQUIRES(mutex) {
    const GemmKey key = GemmKey::of(g);
    Entry& entry = entry_of(g);
    if (entry.choice->microseconds > 0) return false;
    for (const Tensor& tensor : {g.a, g.b, g.bias, g.pre, g.addend, g.out}) fill_random(tensor, stream);
    const std::vector<Choice> candidates = candidates_of(entry, g, key, stream);
    std::vector<double> alone;
    for (const Choice& candidate : candidates) alone.push_back(candidate.microseconds);
    const auto timed = [&](size_t i, int n) TRI_REQUIRES(mutex) { return time(entry, g, candidates[i], n, stream); };
    const std::vector<double> hot = times_when_warm(alone, 0, warm_up_microseconds, timed);
    const size_t best = static_cast<size_t>(std::min_element(hot.begin(), hot.end()) - hot.begin());
    if (!std::isfinite(hot[best])) return true;
    *entry.choice = candidates[best];
    entry.choice->microseconds = hot[best];
    entry.choice->first_microseconds = std::isfinite(hot.front()) ? hot.front() : hot[best];
    return true;
  }
};

GemmEngine::GemmEngine() : state_(std::make_unique<State>()) {
  int device = 0;
  cudaDeviceProp properties;
  TRI_CUDA(cudaGetDevice(&device));
  TRI_CUDA(cudaGetDeviceProperties(&properties, device));
  state_->library = fmt::format("{}, cuBLASLt {}", properties.name, cublasLtGetVersion());
}

GemmEngine::~GemmEngine() = default;

void GemmEngine::multiply(const PlannedGemm& g, CudaStream& stream) {
  const MutexLock lock(state_->mutex);
  State::Entry& entry = state_->entry_of(g);
  state_->run(entry, g, *entry.choice, stream);
}

bool GemmEngine::multiply_as(const PlannedGemm& g, GemmForm form, CudaStream& stream) {
  const MutexLock lock(state_->mutex);
  State::Entry& entry = state_->entry_of(g);
  const auto algorithms = state_->plan(entry, g, form).algorithms(state_->handle, 1, GemmKey::of(g).alignment);
  if (algorithms.empty()) return false;
  state_->run(entry, g, {form, algorithms.front()}, stream);
  return true;
}

std::map<std::string, AnyGemm> GemmEngine::without_choice(std::span<const AnyGemm> gemms) {
  const MutexLock lock(state_->mutex);
  std::map<std::string, AnyGemm> without;
  for (const AnyGemm& any : gemms) {
    const PlannedGemm g = planned(any);
    if (state_->entry_of(g).choice->microseconds <= 0) without.emplace(GemmKey::of(g).text(), any);
  }
  return without;
}

void GemmEngine::search(std::span<const AnyGemm> gemms, Stream& stream) {
  const MutexLock lock(state_->mutex);
  CudaStream& on = cuda_stream(stream);
  double warm_up = kWarmUpMicroseconds;
  for (const AnyGemm& any : gemms) {
    if (state_->search(planned(any), warm_up, on)) warm_up = 0;
  }
  TRI_CUDA(cudaStreamSynchronize(on));
}

GemmChoices GemmEngine::choices() const {
  const MutexLock lock(state_->mutex);
  GemmChoices all{.library = state_->library};
  for (const auto& [key, entry] : state_->entries)
    if (entry.choice && entry.choice->microseconds > 0)
      all.choices.push_back({.shape = key.text(),
                             .form = name_of(entry.choice->form),
                             .algorithm = to_text(entry.choice->algorithm),
                             .microseconds = entry.choice->microseconds,
                             .first_microseconds = entry.choice->first_microseconds});
  std::ranges::sort(all.choices, {}, &GemmChoice::shape);
  return all;
}

Result<void> GemmEngine::take_choices(const GemmChoices& choices) {
  const MutexLock lock(state_->mutex);
  if (choices.library != state_->library) return {};
  std::map<std::string, Choice> taken;
  for (const GemmChoice& of_shape : choices.choices) {
    const std::optional<GemmForm> form = form_of_name(of_shape.form);
    Choice choice{.microseconds = of_shape.microseconds, .first_microseconds = of_shape.first_microseconds};
    if (!form) return file_error("GEMM {}: the form '{}' is unknown", of_shape.shape, of_shape.form);
    if (!from_text(of_shape.algorithm, choice.algorithm))
      return file_error("GEMM {}: '{}' is not an algorithm", of_shape.shape, of_shape.algorithm);
    choice.form = *form;
    taken.insert_or_assign(of_shape.shape, choice);
  }
  for (const auto& [shape, choice] : taken) state_->imported.insert_or_assign(shape, choice);
  // Every rank must use the same choices, so imported choices replace those made here.
  for (auto& [key, entry] : state_->entries) {
    const auto kept = state_->imported.find(key.text());
    if (!entry.choice || kept == state_->imported.end()) continue;
    const auto& plan = entry.plans[static_cast<int>(kept->second.form)];
    if (plan == nullptr || plan->takes(state_->handle, kept->second.algorithm)) *entry.choice = kept->second;
  }
  return {};
}

std::vector<GemmSearch::Row> GemmEngine::rows() const {
  const MutexLock lock(state_->mutex);
  std::vector<Row> rows;
  for (const auto& [key, entry] : state_->entries)
    if (entry.choice && entry.choice->microseconds > 0)
      rows.push_back({key.text(), key.a,
                      2.0 * static_cast<double>(key.m) * static_cast<double>(key.n) * static_cast<double>(key.k),
                      entry.choice->microseconds, entry.choice->first_microseconds, name_of(entry.choice->form)});
  return rows;
}

void gemm(const Gemm& g, CudaStream& stream) {
  if (g.out.numel() == 0) return;
  stream.context().gemms().multiply(PlannedGemm(g), stream);
}

void symmetric_product(const SymmetricProduct& p, CudaStream& stream) {
  const bool hopper = flash_attention_is_hoppers(stream.context().properties());
  if (hopper && hopper_symmetric_product_takes(p)) return hopper_symmetric_product(p, stream);
  gemm(as_gemm(p), stream);
}

void fp8_gemm(const Fp8Gemm& g, CudaStream& stream) { stream.context().gemms().multiply(PlannedGemm(g), stream); }

}  // namespace tri::cuda
