#include "tests/hangs/on_transfer.h"

#include <map>

#include "lib/comm/peer/peer_copy.h"

namespace tri {
namespace {

const std::function<TransferFate(Stream&)>* g_call = nullptr;
thread_local bool g_inside = false;  // an observed channel's transfer is being enqueued

TransferFate before_transfer(Stream& stream) {
  return g_call == nullptr || g_inside ? TransferFate::kMade : (*g_call)(stream);
}

class ObservedChannel final : public StageChannel {
 public:
  explicit ObservedChannel(StageChannel& channel) : channel_(channel) {}
  void send(Tensor tensor, int ring, Stream& stream) override {
    if (before_transfer(stream) == TransferFate::kOmitted) return;
    const Inside inside;
    channel_.send(tensor, ring, stream);
  }
  // The receiver uses its buffers in rotation: after an omitted receive, each later one fills the buffer meant for the
  // previous one.
  void recv(Tensor tensor, int ring, Stream& stream) override {
    if (before_transfer(stream) == TransferFate::kOmitted) {
      owed_.emplace(ring, tensor);
      return;
    }
    if (const auto owed = owed_.find(ring); owed != owed_.end()) std::swap(owed->second, tensor);
    const Inside inside;
    channel_.recv(tensor, ring, stream);
  }
  const ChannelProgress& progress() const override { return channel_.progress(); }

 private:
  struct Inside {
    Inside() { g_inside = true; }
    ~Inside() { g_inside = false; }
  };

  StageChannel& channel_;
  std::map<int, Tensor> owed_;  // [ring]
};

}  // namespace

OnTransfer::~OnTransfer() { g_call = nullptr; }

void OnTransfer::begin() {
  TRI_REQUIRE(g_call == nullptr, "two functions for the transfers of one process");
  g_call = &call_;
}

std::unique_ptr<StageChannel> observed(StageChannel& channel) { return std::make_unique<ObservedChannel>(channel); }

// --wrap=SYMBOL redirects calls of SYMBOL to __wrap_SYMBOL, and __real_SYMBOL is the function itself; if a declaration
// changes, the program does not link. A member function takes its object first.
#define TRI_WRAPPED(symbol) __asm__("__wrap_" symbol)
#define TRI_REAL(symbol) __asm__("__real_" symbol)

#define TRI_SYMBOL "_ZN3tri9CommGroup10all_gatherENS_6TensorES1_RNS_6StreamE"
void real_all_gather(CommGroup* self, Tensor out, Tensor inp, Stream& stream) TRI_REAL(TRI_SYMBOL);
void wrapped_all_gather(CommGroup* self, Tensor out, Tensor inp, Stream& stream) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_all_gather(CommGroup* self, Tensor out, Tensor inp, Stream& stream) {
  if (before_transfer(stream) == TransferFate::kMade) real_all_gather(self, out, inp, stream);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri9CommGroup14reduce_scatterENS_6TensorES1_RNS_6StreamE"
void real_reduce_scatter(CommGroup* self, Tensor out, Tensor inp, Stream& stream) TRI_REAL(TRI_SYMBOL);
void wrapped_reduce_scatter(CommGroup* self, Tensor out, Tensor inp, Stream& stream) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_reduce_scatter(CommGroup* self, Tensor out, Tensor inp, Stream& stream) {
  if (before_transfer(stream) == TransferFate::kMade) real_reduce_scatter(self, out, inp, stream);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri9CommGroup10all_reduceENS_6TensorENS_8ReduceOpERNS_6StreamE"
void real_all_reduce(CommGroup* self, Tensor inout, ReduceOp op, Stream& stream) TRI_REAL(TRI_SYMBOL);
void wrapped_all_reduce(CommGroup* self, Tensor inout, ReduceOp op, Stream& stream) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_all_reduce(CommGroup* self, Tensor inout, ReduceOp op, Stream& stream) {
  if (before_transfer(stream) == TransferFate::kMade) real_all_reduce(self, inout, op, stream);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri9CommGroup9broadcastENS_6TensorEiRNS_6StreamE"
void real_broadcast(CommGroup* self, Tensor inout, int root, Stream& stream) TRI_REAL(TRI_SYMBOL);
void wrapped_broadcast(CommGroup* self, Tensor inout, int root, Stream& stream) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_broadcast(CommGroup* self, Tensor inout, int root, Stream& stream) {
  if (before_transfer(stream) == TransferFate::kMade) real_broadcast(self, inout, root, stream);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri9CommGroup8exchangeERKSt6vectorINS0_7MessageESaIS2_EES6_RNS_6StreamE"
using Messages = std::vector<CommGroup::Message>;
void real_exchange(CommGroup* self, const Messages& sends, const Messages& recvs, Stream& stream) TRI_REAL(TRI_SYMBOL);
void wrapped_exchange(CommGroup* self, const Messages& sends, const Messages& recvs, Stream& stream)
    TRI_WRAPPED(TRI_SYMBOL);
void wrapped_exchange(CommGroup* self, const Messages& sends, const Messages& recvs, Stream& stream) {
  if (before_transfer(stream) == TransferFate::kMade) real_exchange(self, sends, recvs, stream);
}
#undef TRI_SYMBOL

#define TRI_SYMBOL "_ZN3tri12copy_to_peerERKNS_8PeerCopyERNS_6StreamE"
void real_copy_to_peer(const PeerCopy& copy, Stream& stream) TRI_REAL(TRI_SYMBOL);
void wrapped_copy_to_peer(const PeerCopy& copy, Stream& stream) TRI_WRAPPED(TRI_SYMBOL);
void wrapped_copy_to_peer(const PeerCopy& copy, Stream& stream) {
  if (before_transfer(stream) == TransferFate::kMade) real_copy_to_peer(copy, stream);
}
#undef TRI_SYMBOL

}  // namespace tri
