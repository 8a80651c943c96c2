// AxisTransfers: how the members of one mesh axis gather and reduce rows, with the same calls for every transport.
// Block k of `rows` (members · local rows, …) belongs to member k. For activations over tp, a row is a token's; for
// flat buckets over dp, a row is an element.
//
//   gather   begin_gather, compute the local rows, start_gather. Readers then process splits() in the order in which
//            they arrive and wait for each of them, or for all with finish_gather. Several gathers may be in flight.
//   reduce   begin_reduce returns the blocks for the partial sums. Each block is sent as soon as it is computed.
//            finish_reduce returns the parts that are left to add. One reduce at a time; no other operation begins
//            between its begin_reduce and its last send.
//
// A transport may carry all rows at once: then there is one split, one block, one part.
//
// Every call only enqueues. `stream` is the caller's: it writes and reads the rows, and is the same for a whole
// operation. Collective: all members issue the same operations in the same order. Call only from the rank's main
// thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/comm/groups/group_on_stream.h"

namespace tri {

// How a GEMM overlaps the transfer of its rows, if they are transferred in splits.
struct OverlapSplit {
  // Splits of a GEMM, from 1 to the number of members; 0: one per member. A gather's first split and a reduce's last
  // are the local block, which needs no transfer; the other splits share the other blocks. With 1 the GEMM runs
  // undivided, after the gather or before the reduce.
  int num_splits = 0;
  // A reduce's GEMM writes each block directly into its owner's memory, with one split per member.
  bool direct = false;

  bool operator==(const OverlapSplit&) const = default;
};

// Contiguous blocks of one gather that are read together.
struct RowSplit {
  int64_t first = 0, count = 0;  // rows
  std::vector<int> members;
};

// A contiguous block of partial sums, to be sent to the ranks that own its rows.
struct RowBlock {
  int64_t first = 0;        // row, among all
  Tensor out;               // (owners · local rows, …): where the GEMM writes them; may be outside of the rows
  std::vector<int> owners;  // in the order of the rows
};

class AxisTransfers {
 public:
  virtual ~AxisTransfers() = default;
  int rank() const { return collectives_.rank(); }
  int size() const { return collectives_.size(); }
  TimeCategory category() const { return collectives_.category(); }  // of the waits
  // Returns the counts of gathers, reduces and collectives. For gathers and reduces by copies, `bytes` are those sent.
  virtual CommCounts counts() const { return collectives_.group().counts(); }
  // Returns the group for single-step transfers of tensors that are not rows: sums, norms, vectors.
  GroupOnStream& collectives() { return collectives_; }

  // Writes the progress of transfers into the rank's flight recorder if streams do not mark it themselves; reads it on
  // the given stream. One thread other than the training thread calls it. It may hang if the device does.
  virtual void read_progress(Stream&, HostBuffer<uint32_t>&) {}

  // Returns this member's block of full `rows`.
  Tensor local_rows(Tensor rows) const { return block(rows, rank()); }

  // Makes `stream` wait until everything sent so far has been read and may be overwritten. Rows that a collective
  // gathers may be overwritten only after their finish_gather.
  virtual void wait_until_read(Stream& stream) = 0;

  // From here on in `stream`, peers may write their blocks of `rows`; earlier work neither reads nor writes them later.
  virtual void begin_gather(Tensor rows, Stream& stream) = 0;
  // Sends the local block of `rows`, which `stream` has written.
  virtual void start_gather(Tensor rows, Stream& stream) = 0;
  // Whether `rows` are between start_gather and finish_gather.
  virtual bool gathering(Tensor rows) const = 0;
  // Returns the splits of `rows` for a GEMM, in the order in which they arrive; a single one if they are not being
  // gathered.
  virtual std::vector<RowSplit> splits(Tensor rows, OverlapSplit split) const = 0;
  // Make `stream` wait for a split, or for all, of `rows`. Have no effect if `rows` are not being gathered.
  virtual void wait_split(Tensor rows, const RowSplit& split, Stream& stream) = 0;
  virtual void finish_gather(Tensor rows, Stream& stream) = 0;

  // Returns the blocks of `rows` in the best order to compute them.
  virtual std::vector<RowBlock> begin_reduce(Tensor rows, OverlapSplit split, Stream& stream) = 0;
  // Sends the block, which `stream` has computed.
  virtual void send(const RowBlock& block, Stream& stream) = 0;
  // Returns the parts (members or 1, local rows, …) of the last reduce's local rows. `stream` waits for them, and until
  // `rows` may be overwritten. Parts of several members stay valid until as many further reduces have begun as there
  // are buffers for them (allocate_peer_copies); a single part is the local block of `rows` itself.
  virtual Tensor finish_reduce(Stream& stream) = 0;

  // Names for reports: "all-gather", "gather by copies, 3 splits".
  virtual std::string gather_name(OverlapSplit split) const = 0;
  virtual std::string reduce_name(OverlapSplit split) const = 0;

  // Returns a null object: transfers with the same splits and blocks that move nothing and run on `null`'s stream, for
  // recording what layers enqueue. `null`: a group of the same size that moves nothing.
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

// A single rank: all rows are local, and nothing is enqueued.
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

// Transfers all rows at once with the group's own collectives (NCCL, MPI), on its stream. The first use of a gather's
// rows waits for them. Sums replace the local block of the rows.
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
    bool waited = false;  // the caller's stream has waited for it
  };
  Gather* find(void* rows);

  Device& device_;
  std::vector<Gather> gathers_;  // reused
  Tensor reduced_;               // of the last reduce: all rows
};

// Returns rows (members · n, …) as (parts, n, …), with one more dim.
Tensor with_parts(Tensor rows, int64_t parts);

}  // namespace tri
