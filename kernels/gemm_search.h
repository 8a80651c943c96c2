// Autotuning of GEMMs: times a backend's algorithms at start-up. Choices can be stored, so that a restarted run
// computes the same bits.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "io/base/error.h"
#include "kernels/core/device.h"
#include "kernels/fp8.h"
#include "kernels/gemm.h"

namespace tri {

using AnyGemm = std::variant<Gemm, Fp8Gemm>;

// The algorithm chosen for a shape, as it is stored between starts.
struct GemmChoice {
  std::string shape, form;  // as in GemmSearch::Row
  std::string algorithm;    // the library's opaque description
  double microseconds = 0, first_microseconds = 0;
  bool operator==(const GemmChoice&) const = default;
};
struct GemmChoices {
  std::string library;              // name of the GPU and version of the library
  std::vector<GemmChoice> choices;  // by shape
  bool operator==(const GemmChoices&) const = default;
};

// Threads: only the thread that enqueues calls it.
class GemmSearch {
 public:
  // The result for one shape (sizes, transposes, types, beta, bias, epilogue, dbias, accumulation, alignment).
  struct Row {
    std::string shape;
    Dtype operands{};
    double flops = 0;
    double microseconds = 0;  // of the chosen algorithm after warm-up, with everything fused into the GEMM
    // of the library's first heuristic, with epilogue and bias gradient as separate kernels
    double first_microseconds = 0;
    // "plain", or what is fused into the GEMM: "epilogue", "fused" (bias gradient too); "fast": FP8 with fewer bits
    std::string form;
  };

  virtual ~GemmSearch() = default;

  // Returns one GEMM for each shape in `gemms` that has no choice yet, by shape.
  virtual std::map<std::string, AnyGemm> without_choice(std::span<const AnyGemm> gemms) = 0;

  // Times the algorithms of each GEMM without a choice as they run in a step (times_when_warm: half a second each).
  // Overwrites all of the operands' memory, outputs included, with numbers. Waits for the stream.
  virtual void search(std::span<const AnyGemm> gemms, Stream& stream) = 0;

  virtual GemmChoices choices() const = 0;
  // Adopts stored choices, which replace those made here. Has no effect if another library or kind of GPU made them.
  // Fails, and adopts none, if one has a form or an algorithm that this version does not know.
  virtual Result<void> take_choices(const GemmChoices& choices) = 0;

  virtual std::vector<Row> rows() const = 0;
};

// Returns the microseconds per call of a candidate over `calls` consecutive calls; infinite if it refuses to run.
using TimeCalls = std::function<double(size_t candidate, int calls)>;

// Returns the microseconds of a call of each candidate as it runs in a training step, on a GPU at its power limit.
// There the clock falls with the power that a kernel takes, so the fastest kernel is the one that needs least energy,
// which a GPU at rest does not show. Only candidates near the fastest are timed, and `always`, one of the candidates;
// the times of the others are infinite. Each is timed without a pause, first for as long as the clock needs to settle:
// once, and again in several parts where it is close to the fastest, so that the least time is a mean of several parts.
// `alone`: microseconds of one call measured alone, infinite if it was refused. `warm_up_microseconds`: duration of the
// calls before the first one is timed.
std::vector<double> times_when_warm(std::span<const double> alone, size_t always, double warm_up_microseconds,
                                    const TimeCalls& time);

// A stream that records GEMMs and runs nothing, used to find the shapes of a model.
class GemmRecorder final : public Stream {
 public:
  GemmRecorder();
  const std::vector<AnyGemm>& gemms() const { return gemms_; }
  void add(const AnyGemm& g) { gemms_.push_back(g); }

  void record(Event&) override {}
  void wait(Event&) override {}
  void synchronize() override {}
  void set_flag(uint32_t*, uint32_t) override {}
  void wait_flag(const uint32_t*, uint32_t) override {}
  void mark(std::atomic<uint32_t>&, uint32_t) override {}
  std::optional<StreamTimes> times() const override { return std::nullopt; }
  void reset_times() override {}

 private:
  void do_copy(void*, const void*, int64_t) override {}
  void do_zero(Tensor) override {}

  std::vector<AnyGemm> gemms_;
};

}  // namespace tri
