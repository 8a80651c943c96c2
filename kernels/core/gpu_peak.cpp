#include "kernels/core/gpu_peak.h"

#include <algorithm>

namespace tri {
namespace {

struct Product {
  std::string_view word, second_word;  // words of the product's name; the second may be ""
  int num_multiprocessors;             // 0: not stated; the peak then holds for any number, but not for a MIG slice
  double bf16, fp8, fp32;              // 0: none
};

// From NVIDIA's data sheets. A product with a second word precedes the one without it.
constexpr Product kProducts[] = {
    {"A100", "", 108, 312, 0, 19.5},       // also PCIe
    {"A800", "", 108, 312, 0, 19.5},       //
    {"A30", "", 56, 165, 0, 10.3},         //
    {"A40", "", 84, 149.7, 0, 37.4},       //
    {"A10", "", 72, 125, 0, 31.2},         //
    {"L4", "", 58, 121, 242, 30.3},        //
    {"L40", "", 142, 181, 362, 90.5},      //
    {"L40S", "", 142, 362, 733, 91.6},     //
    {"H100", "PCIe", 114, 756, 1513, 51},  //
    {"H100", "NVL", 132, 835, 1671, 60},   //
    {"H100", "", 132, 989, 1979, 67},      // SXM
    {"H800", "PCIe", 114, 756, 1513, 51},  //
    {"H800", "", 132, 989, 1979, 67},      // SXM
    {"H200", "NVL", 132, 835, 1671, 60},   //
    {"H200", "", 132, 989, 1979, 67},      // SXM
    {"H20", "", 78, 148, 296, 44},         // also H20-3e
    {"GH200", "", 132, 989, 1979, 67},     //
    {"B100", "", 0, 1750, 3500, 60},       //
    {"B200", "", 0, 2250, 4500, 75},       //
    {"GB200", "", 0, 2500, 5000, 80},      //
    {"B300", "", 0, 2250, 4500, 75},       //
    {"GB300", "", 0, 2500, 5000, 80},      //
};

// Returns whether `word` is one of the words of `name`, which blanks and dashes separate.
bool has_word(std::string_view name, std::string_view word) {
  const auto ends = [](char c) { return c == ' ' || c == '-'; };
  for (size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || ends(name[at - 1])) && (end == name.size() || ends(name[end]))) return true;
  }
  return false;
}

}  // namespace

std::optional<double> gpu_peak_tflops(std::string_view name, int num_multiprocessors, Dtype dtype) {
  const auto product = std::find_if(std::begin(kProducts), std::end(kProducts), [&](const Product& p) {
    return has_word(name, p.word) && (p.second_word.empty() || has_word(name, p.second_word));
  });
  if (product == std::end(kProducts)) return std::nullopt;
  const double peak = is_fp8(dtype) ? product->fp8 : dtype == Dtype::kBF16 ? product->bf16 : product->fp32;
  if (peak == 0) return std::nullopt;
  if (product->num_multiprocessors == 0) return has_word(name, "MIG") ? std::nullopt : std::optional(peak);
  if (num_multiprocessors <= 0) return std::nullopt;
  if (product->num_multiprocessors == num_multiprocessors) return peak;
  return peak * num_multiprocessors / product->num_multiprocessors;
}

}  // namespace tri
