// What each layer of a model consists of, as values. Parameters, saved tensors, FLOPs, FP8 scales, the simulator, the
// planner and other programs' formats derive from these lists. Pure: no device, and no layout of ranks.
//
// A layer has norms of the residual stream and two branches, attention and MLP. A branch begins with a column-parallel
// linear, which reads the rows of a norm, and ends with a row-parallel linear, whose output joins the residual stream.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/core/gpu.h"
#include "lib/config/config.h"
#include "lib/model/attention.h"
#include "lib/model/mlp.h"
#include "lib/model/moe.h"

namespace tri {

struct LayerSpec {
  AttentionSpec attention;
  MlpSpec mlp;
  MoeSpec moe;                       // takes the place of `mlp` if it has experts
  Block block = Block::kSequential;  // how the branches join the residual stream
  std::vector<NormSpec> norms;       // of the residual stream, in the order of the forward pass
  bool fp8 = false;  // its GEMMs multiply FP8; rows that only they read are then saved and gathered as FP8

  // Return what has parameters, in the order of the forward pass. FP8 scales and messages refer to a linear by its
  // index in linears().
  std::vector<ModuleSpec> modules(Branch branch) const;  // inside a branch
  std::vector<ModuleSpec> modules() const;
  std::vector<LinearSpec> linears(Branch branch) const { return only<LinearSpec>(modules(branch)); }
  std::vector<LinearSpec> linears() const { return only<LinearSpec>(modules()); }
  LinearSpec linear(LinearPlace place) const;
  LinearId id(int layer, Branch branch, const LinearSpec& linear) const;  // `layer`: the index of this layer

  // Returns the index in `norms` of the norm whose rows a branch reads. If there is none before it, that of the branch
  // before; if there is none either, kNoNorm: the branch reads the residual stream itself.
  size_t norm_before(Branch branch) const;
  // Returns the index in `norms` of the norm of a branch's output, or kNoNorm.
  size_t norm_after(Branch branch) const;
  static constexpr size_t kNoNorm = SIZE_MAX;
  int output_norms() const;  // their number
  // Returns the branch whose gathered rows a branch reads: itself, or one before it that reads the same rows.
  Branch reads_with(Branch branch) const {
    const size_t norm = norm_before(branch);
    return norm == kNoNorm ? branch : norms[norm].branch;
  }
  int gathered_rows() const;  // the number of gathers in a forward pass
  // Whether the residual stream has a value of its own between the branches.
  bool has_middle() const { return block == Block::kSequential; }
  // Whether the biases of both branches are added at once.
  bool adds_two_biases() const { return attention.output_bias && !has_middle(); }
  bool has_experts() const { return moe.experts > 0; }
  // Whether a branch processes the rows of its rank alone, so that tp gathers and reduces nothing.
  bool is_local(Branch branch) const { return branch == Branch::kMlp && has_experts(); }
  int stream_values() const { return has_middle() ? 2 : 1; }  // that the backward pass reads
  // Returns the elements of the linears' weights, without norms and biases; of those that a token uses.
  double weights() const;
  double active_weights() const;
  // Returns model FLOPs, forward and backward. A multiply-add counts as two; recomputed work counts once.
  double flops_per_token(AttentionWork work) const;

  // Returns call(spec) for a branch. The type of `spec` is that of its kind, and has the members of MlpSpec that
  // concern any branch.
  template <class Call>
  decltype(auto) visit(Branch branch, Call call) const {
    if (branch == Branch::kAttention) return call(attention);
    return has_experts() ? call(moe) : call(mlp);
  }
  // Sums `number(spec)` over the branches.
  template <class Number>
  double sum(Number number) const {
    double total = 0;
    for (const Branch branch : kBranches) total += visit(branch, number);
    return total;
  }
  // Per token, the sums of the branches: elements saved in the compute type and in fp32 with every recompute except
  // full, and elements that recompute none and norms save in addition.
  double kept_elements() const {
    return sum([](const auto& branch) { return branch.kept_elements(); });
  }
  double kept_statistics() const {
    return sum([](const auto& branch) { return branch.kept_statistics(); });
  }
  double activated_elements() const {
    return sum([](const auto& branch) { return branch.activated_elements(); });
  }
  // The branches' workspace: elements in the compute type, and bytes of FP8 casts.
  double workspace_elements(QkvOrder order) const {
    return sum([&](const auto& branch) { return branch.workspace_elements(order); });
  }
  double cast_bytes() const {
    return sum([](const auto& branch) { return branch.cast_bytes(); });
  }
  // Elements that kernels read and write when parallel.recompute: selective repeats a part of the branches.
  double recomputed_elements() const {
    return sum([](const auto& branch) { return branch.recomputed_elements(); });
  }
  int64_t widest_input(int tp) const;  // columns of the widest input of a linear on a tp rank
  // The sizes of one tp rank's share on which its kernels' workspace depends. The caller sets the numbers' type, the
  // attention kernel and the batch.
  WorkspaceDims kernel_workspace(int tp) const;

  // Whether the other layer's tensors and workspace have the same shapes, apart from a dense MLP and experts, which
  // each have their own.
  bool same_sizes(LayerSpec other) const {
    other.attention.window = attention.window;
    other.attention.local_rope = attention.local_rope;
    other.fp8 = fp8;
    other.moe = moe;
    return other == *this;
  }
  bool operator==(const LayerSpec&) const = default;
};

// Layers [first, first + count) of a model.
struct LayerRange {
  int first = 0, count = 0;
};

// All layers of a model.
struct Layers {
  std::vector<LayerSpec> kinds;  // no two are equal
  std::vector<int> kind_of;      // [layer]: index into `kinds`

  LayerRange all() const { return {.count = static_cast<int>(kind_of.size())}; }
  const LayerSpec& operator[](int layer) const {
    return kinds[static_cast<size_t>(kind_of.at(static_cast<size_t>(layer)))];
  }

  // Calls visit(spec, count) for each kind that occurs in `range`, with the number of its layers there.
  template <class Visit>
  void for_kinds(LayerRange range, Visit visit) const {
    const auto first = kind_of.begin() + range.first;
    for (size_t kind = 0; kind < kinds.size(); ++kind)
      if (const auto alike = std::count(first, first + range.count, static_cast<int>(kind)); alike > 0)
        visit(kinds[kind], static_cast<int>(alike));
  }
  // Sums `number(spec)` over the layers of `range`.
  template <class Number>
  double sum(LayerRange range, Number number) const {
    double sum = 0;
    for_kinds(range, [&](const LayerSpec& spec, int alike) { sum += alike * number(spec); });
    return sum;
  }
};

// Returns a norm of the residual stream; those outside the layers have no branch.
NormSpec stream_norm(const ModelConfig& model, std::string_view module, Branch branch = {},
                     NormPlace place = NormPlace::kBefore);

// Returns the number of layers with experts.
int expert_layers(const ModelConfig& model);

// Returns the layers of a resolved model. Those in `fp8` multiply FP8.
Layers layers_of_model(const ModelConfig& model, LayerRange fp8);
// `precision` chooses the layers that multiply FP8.
Layers layers_of_model(const Config& config);

}  // namespace tri
