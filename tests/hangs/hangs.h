// Ranks that hang at a moment selected by counting instead of by a clock, and slow ranks: for tests of detection and
// blame.
//
// The executable is linked with hangs.cpp and with the linker options of tests/CMakeLists.txt (--wrap): calls between
// its libraries pass through here; the product does not know of it. Each call is an occasion at a place:
//   setup                   a connection between ranks is about to be made
//   forward, backward       of a microbatch, in training
//   evaluation, sample      a forward in an evaluation, or for a sampled token
//   experts                 copies of tokens to their experts' ranks are about to be made, or awaited
//   update                  of the optimizer
//   finish                  the last step and the checkpoints are done
//   data                    a sample is about to be read from its file, by the thread that reads for all consumers
//   <name of a stream>      a transfer of this rank on that stream: "tp copies", "pp send forward", "dp", ...
// A checkpoint's calls on its files are places of tests/storage/points.h.
//
// A rule is RANK/PLACE/NUMBER/ACTION: at the NUMBERth occasion (from 1) of PLACE in the process of that rank. ACTION is
//   stop     stops the whole process with SIGSTOP; for a stream's work, when the stream reaches it
//   spin     the thread at that place computes forever, a twentieth of the time
//   sleep    ... sleeps forever
//   task     the stream's work never ends: a kernel that spins, or a task that sleeps on the CPU (places with a stream)
//   skip     the transfer is not made (transfers)
//
// Ranks may also be slow, by rules RANKS/PLACE/AMOUNT such as "5/compute/10" or "4,5,6,7/pp send forward/400":
//   compute                 forwards and backwards of training take AMOUNT per cent more of their thread's time
//   <name of a stream>      each transfer of the rank on that stream is AMOUNT microseconds late
//
// From the environment:
//   TRIREME_TEST_HANG        a rule
//   TRIREME_TEST_SLOW        a rule of slowness
//   TRIREME_TEST_HANG_TRACE  PREFIX: every occasion adds a line "PLACE" to PREFIX.RANK
//   TRIREME_TEST_STRUCK      a file that is created when the rule acts
#pragma once

namespace tri {

// Places on the compute stream, where a Plan's actions and the work between them are enqueued.
inline constexpr const char* kComputePlaces[] = {"forward", "backward", "experts", "update", "evaluation", "sample"};
// Places that involve only the host.
inline constexpr const char* kHostPlaces[] = {"setup", "finish"};

}  // namespace tri
