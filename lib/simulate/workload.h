// What a step computes and how it is spread: the simulator's view of a run config, and of what other programs run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/config/layouts.h"
#include "lib/model/flops.h"
#include "lib/optim/flat_layout.h"

namespace tri {

enum class Numbers { kFp32, kBf16, kFp8 };  // of GEMMs; FP8 keeps bf16 everywhere else

template <>
struct EnumNames<Numbers> {
  static constexpr std::array table{std::pair{Numbers::kFp32, std::string_view("fp32")},
                                    std::pair{Numbers::kBf16, std::string_view("bf16")},
                                    std::pair{Numbers::kFp8, std::string_view("fp8")}};
};

// What a program's `selective` recompute runs again.
enum class SelectiveRecompute {
  kNormsAndActivations,  // this program's
  kAttentionCore,        // Megatron-LM's: Korthikanti et al. 2022
  kEverySecondGemm,      // torchtitan's of 2024 keeps every second GEMM's output and attention's
};

// The axes of a mesh that the simulator has no model of.
inline constexpr AxisSet kOtherAxes = AxisSet::outside(kLayoutAxes);

// A Plan lists a step's actions: beyond this many microbatches it is refused.
inline constexpr int kMostMicrobatches = 100'000;

struct Workload {
  ModelConfig model;  // with its derived sizes: fill_derived
  Numbers numbers = Numbers::kBf16;
  bool fp8_weights = false;  // where numbers is kFp8: the layers' weights are kept in FP8, and not in bf16 too

  // ranks = tp · others · cp · dp · pp, tp fastest, pp slowest. cp: context parallelism of other programs, ranks that
  // split a sequence; this one has 1.
  int tp = 1, cp = 1, dp = 1, pp = 1, chunks = 1;
  // Those of kOtherAxes with several ranks. Their ranks count, and those of kBucketAxes reduce gradients together with
  // the ranks of dp.
  std::vector<AxisSize> others = {};
  Schedule schedule = Schedule::k1F1B;
  int micro_batch = 1, global_batch = 1;
  int zero = 1;  // as parallel.zero; 3: weights are sharded too, and gathered for each use (other programs)
  Recompute recompute = Recompute::kNone;  // not kAuto
  bool sequence_parallel = true;           // else norms and residual additions work on all rows on every tp rank
  bool overlap_tp = true, overlap_pp = true, overlap_dp = true;
  // Other programs, for time and memory of recompute: what `selective` means, and whether backward gathers again,
  // alongside its GEMMs, the rows that forward gathered (sequence parallelism of Korthikanti et al. 2022, section
  // 4.2.2; this program does where it recomputes norms).
  SelectiveRecompute selective = SelectiveRecompute::kNormsAndActivations;
  bool gathers_again = false;
  // Other programs: though overlap_tp is off, backward's sums over tp run concurrently with weight GEMMs (Megatron-LM
  // of 2022, tensor_parallel/layers.py). Without sequence parallelism the gather after a sum is part of it, an
  // all-reduce.
  bool async_sums = false;
  // Other programs, for memory alone.
  bool scores_kept = false;  // attention's T x T scores lie in memory while a layer runs
  bool eager_loss = false;   // PyTorch's own loss keeps fp32 copies of the logits
  bool compiled = false;     // its compiler drops the output of a layer's last GEMM, which backward does not read
  // Attention is cuDNN's in both passes, its rows one tensor. The scratch of its deterministic backward pass stands for
  // what an allocator reserves beyond what is requested (lib/bench/measurements/simulator_errors.md).
  bool cudnn_attention = false;
  // This program, for memory alone: rows on their way between stages have buffers of their own, and so has what tp's
  // and dp's transfers copy into the peers' memory.
  bool stage_buffers = false, tp_copies = false, dp_copies = false;
  int64_t bucket_elements = 40'000'000;
  int gradient_bytes = 4;   // of an element that dp reduces
  int optimizer_bytes = 8;  // an element of what the optimizer keeps in addition to the master weights

  int ranks() const { return ranks_of_stage() * pp; }
  int ranks_of_stage() const { return reducing_stride() * reducing(); }
  // The number of ranks that reduce a gradient together, and the distance from each of them to the next.
  int reducing() const { return dp * cp * ranks_of_others(kBucketAxes); }
  int reducing_stride() const { return tp * ranks_of_others(AxisSet::outside(kBucketAxes)); }
  int ranks_of_others(AxisSet axes) const;
  std::vector<GridAxis> axes() const;  // that texts name, fastest first
  int num_microbatches() const { return global_batch / (micro_batch * dp); }
};

// `config` planned for its ranks: recompute is not auto.
Workload workload_of(const Config& config);
ParallelLayout layout_of(const Workload& workload);

// The axes that texts name, with their sizes.
nlohmann::ordered_json axes_json(const Workload& workload);

// What the mesh's own rules refuse; "" for a workload that can be timed.
std::string problem_of(const Workload& workload);

// Layers of a virtual stage. Where the count does not divide, the embedding and the head count as a layer each if
// that makes it even (as Megatron-LM can), else the first virtual stages have one more.
int layers_of_stage(const Workload& workload, int virtual_stage);
// Calls visit(spec, count) for each kind of layer of a virtual stage.
template <class Visit>
void for_layer_kinds(const Workload& workload, int virtual_stage, Visit visit) {
  int first = 0;
  if (layer_period(workload.model) > 1)
    for (int stage = 0; stage < virtual_stage; ++stage) first += layers_of_stage(workload, stage);
  for_layer_kinds(workload.model, first, layers_of_stage(workload, virtual_stage), visit);
}

// Of a rank of this pp stage, tp's share; embedding and head included.
double parameters_of_stage(const Workload& workload, int stage);
// Of the layers of a virtual stage, whole: the weights of their linears.
double layer_parameters(const Workload& workload, int virtual_stage);
double largest_layer_parameters(const Workload& workload);  // of the layer that has most
double embedding_parameters(const Workload& workload);      // of the token table, whole
double checkpoint_bytes(const Workload& workload);          // of all ranks

double model_flops_per_token(const Workload& workload, AttentionWork work = AttentionWork::kBand);

}  // namespace tri
