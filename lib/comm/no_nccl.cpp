#include "lib/comm/nccl_group.h"

namespace tri {

std::unique_ptr<CommGroup> make_nccl_group(const std::string& name, MPI_Comm, Device&) {
  throw Fatal(ExitCode::kComm, fmt::format("group {}: this trireme was built without NCCL", name));
}

}  // namespace tri
