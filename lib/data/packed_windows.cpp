#include "lib/data/packed_windows.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lib/data/order.h"

namespace tri {

PackedWindows::PackedWindows(std::shared_ptr<const DocumentIndex> documents, int64_t tokens, int seq_len, int64_t bytes)
    : documents_(std::move(documents)), samples_(num_samples(tokens, seq_len)), seq_len_(seq_len), most_bytes_(bytes) {
  TRI_REQUIRE(kWindowSamples * seq_len_ - 1 <= std::numeric_limits<uint32_t>::max(), "windows of samples of {} tokens",
              seq_len_);
}

int64_t PackedWindows::Window::bytes() const {
  constexpr int64_t kNode = 128;  // of the list and the map
  return kNode + static_cast<int64_t>(parts.size() * sizeof(Part) + begins.size() * sizeof(uint32_t));
}

PackedWindows::Window PackedWindows::pack(int64_t number) const {
  const int64_t first = number * kWindowSamples, end = std::min(first + kWindowSamples, samples_);
  const auto samples = pack_documents(documents_->bounds(first * seq_len_, end * seq_len_), seq_len_);
  Window window{.number = number, .parts = {}, .begins = {0}};
  for (const std::vector<Extent>& sample : samples) {
    for (const Extent& extent : sample)
      window.parts.push_back(
          {static_cast<uint32_t>(extent.first - first * seq_len_), static_cast<uint32_t>(extent.count)});
    window.begins.push_back(static_cast<uint32_t>(window.parts.size()));
  }
  window.parts.shrink_to_fit();
  window.begins.shrink_to_fit();
  return window;
}

std::vector<Extent> PackedWindows::extents(const Window& window, int64_t sample) const {
  const auto in_window = static_cast<size_t>(sample - window.number * kWindowSamples);
  std::vector<Extent> list;
  for (uint32_t part = window.begins[in_window]; part < window.begins[in_window + 1]; ++part)
    list.push_back({window.number * kWindowSamples * seq_len_ + window.parts[part].first, window.parts[part].count});
  return list;
}

std::vector<Extent> PackedWindows::sample(int64_t sample) {
  TRI_REQUIRE(sample >= 0 && sample < samples_, "sample {} of {}", sample, samples_);
  const int64_t number = sample / kWindowSamples;
  {
    const MutexLock lock(mutex_);
    if (const auto known = by_number_.find(number); known != by_number_.end()) {
      windows_.splice(windows_.begin(), windows_, known->second);
      return extents(windows_.front(), sample);
    }
  }
  Window packed = pack(number);
  std::vector<Extent> list = extents(packed, sample);
  const MutexLock lock(mutex_);
  ++num_packed_;
  if (by_number_.contains(number)) return list;  // another thread was faster
  bytes_ += packed.bytes();
  windows_.push_front(std::move(packed));
  by_number_[number] = windows_.begin();
  while (bytes_ > most_bytes_ && windows_.size() > 1) {
    bytes_ -= windows_.back().bytes();
    by_number_.erase(windows_.back().number);
    windows_.pop_back();
  }
  return list;
}

int64_t PackedWindows::num_packed() const {
  const MutexLock lock(mutex_);
  return num_packed_;
}

}  // namespace tri
