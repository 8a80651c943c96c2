#include "io/base/file_system_call.h"

#include <sys/syscall.h>

#include <algorithm>
#include <array>

namespace tri {

bool is_file_system_call(long number) {
  constexpr std::array<long, 23> kNumbers{
      SYS_read,       SYS_write, SYS_pread64,  SYS_pwrite64,  SYS_readv,     SYS_writev,    SYS_preadv,     SYS_pwritev,
      SYS_openat,     SYS_close, SYS_fsync,    SYS_fdatasync, SYS_flock,     SYS_ftruncate, SYS_getdents64, SYS_statx,
      SYS_newfstatat, SYS_fstat, SYS_unlinkat, SYS_mkdirat,   SYS_renameat2, SYS_fallocate, SYS_readlinkat,
  };
  if (std::find(kNumbers.begin(), kNumbers.end(), number) != kNumbers.end()) return true;
#ifdef SYS_open  // only on architectures that still have the older calls
  constexpr std::array<long, 11> kOlder{SYS_open,  SYS_stat,   SYS_lstat,    SYS_rename, SYS_mkdir,  SYS_unlink,
                                        SYS_rmdir, SYS_access, SYS_readlink, SYS_link,   SYS_symlink};
  return std::find(kOlder.begin(), kOlder.end(), number) != kOlder.end();
#else
  return false;
#endif
}

}  // namespace tri
