// How a step is distributed over ranks and time, and which layouts a config allows: `trireme plan` predicts them and
// `trireme bench step --sweep layout` measures them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lib/config/config.h"
#include "lib/config/layer_counts.h"
#include "lib/parallel/axes.h"

namespace tri {

// The axes whose sizes a layout chooses; the others keep the config's.
inline constexpr AxisSet kLayoutAxes{"tp", "cp", "pp", "dp"};

// The fields of a config that make up its layout. dp is never 0 here.
struct ParallelLayout {
  int tp = 1, cp = 1, pp = 1, dp = 1, chunks = 1;
  Schedule schedule = Schedule::k1F1B;
  int zero = 1, micro_batch = 1;
  Recompute recompute = Recompute::kNone;
  std::string layers_per_chunk = std::string(kEvenLayers);
  bool operator==(const ParallelLayout&) const = default;
};

template <class Archive>
void fields(Archive& archive, ParallelLayout& l) {
  archive(l.tp, l.cp, l.pp, l.dp, l.chunks, l.schedule, l.zero, l.micro_batch, l.recompute, l.layers_per_chunk);
}

ParallelLayout layout_of(const Config& resolved);
Config with_layout(Config config, const ParallelLayout& layout);
// Returns "tp 2, cp 4, pp 2 (interleaved, 2 chunks), dp 2 (zero 1), micro-batch 4", without a cp of 1.
std::string to_string(const ParallelLayout& layout);
// Returns "--set parallel.tp=2 ...": the options that give any config this layout.
std::string as_settings(const ParallelLayout& layout);

// Returns the divisors of `number` that are at most `most`, ascending.
std::vector<int> divisors_up_to(int64_t most, int64_t number);

// How the layers are divided over the stages and chunks of the layouts that are listed.
enum class Division {
  kEven,  // by whole passes; the stages have equal numbers of layers
  kAny,   // also by work (parallel.layers_per_chunk: auto), and with split backward passes
};

// The pipeline of a layout.
struct PipelineKind {
  Schedule schedule = Schedule::k1F1B;
  int chunks = 1;
  std::string layers_per_chunk = std::string(kEvenLayers);
};

// The layouts that the model, the batch and the machines allow, axis by axis. They include each layout of a config that
// resolve_config accepts, except for gpipe, which is 1f1b with more memory, lists of layers, zb_v of more than 16
// stages unless it is the config's own, and a cp that is neither the config's own nor one of context_degrees().
class LayoutSpace {
 public:
  // Keeps copies. `config` need not be resolved. A tp group must fit in a node of `ranks_per_node` ranks.
  LayoutSpace(const Config& config, int ranks_per_node);

  // Returns the possible degrees of tensor parallelism for any number of ranks.
  std::vector<int> tensor_degrees() const;
  // Returns the degrees of context parallelism that may pay, and the config's own. With them each rank has at least
  // 8,192 positions of a sample, since dp and tp are faster where samples are short, in chunks of whole tiles
  // (kernels/attention.h).
  std::vector<int> context_degrees() const;
  // Returns all tp x cp x pp x dp = `ranks` / ranks along the config's other axes, whose sizes are kept. Does not set
  // other fields.
  std::vector<ParallelLayout> meshes(int ranks, Division division = Division::kEven) const;
  // Returns the schedules of `pp` stages with their numbers of chunks, at most `most_chunks` per stage, fewest first.
  std::vector<PipelineKind> pipelines(int pp, int most_chunks, Division division = Division::kEven) const;
  // Returns the micro-batches for a mesh, at most `most`, ascending.
  std::vector<int> micro_batches(const ParallelLayout& mesh, int most) const;

 private:
  ModelConfig model_;
  int global_batch_;  // with data.batch_ramp: the largest divisor of all sizes
  int ranks_per_node_, own_cp_, own_chunks_;
  Schedule own_schedule_;
  int kept_ranks_;
};

}  // namespace tri
