#include "io/checkpoint/memory_segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>

#include "io/base/clock.h"
#include "io/base/file.h"
#include "io/base/format.h"
#include "io/base/hash.h"

namespace tri {
namespace {

constexpr std::string_view kPrefix = "trireme.memory.";
constexpr std::array<char, 8> kMagic = {'T', 'R', 'I', 'M', 'E', 'M', '0', '1'};
constexpr uint32_t kVersion = 1;
enum : uint64_t { kEmpty = 0, kWriting = 1, kComplete = 2 };

struct Header {
  std::atomic<uint64_t> state;  // first: kSegmentStateBytes
  std::array<char, 8> magic;
  uint32_t version;
  int32_t world_rank, world_size, slot;
  int64_t step, process;
  double time;  // seconds since 1970
  uint64_t layout;
  int64_t table_capacity, table_bytes, file_bytes;
  uint64_t table_checksum;
  char attempt[64], run_dir[1024];
  uint64_t checksum;  // of the bytes from `magic` to here
};
static_assert(sizeof(Header) <= kSegmentHeaderBytes && offsetof(Header, magic) == kSegmentStateBytes &&
              std::atomic<uint64_t>::is_always_lock_free);

uint64_t checksum_of(const Header& header) {
  const char* begin = reinterpret_cast<const char*>(&header);
  return xxh3_64(begin + offsetof(Header, magic), offsetof(Header, checksum) - offsetof(Header, magic));
}

// Returns what is wrong with a header of a file of `file_bytes`; "": nothing.
std::string wrong_with(const Header& header, int64_t file_bytes) {
  if (header.magic != kMagic) return "it is not a segment";
  if (header.version != kVersion) return fmt::format("it has version {}, expected {}", header.version, kVersion);
  if (header.checksum != checksum_of(header)) return "its header is damaged";
  if (header.file_bytes != file_bytes)
    return fmt::format("it has {} bytes, its header says {}", file_bytes, header.file_bytes);
  if (header.table_bytes < 0 || header.table_bytes > header.table_capacity ||
      kSegmentHeaderBytes + header.table_capacity > file_bytes)
    return "its table does not fit";
  return "";
}

SegmentIdentity identity_of(const Header& header) {
  const auto text = [](const char* from, size_t most) { return std::string(from, ::strnlen(from, most)); };
  return {.world_rank = header.world_rank,
          .world_size = header.world_size,
          .slot = header.slot,
          .step = header.step,
          .layout = header.layout,
          .attempt = text(header.attempt, sizeof header.attempt),
          .run_dir = text(header.run_dir, sizeof header.run_dir)};
}

// Reads the header of this user's regular file, whatever it contains. Returns the file's size.
Result<int64_t> read_header(const std::string& path, Descriptor& file, Header& header) {
  file = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) return system_error(errno, "{}", path);
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) return file_error("{}: it is not this user's file", path);
  if (info.st_size < kSegmentHeaderBytes) return file_error("{}: it has only {} bytes", path, int64_t{info.st_size});
  if (auto read = read_at(file.get(), path, static_cast<void*>(&header), sizeof header, 0); !read) return read.error();
  return int64_t{info.st_size};
}

// Whether a file of a tmpfs has all of its pages. Reserving them again would visit each, 0.03 s per GB.
bool is_reserved(int file, int64_t bytes) {
  constexpr int64_t kBlock = 512;  // of st_blocks
  struct stat info {};
  struct statfs system {};
  return ::fstat(file, &info) == 0 && info.st_size == bytes && info.st_blocks * kBlock >= bytes &&
         ::fstatfs(file, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

}  // namespace

std::string run_key(const std::string& run_dir) { return hex64(xxh3_64(run_dir)); }

std::string SegmentName::text() const {
  return fmt::format("{}{}.{}.{:05d}.{}.{}", kPrefix, run, host, world_rank, copy ? "copy" : "own", slot);
}

std::optional<SegmentName> segment_name_from(std::string_view text) {
  if (!text.starts_with(kPrefix)) return std::nullopt;
  const std::string_view whole = text;
  text.remove_prefix(kPrefix.size());
  // A host name may contain dots: the other parts are counted from both ends.
  const auto take_last = [&]() -> std::string_view {
    const size_t dot = text.rfind('.');
    if (dot == std::string_view::npos) return "";
    const std::string_view part = text.substr(dot + 1);
    text = text.substr(0, dot);
    return part;
  };
  SegmentName name;
  const std::string_view slot = take_last(), kind = take_last(), rank = take_last();
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  name.run = text.substr(0, dot);
  name.host = text.substr(dot + 1);
  std::from_chars(rank.data(), rank.data() + rank.size(), name.world_rank);
  name.copy = kind == "copy";
  name.slot = slot == "1" ? 1 : 0;
  return name.text() == whole ? std::optional(name) : std::nullopt;
}

Result<std::unique_ptr<MemorySegment>> MemorySegment::create(const std::string& folder, const SegmentName& name,
                                                             int64_t table_capacity, int64_t payload_bytes) {
  std::unique_ptr<MemorySegment> segment(new MemorySegment);
  segment->path_ = folder + "/" + name.text();
  segment->bytes_ = segment_bytes(table_capacity, payload_bytes);
  segment->table_capacity_ = table_capacity;
  const char* path = segment->path_.c_str();
  struct stat info {};
  if (::lstat(path, &info) == 0 &&
      (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid() || info.st_size != segment->bytes_))
    ::unlink(path);
  const Descriptor file(::open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return system_error(errno, "{}", segment->path_);
  // Without a reservation, the first store to a page for which there is no memory would end the process.
  const bool reserved = is_reserved(file.get(), segment->bytes_);
  if (const int problem = reserved ? 0 : ::posix_fallocate(file.get(), 0, segment->bytes_); problem != 0) {
    ::unlink(path);
    if (problem != ENOSPC) return system_error(problem, "{}", segment->path_);
    return usage_error("checkpoint.memory_every: {} has no room for a segment of {}; raise its limit or set it to 0",
                       folder, format_bytes(segment->bytes_));
  }
  void* memory =
      ::mmap(nullptr, static_cast<size_t>(segment->bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return system_error(errno, "{}", segment->path_);
  segment->memory_ = static_cast<char*>(memory);
  return segment;
}

MemorySegment::~MemorySegment() {
  if (memory_ != nullptr) ::munmap(memory_, static_cast<size_t>(bytes_));
}

void MemorySegment::begin() {
  reinterpret_cast<Header*>(memory_)->state.store(kWriting);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void MemorySegment::complete() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  reinterpret_cast<Header*>(memory_)->state.store(kComplete);
}

Result<void> MemorySegment::finish(const SegmentIdentity& identity, std::string_view table) {
  if (static_cast<int64_t>(table.size()) > table_capacity_)
    return file_error("{}: the table has {} bytes, but only {} are reserved", path_, table.size(), table_capacity_);
  Header& header = *reinterpret_cast<Header*>(memory_);
  if (identity.attempt.size() >= sizeof header.attempt || identity.run_dir.size() >= sizeof header.run_dir)
    return file_error("{}: the name of the attempt or run.dir is too long", path_);
  std::memcpy(memory_ + kSegmentHeaderBytes, table.data(), table.size());
  header.magic = kMagic;
  header.version = kVersion;
  header.world_rank = identity.world_rank;
  header.world_size = identity.world_size;
  header.slot = identity.slot;
  header.step = identity.step;
  header.process = ::getpid();
  header.time = wall_seconds();
  header.layout = identity.layout;
  header.table_capacity = table_capacity_;
  header.table_bytes = static_cast<int64_t>(table.size());
  header.file_bytes = bytes_;
  header.table_checksum = xxh3_64(table);
  std::memset(header.attempt, 0, sizeof header.attempt);
  std::memset(header.run_dir, 0, sizeof header.run_dir);
  std::memcpy(header.attempt, identity.attempt.data(), identity.attempt.size());
  std::memcpy(header.run_dir, identity.run_dir.data(), identity.run_dir.size());
  header.checksum = checksum_of(header);
  complete();
  return {};
}

Result<std::string_view> MemorySegment::checked_table() const {
  const Header& header = *reinterpret_cast<const Header*>(memory_);
  if (const std::string wrong = wrong_with(header, bytes_); !wrong.empty()) return file_error("{}: {}", path_, wrong);
  const std::string_view table(memory_ + kSegmentHeaderBytes, static_cast<size_t>(header.table_bytes));
  if (header.table_capacity != table_capacity_ || xxh3_64(table) != header.table_checksum)
    return file_error("{}: its table is damaged", path_);
  return table;
}

void MemorySegment::remove() { ::unlink(path_.c_str()); }

Result<FoundSegment> read_segment(const std::string& folder, const std::string& file_name) {
  const std::string path = folder + "/" + file_name;
  const auto name = segment_name_from(file_name);
  if (!name) return file_error("{}: its name is not a segment's", path);
  Descriptor file;
  Header header;
  const auto bytes = read_header(path, file, header);
  if (!bytes) return bytes.error();
  if (header.state.load() != kComplete) return file_error("{}: it is not complete", path);
  if (const std::string wrong = wrong_with(header, bytes.value()); !wrong.empty())
    return file_error("{}: {}", path, wrong);
  FoundSegment found{.name = *name,
                     .identity = identity_of(header),
                     .table = std::string(static_cast<size_t>(header.table_bytes), '\0'),
                     .bytes = bytes.value(),
                     .payload_offset = kSegmentHeaderBytes + header.table_capacity};
  if (found.identity.world_rank != name->world_rank || found.identity.slot != name->slot ||
      run_key(found.identity.run_dir) != name->run)
    return file_error("{}: its header belongs to another segment", path);
  if (auto read = read_at(file.get(), path, found.table.data(), header.table_bytes, kSegmentHeaderBytes); !read)
    return read.error();
  if (xxh3_64(found.table) != header.table_checksum) return file_error("{}: its table is damaged", path);
  return found;
}

std::vector<std::pair<std::string, SegmentName>> list_segments(const std::string& folder) {
  std::vector<std::pair<std::string, SegmentName>> found;
  const auto names = list_folder(folder);
  if (!names) return found;
  for (const std::string& name : names.value())
    if (auto parsed = segment_name_from(name)) found.emplace_back(name, std::move(*parsed));
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return found;
}

int remove_orphaned_segments(const std::string& folder, const std::string& run_dir, double seconds) {
  int removed = 0;
  const std::string own = run_key(run_dir);
  for (const auto& [file_name, name] : list_segments(folder)) {
    if (name.run == own) continue;
    const std::string path = folder + "/" + file_name;
    Descriptor file;
    Header header;
    struct stat info {};
    if (!read_header(path, file, header) || ::fstat(file.get(), &info) != 0) continue;
    const bool is_known = header.magic == kMagic && header.checksum == checksum_of(header);
    // Stores into mapped memory do not change the file's date.
    const double written = std::max(is_known ? header.time : 0, static_cast<double>(info.st_mtime));
    const bool lives = is_known && (::kill(static_cast<pid_t>(header.process), 0) == 0 || errno == EPERM);
    if (!lives && wall_seconds() - written > seconds) removed += ::unlink(path.c_str()) == 0;
  }
  return removed;
}

int remove_segments(const std::string& folder, const std::string& run_dir, const std::string& host,
                    const std::vector<std::string>& keep) {
  int removed = 0;
  const std::string own = run_key(run_dir);
  for (const auto& [file_name, name] : list_segments(folder)) {
    const bool is_kept = std::find(keep.begin(), keep.end(), file_name) != keep.end();
    const std::string path = folder + "/" + file_name;
    struct stat info {};
    if (name.run != own || (!host.empty() && name.host != host) || is_kept || ::lstat(path.c_str(), &info) != 0 ||
        info.st_uid != ::geteuid())
      continue;
    removed += ::unlink(path.c_str()) == 0;
  }
  return removed;
}

}  // namespace tri
