// BatchRing: a ring of step slots in memory that several processes see. One of them writes, all of them take.
//
//   written       turns that are complete in the ring           set by the writer, seen by the consumers
//   taken[k]      turns that consumer k has copied out          set by consumer k, seen by the writer
//   state         running, ended, failed with status and words  set by the writer, seen by the consumers
//
// Turn n lies in slot n mod slots; it may be written once every consumer has taken turn n - slots. Counters only grow,
// and each has one process that sets it (release) and others that look (acquire): no locks, no calls of MPI. Nothing
// here waits: whoever must, polls.
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

  // The writer, one thread of one process. After end() or fail() it writes nothing more.
  bool may_write(int64_t turn) const;
  std::span<int32_t> slot(int64_t turn);
  void publish(int64_t turn, int64_t bytes_read);
  void end();
  void fail(ExitCode code, std::string_view message);  // the message is cut to a few thousand bytes

  // A consumer. ready(): false: not yet. Throws Fatal, with the writer's status and words, when the turn will never
  // come; turns that were written before are still good.
  bool ready(int64_t turn) const;
  std::span<const int32_t> slot(int64_t turn) const;
  int64_t bytes_read(int64_t turn) const;  // for this turn, from files
  void taken(int consumer, int64_t turn);  // the slot of `turn` is no longer looked at

 private:
  struct Header;
  struct SlotHeader;

  Header& header() const;
  int64_t& taken_counter(int consumer) const;
  SlotHeader& slot_header(int64_t turn) const;
  int32_t* slot_data(int64_t turn) const;

  char* memory_;
  Shape shape_;
};

}  // namespace tri
