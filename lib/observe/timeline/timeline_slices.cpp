#include "lib/observe/timeline/timeline_slices.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>

namespace tri {
namespace {

// One member's part of an operation.
struct Part {
  uint64_t operation = 0;  // channel and sequence
  int32_t segment = 0, transfer = 0;
};

class RendezvousFinder {
 public:
  explicit RendezvousFinder(const std::vector<TimelineSegment>& segments) : segments_(segments) {
    for (const TimelineSegment& segment : segments) rendezvous_.emplace_back(segment.transfers.size());
  }

  std::vector<std::vector<Rendezvous>> find() && {
    std::vector<Part> parts = all_parts();
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
      return std::tie(a.operation, a.segment, a.transfer) < std::tie(b.operation, b.segment, b.transfer);
    });
    for (size_t begin = 0, end; begin < parts.size(); begin = end) {
      end = begin;
      while (end < parts.size() && parts[end].operation == parts[begin].operation) ++end;
      match(std::span(parts).subspan(begin, end - begin));
    }
    return std::move(rendezvous_);
  }

 private:
  const TimelineTransfer& transfer(const Part& part) const {
    return segments_[static_cast<size_t>(part.segment)].transfers[static_cast<size_t>(part.transfer)];
  }
  const TimelineChannel& channel(const Part& part) const {
    return segments_[static_cast<size_t>(part.segment)].channels[transfer(part).channel];
  }
  int64_t aligned(const Part& part, int64_t time) const {
    return time + segments_[static_cast<size_t>(part.segment)].clock.offset;
  }

  // Channels are identified by name and members, which are equal on all members.
  std::vector<Part> all_parts() const {
    std::map<std::tuple<std::string, int32_t, int32_t, int32_t>, uint64_t> numbers;
    std::vector<Part> parts;
    for (size_t segment = 0; segment < segments_.size(); ++segment) {
      std::vector<uint64_t> of_channel;
      for (const TimelineChannel& c : segments_[segment].channels)
        of_channel.push_back(
            numbers.try_emplace({c.name, c.members.first, c.members.stride, c.members.size}, numbers.size())
                .first->second);
      const auto& transfers = segments_[segment].transfers;
      for (size_t i = 0; i < transfers.size(); ++i)
        parts.push_back({of_channel[transfers[i].channel] << 32 | transfers[i].sequence, static_cast<int32_t>(segment),
                         static_cast<int32_t>(i)});
    }
    return parts;
  }

  // Returns when this member's part is available to the others: for copies when it was sent, else when the member
  // joined.
  int64_t offered(const Part& part) const {
    const TimelineTransfer& t = transfer(part);
    const bool leaves = channel(part).kind == ChannelKind::kCopies && t.sent != 0;
    return aligned(part, leaves ? t.sent : t.joined);
  }

  void match(std::span<const Part> parts) {
    // Find the two latest members: each other member waits for the latest, which itself waits for the second.
    const Part *last = nullptr, *second = nullptr;
    for (const Part& part : parts) {
      if (last == nullptr || offered(part) > offered(*last))
        second = std::exchange(last, &part);
      else if (second == nullptr || offered(part) > offered(*second))
        second = &part;
    }
    for (const Part& part : parts) {
      const ChannelKind kind = channel(part).kind;
      Rendezvous& rendezvous = rendezvous_[static_cast<size_t>(part.segment)][static_cast<size_t>(part.transfer)];
      rendezvous.joined = rendezvous.ready = aligned(part, transfer(part).joined);
      rendezvous.completed = aligned(part, transfer(part).completed);
      rendezvous.matched = static_cast<int>(parts.size()) == channel(part).members.size;
      const Part* const source = &part != last ? last : kind == ChannelKind::kCollectives ? nullptr : second;
      if (source == nullptr) continue;
      rendezvous.source_segment = source->segment;
      rendezvous.source_transfer = source->transfer;
      const bool came = offered(*source) <= rendezvous.completed;
      // A send may end before its receive begins. A copy may be observed before the marker that it was sent.
      rendezvous.early =
          kind != ChannelKind::kSend && aligned(*source, transfer(*source).joined) > rendezvous.completed;
      if (came || kind != ChannelKind::kSend)
        rendezvous.ready =
            std::clamp(offered(*source), rendezvous.joined, std::max(rendezvous.joined, rendezvous.completed));
    }
  }

  const std::vector<TimelineSegment>& segments_;
  std::vector<std::vector<Rendezvous>> rendezvous_;
};

}  // namespace

std::vector<std::vector<Rendezvous>> find_rendezvous(const std::vector<TimelineSegment>& segments) {
  return RendezvousFinder(segments).find();
}

namespace {

constexpr int64_t kShortest = 2000;  // nanoseconds; shorter waits are not attributed to a rank

bool is_copy(const TimelineSegment& segment, const TimelineTransfer& transfer) {
  return segment.channels[transfer.channel].kind == ChannelKind::kCopies;
}

// Whether compute waits for this channel's transfers under that name: "tp" for "tp" and "tp copies", "pp" for "pp
// forward". Sums over all ranks may appear under any axis.
bool may_wait_for(std::string_view axis, const TimelineChannel& channel) {
  return channel.name.starts_with(axis) || channel.name == "world" || channel.name == "embedding";
}

}  // namespace

TimelineSlices::TimelineSlices(const std::vector<TimelineSegment>& segments, const StepRange& steps,
                               TimelineSummary& summary)
    : segments_(segments), steps_(steps), summary_(summary), rendezvous_(find_rendezvous(segments)) {
  for (size_t i = 0; i < segments.size(); ++i) {
    const std::vector<Rendezvous>& of_segment = rendezvous_[i];
    auto& order = by_completion_.emplace_back(of_segment.size());
    for (size_t t = 0; t < order.size(); ++t) order[t] = static_cast<int32_t>(t);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return of_segment[static_cast<size_t>(a)].completed < of_segment[static_cast<size_t>(b)].completed;
    });
    sent_in_.emplace_back(of_segment.size(), -1);
    arrived_in_.emplace_back(of_segment.size(), -1);
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    const auto segment = static_cast<int32_t>(i);
    for (const TimelineSpan& span : segments[i].spans)
      if (steps.contains(span.step)) add_span(segment, span);
    add_transfers(segment);
  }
  add_flows();
  for (auto& [key, wait] : waits_) summary_.waits.push_back(std::move(wait));
  std::stable_sort(summary_.waits.begin(), summary_.waits.end(),
                   [](const WaitForRank& a, const WaitForRank& b) { return a.seconds > b.seconds; });
  summary_.num_slices = static_cast<int64_t>(slices_.size());
}

void TimelineSlices::add_span(int32_t segment, const TimelineSpan& span) {
  const TimelineSegment& of = segments_[static_cast<size_t>(segment)];
  Slice slice{.begin = span.begin + of.clock.offset,
              .end = span.end + of.clock.offset,
              .name = of.names[span.name],
              .segment = segment,
              .stream = span.stream,
              .step = span.step,
              .span = &span};
  if (span.kind == SpanKind::kWait) return add_wait(segment, span, std::move(slice));
  if (span.kind == SpanKind::kAction && slice.name != "update")
    slice.name = fmt::format("{} mb {}",
                             slice.name == "F"   ? "forward"
                             : slice.name == "B" ? "backward"
                             : slice.name == "W" ? "weight gradients"
                                                 : slice.name,
                             span.microbatch);
  if (slice.name == "step") slice.name += fmt::format(" {}", span.step);
  slices_.push_back(std::move(slice));
}

// The last transfer to complete before the end of the wait caused it. The rank that it waited for is responsible until
// that rank was ready; the rest is the transfer itself.
void TimelineSlices::add_wait(int32_t segment, const TimelineSpan& span, Slice slice) {
  const TimelineSegment& of = segments_[static_cast<size_t>(segment)];
  const std::string axis = std::exchange(slice.name, "");
  const auto& of_segment = rendezvous_[static_cast<size_t>(segment)];
  const auto& order = by_completion_[static_cast<size_t>(segment)];
  auto at = std::upper_bound(order.begin(), order.end(), slice.end, [&](int64_t time, int32_t transfer) {
    return time < of_segment[static_cast<size_t>(transfer)].completed;
  });
  slice.name = "wait " + axis;
  for (; at != order.begin(); --at) {
    const auto index = static_cast<size_t>(*(at - 1));
    const Rendezvous& rendezvous = of_segment[index];
    if (rendezvous.completed <= slice.begin) break;
    const TimelineTransfer& transfer = of.transfers[index];
    if (!may_wait_for(axis, of.channels[transfer.channel])) continue;
    slice.transfer = &transfer;
    const int64_t late = std::min(rendezvous.ready, slice.end) - slice.begin;
    if (rendezvous.source_segment < 0 || late < kShortest) break;
    slice.awaited = segments_[static_cast<size_t>(rendezvous.source_segment)].world_rank;
    slice.name = fmt::format("waits for rank {}", slice.awaited);
    auto& wait = waits_
                     .try_emplace({of.world_rank, slice.awaited, axis},
                                  WaitForRank{.waiter = of.world_rank, .awaited = slice.awaited, .axis = axis})
                     .first->second;
    ++wait.count;
    wait.seconds += static_cast<double>(late) * 1e-9;
    break;
  }
  (void)span;
  slices_.push_back(std::move(slice));
}

// Shows a transfer in the order of its stream: first its wait, then the transfer. With copies a rank sends on one
// stream and waits for arrivals on another, operation by operation.
void TimelineSlices::add_transfers(int32_t segment) {
  const TimelineSegment& of = segments_[static_cast<size_t>(segment)];
  std::map<uint16_t, int64_t> arrived;  // [stream] when the previous operation was complete
  for (const int32_t index : by_completion_[static_cast<size_t>(segment)]) {
    const auto t = static_cast<size_t>(index);
    const TimelineTransfer& transfer = of.transfers[t];
    if (!steps_.contains(transfer.step)) continue;
    const Rendezvous& rendezvous = rendezvous_[static_cast<size_t>(segment)][t];
    summary_.num_unmatched += rendezvous.matched ? 0 : 1;
    summary_.num_early += rendezvous.early ? 1 : 0;
    Slice slice{.begin = rendezvous.joined,
                .end = rendezvous.completed,
                .name = std::string(enum_name(transfer.operation)),
                .segment = segment,
                .stream = transfer.arrive_stream,
                .step = transfer.step,
                .transfer = &transfer};
    if (is_copy(of, transfer)) {
      Slice sent = slice;
      sent.stream = transfer.join_stream;
      sent.end =
          transfer.sent != 0 ? std::max(rendezvous.joined, transfer.sent + of.clock.offset) : rendezvous.completed;
      sent.name += ": copies";
      sent_in_[static_cast<size_t>(segment)][t] = static_cast<int32_t>(slices_.size());
      slices_.push_back(std::move(sent));
      int64_t& before = arrived[transfer.arrive_stream];
      slice.begin = std::min(std::max(slice.begin, before), slice.end);
      before = rendezvous.completed;
    }
    const bool waits = rendezvous.source_segment >= 0 && rendezvous.ready - slice.begin >= kShortest;
    if (waits) {
      Slice wait = slice;
      wait.end = slice.begin = rendezvous.ready;
      wait.awaited = segments_[static_cast<size_t>(rendezvous.source_segment)].world_rank;
      wait.name = fmt::format("waits for rank {}", wait.awaited);
      slices_.push_back(std::move(wait));
    }
    const auto number = static_cast<int32_t>(slices_.size());
    arrived_in_[static_cast<size_t>(segment)][t] = number;
    if (sent_in_[static_cast<size_t>(segment)][t] < 0) sent_in_[static_cast<size_t>(segment)][t] = number;
    slices_.push_back(std::move(slice));
  }
}

// Perfetto orders the ends of a flow by the beginnings of their slices, so the source's must come first.
void TimelineSlices::add_flows() {
  uint64_t flow = 0;
  for (size_t segment = 0; segment < segments_.size(); ++segment)
    for (size_t t = 0; t < rendezvous_[segment].size(); ++t) {
      const Rendezvous& rendezvous = rendezvous_[segment][t];
      const TimelineTransfer& transfer = segments_[segment].transfers[t];
      if (rendezvous.source_segment < 0 || arrived_in_[segment][t] < 0) continue;
      if (segments_[segment].channels[transfer.channel].kind == ChannelKind::kSend) continue;
      const int32_t source =
          sent_in_[static_cast<size_t>(rendezvous.source_segment)][static_cast<size_t>(rendezvous.source_transfer)];
      if (source < 0) continue;
      Slice &from = slices_[static_cast<size_t>(source)], &to = slices_[static_cast<size_t>(arrived_in_[segment][t])];
      to.begin = std::max(to.begin, from.begin + 1);
      to.end = std::max(to.end, to.begin);
      from.flows_out.push_back(++flow);
      to.flows_in.push_back(flow);
    }
  summary_.num_flows = static_cast<int64_t>(flow);
}

// Returns begins and ends in time order. On each track slices nest: a slice that begins in another ends with it at the
// latest.
std::vector<TimelineSlices::Event> TimelineSlices::events() {
  std::vector<uint32_t> order(slices_.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto key = [&](uint32_t i) {
    const Slice& s = slices_[i];
    return std::tuple(s.segment, s.stream, s.begin, -s.end, i);
  };
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  std::vector<Event> events;
  events.reserve(2 * slices_.size());
  std::vector<uint32_t> open;
  const auto end_until = [&](int64_t time) {
    while (!open.empty() && slices_[open.back()].end <= time) {
      events.push_back({slices_[open.back()].end, open.back(), false});
      open.pop_back();
    }
  };
  for (size_t i = 0; i < order.size(); ++i) {
    Slice& slice = slices_[order[i]];
    const bool same_track =
        i > 0 && slices_[order[i - 1]].segment == slice.segment && slices_[order[i - 1]].stream == slice.stream;
    end_until(same_track ? slice.begin : INT64_MAX);
    if (!open.empty()) slice.end = std::min(slice.end, slices_[open.back()].end);
    events.push_back({slice.begin, order[i], true});
    open.push_back(order[i]);
  }
  end_until(INT64_MAX);
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.time < b.time; });
  return events;
}

void TimelineSlices::write_begin(const Slice& slice, uint64_t track, PerfettoWriter& writer) const {
  const TimelineSegment& of = segments_[static_cast<size_t>(slice.segment)];
  std::vector<PerfettoWriter::Argument> arguments{{"step", int64_t{slice.step}}};
  if (slice.span != nullptr && slice.span->kind == SpanKind::kAction) {
    arguments.push_back({"microbatch", int64_t{slice.span->microbatch}});
    arguments.push_back({"chunk", int64_t{slice.span->chunk}});
  }
  if (slice.transfer != nullptr) {
    arguments.push_back({"channel", std::string_view(of.channels[slice.transfer->channel].name)});
    arguments.push_back({"sequence", int64_t{slice.transfer->sequence}});
  }
  if (slice.awaited >= 0) arguments.push_back({"awaited_rank", int64_t{slice.awaited}});
  writer.begin(track, slice.begin, slice.name, arguments, {slice.flows_out, slice.flows_in});
}

void TimelineSlices::write(const std::vector<std::vector<uint64_t>>& tracks, PerfettoWriter& writer) {
  for (const Event& event : events()) {
    const Slice& slice = slices_[event.slice];
    const uint64_t track = tracks[static_cast<size_t>(slice.segment)][slice.stream];
    if (event.begins)
      write_begin(slice, track, writer);
    else
      writer.end(track, event.time);
  }
}

}  // namespace tri
