#include "lib/config/removed.h"

#include <fmt/format.h>

#include <algorithm>

namespace tri {
namespace {

constexpr RemovedSetting kRemoved[] = {
    {.section = "precision",
     .key = "gemm",
     .value = "auto",
     .reason = "a benchmark at start-up should not decide the number format of a run",
     .now = "GEMMs multiply in precision.compute unless precision.gemm is fp8",
     .remedy = "run `trireme bench step` with precision.gemm=compute and with precision.gemm=fp8, and set the faster "
               "one; an existing run continues as before with the precision.gemm in its resolved.yaml"},
    {.section = "precision",
     .key = "fp8_wgrad",
     .neutral = "fp8",
     .reason = "compute was slower and served comparisons only",
     .now = "the weight gradients of FP8 layers are always computed in FP8",
     .remedy = "delete the setting"},
    {.section = "precision",
     .key = "fp8_guard",
     .neutral = "off",
     .reason = "it doubled the memory for the saved rows and the weights of all FP8 layers",
     .now = "layers stay in FP8, and the log names tensors that lose precision",
     .remedy =
         "delete the setting; a run that loses too much precision may resume with precision.gemm=compute, or with "
         "more precision.fp8_first_layers or fp8_last_layers"},
};

}  // namespace

std::string RemovedSetting::text() const { return fmt::format("was removed: {}; {}; {}", reason, now, remedy); }

std::span<const RemovedSetting> removed_settings() { return kRemoved; }

const RemovedSetting* removed_setting(std::string_view section, std::string_view key, std::string_view value) {
  const auto* const found = std::ranges::find_if(kRemoved, [&](const RemovedSetting& removed) {
    return removed.section == section && removed.key == key && (removed.value.empty() || removed.value == value);
  });
  return found == std::end(kRemoved) ? nullptr : found;
}

}  // namespace tri
