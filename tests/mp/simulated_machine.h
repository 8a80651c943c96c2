// Simulates several machines on one: Job::machine() returns another name. Programs that use it are linked with
// simulated_machine.cpp by wrap_calls.
#pragma once

#include <string>

namespace tri {

// While it lives, this rank claims to run on the machine `name`. Only one may live at a time.
class SimulatedMachine {
 public:
  explicit SimulatedMachine(const std::string& name);
  ~SimulatedMachine();
  SimulatedMachine(const SimulatedMachine&) = delete;
  SimulatedMachine& operator=(const SimulatedMachine&) = delete;
};

}  // namespace tri
