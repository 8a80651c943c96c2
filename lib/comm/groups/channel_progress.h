// The progress of one channel's transfers, written to the rank's flight recorder (io/flight_recorder): by the host as
// it enqueues them, and by the streams that run them or, if marks would cost them too much time, by read(). Without a
// flight recorder all calls have no effect. A SpanRecorder that follows the streams is notified in either case.
#pragma once

#include <string_view>
#include <vector>

#include "io/flight_recorder/flight_recorder.h"
#include "kernels/core/device.h"
#include "kernels/core/span_recorder.h"

namespace tri {

// Whether the channel's counters are set by the streams as they reach each mark, or by ChannelProgress::read().
enum class ChannelCounts { kMarked, kRead };

class ChannelProgress {
 public:
  ChannelProgress() = default;  // records nothing
  // Uses this process's flight recorder, if there is one. `index`: of this rank among `world_ranks`.
  ChannelProgress(std::string_view name, ChannelKind kind, const std::vector<int>& world_ranks, int index,
                  ChannelCounts counts = ChannelCounts::kMarked)
      : counts_(counts),
        recorder_(world_ranks.size() > 1 ? flight_recorder() : nullptr),
        channel_(recorder_ == nullptr ? nullptr : recorder_->add_channel(name, kind, rank_set(world_ranks), index)) {}

  // Notes the channel's next operation.
  void enqueue(ChannelOperation operation, int64_t bytes) {
    if (channel_ == nullptr) return;
    last_ = recorder_->enqueue(*channel_, operation, bytes);
    operation_ = operation;
  }
  // Mark the operation enqueued last when `stream` reaches this point. The meaning of the counters: image.h.
  void joined(Stream& stream) const {
    if (channel_ != nullptr) mark(stream, channel_->joined, TransferMark::kJoined, last_);
  }
  void sent(Stream& stream) const {
    if (channel_ != nullptr) mark(stream, channel_->sent, TransferMark::kSent, last_);
  }
  void completed(Stream& stream) const { completed(stream, last_); }
  void completed(Stream& stream, uint32_t operation) const {
    if (channel_ != nullptr) mark(stream, channel_->completed, TransferMark::kCompleted, operation);
  }
  // Sets the counters from values that the streams leave elsewhere. Counts only grow.
  void read(uint32_t joined, uint32_t sent, uint32_t completed) const {
    if (channel_ == nullptr) return;
    grow(channel_->joined, joined), grow(channel_->sent, sent), grow(channel_->completed, completed);
  }
  bool wants_read() const { return channel_ != nullptr && counts_ == ChannelCounts::kRead; }
  // The host has enqueued all of this operation and of those before it, including sends and waits.
  void whole(uint32_t operation) const {
    if (channel_ != nullptr) channel_->whole.store(operation, std::memory_order_relaxed);
  }
  uint32_t last() const { return last_; }

  // The compute action enqueued last cannot begin before `operation` is complete.
  void awaited_by_action(uint32_t operation) const {
    if (channel_ != nullptr) recorder_->action_awaits(*channel_, operation);
  }

 private:
  // Counts are compared modulo 2^32.
  static void grow(std::atomic<uint32_t>& count, uint32_t to) {
    if (static_cast<int32_t>(to - count.load(std::memory_order_relaxed)) > 0)
      count.store(to, std::memory_order_relaxed);
  }
  void mark(Stream& stream, flight::Count& word, TransferMark which, uint32_t operation) const {
    if (counts_ == ChannelCounts::kMarked) stream.mark(word, operation);
    if (SpanRecorder* const spans = stream.spans())
      spans->transfer(stream, which, recorder_->index_of(*channel_), operation, static_cast<uint8_t>(operation_));
  }

  ChannelCounts counts_ = ChannelCounts::kMarked;
  FlightRecorder* recorder_ = nullptr;
  flight::Channel* channel_ = nullptr;
  uint32_t last_ = 0;
  ChannelOperation operation_ = ChannelOperation::kNone;  // the one enqueued last
};

}  // namespace tri
