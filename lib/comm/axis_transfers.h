// AxisTransfers: how the members of one mesh axis gather and reduce rows, the same calls whatever carries them. Block k
// of `rows` (members · local rows, …) belongs to member k. Activations over tp: a row is a token's; flat buckets over
// dp: a row is an element.
//
//   gather   begin_gather, the local rows are made, start_gather; then what reads the rows goes through splits(), in
//            the order in which they arrive, and waits for each, or for all by finish_gather. Several gathers may be in
//            flight.
//   reduce   begin_reduce gives the blocks in which the partial sums are made, each block is sent as soon as it is
//            made, and finish_reduce gives the parts that are left to add. One reduce at a time; no other operation
//            begins between its begin_reduce and its last send.
//
// A transport may carry all rows at once: then there is one split, one block, one part.
// Every call only enqueues. `stream` is the caller's: it makes and reads the rows, and is the same one from the
// beginning of an operation to its end. All members issue the same operations in the same order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/comm/comm_group.h"

namespace tri {

// How a GEMM shares its rows with their transfer, where they travel in splits.
struct OverlapSplit {
  // Splits of a GEMM, 1 to the members; 0: as many as members. A gather's first split and a reduce's last are the local
  // block, which needs no transfer; the other blocks make up the rest. With 1 the GEMM is undivided: after the gather,
  // or before the reduce.
  int num_splits = 0;
  // A reduce's GEMM writes each block into its owner's memory itself; then it has as many splits as members.
  bool direct = false;

  bool operator==(const OverlapSplit&) const = default;
};

// Blocks of one gather that lie side by side and are read at once.
struct RowSplit {
  int64_t first = 0, count = 0;  // rows
  std::vector<int> members;
};

// Partial sums for owners whose rows lie side by side, on their way to them.
struct RowBlock {
  int64_t first = 0;  // row, among all
  Tensor out;         // (owners · local rows, …): where the GEMM writes them; may lie elsewhere than in the rows
  std::vector<int> owners;  // in the order of the rows
};

class AxisTransfers {
 public:
  virtual ~AxisTransfers() = default;
  int rank() const { return collectives_.rank(); }
  int size() const { return collectives_.size(); }
  TimeCategory category() const { return collectives_.category(); }  // of the waits
  // Gathers, reduces and collectives; `bytes` of gathers and reduces by copies: sent.
  virtual CommCounts counts() const { return collectives_.group().counts(); }
  // For tensors that are transferred at once and are no rows: sums, norms, vectors.
  GroupOnStream& collectives() { return collectives_; }

  // Writes into the rank's flight recorder how far the transfers are, where streams do not mark it themselves; reads by
  // `stream`. From one other thread; may hang where the device does.
  virtual void read_progress(Stream&, HostBuffer<uint32_t>&) {}

  // This member's block of full `rows`.
  Tensor local_rows(Tensor rows) const { return block(rows, rank()); }

  // `stream` waits until what was sent so far has been read: then it may be overwritten. Rows that a collective gathers
  // may be overwritten after their finish_gather only.
  virtual void wait_until_read(Stream& stream) = 0;

  // From here on in `stream`, peers may write their blocks of `rows`; nothing before reads or writes them later.
  virtual void begin_gather(Tensor rows, Stream& stream) = 0;
  // The local block of `rows` is there; sends it.
  virtual void start_gather(Tensor rows, Stream& stream) = 0;
  // Between start_gather and finish_gather.
  virtual bool gathering(Tensor rows) const = 0;
  // The splits of `rows` that a GEMM goes through, in the order in which they are there first; one of all rows where
  // they are not being gathered.
  virtual std::vector<RowSplit> splits(Tensor rows, OverlapSplit split) const = 0;
  // `stream` waits for a split, or for all, of `rows`; nothing where `rows` are not being gathered.
  virtual void wait_split(Tensor rows, const RowSplit& split, Stream& stream) = 0;
  virtual void finish_gather(Tensor rows, Stream& stream) = 0;

  // The blocks of `rows` in the order in which they are best made.
  virtual std::vector<RowBlock> begin_reduce(Tensor rows, OverlapSplit split, Stream& stream) = 0;
  // `stream` has made the block; sends it.
  virtual void send(const RowBlock& block, Stream& stream) = 0;
  // The parts (members or 1, local rows, …) of the last reduce's local rows; `stream` waits for them, and until `rows`
  // may be overwritten. Parts of several members are good until as many further reduces have begun as there are buffers
  // for them (allocate_peer_copies); a part alone is the local block of `rows` itself.
  virtual Tensor finish_reduce(Stream& stream) = 0;

  // For reports: "all-gather", "gather by copies, 3 splits".
  virtual std::string gather_name(OverlapSplit split) const = 0;
  virtual std::string reduce_name(OverlapSplit split) const = 0;

  // Transfers with the same splits and blocks that move nothing and run on `null`'s stream, for those who record what
  // layers enqueue. `null`: a group of the same size that moves nothing.
  virtual std::unique_ptr<AxisTransfers> null_transfers(GroupOnStream null, Device& device) const = 0;

 protected:
  explicit AxisTransfers(GroupOnStream collectives) : collectives_(std::move(collectives)) {}

  Tensor block(Tensor rows, int member) const {
    const int64_t local = rows[0] / size();
    return rows.rows(member * local, local);
  }
  std::vector<RowSplit> undivided(Tensor rows) const { return {{.first = 0, .count = rows[0], .members = {}}}; }

 private:
  GroupOnStream collectives_;
};

// A rank alone: all rows are local, nothing is enqueued.
class OneRankTransfers final : public AxisTransfers {
 public:
  explicit OneRankTransfers(GroupOnStream collectives) : AxisTransfers(std::move(collectives)) {}

  void wait_until_read(Stream&) override {}
  void begin_gather(Tensor, Stream&) override {}
  void start_gather(Tensor, Stream&) override {}
  bool gathering(Tensor) const override { return false; }
  std::vector<RowSplit> splits(Tensor rows, OverlapSplit) const override { return undivided(rows); }
  void wait_split(Tensor, const RowSplit&, Stream&) override {}
  void finish_gather(Tensor, Stream&) override {}
  std::vector<RowBlock> begin_reduce(Tensor rows, OverlapSplit split, Stream& stream) override;
  void send(const RowBlock&, Stream&) override {}
  Tensor finish_reduce(Stream& stream) override;
  std::string gather_name(OverlapSplit) const override { return "none"; }
  std::string reduce_name(OverlapSplit) const override { return "none"; }
  std::unique_ptr<AxisTransfers> null_transfers(GroupOnStream null, Device& device) const override;

 private:
  Tensor reduced_;
};

// All rows at once by the group's own collectives (NCCL, MPI), on its stream. A gather's rows are waited for at their
// first use. Sums replace the local block of the rows.
class CollectiveTransfers final : public AxisTransfers {
 public:
  CollectiveTransfers(GroupOnStream collectives, Device& device)
      : AxisTransfers(std::move(collectives)), device_(device) {}

  void wait_until_read(Stream&) override {}
  void begin_gather(Tensor rows, Stream& stream) override;
  void start_gather(Tensor rows, Stream& stream) override;
  bool gathering(Tensor rows) const override;
  std::vector<RowSplit> splits(Tensor rows, OverlapSplit) const override { return undivided(rows); }
  void wait_split(Tensor rows, const RowSplit& split, Stream& stream) override;
  void finish_gather(Tensor rows, Stream& stream) override;
  std::vector<RowBlock> begin_reduce(Tensor rows, OverlapSplit split, Stream& stream) override;
  void send(const RowBlock& block, Stream& stream) override;
  Tensor finish_reduce(Stream& stream) override;
  std::string gather_name(OverlapSplit) const override { return "all-gather"; }
  std::string reduce_name(OverlapSplit) const override { return "reduce-scatter"; }
  std::unique_ptr<AxisTransfers> null_transfers(GroupOnStream null, Device& device) const override;

 private:
  struct Gather {
    void* rows = nullptr;  // null: not in use
    std::unique_ptr<Event> done;
    bool waited = false;  // by the caller's stream
  };
  Gather* find(void* rows);

  Device& device_;
  std::vector<Gather> gathers_;  // reused
  Tensor reduced_;               // of the last reduce: all rows
};

// rows (members · n, …) as (parts, n, …): a dimension more.
Tensor with_parts(Tensor rows, int64_t parts);

}  // namespace tri
