// Rows of experts in the memory of other ranks, the reference.  Formulas and shapes: kernels/peer_rows.h.
// Bound: memory, each row read and written once.
#include "kernels/peer_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/ops.h"

namespace tri::cpu {
namespace {

// Calls f(pair, owner, row) for each pair, in order.
template <class F>
void for_each_row(const Tensor& offsets, const Tensor& first, int members, F f) {
  const int32_t *from = offsets.as<int32_t>(), *to = first.as<int32_t>();
  const int64_t experts = first.numel(), of_owner = experts / members;
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t i = from[e]; i < from[e + 1]; ++i) f(i, static_cast<size_t>(e / of_owner), to[e] + i - from[e]);
}

}  // namespace

void share_pairs(const SharePairs& a) {
  const auto write = [&](const PeerPlaces& tables, const Tensor& row) {
    for (int m = 0; m < tables.members; ++m)
      std::memcpy(static_cast<int32_t*>(tables.data[static_cast<size_t>(m)]) + a.member * row.numel(), row.data,
                  static_cast<size_t>(row.bytes()));
  };
  write(a.all_offsets, a.offsets);
  write(a.all_pairs, a.pair);
}

void plan_rows(const PlanRows& a) {
  const int64_t members = a.all_offsets[0], experts = a.all_offsets[1] - 1, of_owner = experts / members;
  const int32_t* all = a.all_offsets.as<int32_t>();
  const auto count = [&](int64_t source, int64_t e) {
    const int32_t* at = all + source * (experts + 1) + e;
    return at[1] - at[0];
  };
  const int64_t rows = a.origin.numel(), pairs = a.all_pairs[1];
  int32_t *shortage = a.shortage.as<int32_t>(), *origin = a.origin.as<int32_t>();
  for (int64_t owner = 0; owner < members; ++owner) {
    int32_t row = 0, most = -1;
    int64_t fullest = 0;
    for (int64_t e = owner * of_owner; e < (owner + 1) * of_owner; ++e) {
      const int32_t begin = row;
      if (owner == a.member)
        a.offsets.as<int32_t>()[e - owner * of_owner] = static_cast<int32_t>(std::min<int64_t>(row, rows));
      for (int64_t source = 0; source < members; ++source) {
        if (source == a.member) a.first.as<int32_t>()[e] = row;
        const int64_t begin_of_source = all[source * (experts + 1) + e];
        for (int64_t i = 0; owner == a.member && i < count(source, e) && row + i < rows; ++i)
          origin[row + i] =
              static_cast<int32_t>(source * pairs + a.all_pairs.as<int32_t>()[source * pairs + begin_of_source + i]);
        row += count(source, e);
      }
      if (row - begin > most) most = row - begin, fullest = e;
    }
    if (owner == a.member) a.offsets.as<int32_t>()[of_owner] = static_cast<int32_t>(std::min<int64_t>(row, rows));
    if (row <= rows || row <= shortage[0]) continue;
    shortage[0] = row;
    shortage[1] = static_cast<int32_t>(owner * of_owner);
    shortage[2] = static_cast<int32_t>(fullest);
    shortage[3] = most;
  }
}

void fetch_rows(const FetchRows& a) {
  dispatch(a.out.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t width = a.out[1];
    for_each_row(a.offsets, a.first, a.from.members, [&](int64_t i, size_t owner, int64_t row) {
      T* const to = a.out.as<T>() + i * width;
      if (row >= a.rows)
        std::fill_n(to, width, from_float<T>(std::numeric_limits<float>::quiet_NaN()));
      else
        std::copy_n(static_cast<const T*>(a.from.data[owner]) + row * width, width, to);
    });
  });
}

}  // namespace tri::cpu
