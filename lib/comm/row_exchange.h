// RowExchange: a tp group's gathers and reduces of activation rows, block by block, as copies into the peers' memory
// that run beside the products that read or make the rows. Block k of `rows` (tp · Rl, C) belongs to member k.
//
//   gather   the own block goes to every peer; a product reads each block as it lands
//   reduce   a product makes one owner's block after the other; each goes to its owner as it is made, and the owner's
//            next kernel adds the parts (an operand (tp, Rl, C): kernels/norm.h)
//
// All members have the same memory layout and issue the same operations in the same order; each operation sends one
// block from every member to every other one. Operations are counted; two flags a pair of members carry the counts:
//   ready    set in the sender's memory by the receiver: its part of operation n may be written to
//   arrived  set in the receiver's memory by the sender: the block of operation n is there
// Nothing waits on the host, and no collective is called. Where memory cannot be shared, Channel does the same at once.
#pragma once

#include <memory>
#include <vector>

#include "kernels/core/arena.h"
#include "kernels/core/device.h"
#include "lib/comm/comm_group.h"

namespace tri {

struct RowExchangeTensors {
  Tensor flags;        // (2, tp) i32: ready, arrived; a column a peer
  Tensor incoming[2];  // (tp, Rl, C): the parts of a reduce, used in turn
};
RowExchangeTensors allocate_row_exchange(int tp, int64_t own_rows, int64_t width, Dtype dtype, Arena& arena);

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

// Partial sums for one owner, on their way to it.
struct RowBlock {
  int owner = 0;
  int64_t first = 0;  // of the owner's rows among all
  Tensor out;         // (Rl, C): where the product writes them
};

class RowExchange {
 public:
  // `copies`: a stream a peer, in the order of the members without this one.
  RowExchange(PeerMemory peers, RowExchangeTensors tensors, std::vector<Stream*> copies, Device& device);

  int rank() const { return peers_.rank; }
  int size() const { return peers_.size(); }
  const CommCounts& counts() const { return counts_; }  // gathers, reduces, bytes sent

  // From here on in `compute`, peers may write their blocks of `rows`; nothing before reads or writes them later.
  void begin_gather(Tensor rows, Stream& compute);
  // The own block of `rows` is there; sends it.
  void start_gather(Tensor rows, Stream& compute);
  // Members in the order in which their blocks are best read: the own one first.
  std::vector<int> arrival_order() const;
  // `compute` waits for a member's block, or for all, of `rows`; nothing where `rows` are not being gathered.
  void wait_block(Tensor rows, int member, Stream& compute);
  void finish_gather(Tensor rows, Stream& compute);
  bool gathering(Tensor rows) const;
  // `compute` waits until what was sent so far has been read: then it may be overwritten. Every begin does that.
  void settle(Stream& compute);

  // The blocks of `rows` in the order in which they are best made: the own one last, and not in `rows`.
  std::vector<RowBlock> begin_reduce(Tensor rows, Stream& compute);
  // compute has made the block; sends it.
  void send(const RowBlock& block, Stream& compute);
  // The parts (tp, Rl, C) of the own rows; `compute` waits for them. Good until the next but one reduce begins.
  Tensor finish_reduce(Stream& compute);

 private:
  struct Gather {
    void* rows;
    uint32_t operation;
    std::vector<bool> waited;  // [member]: compute has waited for its block
  };

  void begin(Stream& compute);
  void push(int peer, void* own_place, const void* src, int64_t bytes);
  Tensor block(Tensor rows, int member) const;
  uint32_t* flag(int row, int member) const;
  Stream& copies_to(int peer) const { return *copies_[static_cast<size_t>(peer < rank() ? peer : peer - 1)]; }
  Event& sent_to(int peer) const { return *sent_[static_cast<size_t>(peer < rank() ? peer : peer - 1)]; }

  PeerMemory peers_;
  RowExchangeTensors tensors_;
  std::vector<Stream*> copies_;
  std::unique_ptr<Event> made_;               // compute has made what is to be sent
  std::vector<std::unique_ptr<Event>> sent_;  // the last block was read from this rank's memory
  CommCounts counts_;
  uint32_t operation_ = 0;
  std::vector<Gather> gathers_;  // not waited for yet
  uint32_t reduce_ = 0;          // operation of the last reduce
  int turn_ = 0;
};

}  // namespace tri
