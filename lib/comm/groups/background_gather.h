// Gathers small messages of all ranks on rank 0 while the ranks continue: no call waits for other ranks, except wait()
// and the next begin(). Later calls of finished() drive the transfer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tri {

class BackgroundGather {
 public:
  // Collective over all ranks. Every message has `bytes` bytes.
  explicit BackgroundGather(int64_t bytes);
  ~BackgroundGather();  // waits for the gather in progress, which all ranks have begun
  BackgroundGather(const BackgroundGather&) = delete;
  BackgroundGather& operator=(const BackgroundGather&) = delete;

  // Sends this rank's message. Collective: all ranks call it equally often. Waits for the previous gather, which should
  // have finished long ago.
  void begin(const void* message);
  // Returns whether no gather is in progress. On rank 0, messages() are then those of the last gather.
  bool finished();
  void wait();
  const char* messages() const { return all_.data(); }  // by world rank; valid on rank 0

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;
  std::string mine_, all_;
};

}  // namespace tri
