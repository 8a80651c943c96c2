// Derived fields, and rules over several fields. Each message names the numbers that conflict and those that would fit.
#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <set>

#include "io/base/format.h"
#include "kernels/core/dims.h"
#include "kernels/fp8.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "lib/config/axis_fields.h"
#include "lib/config/batch_sizes.h"
#include "lib/config/changes.h"
#include "lib/config/config.h"
#include "lib/config/divisors.h"
#include "lib/config/error_list.h"
#include "lib/config/layer_counts.h"
#include "lib/config/nearest.h"

namespace tri {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int64_t kFfnMultiple = 64;
static_assert(kSampleAxes == AxisSet{"dp"}, "dp 0 and the rules of data.global_batch take dp for the only such axis");
constexpr AxisSet kAllAxes = AxisSet::outside({}), kModelAxes = AxisSet::outside(kSampleAxes);

// Returns the positive multiples of `step` on both sides of `value`.
Numbers multiples_around(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  return below > 0 ? Numbers{below, below + step} : Numbers{step};
}

// Returns "1, 2 or 4": the five of `numbers` (ascending) that are closest to `value`.
std::string either(Numbers numbers, int64_t value) {
  constexpr size_t kMost = 5;
  while (numbers.size() > kMost) {
    const bool first_is_farther = value - numbers.front() > numbers.back() - value;
    numbers.erase(first_is_farther ? numbers.begin() : numbers.end() - 1);
  }
  if (numbers.size() == 1) return fmt::format("{}", numbers[0]);
  return fmt::format("{} or {}", fmt::join(numbers.begin(), numbers.end() - 1, ", "), numbers.back());
}

// Returns ", or set parallel.pp to 1, 2 or 4", or "" if no number fits.
std::string or_set(const char* field, const Numbers& numbers, int64_t value) {
  return numbers.empty() ? "" : fmt::format(", or set {} to {}", field, either(numbers, value));
}

class Resolver {
 public:
  Resolver(Config config, int64_t world) : c_(std::move(config)), world_(world), given_dp_(c_.parallel.dp) {}

  Result<Config> run() && {
    fill();
    check_model();
    check_experts();
    const bool tp_is_allowed = check_tp();
    check_cp();
    check_pp();
    if (check_world(tp_is_allowed)) {
      check_ep();
      check_batch();
    }
    check_data();
    check_fp8();
    check_lr();
    check_accepted_changes();
    if (!errors_.empty()) return join_errors(errors_);
    return std::move(c_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    errors_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void add_text(std::string error) {
    if (!error.empty()) errors_.push_back(std::move(error));
  }

  // Checks that files can be created in the folder that `field` names. Limits of Linux: 255 bytes per name, 4,096 per
  // path. The longest names in a run folder are those of checkpoints being replaced: kOwn bytes at most.
  void check_folder(const char* field, const std::string& folder) {
    constexpr size_t kMostName = 255, kMostPath = 4095, kOwn = 255;
    if (folder.size() + kOwn > kMostPath)
      return add("{}: the path has {} bytes, but at most {} leave space for the names of the run's files; shorten it",
                 field, folder.size(), kMostPath - kOwn);
    for (size_t at = 0; at < folder.size();) {
      const size_t end = std::min(folder.find('/', at), folder.size());
      if (end - at > kMostName)
        return add("{}: a name in it has {} bytes, but file systems allow {}; shorten it", field, end - at, kMostName);
      at = end + 1;
    }
  }

  void fill() {
    const bool has_folder = !c_.run.dir.empty(), has_checkpoints = !c_.checkpoint.dir.empty();
    fill_derived(c_.model);
    const int64_t model_ranks = ranks_along(kModelAxes, c_.parallel);
    if (c_.parallel.dp == 0 && world_ % model_ranks == 0) c_.parallel.dp = static_cast<int>(world_ / model_ranks);
    if (c_.run.dir.empty()) c_.run.dir = "runs/" + c_.run.name;
    check_folder(has_folder ? "run.dir" : "run.name", c_.run.dir);
    if (has_checkpoints) check_folder("checkpoint.dir", c_.checkpoint.dir);
    if (!has_checkpoints) c_.checkpoint.dir = c_.run.dir + "/checkpoints";
    if (!c_.data.batch_ramp.empty()) {
      // The parser refuses a given value that equals the default.
      if (c_.data.global_batch != DataConfig{}.global_batch) add_text(batch_conflict(c_));
      c_.data.global_batch = batch_sizes(c_).largest();
    }
    if (c_.run.tokens > 0) {
      if (c_.run.steps != RunConfig{}.steps) add_text(steps_conflict(c_));
      c_.run.steps = last_step(c_, 0, 0);
    }
    if (c_.lr.by == LrBy::kSteps && c_.lr.decay_steps == 0) c_.lr.decay_steps = c_.run.steps;
    if (c_.lr.by == LrBy::kTokens && c_.lr.decay_tokens == 0)
      c_.lr.decay_tokens = c_.run.tokens > 0 ? c_.run.tokens : tokens_of_run(c_);
  }

  void check_model() {
    const ModelConfig& m = c_.model;
    if (m.head_dim == 0) {
      add("model.heads: {} does not divide model.hidden {}; set model.hidden to {}{}, or set model.head_dim", m.heads,
          m.hidden, either(multiples_around(m.hidden, m.heads), m.hidden),
          or_set("model.heads", divisors(m.hidden), m.heads));
    } else if (m.position == Position::kRope && m.head_dim % 2 != 0) {
      add("model.position: rope rotates pairs, but model.head_dim {} is odd; set model.head_dim to {}, or "
          "model.position to learned",
          m.head_dim, either(multiples_around(m.head_dim, 2), m.head_dim));
    }
    if (m.qk_norm != QkNorm::kNone && m.position != Position::kRope)
      add("model.qk_norm: {} requires rope, but model.position is {}; set model.position to rope, or model.qk_norm to "
          "none",
          enum_name(m.qk_norm), enum_name(m.position));
    if (m.parallel_norms > 1 && m.block != Block::kParallel)
      add("model.parallel_norms: {} has no effect, since model.block is {}; set model.block to parallel, or "
          "model.parallel_norms to 1",
          m.parallel_norms, enum_name(m.block));
    if (m.norm_position != NormPosition::kPre && m.block == Block::kParallel)
      add("model.norm_position: {} requires a sequential block, but model.block is parallel, which adds both branches "
          "at once; set model.block to sequential, or model.norm_position to pre",
          enum_name(m.norm_position));
    if (m.qk_norm == QkNorm::kFull && m.norm_offset != 0)
      add("model.norm_offset: {} is not supported with model.qk_norm full; set model.norm_offset to 0", m.norm_offset);
    check_rope();
    check_layer_pattern();
    if (m.kv_heads > m.heads)
      add("model.kv_heads: {} exceeds model.heads {}; set model.kv_heads to {}, or to 0 to use model.heads", m.kv_heads,
          m.heads, either(divisors(m.heads), m.kv_heads));
    else if (m.heads % m.kv_heads != 0)
      add("model.kv_heads: {} does not divide model.heads {}; set model.kv_heads to {}", m.kv_heads, m.heads,
          either(divisors(m.heads), m.kv_heads));
    if (m.window > m.seq_len)
      add("model.window: {} exceeds model.seq_len {}; set model.window to 0 for full attention, or to {} or "
          "less",
          m.window, m.seq_len, m.seq_len);
  }

  void check_experts() {
    const ModelConfig& m = c_.model;
    if (m.experts == 0) {
      const ModelConfig unset;
      const auto no_effect = [&](const char* field, auto ModelConfig::*member) {
        const auto text = [](const auto& value) {
          if constexpr (std::is_enum_v<std::decay_t<decltype(value)>>)
            return std::string(enum_name(value));
          else
            return fmt::format("{}", value);
        };
        if (m.*member != unset.*member)
          add("model.{}: {} has no effect without experts; set model.experts, or model.{} to {}", field,
              text(m.*member), field, text(unset.*member));
      };
      no_effect("experts_per_token", &ModelConfig::experts_per_token);
      no_effect("expert_hidden", &ModelConfig::expert_hidden);
      no_effect("shared_experts", &ModelConfig::shared_experts);
      no_effect("router", &ModelConfig::router);
      no_effect("router_renormalize", &ModelConfig::router_renormalize);
      no_effect("router_scale", &ModelConfig::router_scale);
      no_effect("router_groups", &ModelConfig::router_groups);
      no_effect("router_top_groups", &ModelConfig::router_top_groups);
      no_effect("router_bias_rate", &ModelConfig::router_bias_rate);
      no_effect("aux_loss", &ModelConfig::aux_loss);
      no_effect("router_z_loss", &ModelConfig::router_z_loss);
      no_effect("dense_layers", &ModelConfig::dense_layers);
      return;
    }
    if (m.experts_per_token > m.experts)
      add("model.experts_per_token: {} exceeds model.experts {}; set it to {} or less", m.experts_per_token, m.experts,
          m.experts);
    if (m.dense_layers >= m.layers)
      add("model.dense_layers: {} leaves no layer of model.layers {} with experts; lower it, or set model.experts to 0",
          m.dense_layers, m.layers);
    if (m.block != Block::kSequential)
      add("model.experts: {} requires a sequential block, but model.block is {}; set model.block to sequential",
          m.experts, enum_name(m.block));
    if (m.bias) add("model.bias: true is not supported with model.experts {}; set model.bias to false", m.experts);
    if (int64_t{m.expert_hidden} * m.hidden % kBlock != 0)
      add("model.expert_hidden: {} x model.hidden {} is not a multiple of {}; set model.expert_hidden to {}",
          m.expert_hidden, m.hidden, kBlock, either(multiples_around(m.expert_hidden, kBlock), m.expert_hidden));
    const std::string sigmoid = "set model.router to sigmoid";
    if (m.router != Router::kSigmoid && (m.router_groups > 1 || m.router_top_groups > 1))
      add("model.router_groups: {} (model.router_top_groups {}) requires a sigmoid router; {}, or both to 1",
          m.router_groups, m.router_top_groups, sigmoid);
    if (m.router != Router::kSigmoid && m.router_bias_rate > 0)
      add("model.router_bias_rate: {} requires a sigmoid router; {}, or model.router_bias_rate to 0",
          m.router_bias_rate, sigmoid);
    if (m.experts % m.router_groups != 0)
      add("model.router_groups: {} does not divide model.experts {}; set it to {}", m.router_groups, m.experts,
          either(divisors(m.experts), m.router_groups));
    else if (m.router_top_groups > m.router_groups)
      add("model.router_top_groups: {} exceeds model.router_groups {}; set it to {} or less", m.router_top_groups,
          m.router_groups, m.router_groups);
    else if (m.experts_per_token > m.experts / m.router_groups * m.router_top_groups &&
             m.experts_per_token <= m.experts)
      add("model.experts_per_token: {} exceeds the {} of {}; raise model.router_top_groups", m.experts_per_token,
          counted(m.experts / m.router_groups * m.router_top_groups, "expert"), counted(m.router_top_groups, "group"));
  }

  // An expert group is parallel.ep neighbours among the stage's ranks, which are numbered along tp first.
  void check_ep() {
    const int ep = c_.parallel.ep;
    const int64_t ranks = ranks_along(AxisSet::outside({"pp"}), c_.parallel);
    if (ep > 1 && c_.model.experts == 0) {
      add("parallel.ep: {} has no effect without experts; set model.experts, or parallel.ep to 1", ep);
      return;
    }
    Numbers fits;
    for (const int64_t size : divisors(std::gcd(ranks, int64_t{std::max(1, c_.model.experts)}))) fits.push_back(size);
    const std::string remedy = "set parallel.ep to " + either(fits, ep);
    if (ranks % ep != 0)
      add("parallel.ep: {} does not divide the {} ranks of a stage ({}); {}", ep, ranks,
          sizes_along(AxisSet::outside({"pp"}), c_.parallel), remedy);
    else if (c_.model.experts % ep != 0)
      add("parallel.ep: {} does not divide model.experts {}; {}", ep, c_.model.experts, remedy);
  }

  void check_layer_pattern() {
    const ModelConfig& m = c_.model;
    const bool has_windows = std::ranges::count(m.layer_pattern, LayerAttention::kWindow) > 0;
    if (has_windows && m.window == 0)
      add("model.layer_pattern: has layers with a window, but model.window is 0; set model.window, or "
          "model.layer_pattern to []");
    if (!m.layer_pattern.empty() && !has_windows && m.window > 0)
      add("model.window: {} has no effect, since model.layer_pattern has no layer with a window; set model.window to "
          "0, or model.layer_pattern to []",
          m.window);
    if (m.rope_theta_local > 0 && (!has_windows || m.position != Position::kRope))
      add("model.rope_theta_local: {} has no effect {}; set model.rope_theta_local to 0, or {}", m.rope_theta_local,
          has_windows ? "without rope" : "without a model.layer_pattern that has layers with a window",
          has_windows ? "model.position to rope" : "model.layer_pattern, for instance to [window, full]");
  }

  void check_rope() {
    const ModelConfig& m = c_.model;
    const auto scaling = enum_name(m.rope_scaling);
    if (m.rope_fraction < 1 && m.position != Position::kRope)
      add("model.rope_fraction: {} requires rope, but model.position is {}; set model.position to rope, or "
          "model.rope_fraction to 1",
          m.rope_fraction, enum_name(m.position));
    const int rotated = rotated_elements(m.rope_fraction, m.head_dim);
    if (m.rope_fraction < 1 && m.head_dim > 0 && (rotated == 0 || rotated % 2 != 0))
      add("model.rope_fraction: {} of model.head_dim {} is {} elements, but rope rotates pairs; set "
          "model.rope_fraction to 1 or {:.6g}",
          m.rope_fraction, m.head_dim, rotated, static_cast<double>(round_up(rotated + 1, 2)) / m.head_dim);
    if (m.rope_scaling == RopeScaling::kNone && m.rope_factor > 1)
      add("model.rope_factor: {} has no effect, since model.rope_scaling is none; set model.rope_scaling, or "
          "model.rope_factor to 1",
          m.rope_factor);
    if (m.rope_scaling != RopeScaling::kYarn && m.rope_attention_factor > 0)
      add("model.rope_attention_factor: {} has no effect, since model.rope_scaling is {}; set model.rope_scaling to "
          "yarn, or model.rope_attention_factor to 0",
          m.rope_attention_factor, scaling);
    if (m.rope_scaling == RopeScaling::kNone) return;
    if (m.position != Position::kRope)
      add("model.rope_scaling: {} requires rope, but model.position is {}; set model.position to rope, or "
          "model.rope_scaling to none",
          scaling, enum_name(m.position));
    if (m.rope_scaling == RopeScaling::kLlama3 && m.rope_low_freq_factor >= m.rope_high_freq_factor)
      add("model.rope_low_freq_factor: {} is not below model.rope_high_freq_factor {}; set them to 1 and 4",
          m.rope_low_freq_factor, m.rope_high_freq_factor);
    if (m.rope_scaling == RopeScaling::kYarn && m.rope_beta_slow >= m.rope_beta_fast)
      add("model.rope_beta_slow: {} is not below model.rope_beta_fast {}; set them to 1 and 32", m.rope_beta_slow,
          m.rope_beta_fast);
    if (m.rope_scaling == RopeScaling::kYarn && m.rope_theta <= 1)
      add("model.rope_theta: {} must exceed 1 for model.rope_scaling yarn; set model.rope_theta to 10000",
          m.rope_theta);
  }

  int64_t micro_rows() const { return int64_t{c_.data.micro_batch} * c_.model.seq_len / c_.parallel.cp; }

  // Whether these sizes of tp and pp, with the other axes unchanged, suit the number of ranks. dp 0: any.
  bool suits_world(int64_t tp, int64_t pp, int64_t dp) const {
    const int64_t model_ranks = tp * pp * ranks_along(kModelAxes - AxisSet{"tp", "pp"}, c_.parallel);
    return dp == 0 ? world_ % model_ranks == 0 : model_ranks * dp == world_;
  }

  // Returns the tensor-parallel sizes that obey all rules of check_tp and, if any of them do, also suit the number of
  // ranks. 1 always obeys.
  Numbers fitting_tp() const {
    Numbers shape_fits, rank_fits;
    int64_t all = micro_rows();
    for (const SizeOverTp& divided : sizes_over_tp(c_.model)) all = std::gcd(all, divided.size);
    for (const int64_t tp : divisors(all)) {
      if (tp > c_.cluster.ranks_per_node) continue;
      shape_fits.push_back(tp);
      if (suits_world(tp, c_.parallel.pp, given_dp_)) rank_fits.push_back(tp);
    }
    return rank_fits.empty() ? shape_fits : rank_fits;
  }

  // Returns whether the size of tp is allowed, on any number of ranks.
  bool check_tp() {
    const size_t before = errors_.size();
    const int tp = c_.parallel.tp;
    const std::string remedy = "set parallel.tp to " + either(fitting_tp(), tp);
    const auto must_divide = [&](int64_t value, const std::string& what) {
      if (value % tp != 0) add("parallel.tp: {} does not divide {}; {}", tp, what, remedy);
    };
    for (const SizeOverTp& divided : sizes_over_tp(c_.model)) must_divide(divided.size, divided.text);
    const int cp = c_.parallel.cp;
    must_divide(micro_rows(),
                fmt::format("the {} rows of a microbatch (data.micro_batch {} x model.seq_len {}{})", micro_rows(),
                            c_.data.micro_batch, c_.model.seq_len, cp > 1 ? fmt::format(" / parallel.cp {}", cp) : ""));
    if (tp > c_.cluster.ranks_per_node)
      add("parallel.tp: {} exceeds cluster.ranks_per_node {}, but a tp group must fit in a node; {}", tp,
          c_.cluster.ranks_per_node, remedy);
    return errors_.size() == before;
  }

  // A rank holds two of 2 · cp equal chunks of each sequence. GPUs also need chunks of whole tiles (job_plan.cpp).
  void check_cp() {
    const int cp = c_.parallel.cp, length = c_.model.seq_len;
    if (cp > 1 && length % (2 * int64_t{cp}) != 0)
      add("parallel.cp: 2 x {} does not divide model.seq_len {}; set model.seq_len to {}{}", cp, length,
          either(multiples_around(length, 2 * int64_t{cp}), length),
          or_set("parallel.cp", length % 2 == 0 ? divisors(length / 2) : Numbers{1}, cp));
  }

  bool interleaves() const { return takes_chunks(c_.parallel.schedule); }
  bool needs_stages() const {
    return interleaves() && (c_.parallel.schedule != Schedule::kAuto || c_.parallel.chunks > 1);
  }

  // Returns the pipeline sizes that suit the layers, the chunks, the schedule and, with `dp` replicas (0: any), the
  // number of ranks.
  Numbers fitting_pp(int dp) const {
    Numbers fits;
    for (const int64_t pp : divisors(c_.model.layers)) {
      const bool layers_fit = c_.parallel.layers_per_chunk == kEvenLayers
                                  ? c_.model.layers % (pp * c_.parallel.chunks) == 0
                                  : c_.model.layers >= pp * c_.parallel.chunks;
      const bool schedule_fits = pp > 1 || !needs_stages();
      if (layers_fit && schedule_fits && suits_world(c_.parallel.tp, pp, dp)) fits.push_back(pp);
    }
    return fits;
  }

  void check_pp() {
    const ParallelConfig& p = c_.parallel;
    const std::string schedule(enum_name(p.schedule));
    if (p.chunks > 1 && !interleaves())
      add("parallel.chunks: {} needs parallel.schedule interleaved, got {}; set parallel.chunks to 1, or "
          "parallel.schedule to interleaved",
          p.chunks, schedule);
    if (interleaves() && !takes_chunks(p.schedule, p.chunks))
      add("parallel.schedule: {} needs parallel.chunks 2, got {}; set parallel.chunks to 2, or parallel.schedule to {}",
          schedule, p.chunks, p.chunks > 1 ? "interleaved" : "zb_h1");
    if (needs_stages() && p.pp < 2 && p.schedule == Schedule::kAuto)
      add("parallel.chunks: {} needs parallel.pp >= 2, got {}; set parallel.chunks to 1{}", p.chunks, p.pp,
          or_set("parallel.pp", fitting_pp(given_dp_), p.pp));
    else if (needs_stages() && p.pp < 2)
      add("parallel.schedule: {} needs parallel.pp >= 2, got {}; set parallel.schedule to 1f1b{}", schedule, p.pp,
          or_set("parallel.pp", fitting_pp(given_dp_), p.pp));

    const int layers = c_.model.layers;
    const int64_t parts = int64_t{p.pp} * p.chunks;
    if (p.layers_per_chunk != kEvenLayers) {
      const std::string problem = problem_with_layer_counts(p.layers_per_chunk, p.pp, p.chunks, layers);
      if (!problem.empty()) add("{}", problem);
      return;
    }
    if (layers % parts != 0)
      add("model.layers: {} is not a multiple of parallel.pp {} x parallel.chunks {} = {}; set {}model.layers to "
          "{}{}{}",
          layers, p.pp, p.chunks, parts, layers >= parts ? "parallel.layers_per_chunk to auto, or " : "",
          either(multiples_around(layers, parts), layers), or_set("parallel.pp", fitting_pp(given_dp_), p.pp),
          p.chunks > 1 && layers % p.pp == 0 ? or_set("parallel.chunks", divisors(layers / p.pp), p.chunks) : "");
  }

  bool check_world(bool tp_is_allowed) {
    const ParallelConfig& p = c_.parallel;
    if (suits_world(p.tp, p.pp, given_dp_)) return true;
    // The remedy of check_tp then also gives the number of ranks.
    if (!tp_is_allowed && suits_world(fitting_tp().front(), p.pp, given_dp_)) return false;
    const int64_t model_ranks = ranks_along(kModelAxes, p);
    if (given_dp_ == 0) {
      add("parallel: {} = {} does not divide {} ranks; start {} ranks{}", sizes_along(kModelAxes, p), model_ranks,
          world_, either(multiples_around(world_, model_ranks), world_), or_set("parallel.pp", fitting_pp(0), p.pp));
    } else {
      const std::string remedy = world_ % model_ranks == 0
                                     ? or_set("parallel.dp", {world_ / model_ranks}, p.dp)
                                     : or_set("parallel.dp to 0 and parallel.pp", fitting_pp(0), p.pp);
      add("parallel: {} = {}, not {} ranks; start {} ranks{}", sizes_along(kAllAxes, p), model_ranks * p.dp, world_,
          model_ranks * p.dp, remedy);
    }
    return false;
  }

  void check_batch() {
    const int64_t global = c_.data.global_batch, micro = c_.data.micro_batch, dp = c_.parallel.dp;
    if (const auto ramp = parse_batch_ramp(c_.data.batch_ramp)) {
      for (const RampEntry& entry : *ramp)
        if (entry.size % (micro * dp) != 0)
          add("data.batch_ramp: size {}, from token {} on, is not a multiple of data.micro_batch {} x dp {} = {}; set "
              "it to {}",
              entry.size, entry.tokens, micro, dp, micro * dp,
              either(multiples_around(entry.size, micro * dp), entry.size));
      return;
    }
    if (global % (micro * dp) == 0) return;
    add("data.global_batch: {} is not a multiple of data.micro_batch {} x dp {} = {}; set data.global_batch to "
        "{}{}",
        global, micro, dp, micro * dp, either(multiples_around(global, micro * dp), global),
        or_set("data.micro_batch", global % dp == 0 ? divisors(global / dp) : Numbers{}, micro));
  }

  void check_data() {
    const DataConfig& data = c_.data;
    std::set<std::string> names;
    for (size_t i = 0; i < data.validation.size(); ++i)
      if (!names.insert(data.validation[i].name).second)
        add("data.validation[{}].name: {} is the name of another file; give each its own", i, data.validation[i].name);
    if (data.reset_positions == AutoFlag::kTrue && !data.document_mask)
      add("data.reset_positions: true, but without data.document_mask a token attends to other documents, some of "
          "whose positions would be later than its own; set data.document_mask: true or data.reset_positions: auto");
    const auto check_sum = [&](const std::string& name, double sum) {
      if (!std::isfinite(sum)) add("{}: the sum of the weights is too large; divide each by the same number", name);
    };
    double sum = 0;
    for (const Source& source : data.sources) sum += source.weight;
    check_sum("data.sources", sum);
    for (size_t i = 0; i < data.stages.size(); ++i)
      check_sum(fmt::format("data.stages[{}].weights", i),
                std::accumulate(data.stages[i].weights.begin(), data.stages[i].weights.end(), 0.0));
    if (data.stages.empty()) return;
    if (!data.sources.empty())
      add("data.sources: the sources of a run with data.stages are those of its stages; set data.sources to []");
    int64_t before = 0;
    for (size_t i = 0; i < data.stages.size(); ++i) {
      const DataStage& stage = data.stages[i];
      const bool last = i + 1 == data.stages.size();
      if (stage.sources.empty()) add("data.stages[{}].sources: a stage needs at least one token file", i);
      if (!stage.weights.empty() && stage.weights.size() != stage.sources.size())
        add("data.stages[{}].weights: {} weights for {} sources; give one for each, or none", i, stage.weights.size(),
            stage.sources.size());
      for (size_t s = 0; s < stage.sources.size(); ++s)
        if (std::find(stage.sources.begin(), stage.sources.begin() + static_cast<std::ptrdiff_t>(s),
                      stage.sources[s]) != stage.sources.begin() + static_cast<std::ptrdiff_t>(s))
          add("data.stages[{}].sources: names {} twice; raise its weight instead", i, stage.sources[s]);
      const int64_t length = c_.model.seq_len;
      if (!last && stage.until_tokens == 0)
        add("data.stages[{}].until_tokens: is missing, but another stage follows; set it to the trained tokens after "
            "which this one ends",
            i);
      else if (!last && stage.until_tokens <= before)
        add("data.stages[{}].until_tokens: {} does not exceed the {} tokens before this stage; stages follow each "
            "other",
            i, stage.until_tokens, before);
      else if (!last && ceil_div(stage.until_tokens, length) == ceil_div(before, length))
        add("data.stages[{}].until_tokens: {} leaves no sample of model.seq_len {} for this stage, which begins at {} "
            "tokens; raise it, or remove the stage",
            i, stage.until_tokens, length, before);
      const int64_t run = c_.run.tokens > 0 ? c_.run.tokens : tokens_of_run(c_);
      if (last && stage.until_tokens > 0 && stage.until_tokens < run)
        add("data.stages[{}].until_tokens: the last stage ends at {} tokens, but the run trains {}; set it to {} or "
            "more, or omit it",
            i, stage.until_tokens, run, run);
      before = stage.until_tokens;
    }
  }

  void check_fp8() {
    const PrecisionConfig& p = c_.precision;
    if (p.gemm == GemmFormat::kCompute) return;
    if (int64_t{p.fp8_first_layers} + p.fp8_last_layers >= c_.model.layers)
      add("precision.gemm: {}, but precision.fp8_first_layers {} and fp8_last_layers {} leave none of {} layers in "
          "fp8; lower them, or set precision.gemm to compute",
          enum_name(p.gemm), p.fp8_first_layers, p.fp8_last_layers, c_.model.layers);
    for (const std::string& obstacle : fp8_obstacles(c_.model, c_.data.micro_batch, c_.parallel.tp, c_.parallel.cp))
      add("precision.gemm: fp8 {}; set precision.gemm to compute, or change the sizes", obstacle);
  }

  void check_lr() {
    const LrConfig& lr = c_.lr;
    const bool by_tokens = lr.by == LrBy::kTokens;
    // A length in the other unit would be ignored.
    const auto refuse = [&](const char* field, int64_t value, const char* other) {
      if (value != 0)
        add("{}: {}, but lr.by is {}; set {} instead, or lr.by to {}", field, value, enum_name(lr.by), other,
            by_tokens ? "steps" : "tokens");
    };
    refuse(by_tokens ? "lr.warmup_steps" : "lr.warmup_tokens", by_tokens ? lr.warmup_steps : lr.warmup_tokens,
           by_tokens ? "lr.warmup_tokens" : "lr.warmup_steps");
    refuse(by_tokens ? "lr.decay_steps" : "lr.decay_tokens", by_tokens ? lr.decay_steps : lr.decay_tokens,
           by_tokens ? "lr.decay_tokens" : "lr.decay_steps");
    if (by_tokens && lr.rule != LrRule::kConstant && lr.warmup_tokens > lr.decay_tokens)
      add("lr.warmup_tokens: {} exceeds lr.decay_tokens {} (0 = the tokens of the run); set lr.warmup_tokens to {} or "
          "less, or lr.decay_tokens to {} or more",
          lr.warmup_tokens, lr.decay_tokens, lr.decay_tokens, lr.warmup_tokens);
    if (!by_tokens && lr.rule != LrRule::kConstant &&
        lr.warmup_steps > lr.decay_steps)  // a constant rate does not decay
      add("lr.warmup_steps: {} exceeds lr.decay_steps {} (0 = run.steps); set lr.warmup_steps to {} or less; or, for a "
          "short trial of a longer schedule, lr.decay_steps to that schedule's steps, {} or more",
          lr.warmup_steps, lr.decay_steps, lr.decay_steps, lr.warmup_steps);
    const OptimizerConfig& optimizer = c_.optimizer;
    if (optimizer.adamw_lr > 0 && optimizer.name != OptimizerKind::kMuon)
      add("optimizer.adamw_lr: {} is used with optimizer.name: muon only, but that is {}; set lr.peak instead",
          optimizer.adamw_lr, enum_name(optimizer.name));
    if (lr.min > lr.peak) add("lr.min: {} exceeds lr.peak {}; set lr.min to {} or less", lr.min, lr.peak, lr.peak);
  }

  void check_accepted_changes() {
    std::set<std::string> known{"true"};
    std::vector<std::string> meant{"true"},
        keys{"true"};  // the settings that can be refused: the model, the order of samples
    for (const Section& section : config_sections())
      for (const Field& field : section.fields) {
        known.insert(field.name());
        if (field.on_resume != OnResume::kFixed && section.name != "data") continue;
        meant.push_back(field.name());
        keys.push_back(field.key);
      }
    for (const std::string& name : accepted_changes(c_)) {
      if (known.count(name)) continue;
      std::string near = nearest(name, meant);
      const std::string key = near.empty() ? nearest(name.substr(name.rfind('.') + 1), keys) : "";
      if (!key.empty()) near = meant[static_cast<size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin())];
      add("checkpoint.accept_changes: {} is not a field; {}", name,
          near.empty() ? "name fields, such as model.window, or set true" : "did you mean " + near + "?");
    }
  }

  Config c_;
  int64_t world_;
  int given_dp_;  // parallel.dp as set by the user; 0: derived
  std::vector<std::string> errors_;
};

}  // namespace

std::vector<SizeOverTp> sizes_over_tp(const ModelConfig& m) {
  std::vector<SizeOverTp> sizes{{m.heads, fmt::format("model.heads {}", m.heads)}};
  if (m.kv_heads != m.heads) sizes.push_back({m.kv_heads, fmt::format("model.kv_heads {}", m.kv_heads)});
  if (m.experts == 0 || m.dense_layers > 0)
    sizes.push_back({m.ffn_hidden, fmt::format("model.ffn_hidden {}", m.ffn_hidden)});
  sizes.push_back({padded_vocab(m), fmt::format("the padded vocabulary {} (model.vocab {} up to a multiple of {})",
                                                padded_vocab(m), m.vocab, kVocabMultiple)});
  return sizes;
}

std::vector<std::string> fp8_obstacles(const ModelConfig& m, int micro_batch, int tp, int cp) {
  std::vector<std::string> obstacles;
  const auto must_be_multiple = [&](int64_t value, const std::string& what) {
    if (value % kFp8Multiple != 0)
      obstacles.push_back(fmt::format("needs multiples of {}, but {} is {}", kFp8Multiple, what, value));
  };
  must_be_multiple(int64_t{micro_batch} * m.seq_len / cp,
                   cp == 1 ? "data.micro_batch x model.seq_len" : "data.micro_batch x model.seq_len / parallel.cp");
  must_be_multiple(m.hidden, "model.hidden");
  if (m.head_dim == 0 || m.kv_heads % tp != 0 || m.heads % m.kv_heads != 0 || m.ffn_hidden % tp != 0)
    return obstacles;  // already rejected for that
  const int64_t head = m.head_dim;
  must_be_multiple(m.heads * head / tp, "model.heads x model.head_dim / parallel.tp");
  must_be_multiple((m.heads + 2 * m.kv_heads) * head / tp, "a tp rank's width of queries, keys and values");
  if (m.experts == 0 || m.dense_layers > 0) must_be_multiple(m.ffn_hidden / tp, "model.ffn_hidden / parallel.tp");
  if (m.experts > 0) {
    must_be_multiple(m.expert_hidden, "model.expert_hidden");
    must_be_multiple(int64_t{micro_batch} * m.seq_len / cp / tp, "a tp rank's tokens of a microbatch");
  }
  return obstacles;
}

std::vector<Source> all_sources(const DataConfig& data) {
  if (data.stages.empty()) return data.sources;
  std::vector<Source> sources;
  for (const DataStage& stage : data.stages)
    for (const std::string& path : stage.sources)
      if (std::ranges::find(sources, path, &Source::path) == sources.end()) sources.push_back({path, 1.0});
  return sources;
}

bool needs_documents(const DataConfig& data) { return data.document_mask || !data.eod_loss; }

void fill_derived(ModelConfig& m) {
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.head_dim == 0 && m.heads > 0 && m.hidden % m.heads == 0) m.head_dim = m.hidden / m.heads;
  if (m.qkv_bias == AutoFlag::kAuto) m.qkv_bias = m.bias ? AutoFlag::kTrue : AutoFlag::kFalse;
  if (m.rope_original_seq_len == 0 && (m.rope_scaling == RopeScaling::kLlama3 || m.rope_scaling == RopeScaling::kYarn))
    m.rope_original_seq_len = m.seq_len;
  const int64_t hidden = m.hidden;
  const bool gated = is_gated(m.activation);
  // 8/3: three matrices then have as many parameters as two of width 4 x hidden.
  if (m.ffn_hidden == 0)
    m.ffn_hidden = static_cast<int>(gated ? round_up((8 * hidden + 2) / 3, kFfnMultiple) : 4 * hidden);
  if (m.experts > 0 && m.expert_hidden == 0) m.expert_hidden = m.ffn_hidden;
}

void fit_window(ModelConfig& m) {
  if (m.window >= m.seq_len) m.window = m.layer_pattern.empty() ? 0 : m.seq_len;
}

bool has_qkv_bias(const ModelConfig& m) {
  return m.qkv_bias == AutoFlag::kAuto ? m.bias : m.qkv_bias == AutoFlag::kTrue;
}

int64_t padded_vocab(const ModelConfig& model) { return round_up(model.vocab, kVocabMultiple); }

Result<int> planned_ranks(const Config& parsed, int requested) {
  if (requested < 0) return usage_error("--ranks {}: at least one is needed", requested);
  const ParallelConfig& p = parsed.parallel;
  if (requested == 0 && p.dp == 0)
    return usage_error("--ranks N is needed: parallel.dp 0 leaves the number of ranks open");
  const int64_t ranks = ranks_along(kAllAxes, p);
  if (requested == 0 && ranks > kMostRanks)
    return usage_error("parallel: {} exceeds the limit of {} ranks", sizes_along(kAllAxes, p), kMostRanks);
  if (requested > kMostRanks) return usage_error("--ranks {}: at most {} ranks are supported", requested, kMostRanks);
  return requested > 0 ? requested : static_cast<int>(ranks);
}

Result<Config> resolve_config(Config config, int world_size) {
  TRI_REQUIRE(world_size >= 1, "world size {}", world_size);
  return Resolver(std::move(config), world_size).run();
}

}  // namespace tri
