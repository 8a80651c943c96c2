#undef _FORTIFY_SOURCE  // its inline versions would stand in the way
#include "tests/storage/points.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <string_view>
#include <vector>

namespace tri {
namespace {

enum class Action { kNone, kKill, kSleep, kHold };

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
  int trace = -1;
};

thread_local bool inside = false;  // our own calls are no points

std::string rank_text() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const char* value = std::getenv(name)) return value;
  return "0";
}

void set_up(Watch& watch, const std::string& folder, const std::string& rules, const std::string& trace,
            const std::string& rank) {
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
    rule.action = name == "kill" ? Action::kKill : name == "sleep" ? Action::kSleep : Action::kHold;
    watch.rules.push_back(rule);
  }
  if (!trace.empty())
    watch.trace = static_cast<int>(
        ::syscall(SYS_openat, AT_FDCWD, (trace + "." + rank).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
}

Watch& watch() {
  static Watch* const the_watch = [] {
    auto* made = new Watch;  // outlives all other objects: their destructors may write
    const auto text = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
    if (const std::string folder = text("TRIREME_TEST_STORAGE"); !folder.empty())
      set_up(*made, folder, text("TRIREME_TEST_STORAGE_RULES"), text("TRIREME_TEST_STORAGE_TRACE"), rank_text());
    return made;
  }();
  return *the_watch;
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }
bool starts(std::string_view text, std::string_view part) { return text.substr(0, part.size()) == part; }

// `path` relative to the watched folder; `to` is a rename's new name.
const char* phase_of(std::string_view call, std::string_view path, std::string_view to) {
  const size_t slash = path.find('/');
  const std::string_view top = path.substr(0, slash);
  const std::string_view file = slash == std::string_view::npos ? "" : path.substr(slash + 1);
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
  while (::nanosleep(&left, &left) != 0) {  // a signal came
  }
}

// To be asked before a call: true when the caller shall do half of it and then die(). Without halves, dies here.
bool point(const char* call, const std::string& path, const std::string& to, bool halves) {
  if (inside) return false;
  inside = true;
  Watch& w = watch();
  bool half = false;
  Action action = Action::kNone;
  std::string argument;
  if (!w.folder.empty() && starts(path, w.folder) && (path.size() == w.folder.size() || path[w.folder.size()] == '/')) {
    const std::lock_guard lock(w.mutex);
    const std::string relative = path.size() == w.folder.size() ? "" : path.substr(w.folder.size() + 1);
    const char* phase = phase_of(call, relative, to.substr(to.rfind('/') + 1));
    if (w.trace >= 0) {
      const std::string line = std::string(phase) + " " + relative + "\n";
      if (::syscall(SYS_write, w.trace, line.data(), line.size()) < 0) std::abort();
    }
    for (Rule& rule : w.rules)
      if ((rule.phase == "any" || rule.phase == phase) && ++rule.seen == rule.number) {
        action = rule.action;
        argument = rule.argument;
      }
    if (action == Action::kKill) {
      half = halves;
      if (!half) ::raise(SIGKILL);
    }
  }
  if (action == Action::kSleep) rest(std::strtol(argument.c_str(), nullptr, 10) * 1000);
  while (action == Action::kHold && ::access(argument.c_str(), F_OK) != 0) rest(20);
  inside = false;
  return half;
}

bool point_at(const char* call, int folder, const char* path) {
  return !inside && !watch().folder.empty() && point(call, absolute(folder, path), "", false);
}
bool point_of(const char* call, int fd, bool halves) {
  return !inside && fd > STDERR_FILENO && !watch().folder.empty() && point(call, absolute(fd, ""), "", halves);
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

void watch_storage(const std::string& folder, const std::string& rules, const std::string& trace) {
  set_up(watch(), folder, rules, trace, "0");
}

}  // namespace tri

// What the program and its libraries call in place of the C library.
extern "C" {

#define TRI_NEXT(name) static const auto real = tri::next<decltype(name)>(#name)

#define TRI_OPEN(name)                                                               \
  int name(const char* path, int flags, ...) {                                       \
    TRI_NEXT(name);                                                                  \
    va_list more;                                                                    \
    va_start(more, flags);                                                           \
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;           \
    va_end(more);                                                                    \
    if ((flags & (O_CREAT | O_TRUNC)) != 0) tri::point_at("create", AT_FDCWD, path); \
    return real(path, flags, mode);                                                  \
  }
TRI_OPEN(open)
TRI_OPEN(open64)

#define TRI_FOPEN(name)                                          \
  FILE* name(const char* path, const char* mode) {               \
    TRI_NEXT(name);                                              \
    if (mode[0] != 'r') tri::point_at("create", AT_FDCWD, path); \
    return real(path, mode);                                     \
  }
TRI_FOPEN(fopen)
TRI_FOPEN(fopen64)

#define TRI_PWRITE(name)                                                         \
  ssize_t name(int fd, const void* data, size_t bytes, off_t offset) {           \
    TRI_NEXT(name);                                                              \
    if (!tri::point_of("write", fd, true)) return real(fd, data, bytes, offset); \
    real(fd, data, bytes / 2, offset);                                           \
    tri::die();                                                                  \
  }
TRI_PWRITE(pwrite)
TRI_PWRITE(pwrite64)

size_t fwrite(const void* data, size_t size, size_t count, FILE* file) {
  TRI_NEXT(fwrite);
  if (!tri::point_of("write", ::fileno(file), true)) return real(data, size, count, file);
  real(data, 1, size * count / 2, file);
  ::fflush(file);
  tri::die();
}

int fsync(int fd) {
  TRI_NEXT(fsync);
  tri::point_of("fsync", fd, false);
  return real(fd);
}

#define TRI_FTRUNCATE(name)               \
  int name(int fd, off_t size) noexcept { \
    TRI_NEXT(name);                       \
    tri::point_of("write", fd, false);    \
    return real(fd, size);                \
  }
TRI_FTRUNCATE(ftruncate)
TRI_FTRUNCATE(ftruncate64)

int rename(const char* from, const char* to) noexcept {
  TRI_NEXT(rename);
  tri::point("rename", tri::absolute(AT_FDCWD, from), to, false);
  return real(from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  TRI_NEXT(renameat2);
  tri::point("swap", tri::absolute(from_folder, from), to, false);
  return real(from_folder, from, to_folder, to, flags);
}

int mkdir(const char* path, mode_t mode) noexcept {
  TRI_NEXT(mkdir);
  tri::point_at("mkdir", AT_FDCWD, path);
  return real(path, mode);
}

int unlink(const char* path) noexcept {
  TRI_NEXT(unlink);
  tri::point_at("unlink", AT_FDCWD, path);
  return real(path);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  TRI_NEXT(unlinkat);
  tri::point_at("unlink", folder, path);
  return real(folder, path, flags);
}

int remove(const char* path) noexcept {
  TRI_NEXT(remove);
  tri::point_at("unlink", AT_FDCWD, path);
  return real(path);
}

int rmdir(const char* path) noexcept {
  TRI_NEXT(rmdir);
  tri::point_at("unlink", AT_FDCWD, path);
  return real(path);
}

}  // extern "C"
