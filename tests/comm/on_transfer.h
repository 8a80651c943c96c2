// A function as an observer of transfers: delays, faults.
#pragma once

#include <functional>

#include "lib/comm/transfer_observer.h"

namespace tri {

class OnTransfer final : public TransferObserver {
 public:
  explicit OnTransfer(std::function<void(Stream&)> call) : call_(std::move(call)) {}
  bool before_transfer(Stream& stream) override {
    call_(stream);
    return true;
  }

 private:
  const std::function<void(Stream&)> call_;
};

}  // namespace tri
