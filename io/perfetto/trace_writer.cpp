#include "io/perfetto/trace_writer.h"

namespace tri {
namespace {

// Field numbers by message, from protos/perfetto/trace.
namespace trace {
constexpr int kPacket = 1;
}
namespace trace_packet {
constexpr int kTimestamp = 8, kSequence = 10, kTrackEvent = 11, kInternedData = 12, kSequenceFlags = 13,
              kTrackDescriptor = 60;
constexpr uint64_t kStateCleared = 1, kNeedsState = 2;  // bits of the flags
}  // namespace trace_packet
namespace interned_data {
constexpr int kEventNames = 2, kArgumentNames = 3, kNumber = 1, kName = 2;
}
namespace track_descriptor {
constexpr int kUuid = 1, kName = 2, kProcess = 3, kParent = 5, kChildOrdering = 11, kOrder = 12;
constexpr uint64_t kExplicit = 3;  // value of kChildOrdering
}  // namespace track_descriptor
namespace process_descriptor {
constexpr int kPid = 1, kName = 6, kLabels = 8;
}
namespace track_event {
constexpr int kArguments = 4, kType = 9, kNameNumber = 10, kTrack = 11, kFlows = 47, kEndingFlows = 48;
constexpr int kBegin = 1, kEnd = 2, kInstant = 3;  // values of kType
}  // namespace track_event
namespace debug_annotation {
constexpr int kNameNumber = 1, kInt = 4, kString = 6;
}

}  // namespace

Result<PerfettoWriter> PerfettoWriter::create(const std::string& path) {
  auto file = AtomicFile::create(path);
  if (!file) return file.error();
  return PerfettoWriter(std::move(file).value());
}

void PerfettoWriter::packet(ProtobufMessage& packet) {
  packet.varint(trace_packet::kSequence, 1);
  packet.varint(trace_packet::kSequenceFlags,
                trace_packet::kNeedsState | (begun_ ? uint64_t{0} : trace_packet::kStateCleared));
  begun_ = true;
  ProtobufMessage whole;
  whole.message(trace::kPacket, packet);
  file_.write(whole.bytes().data(), whole.bytes().size());
  bytes_ += static_cast<int64_t>(whole.bytes().size());
}

uint64_t PerfettoWriter::add_process(int id, std::string_view name, const std::vector<std::string>& labels) {
  ProtobufMessage process, track, whole;
  process.varint(process_descriptor::kPid, static_cast<uint64_t>(id));
  process.text(process_descriptor::kName, name);
  for (const std::string& label : labels) process.text(process_descriptor::kLabels, label);
  track.varint(track_descriptor::kUuid, ++last_track_);
  track.message(track_descriptor::kProcess, process);
  track.varint(track_descriptor::kChildOrdering, track_descriptor::kExplicit);
  whole.message(trace_packet::kTrackDescriptor, track);
  packet(whole);
  return last_track_;
}

uint64_t PerfettoWriter::add_track(uint64_t process, int order, std::string_view name) {
  ProtobufMessage track, whole;
  track.varint(track_descriptor::kUuid, ++last_track_);
  track.varint(track_descriptor::kParent, process);
  track.text(track_descriptor::kName, name);
  track.varint(track_descriptor::kOrder, static_cast<uint64_t>(order));
  whole.message(trace_packet::kTrackDescriptor, track);
  packet(whole);
  return last_track_;
}

uint64_t PerfettoWriter::number_of(std::map<std::string, uint64_t, std::less<>>& known, std::string_view name,
                                   int field, ProtobufMessage& interned) {
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  const uint64_t number = known.size() + 1;
  known.emplace(name, number);
  ProtobufMessage entry;
  entry.varint(interned_data::kNumber, number);
  entry.text(interned_data::kName, name);
  interned.message(field, entry);
  return number;
}

void PerfettoWriter::event(int type, uint64_t track, int64_t time, std::string_view name,
                           std::span<const Argument> arguments, const Flows& flows) {
  ProtobufMessage whole, interned, event;
  event.varint(track_event::kType, static_cast<uint64_t>(type));
  event.varint(track_event::kTrack, track);
  if (type != track_event::kEnd)
    event.varint(track_event::kNameNumber, number_of(event_names_, name, interned_data::kEventNames, interned));
  for (const Argument& argument : arguments) {
    ProtobufMessage annotation;
    annotation.varint(debug_annotation::kNameNumber,
                      number_of(argument_names_, argument.name, interned_data::kArgumentNames, interned));
    if (const auto* number = std::get_if<int64_t>(&argument.value))
      annotation.varint(debug_annotation::kInt, static_cast<uint64_t>(*number));
    else
      annotation.text(debug_annotation::kString, std::get<std::string_view>(argument.value));
    event.message(track_event::kArguments, annotation);
  }
  for (const uint64_t flow : flows.out) event.fixed64(track_event::kFlows, flow);
  for (const uint64_t flow : flows.in) event.fixed64(track_event::kEndingFlows, flow);
  whole.varint(trace_packet::kTimestamp, static_cast<uint64_t>(time));
  if (!interned.bytes().empty()) whole.message(trace_packet::kInternedData, interned);
  whole.message(trace_packet::kTrackEvent, event);
  packet(whole);
}

void PerfettoWriter::begin(uint64_t track, int64_t time, std::string_view name, std::span<const Argument> arguments,
                           const Flows& flows) {
  event(track_event::kBegin, track, time, name, arguments, flows);
}

void PerfettoWriter::end(uint64_t track, int64_t time) { event(track_event::kEnd, track, time, "", {}, {}); }

void PerfettoWriter::instant(uint64_t track, int64_t time, std::string_view name, std::span<const Argument> arguments) {
  event(track_event::kInstant, track, time, name, arguments, {});
}

Result<void> PerfettoWriter::commit() { return file_.commit(); }

}  // namespace tri
