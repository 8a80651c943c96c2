// The linears and norms of a layer, as values: names, sizes, and how tensor parallelism splits them.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

namespace tri {

// Which keys of a query count as FLOPs.
enum class AttentionWork {
  kBand,    // as other programs count, causal or not: all T of the sequence, or the W of the window, masked or not
  kCausal,  // only unmasked keys: for query t, min(t + 1, W)
};

enum class Branch { kAttention, kMlp };
inline constexpr std::array kBranches{Branch::kAttention, Branch::kMlp};

// How tensor parallelism splits the GEMM of a linear.
enum class LinearSplit {
  kColumn,  // each rank computes a part of the outputs from all inputs
  kRow,     // each rank computes a partial sum of all outputs from a part of the inputs
};

// An end of a branch, where tp's transfers are: its first linear, which is column-parallel, or its last, which is
// row-parallel.
struct LinearPlace {
  Branch branch{};
  LinearSplit split{};
  auto operator<=>(const LinearPlace&) const = default;
};
inline constexpr std::array kLinearPlaces{
    LinearPlace{Branch::kAttention, LinearSplit::kColumn}, LinearPlace{Branch::kAttention, LinearSplit::kRow},
    LinearPlace{Branch::kMlp, LinearSplit::kColumn}, LinearPlace{Branch::kMlp, LinearSplit::kRow}};

// A linear of the model.
struct LinearId {
  int layer = 0;  // of the model
  LinearPlace place;
  int index = 0;  // in the layer's list of linears (LayerSpec::linears)
  // The same of the linears whose FP8 casts it shares: of the rows that it reads, and of the gradient of its output.
  int input = 0, gradient = 0;
};

// A logical matrix of a weight: the queries' rows of a QKV weight, a gate projection.
struct MatrixShape {
  int64_t rows = 0, columns = 0;

  bool operator==(const MatrixShape&) const = default;
};

// A linear: out (rows, N) = inp (rows, K) · weight^T + bias, weight (N, K) seen as a matrix.
struct LinearSpec {
  std::string_view module;  // parameter_names.h
  std::string_view name;    // within its layer, for messages: "qkv"
  LinearSplit split = LinearSplit::kColumn;
  // N, or the factors of N, the last of which is split over tp: (2, F) for SwiGLU's gate and up projections.
  std::array<int64_t, 2> outputs{};
  int num_outputs = 1;
  int64_t inputs = 0;  // K
  bool bias = false;
  // Each rank applies the whole weight to its own rows; tp does not split it.
  bool whole = false;
  // A mixture's experts: their weights in one tensor (experts, N, K), of which a token uses `active`; 0: one matrix.
  int64_t experts = 0, active = 1;
  bool orthogonal = true;  // Muon updates it
  bool fp8 = true;         // its GEMMs multiply FP8 in layers whose GEMMs do
  // The numbers of consecutive outputs that belong to different logical matrices, repeated over all outputs:
  // {G · HS, HS, HS} for the queries, key and value of each key/value head. All zero: the outputs are one matrix, or
  // one for each of the first factor of `outputs`.
  std::array<int64_t, 3> interleaved{};

  int64_t n() const { return num_outputs == 2 ? outputs[0] * outputs[1] : outputs[0]; }
  int64_t k() const { return inputs; }
  int64_t weights() const { return n() * k() * (experts > 0 ? experts : 1); }
  int64_t active_weights() const { return n() * k() * active; }  // that a token uses
  // The share of one of `tp` ranks.
  int64_t n(int tp) const { return split == LinearSplit::kColumn && !whole ? n() / tp : n(); }
  int64_t k(int tp) const { return split == LinearSplit::kRow && !whole ? k() / tp : k(); }
  std::vector<int64_t> weight_shape() const;
  std::vector<int64_t> bias_shape() const;
  std::vector<MatrixShape> matrices() const;  // the logical matrices of the weight, for Muon
  int split_dim() const { return split == LinearSplit::kRow ? num_outputs : num_outputs - 1; }  // of weight_shape()
};

// Where a norm stands in its layer.
enum class NormPlace {
  kBefore,  // before its branch, which reads its rows, gathered over tp
  kInside,  // inside its branch, which computes it
  kAfter,   // after its branch, whose output it norms before that is added to the residual stream
};

// A norm of the residual stream or inside a branch.
struct NormSpec {
  std::string_view module;
  int64_t width = 0;
  NormPlace place = NormPlace::kBefore;
  Branch branch{};
  bool bias = false;
  bool sharded = false;  // over tp, like the heads that it norms; else all tp ranks hold its weight
  bool operator==(const NormSpec&) const = default;
};

// A part of a layer that has parameters.
using ModuleSpec = std::variant<NormSpec, LinearSpec>;

// Returns the linears, or the norms, among `modules`.
template <class Spec>
std::vector<Spec> only(const std::vector<ModuleSpec>& modules) {
  std::vector<Spec> found;
  for (const ModuleSpec& module : modules)
    if (const Spec* spec = std::get_if<Spec>(&module)) found.push_back(*spec);
  return found;
}

}  // namespace tri
