// The order of a layer's work, as data: the block (block.h) runs it, and code that times a layer's transfers reads it.
//
// A pass is a list of tensor-parallel transfers, each with the steps that are enqueued between its begin and its end:
//   gather   Completes rows (R, C) from every tp rank's local rows. In the forward pass a norm computes them; in the
//            backward pass they are the gradient of the residual stream. The GEMM that reads them may start on the
//            rows that have arrived.
//   reduce   GEMMs compute partial sums (R, C) and send them to the ranks that own the rows. The norm that follows
//            reads the sum (forward), or the backward pass of the norm before (backward).
// So a gather belongs to the first GEMM that reads its rows, and a reduce to the last one that adds to its sums; that
// GEMM's overlap split is the transfer's.
#pragma once

#include <string>
#include <vector>

#include "lib/model/layers.h"

namespace tri {

enum class Step {
  // Steps of a branch, between its two linears and through them.
  kColumnForward,   // GEMM: the gathered rows of a norm to this rank's columns
  kInnerForward,    // attention, or the activation
  kRowForward,      // GEMM: to partial sums of the branch's output
  kRowGradient,     // GEMM: from the gathered gradient of the residual stream to that of the rows that kRowForward read
  kInnerBackward,   // of attention, or of the activation
  kColumnGradient,  // GEMM: to partial sums of the gradient of the norm's rows
  kRowWeight,       // GEMM: gradient of the row-parallel linear's weight
  kColumnWeight,    // GEMM: gradient of the column-parallel linear's weight
  kDefer,           // leaves kColumnWeight to the layer below; the lowest layer of a stage enqueues it at once
  // Steps of the block.
  kDeferred,       // GEMM: the weight gradient deferred by the layer above
  kRecompute,      // what the backward pass reads and the forward pass did not save
  kRecomputeNorm,  // the norm of the branch, in memory that it shares with the other branch's
};

struct BlockStep {
  Branch branch{};
  Step step{};
};

bool is_gemm(Step step);  // whether the step runs a GEMM

struct TransferRegion {
  LinearPlace linear;  // its overlap split is the transfer's
  Pass pass{};
  std::vector<BlockStep> steps;

  // Whether the transfer is a reduce; otherwise it is a gather. Row-parallel GEMMs compute partial sums in the forward
  // pass, column-parallel ones in the backward pass.
  bool reduces() const { return (linear.split == LinearSplit::kRow) == (pass == Pass::kForward); }
  // Whether one GEMM alone computes the partial sums of a reduce.
  bool has_one_summand() const;
  // The gathered rows, or the partial sums: (R, C).
  Tensor rows(const LayerWorkspace& work, const LayerTensors& t) const;
};

// Returns the transfers of a pass in order. What the backward pass reads is complete before the last transfer of a
// forward pass.
const std::vector<TransferRegion>& block_order(const LayerSpec& layer, Pass pass);

// Returns the GEMMs of a region in order, for messages: "qkv weight, fc2 backward".
std::string gemm_names(const TransferRegion& region, const LayerSpec& layer);

}  // namespace tri
