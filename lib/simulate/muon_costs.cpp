#include "lib/simulate/muon_costs.h"

#include <algorithm>
#include <map>

#include "lib/optim/muon_plan.h"
#include "lib/simulate/gemm_times.h"

namespace tri {
namespace {

constexpr int kSlots = 3;  // lib/optim/muon.cpp

// The matrices of a stage in the order of their first use, and their owners.
struct StageMatrices {
  std::vector<MatrixShape> shapes;
  std::vector<MatrixOwner> owners;
  int members = 1;
};

StageMatrices matrices_of(const Workload& w, const Layers& layers, int stage) {
  StageMatrices all{.shapes = {}, .owners = {}, .members = w.tp * w.reducing()};
  for (int chunk = 0; chunk < w.chunks; ++chunk) {
    const LayerRange range = layers_of_stage(w, w.virtual_stage(stage, chunk));
    for (int layer = range.first; layer < range.first + range.count; ++layer)
      for (const LinearSpec& linear : layers[layer].linears())
        for (const MatrixShape& shape : linear.matrices()) all.shapes.push_back(shape);
  }
  all.owners = divide_matrices(all.shapes, all.members);
  return all;
}

double side_of(const MatrixShape& shape) { return static_cast<double>(std::min(shape.rows, shape.columns)); }
double length_of(const MatrixShape& shape) { return static_cast<double>(std::max(shape.rows, shape.columns)); }
double elements_of(const MatrixShape& shape) { return side_of(shape) * length_of(shape); }

double workspace_of(const Workload& w, const StageMatrices& all) {
  // Elements by window and member, and the largest numbers of any member.
  std::map<std::pair<int, int>, double> owned;
  std::map<int, double> windows;
  double largest = 0, side = 0, whole = 0, parts = 0;
  for (size_t i = 0; i < all.shapes.size(); ++i) {
    const double elements = elements_of(all.shapes[i]);
    windows[all.owners[i].window] += elements;
    whole = std::max(whole, owned[{all.owners[i].window, all.owners[i].member}] += elements);
    largest = std::max(largest, elements);
    side = std::max(side, side_of(all.shapes[i]));
  }
  const int holders = w.zero == 0 ? w.tp : all.members;
  if (all.members > 1)
    for (const auto& [window, elements] : windows) parts = std::max(parts, elements / holders);
  const int slots = all.members == 1 ? 1 : std::min(kSlots, static_cast<int>(windows.size()));
  return (slots * (whole + parts) + 2 * largest + 2 * side * side) * activation_bytes(w.numbers);
}

}  // namespace

double muon_workspace_bytes(const Workload& w, const Layers& layers, int stage) {
  return w.muon ? workspace_of(w, matrices_of(w, layers, stage)) : 0;
}

MuonCosts muon_costs(const Workload& w, const Layers& layers, const Cluster& cluster, int stage) {
  MuonCosts costs;
  if (!w.muon) return costs;
  const StageMatrices all = matrices_of(w, layers, stage);
  const double bytes = activation_bytes(w.numbers);
  const Numbers numbers = w.numbers == Numbers::kFp32 ? Numbers::kFp32 : Numbers::kBf16;
  std::map<std::pair<int64_t, int64_t>, double> seconds;  // of a matrix
  std::vector<double> gemms(static_cast<size_t>(all.members)), owned(gemms);
  double elements = 0;
  for (size_t i = 0; i < all.shapes.size(); ++i) {
    const MatrixShape& shape = all.shapes[i];
    const double s = side_of(shape), l = length_of(shape);
    const auto [known, is_new] = seconds.try_emplace({shape.rows, shape.columns}, 0.0);
    if (is_new)  // the second and third product also read what they add
      known->second =
          kMuonIterations *
          (computed_share(std::min(shape.rows, shape.columns)) *
               (gemm_seconds(cluster, numbers, s, s, l, bytes) + gemm_seconds(cluster, numbers, s, s, s, 2 * bytes)) +
           gemm_seconds(cluster, numbers, s, l, s, 2 * bytes));
    gemms[static_cast<size_t>(all.owners[i].member)] += known->second;
    owned[static_cast<size_t>(all.owners[i].member)] += elements_of(shape);
    elements += elements_of(shape);
    costs.windows = all.owners[i].window + 1;
  }
  costs.gemms = *std::ranges::max_element(gemms);
  // Per element of a rank's slices: pack_matrix, unpack_matrix, and the direction and master weight once more; per
  // element of its matrices: the sum of squares and the scaling.
  const double held = elements / (w.zero == 0 ? w.tp : all.members);
  costs.bytes = held * (4 + bytes + bytes + 8 + 8) + *std::ranges::max_element(owned) * 3 * bytes;
  // Gathered once; with zero 0 each of the dp ranks receives the whole results.
  const double copies = w.zero == 0 ? w.reducing() : 1;
  costs.exchanged = all.members > 1 ? elements * bytes * (1 + copies) / 2 : 0;
  costs.workspace_bytes = workspace_of(w, all);
  return costs;
}

}  // namespace tri
