// Storage whose calls are numbered, so that a test can select a moment of a save by counting instead of by a clock.
//
// A program that is linked with points.cpp makes its file calls through it: it defines open, pwrite, fsync, rename and
// similar functions, which replace the C library's for the program and the libraries it loads. Calls on the watched
// folder are points, each in a phase of a save; before a point's call is made, a rule may kill, pause or hold the
// process (in a write: after half of it), or make the call fail.
//
// A rule is RANK/PHASE/NUMBER/ACTION: it applies at the NUMBERth point (from 1) of PHASE, of "any" phase, or, if PHASE
// is @TEXT, of a file whose name in the folder contains TEXT, in the process of that rank. ACTION is one of
//   kill
//   stop           stops the process with SIGSTOP
//   sleep=SECONDS
//   hold=FILE      waits until that file exists
//   fifo=FILE      waits inside a call on that FIFO until something writes to it
//   fail=EIO       fails the call with that error (EIO, ESTALE, EACCES, ENOENT, ENOSPC, EDQUOT); with a + after it,
//                  also all later ones
// Calls that only read are also points, of the phases "list" (of a folder), "read" (a file is opened or read) and
// "stat", and so is "close" (of a FILE); "any" and @TEXT do not match them, and they have a separate trace. The lock
// file, checkpoint.lock, is not watched.
//
// From the environment:
//   TRIREME_TEST_STORAGE        the watched folder
//   TRIREME_TEST_STORAGE_RULES  rules, separated by blanks
//   TRIREME_TEST_STORAGE_TRACE  PREFIX: every point, when reached, adds a line "PHASE PATH" to PREFIX.RANK
//   TRIREME_TEST_STORAGE_READS  PREFIX: the same for calls that only read
//   TRIREME_TEST_STRUCK         a file that is created when a rule acts
#pragma once

#include <string>

namespace tri {

// The phases of a save, in order; those that a later start cleans up come last.
inline constexpr const char* kStoragePhases[] = {"begin",  "shard",    "shard-fsync", "shard-rename",
                                                 "index",  "manifest", "publish",     "folder-fsync",
                                                 "latest", "replace",  "prune",       "cleaning"};

// For a process without that environment: takes effect from here on, as rank 0. `trace` and `reads` may be empty.
void watch_storage(const std::string& folder, const std::string& rules, const std::string& trace = "",
                   const std::string& reads = "");

// While it lives, no two names can be exchanged, as on file systems that lack renameat2's RENAME_EXCHANGE.
class NoSwaps {
 public:
  NoSwaps();
  ~NoSwaps();
  NoSwaps(const NoSwaps&) = delete;
  NoSwaps& operator=(const NoSwaps&) = delete;
};

}  // namespace tri
