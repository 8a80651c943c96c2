// Charts of characters for terminals and logs. All text is UTF-8; widths are in characters, one column each.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tri {

// Returns text from files in a form safe for terminals: control characters and invalid UTF-8 become "?".
std::string plain(std::string_view text);

int columns_of(std::string_view text);
size_t bytes_of(std::string_view text, int width);     // of the first `width` columns, or of all
std::string cut(std::string_view text, int width);     // at most `width`, with "…" if shortened
std::string padded(std::string_view text, int width);  // exactly `width`
// Lines of at most `width`, broken where two blanks separate parts of `text`; a longer part is cut.
std::vector<std::string> wrapped(std::string_view text, int width);

enum class ChartScale { kLinear, kFromZero, kLogarithmic };

// Draws a line through `values`, evenly over `width` characters of 2 x 4 dots and `height` lines, with the minimum and
// the maximum on the axis. Values that are not finite, or not positive on a logarithmic scale, leave gaps; if there are
// no others, the lines are empty.
std::vector<std::string> curve_chart(std::span<const double> values, int width, int height,
                                     ChartScale scale = ChartScale::kLinear);

struct NamedShare {
  std::string name;
  double share = 0;  // of 1
};
// Returns "████▓▓▒▒", with a sign for each part, and the legend "█ compute 52 %  ▓ tp 20 %" for parts of at least half
// a percent. Parts after the eighth are blank.
std::string share_bar(std::span<const NamedShare> shares, int width);
std::string share_legend(std::span<const NamedShare> shares);

}  // namespace tri
