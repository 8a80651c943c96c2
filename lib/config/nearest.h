// "Did you mean ...?": the known name that a misspelt one most likely stands for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tri {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal string
// alignment).
int edit_distance(std::string_view a, std::string_view b);

// The nearest of `known` (lower case) when about a third of `misspelt` or less is wrong and the first letter
// is right; else the longest of `known` that it contains whole ("num_layers": layers); else empty. Ties go to
// the first.
std::string nearest(std::string_view misspelt, const std::vector<std::string>& known);

}  // namespace tri
