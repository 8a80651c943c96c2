// Small messages of all ranks to rank 0, on their way while the ranks go on: nobody waits, and no rank is held up by
// another. What was begun moves on with later calls of finished().
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
  ~BackgroundGather();  // waits for the gather under way, which all ranks have begun
  BackgroundGather(const BackgroundGather&) = delete;
  BackgroundGather& operator=(const BackgroundGather&) = delete;

  // Sends this rank's message; all ranks begin equally often. Waits for the gather before, which should be long over.
  void begin(const void* message);
  // Whether nothing is under way any more. Then, on rank 0, messages() are those of the last gather.
  bool finished();
  void wait();
  const char* messages() const { return all_.data(); }  // by world rank; rank 0

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;
  std::string mine_, all_;
};

}  // namespace tri
