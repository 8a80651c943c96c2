#include "io/tensorboard/event_file.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>

#include "io/base/host.h"
#include "io/base/log.h"
#include "io/base/protobuf.h"

namespace tri {
namespace {

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    table[i] = crc;
  }
  return table;
}();

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

ProtobufMessage event_of(int64_t step) {
  ProtobufMessage event;
  event.real(1, seconds_since_1970());
  event.varint(2, static_cast<uint64_t>(step));
  return event;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

TensorBoardFiles::TensorBoardFiles(std::string folder, int64_t first_step) : folder_(std::move(folder)) {
  if (auto opened = open(first_step); !opened) {
    log_warn("{}; training goes on, TensorBoard does not see it", opened.error().message);
    warned_ = true;
  }
}

TensorBoardFiles::~TensorBoardFiles() {
  if (file_ != nullptr) std::fclose(file_);
}

Result<void> TensorBoardFiles::open(int64_t first_step) {
  constexpr uint64_t kStart = 1;  // SessionLog.START: what stands before it of this step and later is forgotten
  std::error_code problem;
  std::filesystem::create_directories(folder_, problem);
  if (problem) return file_error("{}: {}", folder_, problem.message());
  const auto second = static_cast<int64_t>(seconds_since_1970());
  for (int i = 0; file_ == nullptr; ++i) {  // another of the same second has another number
    path_ = fmt::format("{}/events.out.tfevents.{:010d}.{}.{}.{}", folder_, second, host_name(), ::getpid(), i);
    file_ = std::fopen(path_.c_str(), "wx");
    if (file_ == nullptr && errno != EEXIST) break;
  }
  if (file_ == nullptr) return system_error(errno, "{}", path_);
  ProtobufMessage version, session, start = event_of(first_step);
  version.real(1, seconds_since_1970());
  version.text(3, "brain.Event:2");
  session.varint(1, kStart);
  start.message(7, session);
  if (auto written = append(version.bytes()); !written) return written;
  return append(start.bytes());
}

Result<void> TensorBoardFiles::append(const std::string& event) {
  const uint64_t length = event.size();
  std::string record;
  record.append(bytes_of(length)).append(bytes_of(masked_crc(bytes_of(length))));
  record.append(event).append(bytes_of(masked_crc(event)));
  if (std::fwrite(record.data(), 1, record.size(), file_) == record.size() && std::fflush(file_) == 0) return {};
  const int why = errno;
  std::fclose(file_);
  file_ = nullptr;
  return system_error(why, "{}", path_);
}

void TensorBoardFiles::scalars(int64_t step, const Scalars& values) {
  ProtobufMessage event = event_of(step), summary, value;
  for (const auto& [tag, number] : values) {
    value.clear();
    value.text(1, tag);
    value.real(2, static_cast<float>(number));
    summary.message(1, value);
  }
  event.message(5, summary);
  const Result<void> opened = file_ == nullptr ? open(step) : Result<void>{};
  const Result<void> written = opened ? append(event.bytes()) : opened;
  if (!written && !warned_) log_warn("{}; training goes on, TensorBoard misses steps", written.error().message);
  warned_ = !written;
}

}  // namespace tri
