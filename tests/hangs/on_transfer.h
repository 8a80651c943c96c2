// A function that is called before each transfer of this process, so that a test can delay, omit or fail transfers.
//
// CMake's add_transfer_hooks links a program with on_transfer.cpp and on_stage_transfer.cpp, and redirects the calls
// that these files name (--wrap): collectives of a CommGroup, copies into a peer's memory, and the channels of a
// Runtime. The production code does not know of it.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "lib/comm/groups/stage_channel.h"

namespace tri {

enum class TransferFate { kMade, kOmitted };

// While it lives, `call(stream)` runs in the thread that enqueues a transfer on `stream`, before the transfer, and may
// enqueue work there first. It returns a TransferFate or nothing (kMade). Only one may exist in a process.
class OnTransfer {
 public:
  template <class Call>
  explicit OnTransfer(Call call) {
    if constexpr (std::is_void_v<std::invoke_result_t<Call&, Stream&>>)
      call_ = [call = std::move(call)](Stream& stream) mutable {
        call(stream);
        return TransferFate::kMade;
      };
    else
      call_ = std::move(call);
    begin();
  }
  ~OnTransfer();
  OnTransfer(const OnTransfer&) = delete;
  OnTransfer& operator=(const OnTransfer&) = delete;

 private:
  void begin();

  std::function<TransferFate(Stream&)> call_;
};

// Makes the transfers of `channel`, which must outlive the result, pass the process's OnTransfer.
std::unique_ptr<StageChannel> observed(StageChannel& channel);

}  // namespace tri
