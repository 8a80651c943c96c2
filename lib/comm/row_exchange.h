// RowExchange: a group's gathers and reduces as copies into the peers' memory, which copy engines make beside kernels:
// of activation rows over tp, beside the products that read or make them; of buckets over dp, where a row is an
// element. Block k of `rows` (members · own rows, …) belongs to member k.
//
//   gather   the own block goes to every peer; a product reads the blocks, in pieces, as they land
//   reduce   a product makes the owners' blocks, in pieces, and each goes to its owner as it is made; the owner's next
//            kernel adds the parts (an operand (members, own rows, …): kernels/norm.h)
//
// All members have the same memory layout and issue the same operations in the same order; each operation sends one
// block from every member to every other one. Operations are counted; two flags a pair of members carry the counts:
//   ready    set in the sender's memory by the receiver: its part of operation n may be written to
//   arrived  set in the receiver's memory by the sender: the block of operation n is there
// Nothing waits on the host, and no collective is called. A member's copies follow each other, every one to another
// member than its neighbours' at that time: copies side by side would share the links and all land last. Where memory
// cannot be shared, Channel does the same at once.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/core/device.h"
#include "lib/comm/comm_group.h"

namespace tri {

struct RowExchangeTensors {
  Tensor flags;                  // (2, members) i32: ready, arrived; a column a peer
  std::vector<Tensor> incoming;  // (elements): the parts of a reduce, used in turn
};
// For reduces of up to `elements`; `buffers`: reduces whose parts are there at once.
RowExchangeTensors allocate_row_exchange(const std::string& name, int members, int64_t elements, Dtype dtype,
                                         int buffers, Arena& arena);

// Where the members of a group have their memory, as this process sees it.
struct PeerMemory {
  int rank = 0;
  std::vector<char*> base;  // [member]; base[rank] is the own memory

  int size() const { return static_cast<int>(base.size()); }
  // What lies at `own` here, in the memory of `member`.
  template <class T>
  T* at(int member, T* own) const {
    return reinterpret_cast<T*>(base[static_cast<size_t>(member)] +
                                (reinterpret_cast<char*>(own) - base[static_cast<size_t>(rank)]));
  }
};

// How a product shares its rows with their transfer.
struct OverlapSplit {
  // Pieces of a product, 1 to tp; 0: tp. A gather's first piece and a reduce's last are the own block, which needs no
  // transfer; the other blocks make up the rest. With 1 the product is whole: after the gather, or before the reduce.
  int pieces = 0;
  // A reduce's product writes each block into its owner's memory itself; then pieces are tp.
  bool direct = false;

  bool operator==(const OverlapSplit&) const = default;
};

// Blocks of one gather that lie side by side and are read at once.
struct RowPiece {
  int64_t first = 0, count = 0;  // rows
  std::vector<int> members;
};

// Partial sums for owners whose rows lie side by side, on their way to them.
struct RowBlock {
  int64_t first = 0;        // row, among all
  Tensor out;               // (owners · Rl, C): where the product writes them
  std::vector<int> owners;  // in the order of the rows
};

class RowExchange {
 public:
  // Copies run on `copies`; `arrivals` waits for the peers' blocks and does nothing else.
  // `category`: what other streams' waits for it count as.
  RowExchange(PeerMemory peers, RowExchangeTensors tensors, Stream& copies, Stream& arrivals, Device& device,
              TimeCategory category);

  int rank() const { return peers_.rank; }
  int size() const { return peers_.size(); }
  const CommCounts& counts() const { return counts_; }  // gathers, reduces, bytes sent

  // `compute` waits until what was sent so far has been read: then it may be overwritten.
  void settle(Stream& compute);

  // From here on in `compute`, peers may write their blocks of `rows`; nothing before reads or writes them later.
  void begin_gather(Tensor rows, Stream& compute);
  // The own block of `rows` is there; sends it.
  void start_gather(Tensor rows, Stream& compute);
  // The pieces of `rows` that a product goes through, in the order in which they are there first.
  std::vector<RowPiece> pieces(Tensor rows, OverlapSplit split) const;
  // `compute` waits for a piece, or for all, of `rows`; nothing where `rows` are not being gathered.
  void wait_piece(Tensor rows, const RowPiece& piece, Stream& compute);
  void finish_gather(Tensor rows, Stream& compute);
  bool gathering(Tensor rows) const;

  // The blocks of `rows` in the order in which they are best made: the own one last. Some lie elsewhere than in `rows`.
  std::vector<RowBlock> begin_reduce(Tensor rows, OverlapSplit split, Stream& compute);
  // compute has made the block; sends it.
  void send(const RowBlock& block, Stream& compute);
  // The parts (members, own rows, …) of the own rows; `compute` waits for them, and until `rows` may be overwritten.
  // Good until their buffer's turn comes again.
  Tensor finish_reduce(Stream& compute);

 private:
  struct Gather {
    void* rows = nullptr;                         // null: not in use
    std::vector<std::unique_ptr<Event>> arrived;  // [member]
    std::vector<bool> waited;                     // [member]: compute has waited for its block
  };

  void begin(Stream& compute);
  void push(int peer, void* own_place, const void* src, int64_t bytes);
  Tensor block(Tensor rows, int member) const;
  Tensor incoming(int member) const;  // its part of the last reduce
  uint32_t* flag(int row, int member) const;
  std::vector<int> arrival_order() const;  // members; the own one first
  Gather* find(Tensor rows);

  PeerMemory peers_;
  RowExchangeTensors tensors_;
  Stream& copies_;
  Stream& arrivals_;
  Device& device_;
  TimeCategory category_;
  std::unique_ptr<Event> made_;     // compute has made what is to be sent, or has no use for what is to be overwritten
  std::unique_ptr<Event> sent_;     // all that was sent was read from this rank's memory
  std::unique_ptr<Event> reduced_;  // the parts of a reduce are there
  CommCounts counts_;
  uint32_t operation_ = 0;
  std::vector<Gather> gathers_;
  uint32_t reduce_ = 0;  // operation of the last reduce
  bool direct_ = false;  // ... its cut
  Tensor own_rows_;      // ... and the shape of a part
  size_t turn_ = 0;      // of the incoming buffers
};

}  // namespace tri
