// Writes the wire format of Protocol Buffers: the fields of a message in sequence, each after its key. A nested message
// is written separately and then added as a field.
// https://protobuf.dev/programming-guides/encoding
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tri {

class ProtobufMessage {
 public:
  // int32, int64, uint32, uint64, bool and enums.
  void varint(int field, uint64_t value) {
    append_varint(key(field, 0));
    append_varint(value);
  }
  void fixed64(int field, uint64_t value) {  // fixed64
    append_varint(key(field, 1));
    append_bytes(value);
  }
  void real(int field, double value) {  // double
    append_varint(key(field, 1));
    append_bytes(value);
  }
  void real(int field, float value) {  // float
    append_varint(key(field, 5));
    append_bytes(value);
  }
  void text(int field, std::string_view value) {  // string, bytes
    append_varint(key(field, 2));
    append_varint(value.size());
    bytes_.append(value);
  }
  void message(int field, const ProtobufMessage& value) { text(field, value.bytes_); }

  const std::string& bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

 private:
  static uint64_t key(int field, int wire_type) {
    return static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type);
  }
  void append_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  template <class T>
  void append_bytes(T value) {  // in this machine's byte order, little-endian
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  std::string bytes_;
};

}  // namespace tri
