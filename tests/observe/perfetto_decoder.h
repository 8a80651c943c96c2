// Reads a trace like Perfetto's trace processor, based only on the format's description, not on the writer.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tri {

struct ProtobufField {
  int number = 0;
  uint64_t value = 0;      // of varints and fixed numbers
  std::string_view bytes;  // of other fields
};

inline std::vector<ProtobufField> protobuf_fields(std::string_view message) {
  std::vector<ProtobufField> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; at < message.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message[at++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    ProtobufField field{.number = static_cast<int>(key >> 3)};
    if ((key & 7) == 0) {
      field.value = varint();
    } else {
      const size_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint();
      if (size > message.size() - at) {
        ADD_FAILURE() << "a field of " << size << " bytes at " << at << " of " << message.size();
        return fields;
      }
      field.bytes = message.substr(at, size);
      if ((key & 7) != 2) std::memcpy(&field.value, field.bytes.data(), size);
      at += size;
    }
    fields.push_back(field);
  }
  return fields;
}

struct DecodedTrace {
  struct Slice {
    int64_t begin = 0, end = -1;
    std::string name;
    uint64_t track = 0;
    size_t depth = 0;
    std::map<std::string, int64_t> numbers;
    std::map<std::string, std::string> texts;
  };
  struct Flow {
    size_t out = 0, in = 0;  // slices
  };
  std::map<uint64_t, std::string> track_names;
  std::map<uint64_t, uint64_t> process_of;  // track -> its process's track
  std::map<uint64_t, int> pid_of;           // process's track -> pid
  std::map<uint64_t, std::string> process_names;
  std::vector<Slice> slices;
  std::vector<Flow> flows;
  int num_instants = 0;

  int pid(const Slice& slice) const { return pid_of.at(process_of.at(slice.track)); }

  explicit DecodedTrace(std::string_view trace) {
    for (const ProtobufField& field : protobuf_fields(trace)) {
      EXPECT_EQ(field.number, 1);
      packet(field.bytes);
    }
    for (const auto& [track, open] : open_)
      EXPECT_TRUE(open.empty()) << "slices of " << track_names[track] << " never end";
  }

 private:
  void packet(std::string_view bytes) {
    std::string_view event, descriptor;
    int64_t time = 0;
    for (const ProtobufField& field : protobuf_fields(bytes)) {
      if (field.number == 8) time = static_cast<int64_t>(field.value);
      if (field.number == 11) event = field.bytes;
      if (field.number == 12) intern(field.bytes);
      if (field.number == 60) descriptor = field.bytes;
    }
    if (!descriptor.empty()) describe(descriptor);
    if (event.empty()) return;
    EXPECT_GE(time, last_time_);
    last_time_ = time;
    take(event, time);
  }

  void intern(std::string_view data) {
    for (const ProtobufField& list : protobuf_fields(data)) {
      uint64_t number = 0;
      std::string name;
      for (const ProtobufField& field : protobuf_fields(list.bytes)) {
        if (field.number == 1) number = field.value;
        if (field.number == 2) name = field.bytes;
      }
      (list.number == 2 ? event_names_ : argument_names_)[number] = name;
    }
  }

  void describe(std::string_view descriptor) {
    uint64_t uuid = 0, parent = 0;
    std::string name, process;
    int pid = 0;
    for (const ProtobufField& field : protobuf_fields(descriptor)) {
      if (field.number == 1) uuid = field.value;
      if (field.number == 2) name = field.bytes;
      if (field.number == 5) parent = field.value;
      if (field.number != 3) continue;
      for (const ProtobufField& of_process : protobuf_fields(field.bytes)) {
        if (of_process.number == 1) pid = static_cast<int>(of_process.value);
        if (of_process.number == 6) process = of_process.bytes;
      }
    }
    EXPECT_EQ(process_of.count(uuid), 0u) << "track " << uuid << " twice";
    track_names[uuid] = name;
    process_of[uuid] = parent == 0 ? uuid : parent;
    if (pid != 0) pid_of[uuid] = pid;
    if (pid != 0) process_names[uuid] = process;
  }

  void take(std::string_view event, int64_t time) {
    Slice slice{.begin = time};
    uint64_t type = 0;
    std::vector<uint64_t> flows_on, flows_end;
    for (const ProtobufField& field : protobuf_fields(event)) {
      if (field.number == 9) type = field.value;
      if (field.number == 10) slice.name = event_names_.at(field.value);
      if (field.number == 11) slice.track = field.value;
      if (field.number == 4) argument(field.bytes, slice);
      if (field.number == 47) flows_on.push_back(field.value);
      if (field.number == 48) flows_end.push_back(field.value);
    }
    EXPECT_EQ(process_of.count(slice.track), 1u);
    auto& open = open_[slice.track];
    num_instants += type == 3 ? 1 : 0;
    if (type == 2) {
      ASSERT_FALSE(open.empty()) << "an end without a beginning on " << track_names[slice.track];
      slices[open.back()].end = time;
      open.pop_back();
    }
    if (type != 1) return;
    slice.depth = open.size();
    open.push_back(slices.size());
    slices.push_back(slice);
    // A flow begins at the first slice that has it, and continues from the last one.
    for (const uint64_t flow : flows_on) step(flow, false);
    for (const uint64_t flow : flows_end) step(flow, true);
  }

  void step(uint64_t flow, bool ends) {
    const size_t here = slices.size() - 1;
    const auto from = active_.find(flow);
    if (from != active_.end()) flows.push_back({from->second, here});
    EXPECT_TRUE(from != active_.end() || !ends) << "a flow that ends before it begins, in " << slices[here].name;
    if (ends)
      active_.erase(flow);
    else
      active_[flow] = here;
  }

  void argument(std::string_view bytes, Slice& slice) const {
    std::string name;
    for (const ProtobufField& field : protobuf_fields(bytes)) {
      if (field.number == 1) name = argument_names_.at(field.value);
      if (field.number == 4) slice.numbers[name] = static_cast<int64_t>(field.value);
      if (field.number == 6) slice.texts[name] = field.bytes;
    }
  }

  int64_t last_time_ = 0;
  std::map<uint64_t, std::string> event_names_, argument_names_;
  std::map<uint64_t, std::vector<size_t>> open_;  // by track
  std::map<uint64_t, size_t> active_;             // flow -> the last slice that has it
};

}  // namespace tri
