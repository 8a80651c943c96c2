// Stacks of all threads of this node's ranks: each thread answers a signal by writing its own stack into its rank's
// flight recorder. For a thread that can't answer, the kernel's description of it is recorded instead.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "io/flight_recorder/image.h"
#include "io/flight_recorder/record.h"

namespace tri {

// The name of the training thread in stacks.
inline constexpr const char* kTrainingThread = "training";

// From its construction on, this process answers requests by writing into `image`. Only one object may exist at a time.
// The calling thread is the training thread: its stack is named kTrainingThread.
class StackAnswers {
 public:
  explicit StackAnswers(flight::Image& image);
  ~StackAnswers();  // later requests are ignored; the handler stays, since a late signal would end the process
  StackAnswers(const StackAnswers&) = delete;
  StackAnswers& operator=(const StackAnswers&) = delete;

 private:
  flight::Image& image_;
};

// Requests the stacks of all threads of the ranks behind `images`, including this process' own, and waits for the
// answers for at most `seconds`. Skips ranks that are stopped, gone or do not answer yet, and threads that block the
// signal.
void request_stacks(std::span<flight::Image* const> images, double seconds);

// For each thread of the record's process without a stack, returns a StackRecord without frames, whose only symbol is
// the state in /proc: "state T, in do_signal_stop, system call 202". Returns nothing if there is no such process.
std::vector<StackRecord> silent_threads(const RankRecord& record);

// Sets the calling thread's name in stacks, up to 15 letters.
void name_thread(const char* name);

// Returns the state of the rank that writes the image, identified by its pid, start time and namespace, since another
// process may reuse the pid.
ProcessState process_state_of(const flight::Image& image);

}  // namespace tri
