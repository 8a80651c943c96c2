// What a step computes and how it is distributed: the simulator's view of a run config, and of other programs' runs.
#pragma once

#include <array>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/config/layouts.h"
#include "lib/model/flops.h"
#include "lib/optim/flat_layout.h"

namespace tri {

class DocumentSamples;

enum class Numbers { kFp32, kBf16, kFp8 };  // of GEMMs; with FP8 everything else is bf16

template <>
struct EnumNames<Numbers> {
  static constexpr std::array table{std::pair{Numbers::kFp32, std::string_view("fp32")},
                                    std::pair{Numbers::kBf16, std::string_view("bf16")},
                                    std::pair{Numbers::kFp8, std::string_view("fp8")}};
};

// What a program's `selective` recompute repeats.
enum class SelectiveRecompute {
  kNormsAndActivations,  // this program
  kAttentionCore,        // Megatron-LM: Korthikanti et al. 2022
  kEverySecondGemm,      // torchtitan of 2024: saves every second GEMM's output and attention's
};

// The axes of a mesh whose sizes a layout does not choose.
inline constexpr AxisSet kOtherAxes = AxisSet::outside(kLayoutAxes);

// A Plan lists a step's actions, so more microbatches than this are rejected.
inline constexpr int kMostMicrobatches = 100'000;

// Over which ranks the gradient of a parameter is reduced, and zero shards it.
enum class ReducedOver {
  kBuckets,  // the axes of kBucketAxes
  kStage,    // all ranks of a stage: routers and shared experts, which each rank applies to its own rows
  kExperts,  // the ranks that hold the same experts
};
inline constexpr std::array kReducedOver{ReducedOver::kBuckets, ReducedOver::kStage, ReducedOver::kExperts};

// Elements of parameters on one rank.
struct Elements {
  std::array<double, kReducedOver.size()> by{};

  double& operator[](ReducedOver over) { return by[static_cast<size_t>(over)]; }
  double operator[](ReducedOver over) const { return by[static_cast<size_t>(over)]; }
  double total() const { return by[0] + by[1] + by[2]; }
  void add(const Elements& other, double times = 1) {
    for (size_t i = 0; i < by.size(); ++i) by[i] += times * other.by[i];
  }
};

struct Workload {
  ModelConfig model;  // with its derived sizes (fill_derived)
  Numbers numbers = Numbers::kBf16;
  int fp8_first_layers = 0, fp8_last_layers = 0;  // if numbers is kFp8: the layers at both ends that multiply bf16
  bool fp8_weights = false;                       // if numbers is kFp8: the layers' weights are stored only in FP8

  // ranks = tp · others · cp · dp · pp, in the order of grid().
  int tp = 1, cp = 1, dp = 1, pp = 1, chunks = 1;
  // The axes of kOtherAxes with several ranks. Those in kBucketAxes reduce gradients together with dp.
  std::vector<AxisSize> others = {};
  // The neighbouring ranks of a stage that divide a layer's experts, and the memory for their rows
  // (parallel.ep_capacity).
  int ep = 1;
  double ep_capacity = 2;
  // With ep > 1: the rows of the rank whose experts receive most, over the mean of all ranks; 0: fullest_rank() says.
  double imbalance = 0;
  Schedule schedule = Schedule::k1F1B;
  std::vector<int> layers_per_chunk = {};  // by virtual stage; empty: layers_of_stage() divides them evenly
  int micro_batch = 1, global_batch = 1;
  int zero = 1;  // as parallel.zero; 3: weights are sharded too and gathered for each use (other programs)
  Recompute recompute = Recompute::kNone;  // not kAuto
  bool sequence_parallel = true;           // else norms and residual additions process all rows on every tp rank
  bool overlap_tp = true, overlap_pp = true, overlap_dp = true;
  // Other programs, for time and memory of recompute: the meaning of `selective`, and whether backward gathers the rows
  // that forward gathered again, alongside its GEMMs (sequence parallelism of Korthikanti et al. 2022, section 4.2.2;
  // this program does so where it recomputes norms).
  SelectiveRecompute selective = SelectiveRecompute::kNormsAndActivations;
  bool gathers_again = false;
  // Other programs: even without overlap_tp, backward's sums over tp run concurrently with weight GEMMs (Megatron-LM of
  // 2022, tensor_parallel/layers.py). Without sequence parallelism the sum is an all-reduce, which includes the gather.
  bool async_sums = false;
  // Other programs, for memory only.
  bool scores_kept = false;  // attention's T x T scores are stored while a layer runs
  bool eager_loss = false;   // PyTorch's loss stores fp32 copies of the logits
  bool compiled = false;     // its compiler drops the output of a layer's last GEMM, which backward does not read
  // cuDNN computes attention in both passes, on rows in one tensor. The scratch of its deterministic backward pass
  // accounts for the memory that an allocator reserves beyond requests (lib/bench/measurements/simulator_errors.md).
  bool cudnn_attention = false;
  // This program, for memory only: rows in transfer between stages have their own buffers, and so do the copies of
  // tp, dp and ep into the peers' memory.
  bool stage_buffers = false, tp_copies = false, dp_copies = false, ep_copies = false;
  // This program: its FP8 GEMMs of experts read rows that were cast before they were copied for each expert, or that
  // the activation wrote in FP8; and a step's first microbatch overwrites the gradients of experts' weights, which
  // reads no old ones.
  bool own_experts = false;
  // This program with cp: attention reads keys and values of whole samples, which are gathered before it, in memory
  // that all layers share; their gradients are summed after it (lib/model/kv_exchange.h). Other programs exchange them
  // alongside attention. overlap_cp: backward's gather is hidden by the GEMM before it, and between machines all groups
  // of heads except one by attention (kv_head_groups).
  bool gathers_kv = false, overlap_cp = true;
  // From which this program makes plans (plan_costs): cluster.rank_tflops and the bandwidths.
  double rank_tflops = 500, node_gb_per_s = 400, network_gb_per_s = 50;
  int64_t bucket_elements = 40'000'000;
  int gradient_bytes = 4;         // per element that dp reduces
  int optimizer_bytes = 8;        // per element of the optimizer's state in addition to the master weights
  int matrix_bytes = 8;           // the same of the weights of the layers' linears
  bool muon = false;              // optimizer.name: muon
  bool averages_weights = false;  // optimizer.ema, whose bytes are part of optimizer_bytes
  // data.document_mask, data.reset_positions; the documents of samples, null: each sample is one.
  bool document_mask = false, resets_positions = false;
  std::shared_ptr<const DocumentSamples> documents;

  // The share of the rows that the fullest of the ep ranks receives, over the mean: `imbalance`, or if that is 0 of
  // experts whose numbers of rows differ by a tenth (one standard deviation; assumed: a router with an auxiliary loss).
  // The more experts a rank has, the more evenly the ranks share the rows.
  double fullest_rank() const;
  int ranks() const { return ranks_of_stage() * pp; }
  int ranks_of_stage() const { return tp * cp * dp * ranks_of_others(kOtherAxes); }
  // The number of ranks that reduce a gradient together, and the distance between consecutive ones, which is exact if
  // no other axis lies between those of the group.
  int reducing(ReducedOver over = ReducedOver::kBuckets) const;
  int reducing_stride(ReducedOver over = ReducedOver::kBuckets) const;
  bool reduces() const { return reducing() > 1 || (model.experts > 0 && ranks_of_stage() > 1); }
  int stage_stride() const { return grid().stride("pp"); }  // from a rank to its neighbour on the next stage
  int ranks_of_others(AxisSet axes) const;
  // The grid of the ranks, in the order of kAxes; cp lies before dp.
  RankGrid grid() const;
  Layers layers() const;
  int num_microbatches() const { return global_batch / (micro_batch * dp); }
  // The virtual stage of a chunk of a pp rank; the pp rank with the head.
  int virtual_stage(int rank, int chunk) const { return tri::virtual_stage(schedule, {rank, pp}, chunk); }
  int end_rank() const { return pipeline_axis(schedule, 0, pp).end(); }
};

// Returns the costs from which make_plan decides, as plan_costs() in lib/model/layer_division.h.
std::vector<StageCost> plan_costs(const Workload& workload);

// Returns the workload of `config`, which must be planned: recompute is not auto.
Workload workload_of(const Config& config);
ParallelLayout layout_of(const Workload& workload);

// Returns the axes that reports name, with their sizes.
nlohmann::ordered_json axes_json(const Workload& workload);

// Returns what the mesh's rules reject, or "" for a valid workload, which can be timed.
std::string problem_of(const Workload& workload);

// Returns the workload with the numbers of one layer, for what depends on that layer alone.
Workload workload_of_layer(Workload workload, const LayerSpec& layer);

// Returns the layers of a virtual stage: workload.layers_per_chunk, if that is set. Otherwise, if the total does not
// divide evenly, the embedding and the head count as a layer each if that makes it divide (as Megatron-LM can), else
// the first virtual stages have one more.
LayerRange layers_of_stage(const Workload& workload, int virtual_stage);

// `layers` are the workload's here. Per rank of this pp stage: its tp share, with embedding and head.
double parameters_of_stage(const Workload& workload, const Layers& layers, int stage);
Elements elements_of_stage(const Workload& workload, const Layers& layers, int stage);
// Of these, the weights of the layers' linears.
Elements matrices_of_stage(const Workload& workload, const Layers& layers, int stage);
// The weights of a linear and of a layer's linears on one rank, and those of a virtual stage with embedding and head.
double local_weights(const Workload& workload, const LinearSpec& linear);
Elements local_weights(const Workload& workload, const LayerSpec& layer);
Elements elements_of_virtual_stage(const Workload& workload, const Layers& layers, int virtual_stage);
ReducedOver reduced_over(const LinearSpec& linear);
// The weights of a virtual stage's layers that multiply FP8, per rank.
double fp8_layer_parameters(const Workload& workload, const Layers& layers, int virtual_stage);
double largest_layer_parameters(const Layers& layers);  // of the largest layer
double embedding_parameters(const Workload& workload);  // of the whole token table
double checkpoint_bytes(const Workload& workload);      // of all ranks

// With documents only pairs of a query and a key of the same document count.
double model_flops_per_token(const Workload& workload, AttentionWork work = AttentionWork::kBand);

}  // namespace tri
