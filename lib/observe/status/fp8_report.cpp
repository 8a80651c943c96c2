#include "lib/observe/status/fp8_report.h"

#include <cmath>

#include "io/base/json.h"
#include "lib/observe/status/five_digits.h"

namespace tri {
namespace {

// A slot that casts have used.
struct Named {
  std::string tensor;
  Fp8Numbers numbers;
  double saturated() const { return numbers.saturated / double{numbers.elements}; }
  double underflowed() const { return numbers.underflowed / double{numbers.elements}; }
};

std::vector<Named> named(const Config& config, std::span<const Fp8Numbers> numbers) {
  const Fp8Slots slots(config);
  std::vector<Named> all;
  for (int64_t place = 0; place < slots.linears(); ++place)
    for (int64_t operand = 0; operand < kNumFp8Operands; ++operand) {
      const int64_t slot = operand * slots.linears() + place;
      const Fp8Numbers& seen = numbers[static_cast<size_t>(slot)];
      if (seen.elements > 0) all.push_back({slots.name_of(slot), seen});
    }
  return all;
}

}  // namespace

std::string fp8_json(int64_t step, const Config& config, std::span<const Fp8Numbers> numbers) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const Named& t : named(config, numbers))
    tensors.push_back({{"tensor", t.tensor},
                       {"amax", five_digits(t.numbers.amax)},
                       {"scale", five_digits(t.numbers.scale)},
                       {"saturated", five_digits(t.saturated())},
                       {"underflowed", five_digits(t.underflowed())}});
  return nlohmann::ordered_json({{"fp8", {{"step", step}, {"tensors", tensors}}}}).dump();
}

std::string fp8_warning(const Config& config, std::span<const Fp8Numbers> numbers) {
  const std::vector<Named> all = named(config, numbers);
  std::string text;
  const auto worst = [&](const char* what, double (Named::*share)() const, double most) {
    const Named* found = nullptr;
    int beyond = 0;
    for (const Named& t : all) {
      if (!((t.*share)() > most)) continue;
      ++beyond;
      if (found == nullptr || (t.*share)() > (found->*share)()) found = &t;
    }
    if (found != nullptr)
      text += fmt::format("{}{:.2g} % of {} {} (above the limit in {} of {} tensors)", text.empty() ? "fp8: " : ", ",
                          100 * (found->*share)(), found->tensor, what, beyond, all.size());
  };
  worst("saturated", &Named::saturated, kMostSaturated);
  worst("underflowed", &Named::underflowed, kMostUnderflowed);
  return text;
}

}  // namespace tri
