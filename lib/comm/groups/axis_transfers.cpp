#include "lib/comm/groups/axis_transfers.h"

#include <algorithm>

#include "kernels/core/timeline.h"

namespace tri {

Tensor with_parts(Tensor rows, int64_t parts) {
  TRI_REQUIRE(rows.dims < Tensor::kMaxDims && rows[0] % parts == 0, "rows {} cannot be split into {} parts",
              rows.shape_text(), parts);
  Tensor result = rows;
  std::copy_backward(rows.shape.begin(), rows.shape.begin() + rows.dims, result.shape.begin() + rows.dims + 1);
  ++result.dims;
  result.shape[0] = parts;
  result.shape[1] = rows[0] / parts;
  return result;
}

std::vector<RowBlock> OneRankTransfers::begin_reduce(Tensor rows, OverlapSplit, Stream&) {
  reduced_ = rows;
  return {{.first = 0, .out = rows, .owners = {}}};
}

Tensor OneRankTransfers::finish_reduce(Stream&) { return with_parts(reduced_, 1); }

std::unique_ptr<AxisTransfers> OneRankTransfers::null_transfers(GroupOnStream null, Device&) const {
  return std::make_unique<OneRankTransfers>(std::move(null));
}

CollectiveTransfers::Gather* CollectiveTransfers::find(void* rows) {
  const auto found = std::find_if(gathers_.begin(), gathers_.end(), [&](const Gather& g) { return g.rows == rows; });
  return found == gathers_.end() ? nullptr : &*found;
}

bool CollectiveTransfers::gathering(Tensor rows) const {
  return std::any_of(gathers_.begin(), gathers_.end(), [&](const Gather& g) { return g.rows == rows.data; });
}

void CollectiveTransfers::begin_gather(Tensor rows, Stream&) {
  TRI_REQUIRE(!gathering(rows), "rows {} are already being gathered", rows.shape_text());
}

void CollectiveTransfers::start_gather(Tensor rows, Stream& stream) {
  collectives().after(stream);  // the local rows are being written on it
  collectives().all_gather(rows, local_rows(rows));
  Gather* gather = find(nullptr);
  if (gather == nullptr) gather = &gathers_.emplace_back(Gather{.done = device_.make_event()});
  gather->rows = rows.data;
  gather->waited = &stream == &collectives().stream();  // a gather on the caller's own stream needs no wait
  if (!gather->waited) collectives().stream().record(*gather->done);
}

void CollectiveTransfers::wait_split(Tensor rows, const RowSplit&, Stream& stream) {
  Gather* gather = find(rows.data);
  if (gather == nullptr || gather->waited) return;
  const TimeCategoryScope scope(stream, category());
  stream.wait(*gather->done);
  gather->waited = true;
}

void CollectiveTransfers::finish_gather(Tensor rows, Stream& stream) {
  wait_split(rows, {}, stream);
  if (Gather* gather = find(rows.data)) gather->rows = nullptr;
}

std::vector<RowBlock> CollectiveTransfers::begin_reduce(Tensor rows, OverlapSplit, Stream&) {
  reduced_ = rows;
  return {{.first = 0, .out = rows, .owners = {}}};
}

void CollectiveTransfers::send(const RowBlock& block, Stream& stream) {
  collectives().after(stream);  // the partial sums are being written on it
  collectives().reduce_scatter(local_rows(block.out), block.out);
}

Tensor CollectiveTransfers::finish_reduce(Stream& stream) {
  collectives().before(stream);  // its next kernel reads the summed rows
  return with_parts(local_rows(reduced_), 1);
}

std::unique_ptr<AxisTransfers> CollectiveTransfers::null_transfers(GroupOnStream null, Device& device) const {
  return std::make_unique<CollectiveTransfers>(std::move(null), device);
}

}  // namespace tri
