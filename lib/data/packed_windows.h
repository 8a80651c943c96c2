// The packed windows of a token file, kept while they fit into a limit of memory: best-fit packing (packing.h) arranges
// a whole window for one of its samples, and a shuffled order returns to each window many times.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "io/base/mutex.h"
#include "io/tokens/token_file.h"
#include "lib/data/packing.h"

namespace tri {

// Safe for concurrent use.
class PackedWindows {
 public:
  // 16 million parts of documents.
  static constexpr int64_t kBytes = int64_t{128} << 20;

  // `tokens`: of the file. Forgets the windows that were not used for the longest time when they take more than
  // `bytes`.
  PackedWindows(std::shared_ptr<const DocumentIndex> documents, int64_t tokens, int seq_len, int64_t bytes = kBytes);

  // Returns the extents of sample `sample`: those that pack_documents gives for its window. Throws Fatal (kFile) if
  // storage fails.
  std::vector<Extent> sample(int64_t sample);

  int64_t num_packed() const;  // windows that were packed so far

 private:
  // The samples of a window, one after the other. Tokens count from the beginning of the window.
  struct Part {
    uint32_t first, count;
  };
  struct Window {
    int64_t number = 0;
    std::vector<Part> parts;
    std::vector<uint32_t> begins;  // [sample]: its first part; the last entry is the number of parts
    int64_t bytes() const;
  };

  Window pack(int64_t number) const;
  std::vector<Extent> extents(const Window& window, int64_t sample) const;

  const std::shared_ptr<const DocumentIndex> documents_;
  const int64_t samples_, seq_len_, most_bytes_;
  mutable Mutex mutex_;
  std::list<Window> windows_ TRI_GUARDED_BY(mutex_);  // the one used last first
  std::unordered_map<int64_t, std::list<Window>::iterator> by_number_ TRI_GUARDED_BY(mutex_);
  int64_t bytes_ TRI_GUARDED_BY(mutex_) = 0, num_packed_ TRI_GUARDED_BY(mutex_) = 0;
};

}  // namespace tri
