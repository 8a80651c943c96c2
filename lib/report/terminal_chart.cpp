#include "lib/report/terminal_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "io/base/format.h"

namespace tri {
namespace {

constexpr std::array<std::string_view, 9> kSigns = {"█", "▓", "▒", "░", "╱", "╲", "┼", "·", " "};
constexpr int kAxis = 9;  // columns to the left of a chart

// Returns the length in bytes of the UTF-8 character at `at`, or 0 for an invalid or control character.
size_t character(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x20 || first == 0x7f) return 0;
  if (first < 0x80) return 1;
  const size_t size = first >= 0xc2 && first < 0xe0   ? 2
                      : first >= 0xe0 && first < 0xf0 ? 3
                      : first >= 0xf0 && first < 0xf5 ? 4
                                                      : 0;
  if (size == 0 || at + size > text.size()) return 0;
  for (size_t i = 1; i < size; ++i)
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  if (first == 0xc2 && byte(at + 1) < 0xa0) return 0;  // C1 controls
  return size;
}

// The bit of each dot of a braille character, by column and row.
constexpr uint32_t kDots[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};

std::string braille(uint32_t dots) {
  const uint32_t code = 0x2800 + dots;
  return {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

// Returns means over `count` columns; columns without values are not finite.
std::vector<double> columns(std::span<const double> values, size_t count) {
  std::vector<double> means(count, NAN);
  for (size_t c = 0; c < count && !values.empty(); ++c) {
    const size_t begin = c * values.size() / count, end = std::max(begin + 1, (c + 1) * values.size() / count);
    double sum = 0;
    int known = 0;
    for (size_t i = begin; i < end; ++i)
      if (std::isfinite(values[i])) sum += values[i], ++known;
    if (known > 0) means[c] = sum / known;
  }
  return means;
}

// Formats with as many digits as fit; large numbers are abbreviated as elsewhere: 29.1k.
std::string on_axis(double value) {
  constexpr double kLarge = 1e4;
  std::string text = format_count(value);
  if (value >= kLarge && columns_of(text) <= kAxis - 2) return padded(text, kAxis - 2) + " ┤";
  for (int digits = 4; digits > 0; --digits)
    if (text = fmt::format("{:.{}g}", value, digits); columns_of(text) <= kAxis - 2) break;
  return padded(text, kAxis - 2) + " ┤";
}

// Returns the column at which each share of a bar ends.
std::vector<int> ends_of(std::span<const NamedShare> shares, int width) {
  std::vector<int> ends;
  double sum = 0;
  for (const NamedShare& share : shares) {
    sum += std::max(0.0, share.share);
    ends.push_back(std::clamp(static_cast<int>(std::lround(sum * width)), 0, width));
  }
  return ends;
}

}  // namespace

std::string plain(std::string_view text) {
  std::string made;
  for (size_t at = 0; at < text.size();) {
    const size_t size = character(text, at);
    if (size == 0)
      made += '?';
    else
      made += text.substr(at, size);
    at += std::max<size_t>(1, size);
  }
  return made;
}

int columns_of(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

size_t bytes_of(std::string_view text, int width) {
  size_t at = 0;
  for (int column = 0; at < text.size(); ++at)
    if ((text[at] & 0xc0) != 0x80 && column++ >= width) break;
  return at;
}

std::string cut(std::string_view text, int width) {
  if (columns_of(text) <= width) return std::string(text);
  if (width <= 0) return "";
  return std::string(text.substr(0, bytes_of(text, width - 1))) + "…";
}

std::string padded(std::string_view text, int width) {
  std::string made = cut(text, width);
  made.append(static_cast<size_t>(std::max(0, width - columns_of(made))), ' ');
  return made;
}

std::vector<std::string> wrapped(std::string_view text, int width) {
  constexpr std::string_view kBetween = "  ";
  std::vector<std::string> lines;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(kBetween, at), text.size());
    const std::string part = cut(text.substr(at, end - at), width);
    const bool fits = !lines.empty() && columns_of(lines.back()) + 2 + columns_of(part) <= width;
    if (fits)
      lines.back() += std::string(kBetween) + part;
    else
      lines.push_back(part);
    at = end + kBetween.size();
  }
  return lines;
}

std::vector<std::string> curve_chart(std::span<const double> values, int width, int height, ChartScale scale) {
  const bool logarithmic = scale == ChartScale::kLogarithmic;
  const int inner = width - kAxis;
  std::vector<std::string> lines(static_cast<size_t>(std::max(0, height)));
  if (inner < 4 || height < 1) return lines;
  std::vector<double> means = columns(values, static_cast<size_t>(2 * inner));
  if (logarithmic)
    for (double& mean : means) mean = mean > 0 ? std::log(mean) : NAN;
  double low = scale == ChartScale::kFromZero ? 0 : INFINITY, high = -INFINITY;
  for (const double value : means)
    if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
  if (!(low <= high)) return lines;
  const int rows = 4 * height;
  const auto row_of = [&](double value) {
    return high > low ? static_cast<int>(std::lround((high - value) / (high - low) * (rows - 1))) : rows / 2;
  };
  std::vector<std::vector<uint32_t>> dots(lines.size(), std::vector<uint32_t>(static_cast<size_t>(inner)));
  const auto set = [&](int column, int row) {
    dots[static_cast<size_t>(row / 4)][static_cast<size_t>(column / 2)] |= kDots[column % 2][row % 4];
  };
  for (int c = 0; c < 2 * inner; ++c) {
    const double here = means[static_cast<size_t>(c)];
    if (!std::isfinite(here)) continue;
    const double before = c > 0 ? means[static_cast<size_t>(c - 1)] : NAN;
    // Extend up or down to the row next to the previous one, so that the line has no gaps.
    int from = row_of(here), to = from;
    if (std::isfinite(before) && row_of(before) < from) from = row_of(before) + 1;
    if (std::isfinite(before) && row_of(before) > to) to = row_of(before) - 1;
    for (int row = from; row <= to; ++row) set(c, row);
  }
  for (size_t line = 0; line < lines.size(); ++line) {
    const bool first = line == 0, last = line + 1 == lines.size();
    lines[line] = first  ? on_axis(logarithmic ? std::exp(high) : high)
                  : last ? on_axis(logarithmic ? std::exp(low) : low)
                         : std::string(kAxis - 1, ' ') + "│";
    for (const uint32_t character_dots : dots[line]) lines[line] += braille(character_dots);
  }
  return lines;
}

std::string share_bar(std::span<const NamedShare> shares, int width) {
  const std::vector<int> ends = ends_of(shares, width);
  std::string bar;
  int at = 0;
  for (size_t i = 0; i < shares.size(); ++i)
    for (; at < ends[i]; ++at) bar += kSigns[std::min(i, kSigns.size() - 1)];
  return bar;
}

std::string share_legend(std::span<const NamedShare> shares) {
  std::string text;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].share < 0.005) continue;
    text += fmt::format("{}{} {} {:.{}f} %", text.empty() ? "" : "  ", kSigns[std::min(i, kSigns.size() - 1)],
                        shares[i].name, 100 * shares[i].share, shares[i].share < 0.0995 ? 1 : 0);
  }
  return text;
}

}  // namespace tri
