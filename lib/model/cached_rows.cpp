#include "lib/model/cached_rows.h"

#include <algorithm>

#include "lib/model/stage_tensors.h"

namespace tri {
namespace {

void narrow(Tensor& tensor, int64_t rows) {
  if (!tensor.empty()) tensor = tensor.rows(0, rows);
}

}  // namespace

int64_t cache_slots(const AttentionSpec& attention, int64_t rows) {
  if (attention.window == 0) return attention.seq_len;
  return std::min<int64_t>(attention.seq_len, attention.window + rows - 1);
}

KeyValueCache allocate_cache(const AttentionSpec& attention, const CacheSize& size, const StageDims& d, Arena& arena) {
  const AttentionShare share = share_of(attention, d.tp);
  const auto take = [&] {
    return arena.take("key/value cache", d.dtype,
                      {size.sequences, cache_slots(attention, size.rows), int64_t{share.NKVl} * share.HS});
  };
  KeyValueCache cache;
  cache.keys = take();
  cache.values = take();
  return cache;
}

LayerTensors first_rows(LayerTensors t, int64_t rows, int tp) {
  narrow(t.input, rows / tp);
  narrow(t.middle, rows / tp);
  for (NormTensors& norm : t.norms) {
    narrow(norm.mean, rows / tp);
    narrow(norm.rstd, rows / tp);
  }
  for (Tensor& normed : t.normed) narrow(normed, rows);
  for (Tensor& output : t.outputs) narrow(output, rows / tp);
  t.attention = first_rows(t.attention, rows);
  t.mlp = first_rows(t.mlp, rows);
  return t;
}

LayerWorkspace first_rows(LayerWorkspace w, const CachedRowTensors& cached, int64_t rows, int tp) {
  narrow(w.partial, rows);
  narrow(w.normed, rows);
  narrow(w.branch, rows / tp);
  narrow(w.attention.rope_input, rows);
  w.attention.rope = cached.angles;
  w.attention.sequences = cached.sequences;
  w.attention.positions = cached.positions;
  for (Tensor* tensor : {&w.attention.rope.global, &w.attention.rope.local, &w.attention.qk_sums,
                         &w.attention.sequences, &w.attention.positions})
    narrow(*tensor, rows);
  w.recomputed = first_rows(w.recomputed, rows, tp);
  return w;
}

}  // namespace tri
