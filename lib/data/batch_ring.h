// BatchRing: a ring of step slots in memory shared by several processes. One of them writes, all of them consume.
//
//   written       batches that are complete in the ring            set by the writer, read by the consumers
//   taken[k]      batches that consumer k has copied out           set by consumer k, read by the writer
//   state         running, ended, failed with status and message   set by the writer, read by the consumers
//
// Batch n is in slot n mod slots; it may be written once every consumer has taken batch n - slots. Counters only grow,
// and each is set by one process (release) and read by the others (acquire): there are no locks and no MPI calls.
// Non-blocking; callers poll.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "io/base/error.h"

namespace tri {

class BatchRing {
 public:
  struct Shape {
    int slots = 1, consumers = 1;
    int64_t slot_tokens = 0;
  };
  static int64_t bytes(const Shape& shape);

  // A view of `memory`: bytes(shape), aligned to 64 bytes, and all zero before the first of the processes begins.
  BatchRing(void* memory, const Shape& shape);

  // For the writer, one thread of one process. It must not write after end() or fail().
  bool may_write(int64_t batch) const;
  std::span<int32_t> slot(int64_t batch);
  void publish(int64_t batch, int64_t bytes_read);
  void end();
  void fail(ExitCode code, std::string_view message);  // the message is truncated to a few thousand bytes

  // For a consumer. ready() returns false while the batch is not written, and throws Fatal, with the writer's status
  // and message, if it never will be; batches written before remain valid.
  bool ready(int64_t batch) const;
  std::span<const int32_t> slot(int64_t batch) const;
  int64_t bytes_read(int64_t batch) const;  // bytes read from files for this batch
  void taken(int consumer, int64_t batch);  // the consumer no longer reads the slot of `batch`

 private:
  struct Header;
  struct SlotHeader;

  Header& header() const;
  int64_t& taken_counter(int consumer) const;
  SlotHeader& slot_header(int64_t batch) const;
  int32_t* slot_data(int64_t batch) const;

  char* memory_;
  Shape shape_;
};

}  // namespace tri
