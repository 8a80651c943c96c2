#include "lib/data/packed_windows.h"

#include <algorithm>
#include <limits>

#include "lib/data/order.h"

namespace tri {

std::vector<Extent> PackedWindow::extents(int64_t first, size_t sample) const {
  std::vector<Extent> list;
  for (uint32_t part = begins[sample]; part < begins[sample + 1]; ++part)
    list.push_back({first + parts[part].first, parts[part].count});
  return list;
}

int PackedWindowCache::add_source() {
  const MutexLock lock(mutex_);
  return sources_++;
}

std::shared_ptr<const PackedWindow> PackedWindowCache::find(int source, int64_t window) {
  const MutexLock lock(mutex_);
  const auto known = by_key_.find({source, window});
  if (known == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, known->second);
  return known->second->window;
}

void PackedWindowCache::add(int source, int64_t window, std::shared_ptr<const PackedWindow> packed) {
  constexpr int64_t kNode = 256;  // of the list and the map, and the window without its parts
  const int64_t bytes = kNode + static_cast<int64_t>(packed->parts.size() * sizeof(PackedWindow::Part) +
                                                     packed->begins.size() * sizeof(uint32_t));
  const MutexLock lock(mutex_);
  const Key key{source, window};
  if (by_key_.contains(key)) return;  // another thread was faster
  bytes_ += bytes;
  entries_.push_front({key, std::move(packed), bytes});
  by_key_[key] = entries_.begin();
  while (bytes_ > most_bytes_ && entries_.size() > 1) {
    bytes_ -= entries_.back().bytes;
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

int64_t PackedWindowCache::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_;
}

PackedWindows::PackedWindows(std::shared_ptr<const DocumentIndex> documents, int64_t tokens, int seq_len,
                             std::shared_ptr<PackedWindowCache> cache)
    : documents_(std::move(documents)),
      samples_(num_samples(tokens, seq_len)),
      seq_len_(seq_len),
      cache_(std::move(cache)),
      source_(cache_->add_source()) {
  TRI_REQUIRE(kWindowSamples * seq_len_ - 1 <= std::numeric_limits<uint32_t>::max(), "windows of samples of {} tokens",
              seq_len_);
}

PackedWindow PackedWindows::pack(int64_t number) const {
  const int64_t first = number * kWindowSamples, end = std::min(first + kWindowSamples, samples_);
  const auto samples = pack_documents(documents_->bounds(first * seq_len_, end * seq_len_), seq_len_);
  PackedWindow window{.parts = {}, .begins = {0}};
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

std::vector<Extent> PackedWindows::sample(int64_t sample) {
  TRI_REQUIRE(sample >= 0 && sample < samples_, "sample {} of {}", sample, samples_);
  const int64_t number = sample / kWindowSamples;
  std::shared_ptr<const PackedWindow> window = cache_->find(source_, number);
  if (window == nullptr) {
    window = std::make_shared<const PackedWindow>(pack(number));
    ++num_packed_;
    cache_->add(source_, number, window);
  }
  return window->extents(number * kWindowSamples * seq_len_, static_cast<size_t>(sample % kWindowSamples));
}

}  // namespace tri
