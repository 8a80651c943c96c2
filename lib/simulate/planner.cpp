#include "lib/simulate/planner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "io/base/format.h"
#include "kernels/fp8.h"
#include "lib/config/divisors.h"
#include "lib/model/parameter.h"

namespace tri {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

std::vector<int> divisors_up_to(int most, int number) {
  std::vector<int> all;
  for (const int64_t divisor : divisors(number))
    if (divisor <= most) all.push_back(static_cast<int>(divisor));
  return all;
}

// As fp8_obstacles (lib/config/config.h), for a layout without a config.
bool fp8_sides_fit(const Workload& w) {
  const ModelConfig& m = w.model;
  const int64_t rows = int64_t{w.micro_batch} * m.seq_len;
  const int64_t qkv = (m.heads + int64_t{2} * m.kv_heads) * (m.hidden / m.heads) / w.tp;
  for (const int64_t side : {rows, int64_t{m.hidden}, int64_t{m.hidden / w.tp}, qkv, int64_t{m.ffn_hidden / w.tp}})
    if (side % kFp8Multiple != 0) return false;
  return true;
}

// A layout of which only a bound of the time is known.
struct Candidate {
  Workload workload;
  StepMemory memory;
  double bound = 0;  // seconds; a step takes at least about this long
};

// Walks through all layouts that the config's own rules allow.
class Search {
 public:
  Search(const Config& config, const Cluster& cluster, const PlanOptions& options)
      : cluster_(cluster), options_(options), times_(cluster), room_(room_of(cluster)) {
    Config planned = config;
    planned.parallel = {};
    planned.parallel.overlap_tp = config.parallel.overlap_tp;
    planned.parallel.overlap_pp = config.parallel.overlap_pp;
    planned.parallel.overlap_dp = config.parallel.overlap_dp;
    planned.parallel.bucket_elements = config.parallel.bucket_elements;
    base_ = workload_of(planned);
    numbers_ = {base_.numbers};
    if (config.precision.gemm == GemmFormat::kAuto && base_.numbers == Numbers::kBf16 && cluster.device.fp8_tflops > 0)
      numbers_.push_back(Numbers::kFp8);
  }

  // What there is to do where no layout of so many ranks obeys the rules: "take 2 or 4 ranks, or ...". All numbers of
  // ranks that have a layout are products of a few divisors.
  std::string remedy() const {
    const std::vector<int> stages = divisors_up_to(kMostRanks, base_.model.layers),
                           replicas = divisors_up_to(kMostRanks, base_.global_batch);
    int64_t below = 0, above = std::numeric_limits<int64_t>::max();
    for (const int tp : tensor_degrees())
      for (const int pp : stages)
        for (const int dp : replicas) {
          const int64_t ranks = int64_t{tp} * pp * dp;
          const bool is_nearer = ranks > options_.ranks ? ranks < above : ranks > below;
          if (!is_nearer || ranks > kMostRanks || !has_layout(tp, pp, dp)) continue;
          (ranks > options_.ranks ? above : below) = ranks;
        }
    const bool has_below = below > 0, has_above = above <= kMostRanks;
    std::string take;
    if (has_below || has_above)
      take = fmt::format("take {}{}{} ranks, or ", has_below ? fmt::to_string(below) : "",
                         has_below && has_above ? " or " : "", has_above ? fmt::to_string(above) : "");
    // Whether it is its size that is in the way, or only its divisors.
    const int64_t most = int64_t{kMostMicrobatches} * largest_microbatch() * options_.ranks;
    const bool is_named = options_.micro_batch > 0;
    const bool is_large = base_.global_batch > most || (take.empty() && !is_named);
    return take + (is_large ? "lower" : "change") + " data.global_batch" + (is_named ? " or data.micro_batch" : "");
  }

  double least_bytes() const { return least_bytes_; }

  PlanSearch run() {
    for (const int tp : tensor_degrees())
      for (const int pp : divisors_up_to(options_.ranks / tp, base_.model.layers))
        if (options_.ranks % (tp * pp) == 0 && base_.global_batch % (options_.ranks / tp / pp) == 0) add_mesh(tp, pp);
    std::ranges::sort(candidates_, {}, &Candidate::bound);
    result_.fitted = static_cast<int64_t>(candidates_.size());
    // A bound is the time less the pipeline's exposed transfers and the tails of dp: the true winner is near the top.
    const size_t exact = std::min<size_t>(candidates_.size(), static_cast<size_t>(options_.keep) * 4);
    for (size_t i = 0; i < exact; ++i) {
      const Candidate& candidate = candidates_[i];
      result_.best.push_back(
          {candidate.workload, predict_step(candidate.workload, cluster_, times_), candidate.memory});
    }
    std::ranges::stable_sort(result_.best, {}, [](const PlannedLayout& layout) { return layout.step.seconds; });
    if (result_.best.size() > static_cast<size_t>(options_.keep))
      result_.best.erase(result_.best.begin() + options_.keep, result_.best.end());
    return std::move(result_);
  }

 private:
  void add_mesh(int tp, int pp) {
    Workload w = base_;
    w.tp = tp;
    w.pp = pp;
    w.dp = options_.ranks / tp / pp;
    for (const int chunks : divisors_up_to(pp > 1 ? options_.max_chunks : 1, w.model.layers / pp)) {
      w.chunks = chunks;
      w.schedule = chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
      each_microbatch(w, [&] { add_levels(w); });
    }
  }

  // The degrees that the heads, the layers' other sides and the nodes allow.
  std::vector<int> tensor_degrees() const {
    const ModelConfig& m = base_.model;
    std::vector<int> degrees = divisors_up_to(cluster_.node.ranks, m.heads);
    std::erase_if(degrees, [&](int tp) {
      return cluster_.node.ranks % tp != 0 || m.kv_heads % tp != 0 || m.ffn_hidden % tp != 0 || m.seq_len % tp != 0;
    });
    return degrees;
  }

  // Calls visit() for each microbatch and number format that the rules allow `w`, which then has them.
  template <class Visit>
  void each_microbatch(Workload& w, Visit visit) const {
    const int samples = w.global_batch / w.dp;
    for (int micro_batch = std::max(1, options_.micro_batch); micro_batch <= largest_microbatch(); ++micro_batch) {
      w.micro_batch = micro_batch;
      if (samples % micro_batch != 0 || samples / micro_batch > kMostMicrobatches) continue;
      for (const Numbers numbers : numbers_) {
        w.numbers = numbers;
        if (numbers != Numbers::kFp8 || fp8_sides_fit(w)) visit();
      }
    }
  }

  int largest_microbatch() const { return options_.micro_batch > 0 ? options_.micro_batch : options_.max_micro_batch; }

  bool has_layout(int tp, int pp, int dp) const {
    Workload w = base_;
    w.tp = tp;
    w.pp = pp;
    w.dp = dp;
    bool has = false;
    each_microbatch(w, [&] { has = true; });
    return has;
  }

  // The least recompute and sharding that fit: more of either only costs.
  void add_levels(Workload& w) {
    ++result_.tried;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kNorms, Recompute::kSelective, Recompute::kFull}) {
      w.recompute = recompute;
      for (const int zero : {1, 2}) {
        if (zero == 2 && w.dp == 1) continue;
        w.zero = zero;
        const StepMemory memory = estimate_memory(w);
        least_bytes_ = std::min(least_bytes_, memory.total());
        if (memory.total() > room_) continue;
        candidates_.push_back({w, memory, bound_step(w, cluster_, times_)});
        return;
      }
    }
  }

  const Cluster& cluster_;
  const PlanOptions& options_;
  RingTimes times_;
  double room_;
  Workload base_;
  std::vector<Numbers> numbers_;
  std::vector<Candidate> candidates_;
  double least_bytes_ = std::numeric_limits<double>::infinity();  // a rank, of all layouts that were tried
  PlanSearch result_;
};

std::string layout_of(const Workload& w) {
  return fmt::format("tp {:>2} pp {:>2} dp {:>5} chunks {:>2} micro-batch {:>2} zero {} recompute {:<9} {}", w.tp, w.pp,
                     w.dp, w.chunks, w.micro_batch, w.zero, enum_name(w.recompute), enum_name(w.numbers));
}

// The two largest parts of the step that are not the model's own FLOPs, by their names in parts_s.
std::array<std::string, 2> largest_others(const StepPrediction& step) {
  std::vector<std::pair<std::string, double>> parts = named_parts(step.parts);
  std::erase_if(parts, [](const auto& part) { return part.first == "gemm" || part.first == "attention"; });
  std::ranges::sort(parts, [](const auto& a, const auto& b) { return a.second > b.second; });
  return {parts[0].first, parts[1].first};
}

std::string limits_of(const StepPrediction& step) {
  std::string text;
  for (const std::string& name : largest_others(step))
    for (const auto& [part, seconds] : named_parts(step.parts))
      if (part == name)
        text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", part_title(part), 100 * seconds / step.seconds);
  return text;
}

// Where the second loses most against the first.
std::string why(const PlannedLayout& first, const PlannedLayout& second) {
  const auto a = named_parts(first.step.parts), b = named_parts(second.step.parts);
  size_t most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (b[i].second - a[i].second > b[most].second - a[most].second) most = i;
  return fmt::format("the first spends {:.1f} ms less on {} than the second", 1e3 * (b[most].second - a[most].second),
                     part_title(a[most].first));
}

}  // namespace

Result<Config> without_layout(Config parsed) {
  ParallelConfig& p = parsed.parallel;
  p.tp = p.pp = p.dp = p.chunks = 1;
  p.schedule = Schedule::k1F1B;
  if (parsed.data.global_batch % parsed.data.micro_batch != 0) parsed.data.micro_batch = 1;
  return resolve_config(std::move(parsed), 1);
}

bool chosen_by_search(std::string_view field) {
  constexpr std::string_view kChosen[] = {"parallel.tp",       "parallel.pp",   "parallel.dp",       "parallel.chunks",
                                          "parallel.schedule", "parallel.zero", "parallel.recompute"};
  return std::ranges::find(kChosen, field) != std::end(kChosen);
}

Result<PlanSearch> search_layouts(const Config& config, const Cluster& cluster, const PlanOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  if (config.precision.gemm == GemmFormat::kFp8 && cluster.device.fp8_tflops == 0)
    return usage_error("precision.gemm: fp8: {} has none (device.fp8_tflops is 0); leave --fp8 out, or set compute",
                       cluster.device.name);
  Search walk(config, cluster, options);
  PlanSearch search = walk.run();
  search.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (search.tried == 0)
    return usage_error(
        "no layout of {} ranks divides model.heads {}, model.layers {} and data.global_batch {} into at most {} "
        "microbatches; {}",
        options.ranks, config.model.heads, config.model.layers, config.data.global_batch, kMostMicrobatches,
        walk.remedy());
  if (search.best.empty())
    return usage_error("none of {} layouts fits into {:.1f} GiB a rank, the smallest takes {:.1f}; take more ranks",
                       search.tried, room_of(cluster) / kGib, walk.least_bytes() / kGib);
  return search;
}

std::string to_text(const PlanSearch& search, const Cluster& cluster) {
  std::string text =
      fmt::format("{} layouts, {} fit into {:.1f} GiB, the best of them on {} of {} ({:.0f} ms of search):\n",
                  search.tried, search.fitted, room_of(cluster) / kGib,
                  counted(search.best.front().workload.ranks(), "rank"), cluster.device.name, 1e3 * search.seconds);
  text += fmt::format("  {:>3}  {:<75}  {:>9}  {:>8}  {:>6}  {:>9}  limited by\n", "", "layout", "step", "tokens/s",
                      "MFU", "memory");
  int place = 1;
  for (const PlannedLayout& layout : search.best)
    text += fmt::format("  {:>3}  {:<75}  {:>7.3f} s  {:>8}  {:>4.1f} %  {:>5.1f} GiB  {}\n", place++,
                        layout_of(layout.workload), layout.step.seconds, format_count(layout.step.tokens_per_second),
                        100 * layout.step.mfu, layout.memory.total() / kGib, limits_of(layout.step));
  if (search.best.size() > 1) text += why(search.best[0], search.best[1]) + "\n";
  return text;
}

std::string to_json(const PlanSearch& search) {
  nlohmann::ordered_json layouts = nlohmann::ordered_json::array();
  for (const PlannedLayout& layout : search.best) {
    const Workload& w = layout.workload;
    nlohmann::ordered_json parts;
    for (const auto& [name, seconds] : named_parts(layout.step.parts)) parts[name] = seconds;
    layouts.push_back({{"tp", w.tp},
                       {"pp", w.pp},
                       {"dp", w.dp},
                       {"chunks", w.chunks},
                       {"schedule", enum_name(w.schedule)},
                       {"micro_batch", w.micro_batch},
                       {"zero", w.zero},
                       {"recompute", enum_name(w.recompute)},
                       {"numbers", enum_name(w.numbers)},
                       {"step_s", layout.step.seconds},
                       {"tokens_per_s", layout.step.tokens_per_second},
                       {"mfu", layout.step.mfu},
                       {"memory_bytes", layout.memory.total()},
                       {"parts_s", parts},
                       {"limited_by", largest_others(layout.step)}});
  }
  nlohmann::ordered_json json{{"tried", search.tried},
                              {"fitted", search.fitted},
                              {"search_s", search.seconds},
                              {"reason", nullptr},
                              {"layouts", layouts}};
  if (search.best.size() > 1) json["reason"] = why(search.best[0], search.best[1]);
  return json.dump() + "\n";
}

Config with_layout(Config config, const Workload& w) {
  ParallelConfig& p = config.parallel;
  p.tp = w.tp;
  p.pp = w.pp;
  p.dp = w.dp;
  p.chunks = w.chunks;
  p.schedule = w.schedule;
  p.zero = w.zero;
  p.recompute = w.recompute;
  config.precision.gemm = w.numbers == Numbers::kFp8 ? GemmFormat::kFp8 : GemmFormat::kCompute;
  config.data.micro_batch = w.micro_batch;
  return config;
}

}  // namespace tri
