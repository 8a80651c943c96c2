// Which rank computes Muon's step of which matrix. A matrix is a whole logical one whatever the layout: the queries',
// keys' and values' rows of a QKV weight, a gate and an up projection. The ranks of a stage that hold parts of its
// matrices, along tp and kBucketAxes, divide them by cost; they are its members, numbered like Mesh::group. Matrices
// are processed in windows in the order of their first use. Pure: every member computes the same plan.
#pragma once

#include <vector>

#include "kernels/muon.h"
#include "lib/optim/store_tensors.h"

namespace tri {

// Returns the FLOPs of the iteration of one matrix.
double iteration_flops(const MatrixShape& matrix);

struct MatrixOwner {
  int window = 0;
  int member = 0;
};

// Returns the windows, ascending, and the members that iterate `matrices`. A window has several matrices per member, of
// which the most expensive first go to the member with the least work so far, the work of earlier windows included.
std::vector<MatrixOwner> divide_matrices(const std::vector<MatrixShape>& matrices, int members);

// Consecutive elements of a tp rank's shard of a matrix, in the order of the shard.
struct MatrixPart {
  int64_t first = 0, count = 0;
};

struct MuonMatrix {
  int chunk = 0;
  size_t bucket = 0;  // in the chunk's layout
  MatrixShape shape;
  int64_t column_shards = 1;      // tp ranks that divide the columns; else they divide the rows
  int64_t shard_elements = 0;     // of a tp rank
  MatrixRuns runs;                // of the shard, from the beginning of the chunk's flat buffer
  std::vector<MatrixPart> parts;  // [place on kBucketAxes]: of the slice of a tp rank's shard
  // The members that hold it: shard s of place p is on member first + p · step + s. Of an expert, one shard on each
  // member at the same place along "ep"; `parts` are then by place on "edp".
  int first = 0, step = 1, shards = 1;
  MatrixOwner owner;
  // Where this member stores it, in elements of one of MuonTensors: the whole matrix, tp shard after tp shard, if it is
  // the owner; else its own part.
  int64_t place = 0;
};

struct MuonPlan {
  Axis tp, dp;                       // this rank's places; dp: on kBucketAxes
  bool sharded = false;              // zero >= 1; else each rank of dp holds the whole shard of its tp rank
  std::vector<MuonMatrix> matrices;  // window by window
  int num_windows = 0;
  int64_t whole_elements = 0, part_elements = 0;  // the most that any member stores in a window
  int64_t largest = 0, largest_side = 0;          // elements and smaller side of any matrix

  int members() const { return tp.size * dp.size; }
  int member() const { return member_at(tp.rank, dp.rank); }
  int member_at(int tp_rank, int dp_rank) const { return dp_rank * tp.size + tp_rank; }
  bool owns(const MuonMatrix& matrix) const { return matrix.owner.member == member(); }
  // Whether the members at a place send their parts of the matrix to the owner; every holder gets its part back.
  bool sends(const MuonMatrix& matrix, int place) const {
    return sharded || matrix.owner.member / matrix.step == place;
  }
  // Returns a member's part of a matrix, of no elements if the member does not hold it.
  static MatrixPart part_of(const MuonMatrix& matrix, int member) {
    const int shard = member % matrix.step - matrix.first;
    if (shard < 0 || shard >= matrix.shards) return {};
    return matrix.parts[static_cast<size_t>(member / matrix.step)];
  }
};

// `chunks`: with their layouts. Requires matrices to be sharded over tp alone, or whole on all ranks of a stage, or
// experts.
MuonPlan plan_muon(const std::vector<ChunkStoreTensors>& chunks, const Mesh& mesh, int zero);

}  // namespace tri
