#include "io/tokens/bpe/byte_pair_encoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>

#include "io/base/hash.h"

namespace tri {
namespace {

constexpr size_t kShort = 48;  // in bytes; up to here a scan for the best pair is faster than a heap

}  // namespace

BytePairEncoder::BytePairEncoder(const std::array<int32_t, 256>& bytes, const std::vector<Merge>& merges,
                                 std::unordered_map<std::string, int32_t> words, WholeWords whole)
    : bytes_(bytes), words_(std::move(words)), whole_(whole) {
  slots_.resize(std::bit_ceil(std::max<size_t>(2 * merges.size(), 16)));
  shift_ = 64 - std::countr_zero(slots_.size());
  for (const Merge& merge : merges) {
    const uint64_t pair = pair_of(merge.left, merge.right);
    size_t slot = first_slot(pair);
    while (slots_[slot].pair != kNone && slots_[slot].pair != pair) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = {pair, {merge.rank, merge.made}};
  }
}

BytePairEncoder::Made BytePairEncoder::merged(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t slot = first_slot(pair);; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].pair == pair) return slots_[slot].made;
    if (slots_[slot].pair == kNone) return {kNoRank, -1};
  }
}

void BytePairEncoder::encode(std::string_view word, WordCache& cache, std::vector<int32_t>& out) const {
  if (word.size() == 1) {
    out.push_back(bytes_[static_cast<unsigned char>(word[0])]);
    return;
  }
  WordCache::Entry* entry = nullptr;
  if (word.size() <= std::tuple_size_v<decltype(entry->word)>) {
    entry = &cache.entries_[xxh3_64(word) & (WordCache::kEntries - 1)];
    if (entry->length == word.size() && std::memcmp(entry->word.data(), word.data(), word.size()) == 0) {
      out.insert(out.end(), entry->tokens.begin(), entry->tokens.begin() + entry->count);
      return;
    }
  }
  const size_t before = out.size();
  const auto found = whole_ == WholeWords::kTaken ? words_.find(std::string(word)) : words_.end();
  if (found != words_.end())
    out.push_back(found->second);
  else if (word.size() <= kShort)
    merge_short(word, cache, out);
  else
    merge_long(word, out);
  if (const size_t count = out.size() - before; entry != nullptr && count <= entry->tokens.size()) {
    entry->length = static_cast<uint8_t>(word.size());
    entry->count = static_cast<uint8_t>(count);
    std::memcpy(entry->word.data(), word.data(), word.size());
    std::copy(out.begin() + static_cast<int64_t>(before), out.end(), entry->tokens.begin());
  }
}

// O(n²) in the word's length; allocates nothing.
void BytePairEncoder::merge_short(std::string_view word, WordCache& cache, std::vector<int32_t>& out) const {
  std::vector<int32_t>&symbols = cache.symbols_, &ranks = cache.ranks_, &made = cache.made_;
  size_t count = word.size();
  symbols.resize(count);
  ranks.resize(count);  // [i]: rank of the pair (i, i + 1)
  made.resize(count);
  for (size_t i = 0; i < count; ++i) symbols[i] = bytes_[static_cast<unsigned char>(word[i])];
  const auto look = [&](size_t i) {
    const Made pair = merged(symbols[i], symbols[i + 1]);
    ranks[i] = pair.rank;
    made[i] = pair.token;
  };
  for (size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    const auto end = ranks.begin() + static_cast<int64_t>(count) - 1;
    const auto best = std::min_element(ranks.begin(), end);  // the leftmost of equal ranks
    if (*best == kNoRank) break;
    const auto i = static_cast<size_t>(best - ranks.begin());
    symbols[i] = made[i];
    const auto close_gap = [&](std::vector<int32_t>& list, size_t hole) {
      std::copy(list.begin() + static_cast<int64_t>(hole) + 1, list.begin() + static_cast<int64_t>(count),
                list.begin() + static_cast<int64_t>(hole));
    };
    close_gap(symbols, i + 1);
    close_gap(ranks, i);
    close_gap(made, i);
    --count;
    if (i > 0) look(i - 1);
    if (i + 1 < count) look(i);
  }
  out.insert(out.end(), symbols.begin(), symbols.begin() + static_cast<int64_t>(count));
}

// O(n log n): a heap of pairs over a list of symbols. Skips pairs that have changed since they were pushed.
void BytePairEncoder::merge_long(std::string_view word, std::vector<int32_t>& out) const {
  struct Symbol {
    int32_t token;
    int64_t previous, next;  // -1: none; merged into its neighbour: token -1
  };
  struct Candidate {
    int32_t rank;
    int64_t at;
    int32_t left, right, made;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const auto count = static_cast<int64_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  for (int64_t i = 0; i < count; ++i)
    symbols[static_cast<size_t>(i)] = {bytes_[static_cast<unsigned char>(word[static_cast<size_t>(i)])], i - 1,
                                       i + 1 < count ? i + 1 : -1};
  const auto symbol = [&](int64_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  std::vector<Candidate> begin;
  const auto candidate = [&](int64_t at) -> std::optional<Candidate> {
    if (at < 0 || symbol(at).next < 0) return {};
    const int32_t left = symbol(at).token, right = symbol(symbol(at).next).token;
    const Made pair = merged(left, right);
    if (pair.rank == kNoRank) return {};
    return Candidate{pair.rank, at, left, right, pair.token};
  };
  for (int64_t i = 0; i + 1 < count; ++i)
    if (const auto pair = candidate(i)) begin.push_back(*pair);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap(std::greater<>(), std::move(begin));
  while (!heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    Symbol& left = symbol(best.at);
    if (left.token != best.left || left.next < 0 || symbol(left.next).token != best.right) continue;
    Symbol& right = symbol(left.next);
    left.token = best.made;
    left.next = right.next;
    right.token = -1;
    if (left.next >= 0) symbol(left.next).previous = best.at;
    for (const int64_t at : {left.previous, best.at})
      if (const auto pair = candidate(at)) heap.push(*pair);
  }
  for (int64_t i = 0; i >= 0; i = symbol(i).next) out.push_back(symbol(i).token);
}

}  // namespace tri
