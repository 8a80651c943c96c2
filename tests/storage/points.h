// Storage whose calls are numbered, so that a test can name a moment of a save by counting instead of by a clock.
//
// A program that is linked with points.cpp makes its calls on files through it: it defines open, pwrite, fsync, rename
// and their like, which take the place of the C library's for the program and for the libraries it loads. Those that
// concern the watched folder are points, each of a phase of a save; before a point's call is made, a rule may have the
// process killed (in a write: after half of it), asleep or held, or the call fail.
//
// A rule is RANK/PHASE/NUMBER/ACTION: at the NUMBERth point (from 1) of PHASE, of "any" phase, or, where PHASE is
// @TEXT, of a file whose name in the folder holds TEXT, in the process of that rank. ACTION is one of
//   kill
//   stop           the process, by SIGSTOP
//   sleep=SECONDS
//   hold=FILE      until that file is there
//   fifo=FILE      inside a call on that FIFO, until something writes to it
//   fail=EIO       the call, with that error (EIO, ESTALE, EACCES, ENOENT, ENOSPC, EDQUOT); with a + behind it, all
//                  later ones too
// Calls that only read are points as well, of the phases "list" (of a folder), "read" (a file is opened, or read from)
// and "stat", and so is "close" (of a FILE); "any" and @TEXT do not mean them, and they have a trace of their own. The
// lock file, checkpoint.lock, is not watched.
//
// From the environment:
//   TRIREME_TEST_STORAGE        the watched folder
//   TRIREME_TEST_STORAGE_RULES  rules, with blanks between
//   TRIREME_TEST_STORAGE_TRACE  PREFIX: every point, as it is reached, becomes a line "PHASE PATH" of PREFIX.RANK
//   TRIREME_TEST_STORAGE_READS  PREFIX: the same of the calls that only read
//   TRIREME_TEST_STRUCK         a file that is made when a rule acts
#pragma once

#include <string>

namespace tri {

// The phases of a save, in its order; what a later start cleans up comes last.
inline constexpr const char* kStoragePhases[] = {"begin",  "shard",    "shard-fsync", "shard-rename",
                                                 "index",  "manifest", "publish",     "folder-fsync",
                                                 "latest", "replace",  "prune",       "cleaning"};

// For a process without that environment: from here on, as rank 0. `trace` and `reads` may be empty.
void watch_storage(const std::string& folder, const std::string& rules, const std::string& trace = "",
                   const std::string& reads = "");

}  // namespace tri
