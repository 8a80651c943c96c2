#include "lib/simulate/step_model.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "lib/model/attention.h"
#include "lib/simulate/document_samples.h"
#include "lib/simulate/muon_costs.h"

namespace tri {
namespace {

// Bytes of optimizer traffic per f32 element of this rank's slices. The update reads gradient, master weight and
// states, and writes the master weight, the states and the parameter's copy. The norm reads the gradient once more,
// and the average of the weights reads the master weight.
double optimizer_bytes(const Workload& w, int state_bytes) {
  const double copy = w.numbers == Numbers::kFp32 ? 0 : 2;
  return 4 + 4 + 8 + 2.0 * state_bytes + copy + (w.averages_weights ? 4 : 0);
}

double parameter_bytes(const Workload& w) { return w.numbers == Numbers::kFp32 ? 4 : 2; }

class StepModel {
 public:
  StepModel(const Workload& w, const Cluster& c, const TransferTimes& transfers)
      : w_(w), c_(c), transfers_(transfers), layers_(w.layers()) {
    for (const LayerSpec& layer : layers_.kinds) layer_times_.push_back(layer_times(w, layer, c, transfers));
    for (int rank = 0; rank < w.pp; ++rank) muon_.push_back(muon_costs(w, layers_, c, rank));
    embedding_ = embedding_times(w, c, transfers);
    head_ = head_times(w, c, transfers);
  }

  ColumnCosts column() const {
    ColumnCosts costs{.schedule = w_.schedule,
                      .stages = w_.pp,
                      .chunks = w_.chunks,
                      .num_microbatches = w_.num_microbatches(),
                      .transfers = w_.overlap_pp                   ? StageTransfers::kConcurrent
                                   : c_.software.coupled_transfers ? StageTransfers::kCoupled
                                                                   : StageTransfers::kBlocked,
                      .transfer = message_seconds(),
                      .plan = plan_costs(w_)};
    for (int stage = 0; stage < w_.pp * w_.chunks; ++stage) {
      const LayerTimes times = stage_times(stage);
      costs.forward.push_back(times.forward.total() + weight_waits(stage, false));
      costs.backward.push_back(times.backward.total() + weight_waits(stage, true));
      if (splits_backward(w_.schedule)) costs.weight.push_back(times.weight.total());
    }
    return costs;
  }

  StepCosts costs() const {
    StepCosts costs{.column = column()};
    for (int stage = 0; stage < w_.pp * w_.chunks; ++stage) {
      costs.stages.push_back(stage_times(stage));
      costs.traffic.push_back(traffic(stage));
    }
    for (int rank = 0; rank < w_.pp; ++rank) {
      costs.optimizer.push_back(optimizer_seconds(rank));
      costs.tied.push_back(tied_seconds(rank));
    }
    return costs;
  }

  double bound() const {
    double slowest = 0, passed = 0, passed_slowest = 0;
    for (int rank = 0; rank < w_.pp; ++rank) {
      double busy = 0, passes = 0;
      for (int chunk = 0; chunk < w_.chunks; ++chunk) {
        const int stage = w_.virtual_stage(rank, chunk);
        const LayerTimes times = stage_times(stage);
        busy += times.forward.total() + times.backward.total() + times.weight.total() + weight_waits(stage, false) +
                weight_waits(stage, true);
        passes += times.forward.total() + times.backward.total() - times.weight.total();
      }
      // Of uneven chunks it may be a short one.
      // A folded pipeline waits for about a forward pass.
      const double time = folds(w_.schedule) ? busy / 4 : splits_backward(w_.schedule) ? std::max(0.0, passes) : busy;
      const double chunk = w_.layers_per_chunk.empty() || w_.chunks == 1 ? time / w_.chunks : 0;
      if (busy > slowest) {
        slowest = busy;
        passed_slowest = chunk;
      }
      passed += chunk;
    }
    // The slowest stage processes all microbatches. The first microbatch reaches it, and the last one leaves it,
    // through one chunk of each other stage. With split backward passes, gradients of weights fill a part of that time.
    const double compute = w_.num_microbatches() * slowest + passed - passed_slowest;
    double reductions = 0;  // per microbatch
    for (int chunk = 0; chunk < w_.chunks; ++chunk) {
      const ChunkTraffic buckets = traffic(w_.virtual_stage(0, chunk));
      reductions += buckets.buckets * buckets.reduce;
    }
    const double reduced = w_.overlap_dp ? compute + earlier_reductions(reductions, compute)
                                         : compute + reductions * (w_.zero == 2 ? w_.num_microbatches() : 1);
    return (reduced + optimizer_seconds(0)) * (1 + straggler_share());
  }

  TransferLoads loads() const {
    TransferLoads loads;
    if (w_.pp > 1) loads.pp_direction = w_.num_microbatches() * w_.chunks * message_seconds();
    for (int chunk = 0; chunk < w_.chunks; ++chunk) {
      const ChunkTraffic buckets = traffic(w_.virtual_stage(0, chunk));
      const int reductions = w_.zero == 2 ? w_.num_microbatches() : 1;
      loads.dp += buckets.buckets * (reductions * buckets.reduce + buckets.gather);
      if (w_.zero == 3 && w_.reducing() > 1)
        layers_.for_kinds(layers_of_stage(w_, w_.virtual_stage(0, chunk)), [&](const LayerSpec& layer, int count) {
          loads.dp += w_.num_microbatches() * count * (2 * weight_gather_seconds(layer) + weight_reduce_seconds(layer));
        });
    }
    return loads;
  }

  StepPrediction predict(Stragglers stragglers) const {
    const ColumnCosts costs = column();
    const ColumnTimes times = time_column(costs);
    StepPrediction prediction;
    const double turns = turns_seconds(times);  // the busiest rank's wait for a core
    // The step ends when the last stage has finished compute, reductions and the optimizer.
    double end = 0;
    for (int stage = 0; stage < w_.pp; ++stage) {
      if (times.busy[stage] > times.busy[prediction.busiest_stage]) prediction.busiest_stage = stage;
      end = std::max(end, reduced_at(times, costs, stage) + tied_seconds(stage) + optimizer_seconds(stage));
    }
    const int busiest = prediction.busiest_stage;
    StepParts& parts = prediction.parts;
    double waits = 0;  // for sharded weights
    for (int chunk = 0; chunk < w_.chunks; ++chunk) {
      const int stage = w_.virtual_stage(busiest, chunk);
      const LayerTimes stage_costs = stage_times(stage);
      PassTimes sum = stage_costs.forward;
      sum += stage_costs.backward;
      sum += stage_costs.weight;
      sum = costs.num_microbatches * sum;
      parts.gemm += sum.gemm;
      parts.attention += sum.attention;
      parts.memory += sum.memory;
      parts.tp += sum.tp;
      parts.ep += sum.ep;
      parts.fixed += sum.fixed;
      waits += costs.num_microbatches * (weight_waits(stage, false) + weight_waits(stage, true));
    }
    parts.optimizer = optimizer_seconds(busiest);
    std::vector<ChunkTraffic> buckets;
    for (int stage = 0; stage < w_.pp * w_.chunks; ++stage) buckets.push_back(traffic(stage));
    const double gathered = gather_wait(w_, costs, buckets, times.first_forward, c_.software.hidden_share);
    parts.dp = end - parts.optimizer - times.makespan + gathered + waits;
    if (parts.dp < 0) parts.dp = 0;
    ColumnCosts without = costs;
    without.transfer = 0;
    without.transfers = StageTransfers::kConcurrent;
    parts.pp = w_.pp > 1 ? std::max(0.0, times.makespan - time_column(without).makespan) : 0;
    parts.bubble = times.makespan - times.busy[busiest] - parts.pp + turns;
    const double busy = end + gathered + turns;
    parts.stragglers = stragglers == Stragglers::kOn ? busy * straggler_share() : 0;
    prediction.seconds = 0;
    for (const auto& [name, seconds] : named_parts(parts)) prediction.seconds += seconds;
    return prediction;
  }

 private:
  LayerTimes stage_times(int stage) const {
    LayerTimes times;
    layers_.for_kinds(layers_of_stage(w_, stage), [&](const LayerSpec& layer, int count) {
      const LayerTimes& one = times_of(layer);
      times += {count * one.forward, count * one.backward, count * one.weight};
    });
    if (stage == 0) {
      times.forward += embedding_.forward;
      times.backward += embedding_.backward;
    }
    if (stage + 1 == w_.pp * w_.chunks) times.backward += head_.backward;
    return times;
  }

  // Where ranks share cores: the total work divided by the cores, less the pipeline's own duration.
  double turns_seconds(const ColumnTimes& times) const {
    const int ranks = std::min(w_.ranks(), c_.node.ranks);
    if (c_.node.workers == 0 || ranks <= c_.node.workers) return 0;
    double busy = 0;
    for (const double seconds : times.busy) busy += seconds;
    return std::max(0.0, busy / w_.pp * ranks / c_.node.workers - times.makespan);
  }

  double message_seconds() const {
    if (w_.pp == 1) return 0;
    const double rows = static_cast<double>(w_.micro_batch) * w_.model.seq_len / w_.cp / w_.tp;
    const double bytes = rows * w_.model.hidden * (w_.numbers == Numbers::kFp32 ? 4 : 2);
    const bool crosses = w_.ranks() > c_.node.ranks;
    const double message = transfers_.seconds({Collective::kMessage, bytes, 2, crosses ? 1 : 2, TransferAxis::kPp});
    // Batched calls send both ways at once through one adapter.
    const bool coupled = !w_.overlap_pp && c_.software.coupled_transfers;
    return coupled ? 2 * message + c_.software.exchange_us * 1e-6 : message;
  }

  // The part of a stage's elements that is stored in FP8.
  double stage_fp8_weights(int stage) const { return w_.fp8_weights ? fp8_layer_parameters(w_, layers_, stage) : 0; }

  Transfer over_dp(Collective kind, double bytes, ReducedOver over = ReducedOver::kBuckets) const {
    const int group = w_.reducing(over);
    return {kind, bytes, group, members_on_node(c_, w_.reducing_stride(over), group)};
  }

  // The first and the last stage add up the gradients of their shared table after all other reductions.
  double tied_seconds(int rank) const {
    if (w_.end_rank() == 0 || !w_.model.tie_embeddings || (rank > 0 && rank < w_.pp - 1)) return 0;
    const bool one_node = w_.stage_stride() * (w_.pp - 1) < c_.node.ranks;
    return transfers_.seconds({.kind = Collective::kAllReduce,
                               .bytes = embedding_parameters(w_) / w_.tp * w_.gradient_bytes,
                               .ranks = 2,
                               .on_node = one_node ? 2 : 1,
                               .axis = TransferAxis::kPp});
  }

  const LayerTimes& times_of(const LayerSpec& layer) const {
    const auto at = std::ranges::find(layers_.kinds, layer) - layers_.kinds.begin();
    return layer_times_.at(static_cast<size_t>(at));
  }
  double weight_gather_seconds(const LayerSpec& layer) const {
    return transfers_.seconds(over_dp(Collective::kAllGather, layer.weights() / w_.tp * parameter_bytes(w_)));
  }
  double weight_reduce_seconds(const LayerSpec& layer) const {
    return transfers_.seconds(over_dp(Collective::kReduceScatter, layer.weights() / w_.tp * w_.gradient_bytes));
  }

  // Zero 3 gathers a stage's weights before each use and reduces its gradients after it, one layer at a time, alongside
  // the compute of another layer.
  double weight_waits(int stage, bool backward) const {
    if (w_.zero < 3 || w_.reducing() == 1) return 0;
    double seconds = 0;
    layers_.for_kinds(layers_of_stage(w_, stage), [&](const LayerSpec& layer, int count) {
      const double transfer = weight_gather_seconds(layer) + (backward ? weight_reduce_seconds(layer) : 0);
      const LayerTimes& times = times_of(layer);
      const double compute = (backward ? times.backward : times.forward).total();
      const double hidden = w_.overlap_dp ? std::min(transfer * c_.software.hidden_share, compute) : 0;
      seconds += count * (transfer - hidden + hidden * c_.software.beside_slowdown);
    });
    return seconds;
  }

  ChunkTraffic traffic(int stage) const {
    if (w_.zero == 3) return {};
    const Elements elements = elements_of_virtual_stage(w_, layers_, stage);
    const double gathered =
        elements.total() * parameter_bytes(w_) - stage_fp8_weights(stage);  // a quantized value takes one byte
    ChunkTraffic traffic{.buckets = 0};  // with the mean times of the buckets, which are reduced over different ranks
    for (const ReducedOver over : kReducedOver) {
      if (w_.reducing(over) == 1 || elements[over] == 0) continue;
      const int buckets =
          std::max(1, static_cast<int>(std::ceil(elements[over] / static_cast<double>(w_.bucket_elements))));
      const double bucket = elements[over] / buckets, share = elements[over] / elements.total();
      traffic.buckets += buckets;
      traffic.reduce +=
          buckets * transfers_.seconds(over_dp(w_.zero == 0 ? Collective::kAllReduce : Collective::kReduceScatter,
                                               bucket * w_.gradient_bytes, over));
      if (w_.zero > 0)
        traffic.gather +=
            buckets * transfers_.seconds(over_dp(Collective::kAllGather, gathered * share / buckets, over));
    }
    if (traffic.buckets == 0) return {};
    traffic.reduce /= traffic.buckets;
    traffic.gather /= traffic.buckets;
    return traffic;
  }

  // Returns when the stage's last bucket is reduced. Buckets become ready evenly during the last backward of their
  // chunk; with zero 2, during the backward of each microbatch.
  double reduced_at(const ColumnTimes& times, const ColumnCosts& costs, int rank) const {
    double stream = 0, total = 0;
    for (int chunk = w_.chunks - 1; chunk >= 0; --chunk) {
      const int stage = w_.virtual_stage(rank, chunk);
      const ChunkTraffic buckets = traffic(stage);
      total += buckets.buckets * buckets.reduce;
      for (int bucket = 1; bucket <= buckets.buckets; ++bucket) {
        const double left = 1 - static_cast<double>(bucket) / buckets.buckets;
        const double last = costs.weight.empty() ? costs.backward[stage] : costs.weight[stage];
        const double fired = times.last_backward[stage] - left * last;
        stream = std::max(stream, fired) + buckets.reduce;
      }
    }
    const double compute = times.end[rank], sums = sum_seconds(rank);
    if (!w_.overlap_dp) return compute + sums + total * (w_.zero == 2 ? costs.num_microbatches : 1);
    const double exposed = reductions_exposed(stream - compute, total, c_.software.hidden_share);
    const double hidden = std::max(0.0, total - exposed);
    return compute + sums + exposed + earlier_reductions(total, compute) + hidden * c_.software.beside_slowdown;
  }

  // A step's time for adding up the gradients that the other members of the dp group copied here
  // (lib/optim/gradient_buckets.cpp). The kernel runs on the multiprocessors, from which it displaces compute. It reads
  // every member's part of this rank's slices, and writes the sums. NCCL's transfers include their sums.
  double sum_seconds(int rank) const {
    const double members = w_.reducing();
    if (!w_.dp_copies || w_.zero == 0 || w_.zero == 3 || members == 1) return 0;
    const double elements = elements_of_stage(w_, layers_, rank)[ReducedOver::kBuckets];
    const double bytes = elements * w_.gradient_bytes * (1 + 1 / members);
    return (w_.zero == 2 ? w_.num_microbatches() : 1) * bytes / memory_bytes_per_second(c_);
  }

  // What zero 2's reductions of all microbatches except the last one, `total` each, add to a step with this compute
  // time. They hide behind those microbatches' compute, which they slow down.
  double earlier_reductions(double total, double compute) const {
    if (w_.zero != 2) return 0;
    const int microbatches = w_.num_microbatches();
    const double all = (microbatches - 1) * total;
    const double hidden = std::min(all * c_.software.hidden_share, compute * (microbatches - 1) / microbatches);
    return all - hidden + hidden * c_.software.beside_slowdown;
  }

  double optimizer_seconds(int rank) const {
    const double slices = w_.zero == 0 ? 1 : w_.reducing();
    const Elements elements = elements_of_stage(w_, layers_, rank), matrices = matrices_of_stage(w_, layers_, rank);
    double bytes = 0;
    for (const ReducedOver over : kReducedOver) {
      const int parts = w_.zero == 0 ? 1 : w_.reducing(over);
      bytes += ((elements[over] - matrices[over]) * optimizer_bytes(w_, w_.optimizer_bytes) +
                matrices[over] * optimizer_bytes(w_, w_.matrix_bytes)) /
               parts;
    }
    // FP8 GEMMs read weights in both orientations, once a step. Either the update writes quantized values instead of
    // the copy (1 byte instead of 2) and these are transposed (1 read, 1 written), or the copy is cast (2 read, 1
    // written for each orientation).
    for (int chunk = 0; chunk < w_.chunks; ++chunk)
      bytes += fp8_layer_parameters(w_, layers_, w_.virtual_stage(rank, chunk)) * (w_.fp8_weights ? 2 - 1 / slices : 4);
    const MuonCosts& muon = muon_[static_cast<size_t>(rank)];
    bytes += muon.bytes;
    double seconds = bytes / (c_.device.memory_gb_per_s * 1e9 * c_.software.memory_share) + muon.gemms;
    if (muon.exchanged == 0) return seconds;
    // Parts and results of the matrices: all windows, and those of the first and the last one, which nothing hides.
    const int group = w_.tp * w_.reducing();
    const double exchange =
        transfers_.seconds({Collective::kReduceScatter, muon.exchanged / group, group, members_on_node(c_, 1, group)});
    seconds = w_.overlap_dp ? std::max(seconds, 2 * exchange) + 2 * exchange / muon.windows : seconds + 2 * exchange;
    return seconds;
  }

  // The mean share by which the slowest machine makes a step longer, plus the largest jitter of all ranks.
  double straggler_share() const {
    const double nodes = std::ceil(static_cast<double>(w_.ranks()) / c_.node.ranks);
    const double met = 1 - std::pow(1 - c_.stragglers.share, nodes);
    const double jitter = w_.ranks() > 1 ? c_.stragglers.jitter * std::sqrt(2 * std::log(w_.ranks())) : 0;
    return c_.stragglers.slowdown * met + jitter;
  }

  const Workload& w_;
  const Cluster& c_;
  const TransferTimes& transfers_;
  const Layers layers_;
  std::vector<LayerTimes> layer_times_;  // [kind of layers_]
  std::vector<MuonCosts> muon_;          // [pp rank]
  LayerTimes embedding_, head_;
};

}  // namespace

double gather_wait(const Workload& w, const ColumnCosts& column, const std::vector<ChunkTraffic>& traffic,
                   const std::vector<double>& first_forward, double hidden_share) {
  double most = 0;
  for (int rank = 0; rank < w.pp; ++rank) {
    double stream = 0;
    for (int chunk = 0; chunk < w.chunks; ++chunk) {
      const auto stage = static_cast<size_t>(w.virtual_stage(rank, chunk));
      const ChunkTraffic& t = traffic[stage];
      const double first = stream + t.gather;
      stream += t.buckets * t.gather;
      // Compute waits for a bucket just before its first use. It uses the last bucket when it has done the other
      // buckets' share of the chunk's forward pass. Between the first and the last bucket the wait changes evenly.
      const double before_last = column.forward[stage] * (t.buckets - 1) / t.buckets;
      most = std::max(most, w.overlap_dp ? std::max(first, stream - before_last) - first_forward[stage] : stream);
    }
    most = std::max(most, (1 - hidden_share) * stream);
  }
  return most;
}

StepCosts step_costs(const Workload& workload, const Cluster& cluster, const TransferTimes& transfers) {
  return StepModel(workload, cluster, transfers).costs();
}

TransferLoads transfer_loads(const Workload& workload, const Cluster& cluster, const TransferTimes& transfers) {
  return StepModel(workload, cluster, transfers).loads();
}

double bound_step(const Workload& workload, const Cluster& cluster, const TransferTimes& transfers) {
  return StepModel(workload, cluster, transfers).bound();
}

StepPrediction predict_step(const Workload& w, const Cluster& c, const TransferTimes& transfers,
                            Stragglers stragglers) {
  TRI_REQUIRE(problem_of(w).empty(), "{}", problem_of(w));
  StepPrediction prediction = StepModel(w, c, transfers).predict(stragglers);
  const double tokens = static_cast<double>(w.global_batch) * w.model.seq_len;
  const double peak = w.numbers == Numbers::kFp32 ? c.device.fp32_tflops : c.device.bf16_tflops;
  prediction.tokens_per_second = tokens / prediction.seconds;
  prediction.tflops_per_rank = model_flops_per_token(w) * prediction.tokens_per_second / w.ranks() / 1e12;
  prediction.mfu = prediction.tflops_per_rank / peak;
  prediction.mfu_causal = prediction.mfu * model_flops_per_token(w, AttentionWork::kCausal) / model_flops_per_token(w);
  if (w.numbers == Numbers::kFp8 && c.device.fp8_tflops > 0)
    prediction.mfu_fp8 = prediction.tflops_per_rank / c.device.fp8_tflops;
  return prediction;
}

StepPrediction predict_step(const Workload& workload, const Cluster& cluster) {
  return predict_step(workload, cluster, RingTimes(cluster));
}

std::vector<std::pair<std::string, double>> named_parts(const StepParts& parts) {
  return {{"gemm", parts.gemm},           {"attention", parts.attention},
          {"memory_bound", parts.memory}, {"tp_exposed", parts.tp},
          {"ep_exposed", parts.ep},       {"pp_exposed", parts.pp},
          {"dp_exposed", parts.dp},       {"bubble", parts.bubble},
          {"optimizer", parts.optimizer}, {"stragglers", parts.stragglers},
          {"fixed", parts.fixed}};
}

const char* part_title(const std::string& name) {
  constexpr std::pair<const char*, const char*> kTitles[] = {{"gemm", "GEMMs"},
                                                             {"attention", "attention"},
                                                             {"memory_bound", "memory-bound kernels"},
                                                             {"tp_exposed", "exposed tp transfers"},
                                                             {"ep_exposed", "exposed ep transfers"},
                                                             {"pp_exposed", "exposed pp transfers"},
                                                             {"dp_exposed", "exposed dp transfers"},
                                                             {"bubble", "pipeline bubble"},
                                                             {"optimizer", "optimizer"},
                                                             {"stragglers", "stragglers"},
                                                             {"fixed", "fixed (host and data)"}};
  for (const auto& [key, title] : kTitles)
    if (name == key) return title;
  return "";
}

StepPrediction predict_with_buckets(Workload& workload, const Cluster& cluster, const TransferTimes& transfers) {
  constexpr double kWorthIt = 0.995;
  StepPrediction best = predict_step(workload, cluster, transfers);
  if (!workload.reduces()) return best;
  double largest = 0;  // elements of a stage
  const Layers layers = workload.layers();
  for (int stage = 0; stage < workload.pp; ++stage)
    largest = std::max(largest, parameters_of_stage(workload, layers, stage));
  Workload larger = workload;
  while (static_cast<double>(larger.bucket_elements) < largest) {
    larger.bucket_elements *= 2;
    const StepPrediction step = predict_step(larger, cluster, transfers);
    if (step.seconds >= kWorthIt * best.seconds) continue;
    best = step;
    workload.bucket_elements = larger.bucket_elements;
  }
  return best;
}

std::string attention_note(const Workload& workload, const Cluster& cluster) {
  if (cluster.software.name != "Trireme" || workload.numbers == Numbers::kFp32) return "";
  const AttentionShape shape =
      kernel_shape(workload.layers()[0].attention, workload.tp, workload.cp, Dtype::kBF16, workload.micro_batch);
  const std::string warning = scalar_attention_warning(AttentionKernel::kAuto, shape, GpuProperties{});
  return warning.empty() ? "" : warning + "; the predicted times assume tensor cores, so they are far too short";
}

std::string experts_note(const Workload& workload) {
  if (workload.model.experts == 0) return "";
  return fmt::format(
      "experts: {}; predictions of published steps of models with experts are off by 11 to 56 %, more than the "
      "uncertainty (`trireme simulate --rows configs/published/moe.csv`)",
      workload.ep == 1
          ? std::string("with ep 1 no rows are sent")
          : fmt::format("the fullest rank is assumed to receive {:.2f} times the mean of the rows{}",
                        workload.fullest_rank(), workload.ep_copies ? "" : ", and no compute to hide their transfers"));
}

std::string documents_note(const Workload& workload, const Cluster& cluster) {
  if (!workload.document_mask) return "";
  if (cluster.software.scores_in_memory)
    return "data.document_mask: attention whose scores are in memory (scores_in_memory) computes the pairs of whole "
           "samples, so documents change no time";
  if (!workload.documents)
    return "data.document_mask: the prediction is for samples of one document each; attention within shorter "
           "documents takes less time (--document-tokens, or data.sources on this machine)";
  const DocumentSamples& documents = *workload.documents;
  double whole = 0, inside = 0, excess = 0;
  const Layers layers = workload.layers();
  for (const LayerSpec& layer : layers.kinds) {
    const int window = layer.attention.window;
    whole += layer.attention.keys_per_query(AttentionWork::kCausal);
    inside += documents.keys_per_query(AttentionWork::kCausal, window);
    excess = std::max(excess, documents.excess_of_busiest(window, workload.dp,
                                                          static_cast<double>(workload.global_batch) / workload.dp));
  }
  return fmt::format(
      "data.document_mask: documents {}, {:.0f} tokens each as cut by samples; attention has {:.1f} % of the pairs of "
      "whole samples{}",
      documents.source(), documents.mean_length(), 100 * inside / whole,
      workload.dp == 1 ? ""
                       : fmt::format(", on the busiest of {} dp ranks, for which the others wait, {:.1f} % more",
                                     workload.dp, 100 * excess));
}

}  // namespace tri
