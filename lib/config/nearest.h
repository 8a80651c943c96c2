// "Did you mean ...?": finds the known name that a misspelt one most likely stands for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tri {

// Returns the number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal
// string alignment).
int edit_distance(std::string_view a, std::string_view b);

// Returns the nearest of `known` (lower case) if at most about a third of `misspelt` is wrong and the first letter is
// right; else the longest of `known` that it contains ("num_layers": layers); else "". Of equally near names the first
// one wins.
std::string nearest(std::string_view misspelt, const std::vector<std::string>& known);

}  // namespace tri
