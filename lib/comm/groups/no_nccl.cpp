#include "lib/comm/groups/nccl_group.h"

namespace tri {

std::unique_ptr<CommGroup> make_nccl_group(const std::string& name, const std::vector<int>&, int, int, Device&,
                                           double) {
  TRI_REQUIRE(false, "group {}: this trireme was built without NCCL; build it with -DTRIREME_CUDA=ON", name);
  return nullptr;
}

std::unique_ptr<CommGroup> share_nccl_group(const std::string& name, const CommGroup&) {
  TRI_REQUIRE(false, "group {}: this trireme was built without NCCL", name);
  return nullptr;
}

}  // namespace tri
