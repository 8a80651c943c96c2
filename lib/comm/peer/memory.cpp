#include "lib/comm/peer/memory.h"

#include <algorithm>

#include "lib/comm/host/bootstrap.h"
#include "lib/comm/job/job.h"

namespace tri {
Result<std::unique_ptr<PeerArenas>> PeerArenas::open(const std::vector<int>& world_ranks, Job& job, Device& device,
                                                     const Arena& arena) {
  std::unique_ptr<PeerArenas> arenas(new PeerArenas(world_ranks, device));
  const auto self = std::find(world_ranks.begin(), world_ranks.end(), job.world_rank());
  arenas->memory_.rank = static_cast<int>(self - world_ranks.begin());
  arenas->memory_.base.assign(world_ranks.size(), nullptr);

  const auto name = device.share(arena.memory());
  std::string problem = name ? "" : name.error().message;
  const auto machines = gather_among_members(job.machine(), world_ranks);
  const auto names = gather_among_members(name ? name.value() : "", world_ranks);
  for (const std::string& machine : machines)
    if (machine != machines.front()) problem = "the group's ranks are on several machines";
  for (size_t i = 0; i < names.size() && problem.empty(); ++i) {
    const bool is_self = static_cast<int>(i) == arenas->memory_.rank;
    auto view =
        is_self || names[i].empty() ? Result<void*>(is_self ? arena.memory() : nullptr) : device.open_shared(names[i]);
    if (!view) problem = view.error().message;
    if (view) arenas->memory_.base[i] = static_cast<char*>(view.value());
  }
  for (const std::string& text : gather_among_members(problem, world_ranks))
    if (!text.empty()) return Error{text, ExitCode::kDevice};
  return arenas;
}

PeerArenas::~PeerArenas() {
  for (size_t i = 0; i < memory_.base.size(); ++i)
    if (static_cast<int>(i) != memory_.rank && memory_.base[i] != nullptr) device_.close_shared(memory_.base[i]);
  try {
    gather_among_members("", world_ranks_);
  } catch (const Fatal&) {  // a peer that has exited has no mapping open
  }
}

}  // namespace tri
