// Byte-pair encoding of words (Sennrich et al., 2016, over bytes): a word starts as its bytes; of all neighbours that
// have a merge, those of the lowest rank become one token, leftmost first, until none are left.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tri {

struct Merge {
  int32_t left, right;  // tokens
  int32_t rank;         // the lowest is applied first; merges into the same token may share one
  int32_t made;         // the merged token
};

// How a whole word that is a token is encoded.
enum class WholeWords { kMerged, kTaken };  // by merges; as that token at once ("ignore_merges")

// Immutable, so safe for concurrent use; each thread needs a WordCache.
class BytePairEncoder {
 public:
  // Caches recent words with their tokens: 2 MiB. A word replaces another one with the same hash.
  class WordCache {
   public:
    WordCache() : entries_(kEntries) {}

   private:
    friend class BytePairEncoder;
    struct alignas(64) Entry {  // one cache line
      uint8_t length = 0, count = 0;
      std::array<char, 30> word;
      std::array<int32_t, 8> tokens;
    };
    static constexpr size_t kEntries = size_t{1} << 15;
    std::vector<Entry> entries_;
    std::vector<int32_t> symbols_, ranks_, made_;  // of the word being merged
  };

  // `words`: the bytes of every token that a word may become, with WholeWords::kTaken. `bytes`: the token of each byte.
  // If a pair has several merges, the last one counts.
  BytePairEncoder(const std::array<int32_t, 256>& bytes, const std::vector<Merge>& merges,
                  std::unordered_map<std::string, int32_t> words, WholeWords whole);

  // Appends the tokens of a word, which must not be empty.
  void encode(std::string_view word, WordCache& cache, std::vector<int32_t>& out) const;

 private:
  struct Made {
    int32_t rank, token;
  };
  struct Slot {
    uint64_t pair = kNone;
    Made made{};
  };
  static constexpr uint64_t kNone = ~uint64_t{0};
  static constexpr int32_t kNoRank = INT32_MAX;

  static uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t first_slot(uint64_t pair) const { return static_cast<size_t>((pair * 0x9E3779B97F4A7C15) >> shift_); }
  // kNoRank: no such merge exists.
  Made merged(int32_t left, int32_t right) const;
  void merge_short(std::string_view word, WordCache& cache, std::vector<int32_t>& out) const;
  void merge_long(std::string_view word, std::vector<int32_t>& out) const;

  std::array<int32_t, 256> bytes_;
  std::vector<Slot> slots_;  // open addressing; a power of two, at most half full
  int shift_ = 0;
  std::unordered_map<std::string, int32_t> words_;
  WholeWords whole_;
};

}  // namespace tri
