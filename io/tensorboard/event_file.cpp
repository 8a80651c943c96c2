#include "io/tensorboard/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <utility>

#include "io/base/clock.h"
#include "io/base/file.h"
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

ProtobufMessage event_of(int64_t step) {
  ProtobufMessage event;
  event.real(1, wall_seconds());
  event.varint(2, static_cast<uint64_t>(step));
  return event;
}

std::string record_of(const std::string& event) {
  const uint64_t length = event.size();
  std::string record;
  record.append(bytes_of(length)).append(bytes_of(masked_crc(bytes_of(length))));
  record.append(event).append(bytes_of(masked_crc(event)));
  return record;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

// Used only by the writer's thread.
class TensorBoardFiles::File {
 public:
  File(std::string folder, int64_t first_step) : folder_(std::move(folder)), first_step_(first_step) {}

  // Opens the file; creates it if it is missing.
  Result<void> open() {
    if (!path_.empty() && file_.get() < 0) file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    if (file_.get() < 0 && (path_.empty() || errno == ENOENT))
      if (auto created = create(); !created) return created;
    if (file_.get() < 0) return system_error(errno, "{}", path_);
    return bytes_ == 0 ? add(header()) : Result<void>();
  }
  Result<void> append(const std::string& event) {
    if (auto opened = open(); !opened) return opened;
    return add(record_of(event));
  }

 private:
  Result<void> create() {
    std::error_code problem;
    std::filesystem::create_directories(folder_, problem);
    if (problem) return system_error(problem.value(), "{}", folder_);
    const auto second = static_cast<int64_t>(wall_seconds());
    bytes_ = 0;
    for (int i = 0; file_.get() < 0; ++i) {  // files of the same second differ in their number
      path_ = fmt::format("{}/events.out.tfevents.{:010d}.{}.{}.{}", folder_, second, host_name(), ::getpid(), i);
      file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (file_.get() < 0 && errno != EEXIST) {
        const int why = errno;
        return system_error(why, "{}", std::exchange(path_, ""));
      }
    }
    return {};
  }

  std::string header() const {
    constexpr uint64_t kStart = 1;  // SessionLog.START: earlier events of this step and later ones are ignored
    ProtobufMessage version, session, start = event_of(first_step_);
    version.real(1, wall_seconds());
    version.text(3, "brain.Event:2");
    session.varint(1, kStart);
    start.message(7, session);
    return record_of(version.bytes()) + record_of(start.bytes());
  }

  // Appends after the last whole record. After a failure the file is reopened, because network file systems may have
  // invalidated the old descriptor.
  Result<void> add(const std::string& records) {
    Result<void> written;
    if (torn_ && ::ftruncate(file_.get(), bytes_) != 0) written = system_error(errno, "{}", path_);
    if (written) written = write_at(file_.get(), path_, records.data(), static_cast<int64_t>(records.size()), bytes_);
    torn_ = !written && ::ftruncate(file_.get(), bytes_) != 0;
    if (written) bytes_ += static_cast<int64_t>(records.size());
    if (!written) file_.close();  // the error of closing would add nothing
    return written;
  }

  const std::string folder_;
  const int64_t first_step_;
  std::string path_;  // "": not created yet
  Descriptor file_;
  int64_t bytes_ = 0;  // of whole records
  bool torn_ = false;  // part of another record follows them
};

TensorBoardFiles::TensorBoardFiles(std::string folder, int64_t first_step)
    : file_(std::make_shared<File>(folder, first_step)) {
  auto writer =
      FileWriter::start({.path = folder, .max_bytes = size_t{16} << 20, .report = [](const std::string& message) {
                           log_warn("TensorBoard: {}", message);
                         }});
  if (!writer) {
    log_warn("TensorBoard: {}; training continues without an event file", writer.error().message);
    return;
  }
  writer_ = std::move(writer).value();
  writer_->post(1, [file = file_] { return file->open(); });
}

void TensorBoardFiles::scalars(int64_t step, const Scalars& values) {
  if (writer_ == nullptr) return;
  ProtobufMessage event = event_of(step), summary, value;
  for (const auto& [tag, number] : values) {
    value.clear();
    value.text(1, tag);
    value.real(2, static_cast<float>(number));
    summary.message(1, value);
  }
  event.message(5, summary);
  writer_->post(event.bytes().size(), [file = file_, bytes = event.bytes()] { return file->append(bytes); });
}

bool TensorBoardFiles::flush(std::chrono::milliseconds timeout) { return !writer_ || writer_->flush(timeout); }

}  // namespace tri
