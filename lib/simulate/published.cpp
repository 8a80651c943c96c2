// Columns of a CSV file of measurements, in any order; lines that begin with # are comments.
//   source        group of rows in the table of errors
//   model         name; "llama", "nemotron" and "fp8" in it choose shapes and precision, otherwise it is a GPT in bf16;
//                 with the option experts it has LLaMA's norms, activation and positions
//   layers, hidden, heads, ffn, seq, vocab; gpus, tp, pp, v (chunks), dp, cp, micro_batch, global_batch
//   recompute     full, selective, norms or none; "SP" and "no-SP" turn sequence parallelism on and off
//   metric        step_s, step_ms, tok_s_gpu; tflops_gpu by the FLOPs of lib/model/flops.h or, if `recompute` says
//                 "counts", of Narayanan et al. 2021 with full recompute; tflops_gpu_causal without masked attention;
//                 mfu_pct of the bf16 peak; layer_fwd_ms, layer_bwd_ms of one layer alone; mem_gib that PyTorch's
//                 allocator held, mem_gb that the GPU reported
//   value
//   as            program (lib/simulate/programs.h); --as instead of the column
//   options       what the row's program did differently: names in kOptions with numbers, separated by spaces
//   cluster       cluster file, relative to the CSV file; --cluster instead of the column
//   constants     section.key=value of the cluster file, separated by spaces
#include "lib/simulate/published.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>

#include "io/base/file.h"
#include "io/base/format.h"
#include "io/base/json.h"
#include "lib/config/error_list.h"
#include "lib/model/flops.h"
#include "lib/simulate/step_memory.h"
#include "lib/simulate/step_model.h"

namespace tri::published {
namespace {

constexpr double kGigabyte = 1e9;

struct Option {
  const char* name;
  void (*apply)(Workload& w, double value);
};

constexpr Option kOptions[] = {
    {"kv_heads", [](Workload& w, double v) { w.model.kv_heads = static_cast<int>(v); }},
    {"window", [](Workload& w, double v) { w.model.window = static_cast<int>(v); }},
    {"parallel_block", [](Workload& w, double v) { w.model.block = v != 0 ? Block::kParallel : Block::kSequential; }},
    {"gradient_bytes", [](Workload& w, double v) { w.gradient_bytes = static_cast<int>(v); }},
    {"bucket_elements", [](Workload& w, double v) { w.bucket_elements = static_cast<int64_t>(v); }},
    {"zero", [](Workload& w, double v) { w.zero = static_cast<int>(v); }},
    {"overlap_tp", [](Workload& w, double v) { w.overlap_tp = v != 0; }},
    {"overlap_pp", [](Workload& w, double v) { w.overlap_pp = v != 0; }},
    {"overlap_dp", [](Workload& w, double v) { w.overlap_dp = v != 0; }},
    {"compiled", [](Workload& w, double v) { w.compiled = v != 0; }},
    {"fp8_weights", [](Workload& w, double v) { w.fp8_weights = v != 0; }},
    {"head_dim", [](Workload& w, double v) { w.model.head_dim = static_cast<int>(v); }},
    {"dense_layers", [](Workload& w, double v) { w.model.dense_layers = static_cast<int>(v); }},
    {"experts", [](Workload& w, double v) { w.model.experts = static_cast<int>(v); }},
    {"experts_per_token", [](Workload& w, double v) { w.model.experts_per_token = static_cast<int>(v); }},
    {"expert_hidden", [](Workload& w, double v) { w.model.expert_hidden = static_cast<int>(v); }},
    {"shared_experts", [](Workload& w, double v) { w.model.shared_experts = static_cast<int>(v); }},
    {"ep", [](Workload& w, double v) { w.ep = static_cast<int>(v); }},
    {"imbalance", [](Workload& w, double v) { w.imbalance = v; }},
    {"flops_per_token", [](Workload&, double) {}},  // of mfu_pct, where a source counts its own
};

const Option* find_option(std::string_view name) {
  const auto* at = std::ranges::find(kOptions, name, &Option::name);
  return at == std::end(kOptions) ? nullptr : at;
}

double option_of(const Row& row, std::string_view name, double otherwise) {
  for (const auto& [key, value] : row.options)
    if (key == name) return value;
  return otherwise;
}

struct Metric {
  std::string_view name;
  Quantity quantity;
};
constexpr Metric kMetrics[] = {
    {"step_s", Quantity::kStep},        {"step_ms", Quantity::kStep},           {"tok_s_gpu", Quantity::kStep},
    {"tflops_gpu", Quantity::kStep},    {"tflops_gpu_causal", Quantity::kStep}, {"mfu_pct", Quantity::kStep},
    {"layer_fwd_ms", Quantity::kLayer}, {"layer_bwd_ms", Quantity::kLayer},     {"mem_gb", Quantity::kMemory},
    {"mem_gib", Quantity::kMemory}};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(at), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return parts;
}

// Returns the fields of a line. A field in quotes may contain commas, and quotes as "".
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"')
      fields.back() += line[++i];
    else if (line[i] == '"')
      quoted = !quoted;
    else if (line[i] == ',' && !quoted)
      fields.emplace_back();
    else
      fields.back() += line[i];
  }
  return fields;
}

template <class T>
std::optional<T> number_in(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Size {
  const char* column;
  int Row::*member;
  bool required;
};
constexpr Size kSizes[] = {{"layers", &Row::layers, true},
                           {"hidden", &Row::hidden, true},
                           {"heads", &Row::heads, false},
                           {"ffn", &Row::ffn, false},
                           {"seq", &Row::seq, true},
                           {"vocab", &Row::vocab, false},
                           {"gpus", &Row::gpus, true},
                           {"tp", &Row::tp, true},
                           {"pp", &Row::pp, true},
                           {"v", &Row::v, false},
                           {"dp", &Row::dp, true},
                           {"cp", &Row::cp, false},
                           {"micro_batch", &Row::micro_batch, false},
                           {"global_batch", &Row::global_batch, true}};

class RowReader {
 public:
  RowReader(std::string path, const RowsOptions& options) : path_(std::move(path)), options_(options) {}

  Result<std::vector<Row>> read(std::string_view text) {
    int line = 0;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      std::string_view content = text.substr(0, end);
      text.remove_prefix(std::min(text.size(), end + 1));
      ++line;
      if (content.ends_with('\r')) content.remove_suffix(1);
      if (content.empty() || content.starts_with('#')) continue;
      if (columns_.empty())
        read_names(line, content);
      else
        read_row(line, fields_of(content));
      if (columns_.empty() || !missing_.empty()) break;
    }
    if (columns_.empty() && errors_.empty()) return usage_error("{}: is empty; expected a line of column names", path_);
    if (!errors_.empty()) return join_errors(errors_);
    if (rows_.empty()) return usage_error("{}: has no rows below its column names", path_);
    return std::move(rows_);
  }

 private:
  template <class... Args>
  void add(int line, fmt::format_string<Args...> format, Args&&... args) {
    errors_.push_back(fmt::format("{}:{}: {}", path_, line, fmt::format(format, std::forward<Args>(args)...)));
  }

  void read_names(int line, std::string_view content) {
    const std::vector<std::string> names = fields_of(content);
    for (size_t i = 0; i < names.size(); ++i) columns_.try_emplace(names[i], i);
    for (const char* name : {"source", "model", "metric", "value"})
      if (!columns_.contains(name)) missing_.emplace_back(name);
    for (const Size& size : kSizes)
      if (size.required && !columns_.contains(size.column)) missing_.emplace_back(size.column);
    if (!options_.program && !columns_.contains("as")) missing_.emplace_back("as (or give --as PROGRAM)");
    if (options_.cluster.empty() && !columns_.contains("cluster"))
      missing_.emplace_back("cluster (or give --cluster FILE)");
    if (names.size() == 1 && !content.starts_with("source")) {
      missing_ = {"source"};
      return add(line, "expected a CSV file, whose first line names its columns as in configs/published/published.csv");
    }
    for (const std::string& name : missing_) add(line, "has no column {}", name);
  }

  void read_row(int line, const std::vector<std::string>& fields) {
    const size_t before = errors_.size();
    if (fields.size() > columns_.size())
      return add(line, "has {} fields for {} columns; put a field with commas in quotes", fields.size(),
                 columns_.size());
    const auto field = [&](const char* name) -> std::string {
      const auto at = columns_.find(name);
      return at == columns_.end() || at->second >= fields.size() ? "" : fields[at->second];
    };
    Row row;
    row.line = line;
    row.source = field("source");
    row.model = field("model");
    row.recompute = field("recompute");
    row.metric = field("metric");
    for (const Size& size : kSizes) {
      const std::string text = field(size.column);
      const auto value = text.empty() ? 0 : number_in<int>(text);
      if (!value || *value < 0 || *value > kLargest)
        row.problem = fmt::format("{}: expected a whole number from 0 to {}, not {}", size.column, kLargest, text);
      else
        row.*size.member = *value;
    }
    const auto value = number_in<double>(field("value"));
    if (!value || !(*value > 0) || !std::isfinite(*value))
      row.problem = fmt::format("value: expected a number above 0, not {}", field("value"));
    else
      row.value = *value;
    read_program(line, field("as"), row);
    for (const std::string& setting : split(field("options"), ' ')) read_option(line, setting, row);
    row.cluster = options_.cluster;
    if (options_.cluster.empty()) {
      row.cluster = (std::filesystem::path(path_).parent_path() / field("cluster")).lexically_normal().string();
      if (field("cluster").empty()) add(line, "cluster: names no file; give --cluster FILE");
      row.constants = split(field("constants"), ' ');
    }
    row.constants.insert(row.constants.end(), options_.constants.begin(), options_.constants.end());
    if (errors_.size() == before) rows_.push_back(std::move(row));
  }

  void read_program(int line, const std::string& name, Row& row) {
    const auto named = enum_from_name<Program>(name);
    if (options_.program)
      row.program = *options_.program;
    else if (named)
      row.program = *named;
    else
      add(line, "as: {}; expected {}", name.empty() ? "names no program" : "unknown program " + name,
          enum_choices<Program>());
  }

  void read_option(int line, const std::string& setting, Row& row) {
    const size_t equals = std::min(setting.find('='), setting.size());
    const std::string name = setting.substr(0, equals);
    const auto value = number_in<double>(std::string_view(setting).substr(std::min(equals + 1, setting.size())));
    if (!find_option(name)) {
      std::vector<std::string> names;
      for (const Option& option : kOptions) names.emplace_back(option.name);
      return add(line, "options: unknown option {}; the options are {}", name, fmt::join(names, ", "));
    }
    if (!value || !(*value >= 0) || *value > 1e15) return add(line, "options: {}: expected {}=NUMBER", setting, name);
    row.options.emplace_back(name, *value);
  }

  static constexpr int kLargest = 100'000'000;
  std::string path_;
  const RowsOptions& options_;
  std::map<std::string, size_t> columns_;
  std::vector<std::string> missing_, errors_;
  std::vector<Row> rows_;
};

// Korthikanti et al. 2022, eq. 3, as counted in SC21: FLOPs of a step with full recompute.
double flops_with_recompute(const Row& r, const Workload& w) {
  const double s = r.seq, h = r.hidden, l = r.layers, v = w.model.vocab;
  return 96 * r.global_batch * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
}

// Returns the largest head size up to 128 that gives whole heads on each tp rank, if a source states no heads.
int default_heads(const Row& r) {
  for (int head = 128; head > 64; --head)
    if (r.hidden % head == 0 && r.hidden / head % r.tp == 0) return r.hidden / head;
  return std::max(1, r.hidden / 64);
}

double step_seconds(const Row& r, const Workload& w, const Cluster& cluster) {
  if (r.metric == "step_s") return r.value;
  if (r.metric == "step_ms") return r.value / 1000;
  const double tokens = static_cast<double>(r.global_batch) * r.seq;
  if (r.metric == "tok_s_gpu") return tokens / (r.value * r.gpus);
  if (r.metric == "mfu_pct") {
    const double flops = option_of(r, "flops_per_token", model_flops_per_token(w));
    return flops * tokens / (r.value / 100 * cluster.device.bf16_tflops * 1e12 * r.gpus);
  }
  const double rate = r.value * 1e12 * r.gpus;
  if (contains(r.recompute, "counts")) return flops_with_recompute(r, w) / rate;
  const AttentionWork work = r.metric == "tflops_gpu_causal" ? AttentionWork::kCausal : AttentionWork::kBand;
  return model_flops_per_token(w, work) * tokens / rate;
}

}  // namespace

Result<std::vector<Row>> read_rows(const std::string& path, const RowsOptions& options) {
  const auto text = MappedFile::open(path);
  if (!text) return usage_error("{}; expected a CSV file as in configs/published/", text.error().message);
  return RowReader(path, options).read(text.value().text());
}

Workload workload_of(const Row& r) {
  Workload w;
  ModelConfig& m = w.model;
  m.layers = r.layers;
  m.hidden = r.hidden;
  m.heads = r.heads > 0 ? r.heads : default_heads(r);
  m.head_dim = r.hidden / m.heads;
  m.kv_heads = m.heads;
  m.ffn_hidden = r.ffn > 0 ? r.ffn : 4 * r.hidden;
  m.seq_len = r.seq;
  m.vocab = r.vocab > 0 ? r.vocab : 51200;
  m.window = 0;
  m.norm = Norm::kLayerNorm;
  m.tie_embeddings = true;
  if (contains(r.model, "llama") || option_of(r, "experts", 0) > 0) {
    m.norm = Norm::kRmsNorm;
    m.activation = Activation::kSwiglu;
    m.position = Position::kRope;
    m.bias = m.tie_embeddings = false;
    m.kv_heads = contains(r.model, "llama2-7B") || contains(r.model, "llama2-13B") ? m.heads : 8;
    if (r.vocab == 0) m.vocab = contains(r.model, "llama3") ? 128256 : 32000;
  } else if (contains(r.model, "nemotron")) {
    m.position = Position::kRope;
    m.bias = m.tie_embeddings = false;
    m.kv_heads = contains(r.model, "nemotron4") || contains(r.model, "340B") ? 8 : m.heads;
  }
  w.numbers = contains(r.model, "fp8") ? Numbers::kFp8 : Numbers::kBf16;
  w.tp = r.tp;
  w.cp = std::max(1, r.cp);
  w.pp = r.pp;
  w.dp = r.dp;
  w.chunks = std::max(1, r.v);
  w.schedule = w.chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  w.micro_batch = std::max(1, r.micro_batch);
  w.global_batch = r.global_batch;
  w.recompute = contains(r.recompute, "full")        ? Recompute::kFull
                : contains(r.recompute, "selective") ? Recompute::kSelective
                : contains(r.recompute, "norms")     ? Recompute::kNorms
                                                     : Recompute::kNone;
  w.fp8_weights = true;
  w.dp_copies = r.tp == 1 && r.dp > 1;  // parallel.dp_transfers: auto, inside a machine
  run_as(r.program, w);
  if (contains(r.recompute, "SP")) set_sequence_parallel(r.program, !contains(r.recompute, "no-SP"), w);
  for (const auto& [name, value] : r.options) find_option(name)->apply(w, value);
  return w;
}

std::string problem_of(const Row& r) {
  if (!r.problem.empty()) return r.problem;
  if (std::ranges::find(kMetrics, r.metric, &Metric::name) == std::end(kMetrics))
    return "the metric " + r.metric + " is not predicted";
  for (const Size& size : kSizes)
    if (size.required && r.*size.member == 0) return fmt::format("{} is not stated", size.column);
  const int64_t chunks = std::max(1, r.v), micro_batch = std::max(1, r.micro_batch), cp = std::max(1, r.cp);
  for (const int64_t product : {int64_t{r.tp} * r.pp, int64_t{r.dp} * cp, r.pp * chunks, r.dp * micro_batch})
    if (product > kMostRanks) return fmt::format("its layout has more than {} ranks, chunks or samples", kMostRanks);
  if (int64_t{r.tp} * r.pp * r.dp * cp != r.gpus)
    return fmt::format("tp {} x cp {} x pp {} x dp {} does not equal its {} GPUs", r.tp, cp, r.pp, r.dp, r.gpus);
  const Workload w = workload_of(r);
  if (w.model.head_dim < 1 || w.model.kv_heads < 1 || w.model.heads % w.model.kv_heads != 0)
    return fmt::format("heads {} does not divide hidden {}, or kv_heads does not divide heads", w.model.heads,
                       r.hidden);
  const ModelConfig& m = w.model;
  if (m.experts > 0 && (m.expert_hidden < 1 || m.experts_per_token < 1 || m.experts_per_token > m.experts ||
                        m.dense_layers >= m.layers || (w.imbalance > 0 && w.imbalance < 1)))
    return "its experts are out of range";
  if (w.zero < 0 || w.zero > 3 || w.bucket_elements < 1 || w.gradient_bytes < 1) return "its options are out of range";
  return tri::problem_of(w);
}

Quantity quantity_of(const Row& row) { return std::ranges::find(kMetrics, row.metric, &Metric::name)->quantity; }

Comparison compare(const Row& r, const Cluster& cluster) {
  const Workload w = workload_of(r);
  const RingTimes transfers(cluster);
  switch (quantity_of(r)) {
    case Quantity::kStep:
      return {step_seconds(r, w, cluster), predict_step(w, cluster, transfers).seconds};
    case Quantity::kLayer: {
      const LayerTimes times = layer_times(w, w.layers()[0], cluster, transfers);
      return {r.value / 1000, (r.metric == "layer_fwd_ms" ? times.forward : times.backward).total()};
    }
    case Quantity::kMemory: {
      const double bytes = estimate_memory(w, gpu_of(cluster)).total();
      if (r.metric == "mem_gib") return {r.value * kGib, bytes};
      // CUDA's context and NCCL's buffers; PyTorch's caching allocator holds more than is in use.
      constexpr double kContext = 2 * kGigabyte, kHeld = 1.05;
      return {r.value * kGigabyte, kHeld * bytes + kContext};
    }
  }
  return {};
}

ErrorSummary summary_of(const std::vector<double>& errors) {
  ErrorSummary sum{.rows = errors.size()};
  if (errors.empty()) return sum;
  for (const double error : errors) {
    sum.bias += error;
    sum.mean += std::abs(error);
    sum.rms += error * error;
    sum.max = std::max(sum.max, std::abs(error));
  }
  const auto count = static_cast<double>(errors.size());
  sum.bias /= count;
  sum.mean /= count;
  sum.rms = std::sqrt(sum.rms / count);
  return sum;
}

Result<ErrorTable> error_table(const std::vector<Row>& rows) {
  std::map<std::pair<std::string, std::vector<std::string>>, Cluster> clusters;
  ErrorTable table;
  for (const Row& row : rows) {
    auto at = clusters.find({row.cluster, row.constants});
    if (at == clusters.end()) {
      auto cluster = read_cluster(row.cluster, row.constants);
      if (!cluster) return cluster.error();
      at = clusters.emplace(std::pair{row.cluster, row.constants}, std::move(cluster).value()).first;
    }
    if (problem_of(row).empty())
      table.rows.push_back({row, compare(row, at->second)});
    else
      table.skipped.push_back(row);
  }
  if (table.rows.empty())
    return usage_error("none of the rows can be predicted; the first, on line {}: {}", rows.front().line,
                       problem_of(rows.front()));
  return table;
}

namespace {

// Groups rows by a text that `key` returns, in the order of first appearance; rows without text are not counted.
template <class Key>
std::vector<std::pair<std::string, ErrorSummary>> summaries(const ErrorTable& table, Key key) {
  std::vector<std::pair<std::string, std::vector<double>>> groups;
  for (const RowError& row : table.rows) {
    const std::string name = key(row.row);
    if (name.empty()) continue;
    auto at = std::ranges::find(groups, name, [](const auto& group) { return group.first; });
    if (at == groups.end()) at = groups.insert(groups.end(), {name, {}});
    at->second.push_back(row.comparison.error());
  }
  std::vector<std::pair<std::string, ErrorSummary>> all;
  for (const auto& [name, errors] : groups) all.emplace_back(name, summary_of(errors));
  return all;
}

std::vector<std::pair<std::string, ErrorSummary>> by_source(const ErrorTable& table) {
  return summaries(table, [](const Row& row) { return row.source; });
}

std::string quantity_text(const Row& row, double value) {
  switch (quantity_of(row)) {
    case Quantity::kMemory:
      return fmt::format("{:.1f} GiB", value / kGib);
    case Quantity::kLayer:
    case Quantity::kStep:
      break;
  }
  return value < 1 ? fmt::format("{:.1f} ms", 1e3 * value) : fmt::format("{:.2f} s", value);
}

std::string summary_text(const std::string& name, const ErrorSummary& sum) {
  return fmt::format("{:<64}{:>6}{:>+9.1f} %{:>7.1f} %{:>7.1f} %{:>7.1f} %\n", name, sum.rows, 100 * sum.bias,
                     100 * sum.mean, 100 * sum.rms, 100 * sum.max);
}

}  // namespace

std::vector<std::pair<std::string, ErrorSummary>> summaries_by_cluster(const ErrorTable& table) {
  return summaries(table, [](const Row& row) {
    return row.constants.empty() && quantity_of(row) == Quantity::kStep ? row.cluster : std::string();
  });
}

std::string to_text(const ErrorTable& table) {
  std::string text, source;
  for (const RowError& row : table.rows) {
    const Row& r = row.row;
    if (r.source != source) text += fmt::format("{} as {}\n", source = r.source, enum_name(r.program));
    const std::string layout =
        fmt::format("{}, {} GPUs, tp {} pp {} x {} dp {}{}, micro-batch {} of {}, T {}{}", r.model, r.gpus, r.tp, r.pp,
                    std::max(1, r.v), r.dp, r.cp > 1 ? fmt::format(" cp {}", r.cp) : "", std::max(1, r.micro_batch),
                    r.global_batch, r.seq, r.recompute.empty() ? "" : ", " + r.recompute);
    text += fmt::format("  {:<98}{:>11}{:>11}{:>+8.1f} %\n", layout, quantity_text(r, row.comparison.measured),
                        quantity_text(r, row.comparison.predicted), 100 * row.comparison.error());
  }
  for (const Row& row : table.skipped)
    text += fmt::format("  skipped line {}, {}: {}\n", row.line, row.model, problem_of(row));
  const std::string heads = fmt::format("{:>6}{:>11}{:>9}{:>9}{:>9}\n", "rows", "bias", "mean", "rms", "max");
  text += fmt::format("\n{:<64}{}", "errors by source", heads);
  for (const auto& [name, sum] : by_source(table)) text += summary_text(name, sum);
  const auto clusters = summaries_by_cluster(table);
  if (!clusters.empty()) text += fmt::format("\n{:<64}{}", "steps by cluster file, without other constants", heads);
  for (const auto& [name, sum] : clusters) text += summary_text(name, sum);
  return text;
}

std::string to_json(const ErrorTable& table) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array(), skipped = Json::array();
  for (const RowError& row : table.rows)
    rows.push_back({{"line", row.row.line},
                    {"source", row.row.source},
                    {"model", row.row.model},
                    {"ranks", row.row.gpus},
                    {"as", enum_name(row.row.program)},
                    {"metric", row.row.metric},
                    {"measured", row.comparison.measured},
                    {"predicted", row.comparison.predicted},
                    {"error", row.comparison.error()}});
  for (const Row& row : table.skipped) skipped.push_back({{"line", row.line}, {"reason", problem_of(row)}});
  Json sums = Json::array();
  const auto add = [&](const char* by, const auto& summaries) {
    for (const auto& [name, sum] : summaries)
      sums.push_back({{"by", by},
                      {"name", name},
                      {"rows", sum.rows},
                      {"bias", sum.bias},
                      {"mean", sum.mean},
                      {"rms", sum.rms},
                      {"max", sum.max}});
  };
  add("source", by_source(table));
  add("cluster", summaries_by_cluster(table));
  return Json{{"rows", rows}, {"skipped", skipped}, {"errors", sums}}.dump(-1, ' ', false,
                                                                           Json::error_handler_t::replace) +
         "\n";
}

}  // namespace tri::published
