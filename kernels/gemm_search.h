// The timed search over a backend's algorithms for GEMMs, at start-up. Choices can be stored, so that a run
// started again computes the same bits.
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

// The choice for a shape, as it is stored between starts.
struct GemmChoice {
  std::string shape, form;  // as in GemmSearch::Row
  std::string algorithm;    // the library's, opaque
  double microseconds = 0, first_microseconds = 0;
  bool operator==(const GemmChoice&) const = default;
};
struct GemmChoices {
  std::string library;              // name of the GPU and version of the library
  std::vector<GemmChoice> choices;  // by shape
  bool operator==(const GemmChoices&) const = default;
};

class GemmSearch {
 public:
  // Of one shape (sizes, transposes, types, beta, bias, epilogue, dbias, accumulation, alignment).
  struct Row {
    std::string shape;
    Dtype operands{};
    double flops = 0;
    double microseconds = 0;        // of the choice when hot, with all that the GEMM carries
    double first_microseconds = 0;  // of the library's first heuristic, epilogue and bias gradient apart
    // "plain", or what is inside the GEMM: "epilogue", "fused" (bias gradient too); "fast": FP8, added with fewer bits
    std::string form;
  };

  virtual ~GemmSearch() = default;

  // Of `gemms` those whose shape has no choice yet, one a shape, by shape.
  virtual std::map<std::string, AnyGemm> without_choice(std::span<const AnyGemm> gemms) = 0;

  // Times the algorithms of each GEMM that has no choice yet as they run in a step (times_when_warm: half a second
  // each), on the operands' own memory: all of it, outputs included, is overwritten with numbers. Waits for the stream.
  virtual void search(std::span<const AnyGemm> gemms, Stream& stream) = 0;

  virtual GemmChoices choices() const = 0;
  // Takes choices, also over those made here, if they were made by the same library on the same kind of GPU; else does
  // nothing. Error: one has a form or an algorithm that this version does not know; then none is taken.
  virtual Result<void> take_choices(const GemmChoices& choices) = 0;

  virtual std::vector<Row> rows() const = 0;
};

// Microseconds of a call of a candidate, over `calls` back to back; infinite where it refuses to run.
using TimeCalls = std::function<double(size_t candidate, int calls)>;

// Returns the microseconds of a call of each candidate as it runs in a training step, on a GPU at its power limit. There
// the clock falls with the power that a kernel takes, so the fastest kernel is the one that needs least energy, which a
// GPU at rest does not show. Only candidates near the fastest are timed, and `always`, one of the candidates; the times
// of the others are infinite. Each is timed without a pause, first for as long as the clock needs to settle: once, and
// again in several parts where it is close to the fastest, so that the least time is a mean of several parts.
// `alone`: microseconds of a call that was waited for, infinite where it was refused. `warm_up_microseconds`: of calls
// before the first one is timed.
std::vector<double> times_when_warm(std::span<const double> alone, size_t always, double warm_up_microseconds,
                                    const TimeCalls& time);

// A stream that keeps the GEMMs it is asked for and does nothing: how a model's shapes are found.
class GemmRecorder final : public Stream {
 public:
  GemmRecorder();
  const std::vector<AnyGemm>& gemms() const { return gemms_; }
  void add(const AnyGemm& g) { gemms_.push_back(g); }

  void record(Event&) override {}
  void wait(Event&) override {}
  void synchronize() override {}
  void idle(std::chrono::microseconds) override {}
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
