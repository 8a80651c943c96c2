#include "lib/config/batch_sizes.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>

#include "kernels/core/dims.h"

namespace tri {

std::optional<int64_t> parse_count(std::string_view text) {
  constexpr std::string_view kSuffixes = "kMBT";
  int zeros = 0;
  if (!text.empty())
    if (const size_t suffix = kSuffixes.find(text.back()); suffix != kSuffixes.npos) {
      zeros = 3 * (static_cast<int>(suffix) + 1);
      text.remove_suffix(1);
    }
  // Decimal places are exact: they shift zeros of the suffix, and a number that is not whole is refused.
  const size_t point = text.find('.');
  std::string digits(text.substr(0, point));
  if (digits.empty()) return std::nullopt;
  if (point != text.npos) {
    const std::string_view places = text.substr(point + 1);
    if (places.empty() || places.size() > static_cast<size_t>(zeros)) return std::nullopt;
    digits += places;
    zeros -= static_cast<int>(places.size());
  }
  if (digits.find_first_not_of("0123456789") != digits.npos) return std::nullopt;
  digits.append(static_cast<size_t>(zeros), '0');
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (problem != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<std::vector<RampEntry>> parse_batch_ramp(std::string_view text) {
  constexpr std::string_view kSeparators = " ,";
  std::vector<RampEntry> entries;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(kSeparators), text.size()));
    if (text.empty()) break;
    const std::string_view entry = text.substr(0, text.find_first_of(kSeparators));
    text.remove_prefix(entry.size());
    const size_t colon = entry.find(':');
    if (colon == entry.npos) return std::nullopt;
    const auto tokens = parse_count(entry.substr(0, colon)), size = parse_count(entry.substr(colon + 1));
    constexpr int64_t kLargest = 1 << 30;
    if (!tokens || !size || *size < 1 || *size > kLargest) return std::nullopt;
    if (entries.empty() ? *tokens != 0 : *tokens <= entries.back().tokens) return std::nullopt;
    entries.push_back({*tokens, static_cast<int>(*size)});
  }
  if (entries.empty()) return std::nullopt;
  return entries;
}

BatchSizes::BatchSizes(std::vector<Phase> phases) : phases_(std::move(phases)) {
  TRI_REQUIRE(!phases_.empty() && phases_.front().first_sample == 0, "the sizes of {} phases", phases_.size());
  for (size_t i = 0; i < phases_.size(); ++i)
    TRI_REQUIRE(phases_[i].size >= 1 && (i == 0 || phases_[i].first_sample >= phases_[i - 1].first_sample),
                "phase {} of {} samples a step", i, phases_[i].size);
}

size_t BatchSizes::phase_of(int64_t sample) const {
  const auto next = std::upper_bound(phases_.begin(), phases_.end(), sample,
                                     [](int64_t at, const Phase& phase) { return at < phase.first_sample; });
  return static_cast<size_t>(next - phases_.begin()) - 1;
}

int BatchSizes::at(int64_t sample) const { return phases_[phase_of(sample)].size; }

int64_t BatchSizes::after(int64_t sample, int64_t steps) const {
  while (steps > 0) {
    const size_t phase = phase_of(sample);
    const int64_t size = phases_[phase].size;
    int64_t here = steps;  // steps of this size
    if (phase + 1 < phases_.size()) here = std::min(steps, ceil_div(phases_[phase + 1].first_sample - sample, size));
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    if (here > (kMost - sample) / size) return kMost;
    sample += here * size;
    steps -= here;
  }
  return sample;
}

int64_t BatchSizes::steps_until(int64_t sample, int64_t end) const {
  int64_t steps = 0;
  while (sample < end) {
    const size_t phase = phase_of(sample);
    const int64_t size = phases_[phase].size;
    const int64_t until = phase + 1 < phases_.size() ? std::min(end, phases_[phase + 1].first_sample) : end;
    const int64_t here = ceil_div(until - sample, size);
    sample += here * size;
    steps += here;
  }
  return steps;
}

int BatchSizes::largest() const { return std::ranges::max_element(phases_, {}, &Phase::size)->size; }

int BatchSizes::smallest() const { return std::ranges::min_element(phases_, {}, &Phase::size)->size; }

int BatchSizes::divisor() const {
  int divisor = 0;
  for (const Phase& phase : phases_) divisor = std::gcd(divisor, phase.size);
  return divisor;
}

BatchSizes batch_sizes(const Config& config) {
  const auto ramp = parse_batch_ramp(config.data.batch_ramp);
  if (!ramp) return BatchSizes(config.data.global_batch);
  std::vector<BatchSizes::Phase> phases;
  for (const RampEntry& entry : *ramp)
    phases.push_back({ceil_div(entry.tokens, int64_t{config.model.seq_len}), entry.size});
  return BatchSizes(std::move(phases));
}

int64_t last_step(const Config& config, int64_t steps, int64_t samples) {
  if (config.run.tokens == 0) return config.run.steps;
  return steps + batch_sizes(config).steps_until(samples, ceil_div(config.run.tokens, int64_t{config.model.seq_len}));
}

std::string steps_conflict(const Config& config) {
  const int64_t last = last_step(config, 0, 0);
  if (config.run.steps == last) return "";
  return fmt::format(
      "run.steps: {}, but run.tokens {} ends the run after step {}; remove one of the two, or set run.tokens to 0",
      config.run.steps, config.run.tokens, last);
}

std::string batch_conflict(const Config& config) {
  const int largest = batch_sizes(config).largest();
  if (config.data.global_batch == largest) return "";
  return fmt::format("data.global_batch: {}, but the largest size of data.batch_ramp is {}; remove one of the two",
                     config.data.global_batch, largest);
}

int64_t samples_of_run(const Config& config) { return batch_sizes(config).after(0, config.run.steps); }

int64_t tokens_of_run(const Config& config) {
  const int64_t length = config.model.seq_len;
  return std::min(samples_of_run(config), std::numeric_limits<int64_t>::max() / length) * length;
}

}  // namespace tri
