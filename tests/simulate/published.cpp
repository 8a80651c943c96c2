#include "tests/simulate/published.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "lib/model/flops.h"
#include "lib/simulate/step_model.h"

namespace tri::published {
namespace {

// Returns the fields of a CSV line; published.csv needs no quotes.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::stringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  fields.resize(20);
  return fields;
}

int number(const std::string& text) { return text.empty() ? 0 : std::stoi(text); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// Korthikanti et al. 2022, eq. 3, as counted in SC21: FLOPs of a step with full recompute.
double flops_with_recompute(const Row& r) {
  const double s = r.seq, h = r.hidden, l = r.layers, v = r.vocab;
  return 96 * r.global_batch * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
}

// Returns the largest head size up to 128 that gives whole heads on each tp rank, if a source states no heads.
int default_heads(const Row& r) {
  for (int head = 128; head > 64; --head)
    if (r.hidden % head == 0 && r.hidden / head % r.tp == 0) return r.hidden / head;
  return r.hidden / 64;
}

}  // namespace

std::vector<Row> read_rows(const std::string& name) {
  std::ifstream file(std::string(TRI_SOURCE_DIR) + "/tests/simulate/" + name);
  std::vector<Row> rows;
  std::string line;
  std::getline(file, line);  // skips the names
  while (std::getline(file, line)) {
    const std::vector<std::string> f = fields_of(line);
    rows.push_back({.source = f[0],
                    .model = f[1],
                    .gpu = f[8],
                    .recompute = f[17],
                    .metric = f[18],
                    .layers = number(f[2]),
                    .hidden = number(f[3]),
                    .heads = number(f[4]),
                    .ffn = number(f[5]),
                    .seq = number(f[6]),
                    .vocab = number(f[7]),
                    .gpus = number(f[9]),
                    .tp = number(f[10]),
                    .pp = number(f[11]),
                    .v = number(f[12]),
                    .dp = number(f[13]),
                    .cp = number(f[14]),
                    .micro_batch = number(f[15]),
                    .global_batch = number(f[16]),
                    .value = std::stod(f[19])});
  }
  return rows;
}

std::vector<Row> rows_of(const std::vector<Row>& rows, const std::string& source) {
  std::vector<Row> some;
  std::ranges::copy_if(rows, std::back_inserter(some), [&](const Row& r) { return r.source.starts_with(source); });
  return some;
}

Workload workload_of(const Row& r) {
  Workload w;
  ModelConfig& m = w.model;
  m.layers = r.layers;
  m.hidden = r.hidden;
  m.heads = r.heads > 0 ? r.heads : default_heads(r);
  m.head_dim = r.hidden / m.heads;
  m.kv_heads = m.heads;
  m.ffn_hidden = r.ffn;
  m.seq_len = r.seq;
  m.vocab = r.vocab > 0 ? r.vocab : 51200;
  m.window = 0;
  m.norm = Norm::kLayerNorm;
  m.tie_embeddings = true;
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
                                                     : Recompute::kNone;
  const bool llama = contains(r.model, "llama") || contains(r.source, "Llama3") || contains(r.source, "torchtitan");
  if (llama) {
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

  if (r.source.starts_with("MegaScale")) {
    const bool plain = contains(r.model, "Megatron-LM");
    m.block = plain ? Block::kSequential : Block::kParallel;
    // The paper does not state its window. A longer one saves less time than FLOPs, and so cannot gain what table 3
    // states.
    m.window = plain ? 0 : 512;
    w.recompute = Recompute::kNorms;    // sequence parallelism as in Megatron-LM: rows are gathered again
    w.bucket_elements = 1'000'000'000;  // one per chunk
    w.overlap_tp = w.overlap_pp = w.overlap_dp = !plain;
  } else if (contains(r.source, "torchtitan")) {
    w.zero = 3;
    w.gradient_bytes = 4;
    w.selective = SelectiveRecompute::kEverySecondGemm;
    w.eager_loss = w.cudnn_attention = true;
    w.compiled = contains(r.model, "compile");
    w.overlap_tp = contains(r.model, "asyncTP");
  } else if (r.source.starts_with("MPT")) {
    w.zero = 3;
    w.gradient_bytes = 2;
  } else if (r.source.starts_with("Trireme")) {
    w.gradient_bytes = 4;
    w.fp8_weights = r.source == "Trireme H200 own attention fp8";  // earlier FP8 steps kept a bf16 copy
  } else if (llama || contains(r.model, "nemotron") || contains(r.model, "gpt3")) {
    // NeMo and Megatron Core: all overlaps, gradients in bf16.
    w.gradient_bytes = 2;
    w.bucket_elements = std::max<int64_t>(40'000'000, int64_t{1'000'000} * w.dp * w.cp);  // Megatron Core's default
    if (r.source.starts_with("Llama3") && w.pp > 1) {
      w.schedule = Schedule::kInterleaved;
      w.chunks = 4;  // 126 layers and two ends over 16 stages; not stated
    }
  } else {  // Megatron-LM and DeepSpeed of 2021 and 2022: nothing overlaps
    w.overlap_tp = w.overlap_pp = w.overlap_dp = false;
    w.scores_kept = true;
    w.sequence_parallel = contains(r.recompute, "SP") && !contains(r.recompute, "no-SP");
    w.selective = SelectiveRecompute::kAttentionCore;
    w.gathers_again = w.sequence_parallel;
    w.async_sums = r.source.starts_with("Korthikanti");
    w.zero = r.source.starts_with("BLOOM") ? 1 : 0;
    // In fp16, BLOOM's trials and vTrain's programs accumulated gradients in fp16; BLOOM's own run, in bf16, in fp32.
    w.gradient_bytes = r.source.starts_with("BLOOM prequel") || r.source.starts_with("vTrain") ? 2 : 4;
  }
  return w;
}

double step_seconds(const Row& r) {
  if (r.metric == "step_s") return r.value;
  if (r.metric == "step_ms") return r.value / 1000;
  const double tokens = static_cast<double>(r.global_batch) * r.seq;
  if (r.metric == "tok_s_gpu") return tokens / (r.value * r.gpus);
  if (r.metric == "tflops_gpu" && contains(r.recompute, "counts"))
    return flops_with_recompute(r) / (r.value * 1e12 * r.gpus);
  const Workload w = workload_of(r);
  const double rate = r.metric == "tflops_gpu" ? r.value * 1e12 : 0;
  if (r.source.starts_with("Llama3")) {  // counts what the causal mask leaves: its row of 131,072 tokens says so
    Config config;
    config.model = w.model;
    return model_flops_per_token(config, AttentionWork::kCausal) * tokens / (rate * r.gpus);
  }
  if (rate > 0) return model_flops_per_token(w) * tokens / (rate * r.gpus);
  if (r.metric == "mfu_pct") {
    // MegaScale: MFU times seconds gives 1.076e12 FLOP per token for Megatron-LM and 1.065e12 for MegaScale (175B);
    // 530B uses the formula of lib/model/flops.h.
    const bool plain = contains(r.model, "Megatron-LM") || contains(r.model, "baseline") || contains(r.model, "PTB");
    const double flops = r.hidden == 12288 ? (plain ? 1.076e12 : 1.065e12) : model_flops_per_token(w);
    return flops * tokens / (r.value / 100 * 312e12 * r.gpus);
  }
  return 0;
}

std::string cluster_path(const std::string& name) {
  return std::string(TRI_SOURCE_DIR) + "/configs/clusters/" + name + ".yaml";
}

double mean_error(const std::vector<Error>& errors) {
  double sum = 0;
  for (const Error& error : errors) sum += std::abs(error.value);
  return errors.empty() ? 0 : sum / static_cast<double>(errors.size());
}

double max_error(const std::vector<Error>& errors) {
  double most = 0;
  for (const Error& error : errors) most = std::max(most, std::abs(error.value));
  return most;
}

double error_of(const Row& row, const Cluster& cluster) {
  return predict_step(workload_of(row), cluster).seconds / step_seconds(row) - 1;
}

std::vector<Error> errors_of(const std::vector<Row>& rows, const Cluster& cluster) {
  std::vector<Error> errors;
  for (const Row& row : rows)
    if (!row.metric.starts_with("mem") && !row.metric.starts_with("layer"))
      errors.push_back({fmt::format("{} {} GPUs", row.model, row.gpus), error_of(row, cluster)});
  return errors;
}

void print(const std::string& what, const std::vector<Error>& errors) {
  fmt::print("| {:<64} | {:>3} rows | mean {:>5.2f} % | max {:>5.2f} % |\n", what, errors.size(),
             100 * mean_error(errors), 100 * max_error(errors));
}

void print_rows(const std::vector<Error>& errors) {
  for (const Error& error : errors) fmt::print("    {:<50} {:>+6.1f} %\n", error.label, 100 * error.value);
}

void fit(std::vector<Knob> knobs, const std::function<double()>& loss) {
  double best = loss();
  for (int round = 0; round < 5; ++round)
    for (Knob& knob : knobs) {
      bool moved = false;
      for (const double sign : {1.0, -1.0})
        for (bool better = true; better;) {
          const double before = *knob.value;
          *knob.value = std::clamp(before + sign * knob.step, knob.low, knob.high);
          const double now = loss();
          better = now < best - 1e-12;
          if (better) {
            best = now;
            moved = true;
          } else {
            *knob.value = before;
          }
        }
      if (!moved) knob.step /= 2;
    }
}

}  // namespace tri::published
