// The packed windows of token files, kept while they fit into a limit of memory: best-fit packing (packing.h) arranges
// a whole window for one of its samples, and a shuffled order returns to each window many times.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "io/base/mutex.h"
#include "io/tokens/token_file.h"
#include "lib/data/packing.h"

namespace tri {

// The samples of a window, one after the other. Tokens count from the beginning of the window.
struct PackedWindow {
  struct Part {
    uint32_t first, count;
  };
  std::vector<Part> parts;
  std::vector<uint32_t> begins;  // [sample]: its first part; the last entry is the number of parts

  // Returns the extents of a sample of the window, which begins at token `first` of the file.
  std::vector<Extent> extents(int64_t first, size_t sample) const;
};

// The windows of all sources of a dataset, which share one limit: there may be any number of sources. Safe for
// concurrent use.
class PackedWindowCache {
 public:
  static constexpr int64_t kBytes = int64_t{128} << 20;  // 16 million parts of documents

  // Forgets the windows that were not used for the longest time when they take more than `bytes`, except the newest.
  explicit PackedWindowCache(int64_t bytes = kBytes) : most_bytes_(bytes) {}

  int add_source();  // returns its number
  // Returns null if the window is not kept. `window`: its number in the source.
  std::shared_ptr<const PackedWindow> find(int source, int64_t window);
  void add(int source, int64_t window, std::shared_ptr<const PackedWindow> packed);
  int64_t bytes() const;  // of all windows that are kept

 private:
  using Key = std::pair<int, int64_t>;  // source, window
  struct Entry {
    Key key;
    std::shared_ptr<const PackedWindow> window;
    int64_t bytes = 0;
  };

  const int64_t most_bytes_;
  mutable Mutex mutex_;
  std::list<Entry> entries_ TRI_GUARDED_BY(mutex_);  // the one used last first
  std::map<Key, std::list<Entry>::iterator> by_key_ TRI_GUARDED_BY(mutex_);
  int64_t bytes_ TRI_GUARDED_BY(mutex_) = 0;
  int sources_ TRI_GUARDED_BY(mutex_) = 0;
};

// The windows of one source. Safe for concurrent use.
class PackedWindows {
 public:
  // `tokens`: of the file. `cache`: of the dataset.
  PackedWindows(std::shared_ptr<const DocumentIndex> documents, int64_t tokens, int seq_len,
                std::shared_ptr<PackedWindowCache> cache);

  // Returns the extents of sample `sample`: those that pack_documents gives for its window. Throws Fatal (kFile) if
  // storage fails.
  std::vector<Extent> sample(int64_t sample);

  int64_t num_packed() const { return num_packed_; }  // windows that were packed so far

 private:
  PackedWindow pack(int64_t number) const;

  const std::shared_ptr<const DocumentIndex> documents_;
  const int64_t samples_, seq_len_;
  const std::shared_ptr<PackedWindowCache> cache_;
  const int source_;  // in the cache
  std::atomic<int64_t> num_packed_ = 0;
};

}  // namespace tri
