// SIGQUIT requests a dump of all ranks, and the run continues. The handler only counts. One object at a time.
#pragma once

#include <csignal>
#include <cstdint>

namespace tri {

class DumpSignal {
 public:
  DumpSignal();
  ~DumpSignal();  // restores the previous handler
  DumpSignal(const DumpSignal&) = delete;
  DumpSignal& operator=(const DumpSignal&) = delete;

  uint32_t received() const;  // number of signals received

 private:
  struct sigaction before_ {};
};

}  // namespace tri
