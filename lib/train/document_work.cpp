#include "lib/train/document_work.h"

#include <algorithm>
#include <cstring>

#include "lib/model/flops.h"

namespace tri {

DocumentWork::DocumentWork(const Config& config, const Mesh& mesh)
    : config_(config), mesh_(mesh), pairs_(attention_windows(config).size()) {
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    if (Mesh{mesh.grid, rank}.joint_axis(AxisSet::outside(kSampleAxes)).first())
      replicas_.push_back(static_cast<size_t>(rank));
  if (mesh.world_size() > 1)
    gather_ = std::make_unique<BackgroundGather>(static_cast<int64_t>(pairs_.size() * sizeof(AttentionPairs)));
}

void DocumentWork::begin(const std::vector<AttentionPairs>& pairs) {
  TRI_REQUIRE(pairs.size() == pairs_.size(), "pairs of {} windows for {}", pairs.size(), pairs_.size());
  pairs_ = pairs;
  if (gather_) gather_->begin(pairs_.data());
}

DocumentWork::OfStep DocumentWork::end(double tokens) {
  if (gather_) gather_->wait();
  const double of_replica = tokens / static_cast<double>(replicas_.size());
  OfStep work;
  work.band_pairs.resize(pairs_.size());
  double most = 0;
  for (const size_t rank : replicas_) {
    std::vector<AttentionPairs> of_rank = pairs_;
    if (gather_ && mesh_.world_rank == 0) {
      const size_t bytes = of_rank.size() * sizeof(AttentionPairs);
      std::memcpy(of_rank.data(), gather_->messages() + rank * bytes, bytes);
    }
    std::vector<double> band, causal;
    for (const AttentionPairs& pairs : of_rank) {
      band.push_back(static_cast<double>(pairs.band));
      causal.push_back(static_cast<double>(pairs.causal));
    }
    for (size_t i = 0; i < band.size(); ++i) work.band_pairs[i] += band[i];
    const double flops = model_flops(config_, of_replica, causal);
    work.band_flops += model_flops(config_, of_replica, band);
    work.causal_flops += flops;
    most = std::max(most, flops);
  }
  work.imbalance = most * static_cast<double>(replicas_.size()) / work.causal_flops - 1;
  return work;
}

}  // namespace tri
