// Rows of a mixture of experts that ranks of one machine write into each other's memory. Member m of S holds the
// experts [m · E/S, (m + 1) · E/S), and has the rows that they read sorted by expert, those of an expert by source, as
// merge_sources (expert_rows.h) sorts rows that arrive in parts. A source has P = R · K pairs; sorted by expert they
// begin at offsets[e] (sort_pairs).
//   share_pairs    writes a source's offsets and sorted pairs into every member's tables
//   plan_rows      offsets of the owner's rows; origin[j] = source · P + pair of its row j, the index of a
//                  gather_rows of all sources' tokens; first[e]: where the rows of this source begin among those of e's
// owner
//   fetch_rows     out[i] = the owner's row first[e] + i - offsets[e], for each sorted pair i of expert e
// Rows beyond an owner's memory do not exist; they are NaN where they are fetched, so that no number that depends on
// them is taken for a result, and plan_rows records them. The caller orders the members' streams.
#pragma once

#include <array>

#include "kernels/core/tensor.h"

namespace tri {

// A tensor in the memory of each member, as mapped in this process.
struct PeerPlaces {
  static constexpr int kMost = 16;
  std::array<void*, kMost> data{};
  int members = 0;
};

struct SharePairs {
  PeerPlaces all_offsets;  // (S, E + 1) i32: row `member` is overwritten
  PeerPlaces all_pairs;    // (S, P) i32: the same
  Tensor offsets;          // (E + 1) i32
  Tensor pair;             // (P) i32
  int member = 0;
};
void check(const SharePairs&);

// What plan_rows records if an owner has too few rows, for the owner that lacks most: the rows that it needs, its first
// expert, the expert with most rows, and the number of these.
inline constexpr int kRowShortage = 4;

struct PlanRows {
  Tensor first;     // (E) i32: overwritten
  Tensor offsets;   // (E / S + 1) i32: overwritten; at most `rows`
  Tensor origin;    // (rows) i32: the first offsets[E / S] are overwritten; rows: those that each owner has memory for
  Tensor shortage;  // (kRowShortage) i32: overwritten if an owner needs more than `rows` and than what it records
  Tensor all_offsets;  // (S, E + 1) i32
  Tensor all_pairs;    // (S, P) i32
  int member = 0;
};
void check(const PlanRows&);

struct FetchRows {
  Tensor out;       // (P, C) f32|bf16: overwritten
  PeerPlaces from;  // (rows, C), the same type
  Tensor offsets;   // (E + 1) i32: offsets[E] = P
  Tensor first;     // (E) i32
  int64_t rows = 0;
  int multiprocessors = 0;  // of a GPU that the kernel occupies, so that others run alongside; 0: all
};
void check(const FetchRows&);

}  // namespace tri
