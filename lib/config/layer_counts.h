// The text of parallel.layers_per_chunk.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tri {

inline constexpr std::string_view kEvenLayers = "even", kAutoLayers = "auto";

// Parses the layers of each virtual stage, "9,9,8" or "9 9 8", each at least 1. "12x8 7" has twelve of 8. Returns none
// for anything else, also for the two names above.
std::optional<std::vector<int>> parse_layer_counts(std::string_view text);

// Returns "" if `text`, "auto" or a list, can divide `layers` over pp x chunks virtual stages, and otherwise the
// problem with its remedy. Even divisions are not checked.
std::string problem_with_layer_counts(std::string_view text, int pp, int chunks, int layers);

// Returns the text that parse_layer_counts reads, with runs of equal numbers written once.
std::string layer_counts_text(const std::vector<int>& counts);

}  // namespace tri
