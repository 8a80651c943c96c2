// The sizes of a run's steps in samples: data.global_batch, or the phases of data.batch_ramp. Pure functions of the
// config, so they do not depend on the layout, on stops, or on where a run was resumed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/config/config.h"

namespace tri {

// Parses a whole number >= 0 with an optional suffix k, M, B or T (10^3, 10^6, 10^9, 10^12): "250B", "1.5T". Returns
// none for anything else.
std::optional<int64_t> parse_count(std::string_view text);

// An entry "TOKENS:SIZE" of data.batch_ramp.
struct RampEntry {
  int64_t tokens = 0;  // trained before the first step of this size
  int size = 1;        // samples of a step
  bool operator==(const RampEntry&) const = default;
};
// Parses "0:768 250B:1536" or "0:768,250B:1536": the first entry begins at 0 and the tokens ascend. Returns none for
// anything else, also for the empty text.
std::optional<std::vector<RampEntry>> parse_batch_ramp(std::string_view text);

// A step has the size of the phase that holds its first sample.
class BatchSizes {
 public:
  struct Phase {
    int64_t first_sample = 0;
    int size = 1;
    bool operator==(const Phase&) const = default;
  };

  explicit BatchSizes(int size) : BatchSizes(std::vector{Phase{0, size}}) {}
  // Requires at least one phase, the first one from sample 0, in ascending order.
  explicit BatchSizes(std::vector<Phase> phases);

  // Returns the size of a step whose first sample is `sample` >= 0.
  int at(int64_t sample) const;
  // Returns the first sample after `steps` steps that begin at `sample`; at most the largest int64_t.
  int64_t after(int64_t sample, int64_t steps) const;
  // Returns how many steps that begin at `sample` consume all samples before `end`; the last one may go beyond it.
  int64_t steps_until(int64_t sample, int64_t end) const;

  bool is_constant() const { return phases_.size() == 1; }
  int largest() const;
  int smallest() const;
  // Returns the largest number that divides every size.
  int divisor() const;
  const std::vector<Phase>& phases() const { return phases_; }

 private:
  // Returns the index of the phase of `sample`.
  size_t phase_of(int64_t sample) const;

  std::vector<Phase> phases_;
};

// Returns the sizes of the steps of `config`, whose data.batch_ramp must be valid; it need not be resolved.
BatchSizes batch_sizes(const Config& config);

// Returns the step, counted from 1, after which a run ends that has completed `steps` steps and consumed `samples`
// samples: run.steps, or with run.tokens the first one after which that many tokens were trained. `config` is resolved.
int64_t last_step(const Config& config, int64_t steps, int64_t samples);

// Returns the error of a config in which run.steps is not the step after which run.tokens ends it; "" if they agree, or
// if run.tokens is 0. `config` need not be resolved.
std::string steps_conflict(const Config& config);
// Returns the error of a config in which data.global_batch is not the largest size of data.batch_ramp; "" if they
// agree, or if there is no ramp.
std::string batch_conflict(const Config& config);

// Return the samples and the tokens of a whole run of a resolved config; at most about the largest int64_t.
int64_t samples_of_run(const Config& config);
int64_t tokens_of_run(const Config& config);

}  // namespace tri
