#include "tests/mp/simulated_machine.h"

#include <optional>

#include "lib/comm/job/job.h"

namespace tri {
namespace {

std::optional<std::string> g_machine;

}  // namespace

SimulatedMachine::SimulatedMachine(const std::string& name) { g_machine = name; }
SimulatedMachine::~SimulatedMachine() { g_machine.reset(); }

// --wrap=SYMBOL redirects calls of SYMBOL to __wrap_SYMBOL, and __real_SYMBOL is the function itself.
#define TRI_SYMBOL "_ZNK3tri3Job7machineB5cxx11Ev"
const std::string& real_machine(const Job* self) __asm__("__real_" TRI_SYMBOL);
const std::string& wrapped_machine(const Job* self) __asm__("__wrap_" TRI_SYMBOL);
const std::string& wrapped_machine(const Job* self) { return g_machine ? *g_machine : real_machine(self); }

}  // namespace tri
