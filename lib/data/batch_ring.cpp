#include "lib/data/batch_ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/core/dims.h"

namespace tri {
namespace {

constexpr int64_t kLine = 64;  // bytes of a cache line, which counters of different processes do not share
constexpr int64_t kTextBytes = 4096 - 2 * kLine;
enum State : int64_t { kRunning = 0, kEnded, kFailed };

static_assert(std::atomic_ref<int64_t>::is_always_lock_free,
              "the ring needs atomics without locks, which processes can share");

int64_t load(int64_t& counter) { return std::atomic_ref(counter).load(std::memory_order_acquire); }
void store(int64_t& counter, int64_t value) { std::atomic_ref(counter).store(value, std::memory_order_release); }

int64_t slot_bytes(int64_t tokens) { return kLine + round_up(tokens * static_cast<int64_t>(sizeof(int32_t)), kLine); }

}  // namespace

struct BatchRing::Header {
  alignas(kLine) int64_t written;
  alignas(kLine) int64_t state;
  int64_t code, length;  // of a failure; valid once `state` is kFailed
  alignas(kLine) char text[kTextBytes];
};

struct BatchRing::SlotHeader {
  alignas(kLine) int64_t bytes_read;
};

int64_t BatchRing::bytes(const Shape& shape) {
  return static_cast<int64_t>(sizeof(Header)) + shape.consumers * kLine + shape.slots * slot_bytes(shape.slot_tokens);
}

BatchRing::BatchRing(void* memory, const Shape& shape) : memory_(static_cast<char*>(memory)), shape_(shape) {
  TRI_REQUIRE(reinterpret_cast<uintptr_t>(memory) % kLine == 0, "a ring at {}", memory);
  TRI_REQUIRE(shape.slots >= 1 && shape.consumers >= 1, "{} slots, {} consumers", shape.slots, shape.consumers);
}

BatchRing::Header& BatchRing::header() const { return *reinterpret_cast<Header*>(memory_); }
int64_t& BatchRing::taken_counter(int consumer) const {
  return *reinterpret_cast<int64_t*>(memory_ + sizeof(Header) + consumer * kLine);
}
BatchRing::SlotHeader& BatchRing::slot_header(int64_t batch) const {
  return *reinterpret_cast<SlotHeader*>(memory_ + sizeof(Header) + shape_.consumers * kLine +
                                        batch % shape_.slots * slot_bytes(shape_.slot_tokens));
}
int32_t* BatchRing::slot_data(int64_t batch) const { return reinterpret_cast<int32_t*>(&slot_header(batch) + 1); }

bool BatchRing::may_write(int64_t batch) const {
  for (int consumer = 0; consumer < shape_.consumers; ++consumer)
    if (load(taken_counter(consumer)) <= batch - shape_.slots) return false;
  return true;
}

std::span<int32_t> BatchRing::slot(int64_t batch) {
  return {slot_data(batch), static_cast<size_t>(shape_.slot_tokens)};
}

void BatchRing::publish(int64_t batch, int64_t bytes_read) {
  TRI_REQUIRE(load(header().written) == batch, "batch {} after {} batches", batch, load(header().written));
  slot_header(batch).bytes_read = bytes_read;
  store(header().written, batch + 1);
}

void BatchRing::end() {
  if (load(header().state) == kRunning) store(header().state, kEnded);
}

void BatchRing::fail(ExitCode code, std::string_view message) {
  header().code = static_cast<int64_t>(code);
  header().length = std::min<int64_t>(static_cast<int64_t>(message.size()), kTextBytes);
  std::memcpy(header().text, message.data(), static_cast<size_t>(header().length));
  store(header().state, kFailed);
}

bool BatchRing::ready(int64_t batch) const {
  const int64_t state = load(header().state);  // read first: everything written before the end is then visible
  if (load(header().written) > batch) return true;
  if (state == kRunning) return false;
  if (state == kEnded) throw Fatal(ExitCode::kComm, "the rank that reads tokens for this rank has exited");
  throw Fatal(static_cast<ExitCode>(header().code), std::string(header().text, static_cast<size_t>(header().length)));
}

std::span<const int32_t> BatchRing::slot(int64_t batch) const {
  return {slot_data(batch), static_cast<size_t>(shape_.slot_tokens)};
}

int64_t BatchRing::bytes_read(int64_t batch) const { return slot_header(batch).bytes_read; }
void BatchRing::taken(int consumer, int64_t batch) { store(taken_counter(consumer), batch + 1); }

}  // namespace tri
