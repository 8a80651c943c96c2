#include "lib/observe/timeline_meetings.h"

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
  int32_t piece = 0, transfer = 0;
};

class Meetings {
 public:
  explicit Meetings(const std::vector<TimelinePiece>& pieces) : pieces_(pieces) {
    for (const TimelinePiece& piece : pieces) meetings_.emplace_back(piece.transfers.size());
  }

  std::vector<std::vector<Meeting>> find() && {
    std::vector<Part> parts = all_parts();
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
      return std::tie(a.operation, a.piece, a.transfer) < std::tie(b.operation, b.piece, b.transfer);
    });
    for (size_t begin = 0, end; begin < parts.size(); begin = end) {
      end = begin;
      while (end < parts.size() && parts[end].operation == parts[begin].operation) ++end;
      meet(std::span(parts).subspan(begin, end - begin));
    }
    return std::move(meetings_);
  }

 private:
  const TimelineTransfer& transfer(const Part& part) const {
    return pieces_[static_cast<size_t>(part.piece)].transfers[static_cast<size_t>(part.transfer)];
  }
  const TimelineChannel& channel(const Part& part) const {
    return pieces_[static_cast<size_t>(part.piece)].channels[transfer(part).channel];
  }
  int64_t aligned(const Part& part, int64_t time) const {
    return time + pieces_[static_cast<size_t>(part.piece)].clock.offset;
  }

  // Channels are known by name and members, equal on all of these.
  std::vector<Part> all_parts() const {
    std::map<std::tuple<std::string, int32_t, int32_t, int32_t>, uint64_t> numbers;
    std::vector<Part> parts;
    for (size_t piece = 0; piece < pieces_.size(); ++piece) {
      std::vector<uint64_t> of_channel;
      for (const TimelineChannel& c : pieces_[piece].channels)
        of_channel.push_back(
            numbers.try_emplace({c.name, c.members.first, c.members.stride, c.members.size}, numbers.size())
                .first->second);
      const auto& transfers = pieces_[piece].transfers;
      for (size_t i = 0; i < transfers.size(); ++i)
        parts.push_back({of_channel[transfers[i].channel] << 32 | transfers[i].sequence, static_cast<int32_t>(piece),
                         static_cast<int32_t>(i)});
    }
    return parts;
  }

  // When this member's part is there for the others: of copies when it has left, else when it has come to it.
  int64_t offered(const Part& part) const {
    const TimelineTransfer& t = transfer(part);
    const bool leaves = channel(part).kind == ChannelKind::kCopies && t.sent != 0;
    return aligned(part, leaves ? t.sent : t.joined);
  }

  void meet(std::span<const Part> parts) {
    // The two that came last: the source of one of them is the other.
    const Part *last = nullptr, *second = nullptr;
    for (const Part& part : parts) {
      if (last == nullptr || offered(part) > offered(*last))
        second = std::exchange(last, &part);
      else if (second == nullptr || offered(part) > offered(*second))
        second = &part;
    }
    for (const Part& part : parts) {
      const ChannelKind kind = channel(part).kind;
      Meeting& meeting = meetings_[static_cast<size_t>(part.piece)][static_cast<size_t>(part.transfer)];
      meeting.joined = meeting.ready = aligned(part, transfer(part).joined);
      meeting.completed = aligned(part, transfer(part).completed);
      meeting.matched = static_cast<int>(parts.size()) == channel(part).members.size;
      const Part* const source = &part != last ? last : kind == ChannelKind::kCollectives ? nullptr : second;
      if (source == nullptr) continue;
      meeting.source_piece = source->piece;
      meeting.source_transfer = source->transfer;
      const bool came = offered(*source) <= meeting.completed;
      // A send may be over before anybody receives. A copy may be seen before the mark that it has left.
      meeting.early = kind != ChannelKind::kSend && aligned(*source, transfer(*source).joined) > meeting.completed;
      if (came || kind != ChannelKind::kSend)
        meeting.ready = std::clamp(offered(*source), meeting.joined, std::max(meeting.joined, meeting.completed));
    }
  }

  const std::vector<TimelinePiece>& pieces_;
  std::vector<std::vector<Meeting>> meetings_;
};

}  // namespace

std::vector<std::vector<Meeting>> find_meetings(const std::vector<TimelinePiece>& pieces) {
  return Meetings(pieces).find();
}

}  // namespace tri
