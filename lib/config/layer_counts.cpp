#include "lib/config/layer_counts.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <numeric>

#include "io/base/error.h"

namespace tri {
namespace {

constexpr int kMostLayers = 100'000;  // as model.layers

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostLayers)
    return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::vector<int>> parse_layer_counts(std::string_view text) {
  constexpr std::string_view kSeparators = " ,";
  std::vector<int> counts;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(kSeparators), text.size()));
    if (text.empty()) break;
    std::string_view entry = text.substr(0, text.find_first_of(kSeparators));
    text.remove_prefix(entry.size());
    int times = 1;
    if (const size_t cross = entry.find('x'); cross != entry.npos) {
      const auto number = parse_number(entry.substr(0, cross));
      if (!number) return std::nullopt;
      times = *number;
      entry.remove_prefix(cross + 1);
    }
    const auto count = parse_number(entry);
    if (!count || counts.size() + static_cast<size_t>(times) > kMostLayers) return std::nullopt;
    counts.insert(counts.end(), static_cast<size_t>(times), *count);
  }
  if (counts.empty()) return std::nullopt;
  return counts;
}

std::string problem_with_layer_counts(std::string_view text, int pp, int chunks, int layers) {
  const int64_t stages = int64_t{pp} * chunks;
  if (text == kEvenLayers) return "";
  if (layers < stages)
    return fmt::format(
        "parallel.layers_per_chunk: {} of model.layers {} for parallel.pp {} x parallel.chunks {} = {} virtual stages; "
        "lower parallel.pp or parallel.chunks",
        text, layers, pp, chunks, stages);
  if (text == kAutoLayers) return "";
  const std::vector<int> counts = parse_layer_counts(text).value();
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (static_cast<int64_t>(counts.size()) == stages && sum == layers) return "";
  return fmt::format(
      "parallel.layers_per_chunk: {} has {} numbers with the sum {}, but parallel.pp {} x parallel.chunks {} is {} and "
      "model.layers is {}; correct the list, or set it to auto",
      text, counts.size(), sum, pp, chunks, stages, layers);
}

std::string layer_counts_text(const std::vector<int>& counts) {
  std::string text;
  for (auto run = counts.begin(); run != counts.end();) {
    const auto end = std::find_if(run, counts.end(), [&](int count) { return count != *run; });
    const auto times = end - run;
    text += fmt::format("{}{}{}", text.empty() ? "" : ",", times > 1 ? fmt::format("{}x", times) : "", *run);
    run = end;
  }
  return text;
}

}  // namespace tri
