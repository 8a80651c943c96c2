#include "lib/config/nearest.h"

#include <algorithm>
#include <cctype>

namespace tri {

int edit_distance(std::string_view a, std::string_view b) {
  const int rows = static_cast<int>(a.size()) + 1, cols = static_cast<int>(b.size()) + 1;
  std::vector<std::vector<int>> distance(rows, std::vector<int>(cols));
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < cols; ++j) {
      int& d = distance[i][j];
      if (i == 0 || j == 0) {
        d = i + j;
        continue;
      }
      const bool same = a[i - 1] == b[j - 1];
      d = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1, distance[i - 1][j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d = std::min(d, distance[i - 2][j - 2] + 1);
    }
  }
  return distance.back().back();
}

std::string nearest(std::string_view misspelt, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 64;  // no name is longer; the distance takes time proportional to the product of the
                                   // lengths
  if (misspelt.size() > kLongest) return "";
  std::string word(misspelt), best;
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  int best_distance = std::max<int>(1, (static_cast<int>(word.size()) + 1) / 3) + 1;
  for (const std::string& name : known) {
    if (word.empty() || word[0] != name[0])
      continue;  // typing errors rarely change the first letter; "gpu" is not a
                 // misspelt "cpu"
    const int distance = edit_distance(word, name);
    if (distance >= best_distance) continue;
    best = name;
    best_distance = distance;
  }
  if (!best.empty()) return best;

  constexpr size_t kTellingLength = 4;  // "lr" or "dp" inside a word is not significant
  for (const std::string& name : known)
    if (name.size() >= kTellingLength && name.size() > best.size() && word.find(name) != word.npos) best = name;
  return best;
}

}  // namespace tri
