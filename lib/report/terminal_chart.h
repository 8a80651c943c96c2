// Pictures of characters, for terminals and logs. All text is UTF-8; widths are in characters, one column each.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tri {

// Text from files, fit for a terminal: control characters and what is no UTF-8 become "?".
std::string plain(std::string_view text);

int columns_of(std::string_view text);
size_t bytes_of(std::string_view text, int width);     // of the first `width` columns, or of all
std::string cut(std::string_view text, int width);     // at most `width`, with "…" where something is missing
std::string padded(std::string_view text, int width);  // exactly `width`

enum class ChartScale { kLinear, kLogarithmic };

// A line through `values`, evenly over `width` characters of 2 x 4 dots, and `height` lines; the least and the most
// stand before it on the axis. Values that are not finite, or not positive on a logarithmic scale, leave gaps; none at
// all: empty lines.
std::vector<std::string> curve_chart(std::span<const double> values, int width, int height,
                                     ChartScale scale = ChartScale::kLinear);

struct NamedShare {
  std::string name;
  double share = 0;  // of 1
};
// "████▓▓▒▒": a sign for each part, and the legend to it, "█ compute 52 %  ▓ tp 20 %", of those from half a per cent
// on. Parts beyond the eighth are blank.
std::string share_bar(std::span<const NamedShare> shares, int width);
std::string share_legend(std::span<const NamedShare> shares);

}  // namespace tri
