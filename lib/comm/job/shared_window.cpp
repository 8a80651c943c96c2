#include "lib/comm/job/shared_window.h"

#include <mpi.h>

#include <cstring>
#include <new>

#include "lib/comm/host/mpi_check.h"
#include "lib/comm/host/mpi_wait.h"
#include "lib/comm/job/job.h"

namespace tri {
namespace {

constexpr int kGroupTag = 31000;  // of groups under construction; those of streams have smaller tags
constexpr std::align_val_t kAlignment{64};

}  // namespace

// MPI allocates and frees the memory. In between it is plain memory, ordered by the atomics that it contains, without
// epochs or calls.
struct SharedWindow::Mpi {
  std::vector<int> members;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Win window = MPI_WIN_NULL;
};

SharedWindow::SharedWindow(Job* job, const std::vector<int>& members, int64_t bytes) {
  if (members.size() == 1) {
    memory_ = ::operator new(static_cast<size_t>(bytes), kAlignment);
    std::memset(memory_, 0, static_cast<size_t>(bytes));
    return;
  }
  TRI_REQUIRE(job != nullptr, "a window of {} members needs a job", members.size());
  mpi_ = std::make_unique<Mpi>(Mpi{.members = members});
  await_members(members);
  MPI_Group world, group;
  TRI_MPI(MPI_Comm_group(MPI_COMM_WORLD, &world));
  TRI_MPI(MPI_Group_incl(world, static_cast<int>(members.size()), members.data(), &group));
  TRI_MPI(MPI_Comm_create_group(MPI_COMM_WORLD, group, kGroupTag, &mpi_->comm));
  TRI_MPI(MPI_Group_free(&group));
  TRI_MPI(MPI_Group_free(&world));
  TRI_MPI(MPI_Comm_set_errhandler(mpi_->comm, MPI_ERRORS_RETURN));
  // The first member owns all memory. MPI does not guarantee the alignment, so allocate space for it.
  const bool owner = job->world_rank() == members.front();
  const MPI_Aint size = static_cast<MPI_Aint>(bytes + static_cast<int64_t>(kAlignment));
  void* base = nullptr;
  TRI_MPI(MPI_Win_allocate_shared(owner ? size : 0, 1, MPI_INFO_NULL, mpi_->comm, &base, &mpi_->window));
  MPI_Aint whole = 0;
  int unit = 0;
  TRI_MPI(MPI_Win_shared_query(mpi_->window, 0, &whole, &unit, &base));
  // Pages of a shared mapping are aligned equally in all processes, so every member skips the same number of bytes.
  const auto alignment = static_cast<uintptr_t>(kAlignment);
  memory_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(base) + alignment - 1) / alignment * alignment);
  if (owner) std::memset(memory_, 0, static_cast<size_t>(bytes));
  TRI_MPI(MPI_Barrier(mpi_->comm));  // no rank reads it before it is zeroed
}

SharedWindow::~SharedWindow() {
  if (mpi_ == nullptr) {
    ::operator delete(memory_, kAlignment);
    return;
  }
  try {
    await_members(mpi_->members);
  } catch (const Fatal&) {  // the job is ending; the rank that noticed reports why
    return;
  }
  MPI_Win_free(&mpi_->window);
  MPI_Comm_free(&mpi_->comm);
}

}  // namespace tri
