#include "lib/data/packing.h"

#include <algorithm>
#include <set>

#include "io/base/error.h"

namespace tri {

std::vector<std::vector<Extent>> pack_documents(std::span<const int64_t> bounds, int64_t seq_len) {
  TRI_REQUIRE(bounds.size() >= 2 && seq_len >= 1, "{} bounds, samples of {} tokens", bounds.size(), seq_len);
  const int64_t tokens = bounds.back() - bounds.front();
  TRI_REQUIRE(tokens % seq_len == 0, "a window of {} tokens for samples of {}", tokens, seq_len);
  std::vector<std::vector<Extent>> samples;
  std::vector<Extent> parts;
  for (size_t d = 0; d + 1 < bounds.size(); ++d) {
    int64_t first = bounds[d];
    TRI_REQUIRE(first <= bounds[d + 1], "document {} of a window ends at {} before it begins at {}", d, bounds[d + 1],
                first);
    for (; bounds[d + 1] - first >= seq_len; first += seq_len) samples.push_back({{first, seq_len}});
    if (first < bounds[d + 1]) parts.push_back({first, bounds[d + 1] - first});
  }
  std::ranges::stable_sort(parts, std::ranges::greater(), &Extent::count);

  std::set<std::pair<int64_t, size_t>> free;  // space and index of the samples that are not full
  while (static_cast<int64_t>(samples.size()) < tokens / seq_len) {
    free.emplace(seq_len, samples.size());
    samples.emplace_back();
  }
  const auto place = [&](std::set<std::pair<int64_t, size_t>>::iterator where, const Extent& part) {
    const auto [space, sample] = *where;
    free.erase(where);
    samples[sample].push_back(part);
    if (space > part.count) free.emplace(space - part.count, sample);
  };
  std::vector<Extent> cut;
  for (const Extent& part : parts) {
    const auto fullest = free.lower_bound({part.count, 0});
    if (fullest == free.end())
      cut.push_back(part);
    else
      place(fullest, part);
  }
  for (Extent part : cut)
    while (part.count > 0) {
      const auto emptiest = std::prev(free.end());
      const int64_t count = std::min(part.count, emptiest->first);
      place(emptiest, {part.first, count});
      part.first += count;
      part.count -= count;
    }
  for (std::vector<Extent>& sample : samples) std::ranges::sort(sample, {}, &Extent::first);
  // In the order of the file, so that the last samples, which validate, are documents like the others.
  std::ranges::sort(samples, {}, [](const std::vector<Extent>& sample) { return sample.front().first; });
  return samples;
}

}  // namespace tri
