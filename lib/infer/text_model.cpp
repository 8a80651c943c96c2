#include "lib/infer/text_model.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/dims.h"
#include "lib/infer/sampling.h"

namespace tri {

TextModel::TextModel(Engine& engine, const CacheSize& size)
    : engine_(engine),
      size_(size),
      tp_(engine.mesh().axis("tp").size),
      root_(engine.mesh().grid.rank_at({{"pp", engine.mesh().axis("pp").end()}})),
      plan_(evaluation_plan(engine.config(), engine.mesh().axis("pp"), 1)),
      h_tokens_(engine.device(), static_cast<size_t>(size.rows)),
      h_targets_(engine.device(), static_cast<size_t>(size.rows)),
      h_sequences_(engine.device(), static_cast<size_t>(size.rows)),
      h_positions_(engine.device(), static_cast<size_t>(size.rows)) {
  TRI_REQUIRE(size.sequences > 0 && size.rows >= round_up(size.sequences, tp_), "{} rows for {} sequences", size.rows,
              size.sequences);
}

TextModel::~TextModel() { engine_.runtime().synchronize(); }

void TextModel::run(std::span<const TextRow> rows, CachedHead head, const std::function<void(int64_t rows)>& on_head) {
  TRI_REQUIRE(!rows.empty() && static_cast<int64_t>(rows.size()) <= size_.rows, "{} rows in a pass of {}", rows.size(),
              size_.rows);
  const int64_t padded = round_up(static_cast<int64_t>(rows.size()), tp_);
  for (size_t i = 0; i < static_cast<size_t>(padded); ++i) {
    const TextRow row = i < rows.size() ? rows[i] : TextRow{.sequence = -1};
    TRI_REQUIRE(row.sequence < size_.sequences && row.position >= 0 && row.position < context(),
                "sequence {} of {}, position {} of {}", row.sequence, size_.sequences, row.position, context());
    h_tokens_.data()[i] = row.token;
    h_targets_.data()[i] = row.target;
    h_sequences_.data()[i] = row.sequence;
    h_positions_.data()[i] = row.position;
  }
  Stage& stage = engine_.stage();
  Stream& compute = engine_.runtime().compute();
  const auto load = [&](Tensor to, const HostBuffer<int32_t>& from) {
    if (!to.empty()) compute.copy(to.data, from.data(), padded * static_cast<int64_t>(sizeof(int32_t)));
  };
  load(stage.inputs(), h_tokens_);
  load(stage.targets(), h_targets_);
  load(stage.cached().sequences, h_sequences_);
  load(stage.cached().positions, h_positions_);
  stage.set_on_logits([&](int) {
    if (on_head) on_head(padded);
  });
  stage.begin_cached(padded, head);
  engine_.executor().run(plan_, stage, padded / tp_);
  compute.synchronize();  // the host's buffers may be written again
  engine_.require_expert_memory();
  stage.set_on_logits({});
}

void TextModel::append(std::span<const TextRow> rows) { run(rows, CachedHead::kNone, {}); }

std::vector<float> TextModel::logits(std::span<const TextRow> rows) {
  TRI_REQUIRE(static_cast<int>(rows.size()) <= size_.sequences, "{} rows for {} sequences", rows.size(),
              size_.sequences);
  Tensor gathered;  // (tp, padded rows, Vl)
  run(rows, CachedHead::kLogits, [&](int64_t padded) {
    Stream& compute = engine_.runtime().compute();
    GroupOnStream& tp = engine_.runtime().tp().collectives();
    const Tensor local = engine_.stage().head().logits.rows(0, padded);
    gathered = engine_.tensors().sample_logits.flat(0, tp_ * local.numel()).view({tp_, padded, local[1]});
    tp.after(compute);
    tp.all_gather(gathered.flat(), local.flat());
    tp.before(compute);
  });
  if (gathered.empty()) return {};
  const std::vector<float> values = engine_.read_floats(gathered);
  const int64_t padded = gathered[1], width = gathered[2], vocab = engine_.config().model.vocab;
  std::vector<float> result;
  result.reserve(rows.size() * static_cast<size_t>(vocab));
  for (size_t row = 0; row < rows.size(); ++row)
    for (int64_t first = 0; first < vocab; first += width) {
      const auto from = values.begin() + (first / width * padded + static_cast<int64_t>(row)) * width;
      result.insert(result.end(), from, from + std::min(width, vocab - first));
    }
  cap_logits(result, engine_.config().model.logit_softcap);
  return result;
}

std::vector<TokenScore> TextModel::score(std::span<const TextRow> rows) {
  Tensor stats;  // (tp, padded rows, 3)
  run(rows, CachedHead::kStats, [&](int64_t padded) {
    stats = engine_.stage().head().stats.flat(0, tp_ * padded * 3).view({tp_, padded, 3});
  });
  if (!is_root()) return {};
  const std::vector<float> values = engine_.read_floats(stats);
  std::vector<TokenScore> scores(rows.size());
  for (size_t row = 0; row < rows.size(); ++row) {
    if (rows[row].target == kNoTarget) continue;
    const auto of_rank = [&](int rank) { return &values[static_cast<size_t>((rank * stats[1]) * 3) + row * 3]; };
    double largest = -INFINITY, target = -INFINITY, sum = 0;
    for (int rank = 0; rank < tp_; ++rank) {
      largest = std::max<double>(largest, of_rank(rank)[0]);
      target = std::max<double>(target, of_rank(rank)[2]);  // -inf on ranks that do not have it
    }
    for (int rank = 0; rank < tp_; ++rank) sum += of_rank(rank)[1] * std::exp(of_rank(rank)[0] - largest);
    scores[row] = {.logprob = target - largest - std::log(sum), .is_greedy = target >= largest};
  }
  return scores;
}

std::vector<int32_t> TextModel::broadcast(std::vector<int32_t> tokens) {
  Stream& compute = engine_.runtime().compute();
  GroupOnStream& world = engine_.runtime().world();
  const Tensor on_device = engine_.tensors().sample_tokens.flat(0, static_cast<int64_t>(tokens.size()));
  compute.copy(on_device.data, tokens.data(), on_device.bytes());
  world.after(compute);
  world.broadcast(on_device, root_);
  world.before(compute);
  compute.copy(tokens.data(), on_device.data, on_device.bytes());
  compute.synchronize();
  return tokens;
}

}  // namespace tri
