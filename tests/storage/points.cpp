#undef _FORTIFY_SOURCE  // its inline versions would interfere
#include "tests/storage/points.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <string_view>
#include <vector>

namespace tri {
namespace {

enum class Action { kNone, kKill, kStop, kSleep, kHold, kFifo, kFail };

// The fate of a call.
enum class Fate { kMade, kHalfMade, kFailed };  // half of it, after which the caller must die(); errno is set

struct Rule {
  std::string phase;
  int64_t number = 0;
  Action action = Action::kNone;
  std::string argument;
  int64_t seen = 0;
};

struct Watch {
  std::mutex mutex;
  std::string folder;
  std::vector<Rule> rules;
  int trace = -1, reads = -1;
};

thread_local bool inside = false;  // calls of this file are not points
std::atomic<bool> swaps_fail = false;

std::string rank_text() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const char* value = std::getenv(name)) return value;
  return "0";
}

int open_trace(const std::string& prefix, const std::string& rank) {
  if (prefix.empty()) return -1;
  return static_cast<int>(
      ::syscall(SYS_openat, AT_FDCWD, (prefix + "." + rank).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
}

void set_up(Watch& watch, const std::string& folder, const std::string& rules, const std::string& trace,
            const std::string& reads, const std::string& rank) {
  watch.folder = std::filesystem::weakly_canonical(std::filesystem::absolute(folder)).string();
  watch.rules.clear();
  std::istringstream words(rules);
  for (std::string word; words >> word;) {
    Rule rule;
    const size_t a = word.find('/'), b = word.find('/', a + 1), c = word.find('/', b + 1);
    if (a == std::string::npos || b == std::string::npos || c == std::string::npos) std::abort();
    if (word.substr(0, a) != rank) continue;
    rule.phase = word.substr(a + 1, b - a - 1);
    rule.number = std::strtoll(word.c_str() + b + 1, nullptr, 10);
    const std::string action = word.substr(c + 1);
    const size_t equals = action.find('=');
    if (equals != std::string::npos) rule.argument = action.substr(equals + 1);
    const std::string name = action.substr(0, equals);
    for (const auto& [word_of, action_of] : {std::pair{"kill", Action::kKill},
                                             {"stop", Action::kStop},
                                             {"sleep", Action::kSleep},
                                             {"hold", Action::kHold},
                                             {"fifo", Action::kFifo},
                                             {"fail", Action::kFail}})
      if (name == word_of) rule.action = action_of;
    if (rule.action == Action::kNone) std::abort();
    watch.rules.push_back(rule);
  }
  watch.trace = open_trace(trace, rank);
  watch.reads = open_trace(reads, rank);
}

Watch& watch() {
  static Watch* const the_watch = [] {
    auto* made = new Watch;  // outlives all other objects, whose destructors may write
    inside = true;           // setting up makes calls
    const auto text = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
    if (const std::string folder = text("TRIREME_TEST_STORAGE"); !folder.empty())
      set_up(*made, folder, text("TRIREME_TEST_STORAGE_RULES"), text("TRIREME_TEST_STORAGE_TRACE"),
             text("TRIREME_TEST_STORAGE_READS"), rank_text());
    inside = false;
    return made;
  }();
  return *the_watch;
}

// "EIO" or "EIO+"
int number_of_error(std::string_view name) {
  if (name.back() == '+') name.remove_suffix(1);
  for (const auto& [number, text] : {std::pair{EIO, "EIO"},
                                     {ESTALE, "ESTALE"},
                                     {EACCES, "EACCES"},
                                     {ENOENT, "ENOENT"},
                                     {ENOSPC, "ENOSPC"},
                                     {EDQUOT, "EDQUOT"}})
    if (name == text) return number;
  std::abort();
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }
bool starts(std::string_view text, std::string_view part) { return text.substr(0, part.size()) == part; }

bool only_reads(std::string_view phase) {
  return phase == "list" || phase == "read" || phase == "stat" || phase == "close";
}

// Returns the phase of a call. `path` is relative to the watched folder; `to` is the new name of a rename.
const char* phase_of(std::string_view call, std::string_view path, std::string_view to) {
  const size_t slash = path.find('/');
  const std::string_view top = path.substr(0, slash);
  const std::string_view file = slash == std::string_view::npos ? "" : path.substr(slash + 1);
  if (only_reads(call) || call == "close") return call.data();
  if (starts(top, "latest")) return call == "unlink" ? "cleaning" : "latest";
  if (has(top, ".trash.") || has(to, ".trash.")) return "prune";
  if (has(top, ".old.") || has(to, ".old.") || call == "swap") return "replace";
  if (call == "unlink") return "cleaning";
  if (call == "mkdir") return "begin";
  if (starts(file, "shard_")) return call == "fsync" ? "shard-fsync" : call == "rename" ? "shard-rename" : "shard";
  if (starts(file, "checkpoint.h5")) return "index";
  if (starts(file, "manifest.json")) return "manifest";
  if (call == "fsync") return "folder-fsync";
  return "publish";
}

std::string absolute(int folder, const char* path) {
  if (path[0] == '/') return path;
  char base[PATH_MAX];
  const std::string link = folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/" + std::to_string(folder);
  const ssize_t size = ::readlink(link.c_str(), base, sizeof base);
  const std::string start(base, static_cast<size_t>(size > 0 ? size : 0));
  if (path[0] == '\0') return start;
  return start + "/" + (starts(path, "./") ? path + 2 : path);
}

void rest(long milliseconds) {
  timespec left{milliseconds / 1000, milliseconds % 1000 * 1'000'000};
  while (::nanosleep(&left, &left) != 0) {  // a signal arrived
  }
}

// "@TEXT" matches all changes of files whose names contain TEXT.
bool matches(const Rule& rule, std::string_view phase, std::string_view path) {
  if (rule.phase == phase) return true;
  if (only_reads(phase)) return false;
  return rule.phase == "any" || (rule.phase.starts_with('@') && has(path, std::string_view(rule.phase).substr(1)));
}

void note_that_struck() {
  if (const char* path = std::getenv("TRIREME_TEST_STRUCK"))
    ::close(static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666)));
}

// Call before a storage call. A kill that does not need half of the call happens here.
Fate point(const char* call, const std::string& path, const std::string& to, bool halves) {
  if (inside) return Fate::kMade;
  inside = true;
  Watch& w = watch();
  Action action = Action::kNone;
  std::string argument;
  if (!w.folder.empty() && starts(path, w.folder) && (path.size() == w.folder.size() || path[w.folder.size()] == '/')) {
    const std::lock_guard lock(w.mutex);
    const std::string relative = path.size() == w.folder.size() ? "" : path.substr(w.folder.size() + 1);
    const std::string_view phase = phase_of(call, relative, to.substr(to.rfind('/') + 1));
    const bool watched = !starts(relative, "checkpoint.lock");
    const int trace = only_reads(phase) ? w.reads : w.trace;
    if (trace >= 0 && watched) {
      const std::string line = std::string(phase) + " " + relative + "\n";
      if (::syscall(SYS_write, trace, line.data(), line.size()) < 0) std::abort();
    }
    for (Rule& rule : w.rules) {
      if (!watched || !matches(rule, phase, relative)) continue;
      const int64_t seen = ++rule.seen;
      if (seen == rule.number || (seen > rule.number && rule.argument.ends_with('+'))) {
        action = rule.action;
        argument = rule.argument;
      }
    }
    if (action != Action::kNone) note_that_struck();
    if (action == Action::kKill && !halves) ::raise(SIGKILL);
  }
  if (action == Action::kStop) ::raise(SIGSTOP);
  if (action == Action::kSleep) rest(std::strtol(argument.c_str(), nullptr, 10) * 1000);
  if (action == Action::kFifo) {
    static const auto open_file = reinterpret_cast<decltype(::open)*>(::dlsym(RTLD_NEXT, "open"));
    ::close(open_file(argument.c_str(), O_RDONLY));
  }
  while (action == Action::kHold && ::access(argument.c_str(), F_OK) != 0) rest(20);
  inside = false;
  if (action == Action::kFail) errno = number_of_error(argument);
  return action == Action::kFail ? Fate::kFailed : action == Action::kKill ? Fate::kHalfMade : Fate::kMade;
}

bool watching() { return !inside && !watch().folder.empty(); }

Fate point_at(const char* call, int folder, const char* path) {
  return watching() ? point(call, absolute(folder, path), "", false) : Fate::kMade;
}
Fate point_of(const char* call, int fd, bool halves) {
  return fd > STDERR_FILENO && watching() ? point(call, absolute(fd, ""), "", halves) : Fate::kMade;
}
[[noreturn]] void die() {
  ::raise(SIGKILL);
  std::abort();
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

void watch_storage(const std::string& folder, const std::string& rules, const std::string& trace,
                   const std::string& reads) {
  set_up(watch(), folder, rules, trace, reads, "0");
}

NoSwaps::NoSwaps() { swaps_fail = true; }
NoSwaps::~NoSwaps() { swaps_fail = false; }

}  // namespace tri

// Functions that replace those of the C library for the program and its libraries.
extern "C" {

#define TRI_FAILS(point) (tri::point == tri::Fate::kFailed)
#define TRI_NEXT(name) static const auto real = tri::next<decltype(name)>(#name)

#define TRI_OPEN(name)                                                                 \
  int name(const char* path, int flags, ...) {                                         \
    TRI_NEXT(name);                                                                    \
    va_list more;                                                                      \
    va_start(more, flags);                                                             \
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;             \
    va_end(more);                                                                      \
    const bool changes = (flags & (O_CREAT | O_TRUNC)) != 0;                           \
    if (changes || (flags & O_DIRECTORY) == 0)                                         \
      if (TRI_FAILS(point_at(changes ? "create" : "read", AT_FDCWD, path))) return -1; \
    return real(path, flags, mode);                                                    \
  }
TRI_OPEN(open)
TRI_OPEN(open64)

#define TRI_FOPEN(name)                                                                          \
  FILE* name(const char* path, const char* mode) {                                               \
    TRI_NEXT(name);                                                                              \
    if (TRI_FAILS(point_at(mode[0] != 'r' ? "create" : "read", AT_FDCWD, path))) return nullptr; \
    return real(path, mode);                                                                     \
  }
TRI_FOPEN(fopen)
TRI_FOPEN(fopen64)

DIR* opendir(const char* path) {
  TRI_NEXT(opendir);
  return TRI_FAILS(point_at("list", AT_FDCWD, path)) ? nullptr : real(path);
}

dirent* readdir(DIR* stream) {
  TRI_NEXT(readdir);
  return TRI_FAILS(point_of("list", ::dirfd(stream), false)) ? nullptr : real(stream);
}

#define TRI_STAT(name)                                                            \
  int name(const char* path, struct stat* status) noexcept {                      \
    TRI_NEXT(name);                                                               \
    return TRI_FAILS(point_at("stat", AT_FDCWD, path)) ? -1 : real(path, status); \
  }
TRI_STAT(stat)
TRI_STAT(lstat)

#define TRI_PREAD(name)                                          \
  ssize_t name(int fd, void* data, size_t bytes, off_t offset) { \
    TRI_NEXT(name);                                              \
    if (TRI_FAILS(point_of("read", fd, false))) return -1;       \
    return real(fd, data, bytes, offset);                        \
  }
TRI_PREAD(pread)
TRI_PREAD(pread64)

#define TRI_PWRITE(name)                                               \
  ssize_t name(int fd, const void* data, size_t bytes, off_t offset) { \
    TRI_NEXT(name);                                                    \
    switch (tri::point_of("write", fd, true)) {                        \
      case tri::Fate::kMade:                                           \
        return real(fd, data, bytes, offset);                          \
      case tri::Fate::kFailed:                                         \
        return -1;                                                     \
      case tri::Fate::kHalfMade:                                       \
        break;                                                         \
    }                                                                  \
    real(fd, data, bytes / 2, offset);                                 \
    tri::die();                                                        \
  }
TRI_PWRITE(pwrite)
TRI_PWRITE(pwrite64)

size_t fwrite(const void* data, size_t size, size_t count, FILE* file) {
  TRI_NEXT(fwrite);
  switch (tri::point_of("write", ::fileno(file), true)) {
    case tri::Fate::kMade:
      return real(data, size, count, file);
    case tri::Fate::kFailed:
      return 0;
    case tri::Fate::kHalfMade:
      break;
  }
  real(data, 1, size * count / 2, file);
  ::fflush(file);
  tri::die();
}

ssize_t write(int fd, const void* data, size_t bytes) {
  TRI_NEXT(write);
  switch (tri::point_of("write", fd, true)) {
    case tri::Fate::kMade:
      return real(fd, data, bytes);
    case tri::Fate::kFailed:
      return -1;
    case tri::Fate::kHalfMade:
      break;
  }
  if (real(fd, data, bytes / 2) < 0) tri::die();
  tri::die();
}

// The file is closed whatever the call returns for its contents.
int fclose(FILE* file) {
  TRI_NEXT(fclose);
  const bool fails = TRI_FAILS(point_of("close", ::fileno(file), false));
  const int problem = errno;
  const int closed = real(file);
  if (fails) errno = problem;
  return fails ? EOF : closed;
}

int fsync(int fd) {
  TRI_NEXT(fsync);
  return TRI_FAILS(point_of("fsync", fd, false)) ? -1 : real(fd);
}

#define TRI_FTRUNCATE(name)                                               \
  int name(int fd, off_t size) noexcept {                                 \
    TRI_NEXT(name);                                                       \
    return TRI_FAILS(point_of("write", fd, false)) ? -1 : real(fd, size); \
  }
TRI_FTRUNCATE(ftruncate)
TRI_FTRUNCATE(ftruncate64)

int rename(const char* from, const char* to) noexcept {
  TRI_NEXT(rename);
  return TRI_FAILS(point("rename", tri::absolute(AT_FDCWD, from), to, false)) ? -1 : real(from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  TRI_NEXT(renameat2);
  if (tri::swaps_fail && (flags & RENAME_EXCHANGE) != 0) {
    errno = EINVAL;
    return -1;
  }
  if (TRI_FAILS(point("swap", tri::absolute(from_folder, from), to, false))) return -1;
  return real(from_folder, from, to_folder, to, flags);
}

int mkdir(const char* path, mode_t mode) noexcept {
  TRI_NEXT(mkdir);
  return TRI_FAILS(point_at("mkdir", AT_FDCWD, path)) ? -1 : real(path, mode);
}

int unlink(const char* path) noexcept {
  TRI_NEXT(unlink);
  return TRI_FAILS(point_at("unlink", AT_FDCWD, path)) ? -1 : real(path);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  TRI_NEXT(unlinkat);
  return TRI_FAILS(point_at("unlink", folder, path)) ? -1 : real(folder, path, flags);
}

int remove(const char* path) noexcept {
  TRI_NEXT(remove);
  return TRI_FAILS(point_at("unlink", AT_FDCWD, path)) ? -1 : real(path);
}

int rmdir(const char* path) noexcept {
  TRI_NEXT(rmdir);
  return TRI_FAILS(point_at("unlink", AT_FDCWD, path)) ? -1 : real(path);
}

}  // extern "C"
