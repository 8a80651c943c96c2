#include "lib/config/layouts.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "lib/config/axis_fields.h"
#include "lib/config/batch_sizes.h"
#include "lib/config/divisors.h"

namespace tri {

ParallelLayout layout_of(const Config& c) {
  return {.tp = c.parallel.tp,
          .cp = c.parallel.cp,
          .pp = c.parallel.pp,
          .dp = c.parallel.dp,
          .chunks = c.parallel.chunks,
          .schedule = c.parallel.schedule,
          .zero = c.parallel.zero,
          .micro_batch = c.data.micro_batch,
          .recompute = c.parallel.recompute,
          .layers_per_chunk = c.parallel.layers_per_chunk};
}

Config with_layout(Config config, const ParallelLayout& layout) {
  ParallelConfig& p = config.parallel;
  p.tp = layout.tp;
  p.cp = layout.cp;
  p.pp = layout.pp;
  p.dp = layout.dp;
  p.chunks = layout.chunks;
  p.schedule = layout.schedule;
  p.zero = layout.zero;
  p.recompute = layout.recompute;
  p.layers_per_chunk = layout.layers_per_chunk;
  config.data.micro_batch = layout.micro_batch;
  return config;
}

std::string to_string(const ParallelLayout& l) {
  std::string pipeline, recomputed;
  if (l.pp > 1) pipeline = fmt::format(" ({})", enum_name(l.schedule));
  if (l.chunks > 1) pipeline = fmt::format(" ({}, {} chunks)", enum_name(l.schedule), l.chunks);
  if (l.layers_per_chunk != kEvenLayers) pipeline += fmt::format(" of {} layers", l.layers_per_chunk);
  if (l.recompute != Recompute::kNone) recomputed = fmt::format(", recompute {}", enum_name(l.recompute));
  return fmt::format("tp {}{}, pp {}{}, dp {} (zero {}), micro-batch {}{}", l.tp,
                     l.cp > 1 ? fmt::format(", cp {}", l.cp) : "", l.pp, pipeline, l.dp, l.zero, l.micro_batch,
                     recomputed);
}

std::string as_settings(const ParallelLayout& l) {
  return fmt::format(
      "--set parallel.tp={} --set parallel.cp={} --set parallel.pp={} --set parallel.dp={} --set parallel.chunks={} "
      "--set parallel.schedule={} --set parallel.zero={} --set parallel.recompute={} --set data.micro_batch={}{}",
      l.tp, l.cp, l.pp, l.dp, l.chunks, enum_name(l.schedule), l.zero, enum_name(l.recompute), l.micro_batch,
      l.layers_per_chunk == kEvenLayers ? "" : " --set parallel.layers_per_chunk=" + l.layers_per_chunk);
}

std::vector<int> divisors_up_to(int64_t most, int64_t number) {
  std::vector<int> all;
  for (const int64_t divisor : divisors(number))
    if (divisor <= std::min<int64_t>(most, std::numeric_limits<int>::max())) all.push_back(static_cast<int>(divisor));
  return all;
}

LayoutSpace::LayoutSpace(const Config& config, int ranks_per_node)
    : model_(config.model),
      global_batch_(batch_sizes(config).divisor()),
      ranks_per_node_(ranks_per_node),
      own_cp_(config.parallel.cp),
      own_chunks_(config.parallel.chunks),
      own_schedule_(config.parallel.schedule),
      kept_ranks_(static_cast<int>(ranks_along(AxisSet::outside(kLayoutAxes), config.parallel))) {
  fill_derived(model_);
}

std::vector<int> LayoutSpace::tensor_degrees() const {
  int64_t all = 0;
  for (const SizeOverTp& divided : sizes_over_tp(model_)) all = std::gcd(all, divided.size);
  return divisors_up_to(ranks_per_node_, all);
}

std::vector<int> LayoutSpace::context_degrees() const {
  constexpr int kLeastPositions = 8192, kTile = 128;
  std::vector<int> degrees = divisors_up_to(std::max(1, model_.seq_len / kLeastPositions), model_.seq_len);
  std::erase_if(degrees, [&](int cp) { return cp > 1 && model_.seq_len % (2 * kTile * cp) != 0; });
  if (std::ranges::find(degrees, own_cp_) == degrees.end()) degrees.push_back(own_cp_);
  return degrees;
}

std::vector<ParallelLayout> LayoutSpace::meshes(int ranks, Division division) const {
  std::vector<ParallelLayout> all;
  if (ranks % kept_ranks_ != 0) return all;
  ranks /= kept_ranks_;
  for (const int tp : tensor_degrees())
    for (const int cp : context_degrees())
      for (const int pp : division == Division::kEven ? divisors_up_to(ranks / tp / cp, model_.layers)
                                                      : divisors_up_to(model_.layers, ranks / tp / cp)) {
        const int dp = ranks / tp / cp / pp;
        if (tp * cp * pp * dp == ranks && global_batch_ % dp == 0)
          all.push_back({.tp = tp, .cp = cp, .pp = pp, .dp = dp});
      }
  return all;
}

std::vector<PipelineKind> LayoutSpace::pipelines(int pp, int most_chunks, Division division) const {
  std::vector<PipelineKind> all;
  const bool divides = model_.layers % pp == 0;
  const auto of = [](int chunks) { return chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B; };
  if (divides)
    for (const int chunks : divisors_up_to(pp == 1 ? 1 : most_chunks, model_.layers / pp))
      all.push_back({of(chunks), chunks});
  if (division == Division::kEven || pp == 1) return all;
  const std::string by_work(kAutoLayers);
  for (int chunks = 1; chunks <= most_chunks && int64_t{pp} * chunks <= model_.layers; ++chunks)
    if (std::has_single_bit(static_cast<unsigned>(chunks)) || chunks == own_chunks_)
      all.push_back({of(chunks), chunks, by_work});
  if (divides) all.push_back({Schedule::kZbH1, 1});
  all.push_back({Schedule::kZbH1, 1, by_work});
  // A plan of zb_v is simulated, which takes long for many stages.
  constexpr int kMostFolded = 16;
  if (most_chunks < 2 || (pp > kMostFolded && own_schedule_ != Schedule::kZbV)) return all;
  if (model_.layers % (2 * int64_t{pp}) == 0) all.push_back({Schedule::kZbV, 2});
  if (model_.layers >= 2 * int64_t{pp}) all.push_back({Schedule::kZbV, 2, by_work});
  return all;
}

std::vector<int> LayoutSpace::micro_batches(const ParallelLayout& mesh, int most) const {
  std::vector<int> all = divisors_up_to(most, global_batch_ / mesh.dp);
  std::erase_if(all, [&](int samples) { return int64_t{samples} * model_.seq_len / mesh.cp % mesh.tp != 0; });
  return all;
}

}  // namespace tri
