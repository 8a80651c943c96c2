// Causal attention by cuDNN's SDPA graphs. cuDNN reads queries, keys and values directly from the QKV rows (strided)
// and writes gradients in the same layout. The backward pass uses cuDNN's deterministic algorithm unless a call allows
// any order.
#include "kernels/cuda/cudnn_attention.h"

#include <cudnn_frontend.h>

#include <algorithm>
#include <compare>
#include <exception>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/base/mutex.h"
#include "kernels/cuda/workspace.h"
#include "kernels/workspace.h"

namespace tri::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV };

// A call in cuDNN's terms: (batch, heads, T, HS) tensors with one stride per dim. If one stride leads from each query
// head to the next, cuDNN's batch and heads are those of the call. If it does so only inside a group, cuDNN's batch is
// the key/value heads of one sequence, each with the G query heads of its group, and each sequence is a separate
// execution.
struct Shape {
  int64_t batch, heads, kv_heads, seq_len, head_size;  // cuDNN's
  int64_t qkv_batch, query_head, key_head, qkv_row;    // strides in elements
  int64_t out_batch, out_row;                          // the same; heads are contiguous
  int64_t key_at, value_at;                            // offsets of the first key and value in a row
  int window;
  float scale;
  bool deterministic;  // applies to the backward pass
  auto operator<=>(const Shape&) const = default;
};

template <class Args>
int64_t sequences_of(const Args& a) {
  return cudnn_sequences({.batch = a.lse[0],
                          .seq_len = a.seq_len,
                          .num_kv_heads = a.num_kv_heads,
                          .group = a.group,
                          .order = a.order,
                          .head_size = qkv_row_of(a).head_size});
}

// Returns the shape of an execution of `sequences` sequences, at most sequences_of().
template <class Args>
Shape shape_of(const Args& a, int64_t sequences) {
  const QkvRow row = qkv_row_of(a);
  const int64_t T = a.seq_len, NKV = a.num_kv_heads, G = a.group, HS = row.head_size, out_row = NKV * G * HS;
  Shape s{.batch = sequences,
          .heads = NKV * G,
          .kv_heads = NKV,
          .seq_len = T,
          .head_size = HS,
          .qkv_batch = T * row.width,
          .query_head = G == 1 ? row.query_stride : HS,
          .key_head = row.key_stride,
          .qkv_row = row.width,
          .out_batch = T * out_row,
          .out_row = out_row,
          .key_at = row.key_at,
          .value_at = row.value_at,
          .window = a.window,
          .scale = a.scale,
          .deterministic = true};
  if constexpr (requires { a.deterministic; }) s.deterministic = a.deterministic;
  if (has_one_query_stride(a.order, a.num_kv_heads, a.group)) return s;
  s.batch = NKV;
  s.heads = G;
  s.kv_heads = 1;
  s.qkv_batch = row.query_stride;  // equals the stride of the keys
  s.out_batch = G * HS;
  return s;
}

// Calls execute(shape, first sequence) for the executions of a call.
template <class Args, class F>
void for_executions(const Args& a, F execute) {
  const int64_t batch = a.lse[0], most = sequences_of(a);
  for (int64_t first = 0; first < batch; first += most) execute(shape_of(a, std::min(most, batch - first)), first);
}

// Returns the shapes of the call's executions: the last execution may have fewer sequences.
template <class Args>
std::vector<Shape> shapes_of(const Args& a) {
  const int64_t most = sequences_of(a), rest = a.lse[0] % most;
  std::vector<Shape> shapes{shape_of(a, most)};
  if (rest > 0) shapes.push_back(shape_of(a, rest));
  return shapes;
}

Error refusal(fe::error_t status, const char* what) {
  return {fmt::format("cuDNN attention, {}: {}", what, status.get_message()), ExitCode::kDevice};
}

using GraphPtr = std::shared_ptr<fe::graph::Graph>;
using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

fe::graph::Tensor_attributes strided(const char* name, Uid uid, const Shape& s, int64_t heads,
                                     std::vector<int64_t> strides) {
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({s.batch, heads, s.seq_len, s.head_size})
      .set_stride(strides);
}
fe::graph::Tensor_attributes query_like(const char* name, Uid uid, const Shape& s) {
  return strided(name, uid, s, s.heads, {s.qkv_batch, s.query_head, s.qkv_row, 1});
}
fe::graph::Tensor_attributes key_like(const char* name, Uid uid, const Shape& s) {
  return strided(name, uid, s, s.kv_heads, {s.qkv_batch, s.key_head, s.qkv_row, 1});
}
fe::graph::Tensor_attributes out_like(const char* name, Uid uid, const Shape& s) {
  return strided(name, uid, s, s.heads, {s.out_batch, s.head_size, s.out_row, 1});
}
fe::graph::Tensor_attributes stats_like(const Shape& s) {
  return fe::graph::Tensor_attributes()
      .set_name("stats")
      .set_uid(kStats)
      .set_dim({s.batch, s.heads, s.seq_len, 1})
      .set_stride({s.heads * s.seq_len, s.seq_len, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

void describe_output(const TensorPtr& tensor, const fe::graph::Tensor_attributes& like) {
  tensor->set_output(true).set_uid(like.get_uid()).set_dim(like.get_dim()).set_stride(like.get_stride());
}

template <class Options>
void set_band(Options& options, const Shape& s) {
  options.set_attn_scale(s.scale);
  options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (s.window > 0) options.set_diagonal_band_left_bound(s.window);  // the token itself and W - 1 before it
}

GraphPtr new_graph() {
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

GraphPtr describe_forward(const Shape& s) {
  auto graph = new_graph();
  auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
  set_band(options, s);
  auto [out, stats] = graph->sdpa(graph->tensor(query_like("q", kQ, s)), graph->tensor(key_like("k", kK, s)),
                                  graph->tensor(key_like("v", kV, s)), options);
  describe_output(out, out_like("o", kO, s));
  describe_output(stats, stats_like(s));
  stats->set_data_type(fe::DataType_t::FLOAT);
  return graph;
}

GraphPtr describe_backward(const Shape& s) {
  auto graph = new_graph();
  auto options =
      fe::graph::SDPA_backward_attributes().set_name("attention gradient").set_deterministic_algorithm(s.deterministic);
  set_band(options, s);
  auto [dq, dk, dv] =
      graph->sdpa_backward(graph->tensor(query_like("q", kQ, s)), graph->tensor(key_like("k", kK, s)),
                           graph->tensor(key_like("v", kV, s)), graph->tensor(out_like("o", kO, s)),
                           graph->tensor(out_like("do", kDO, s)), graph->tensor(stats_like(s)), options);
  describe_output(dq, query_like("dq", kDQ, s));
  describe_output(dk, key_like("dk", kDK, s));
  describe_output(dv, key_like("dv", kDV, s));
  return graph;
}

using Pointers = std::unordered_map<int64_t, void*>;

void* element(const Tensor& tensor, int64_t at) {
  return static_cast<char*>(tensor.data) + at * static_cast<int64_t>(dtype_bytes(tensor.dtype));
}

// Adds the queries, keys and values of the sequences that start at `first`.
void add_qkv(Pointers& pointers, const Shape& s, const Tensor& qkv, int64_t first, Uid q, Uid k, Uid v) {
  const int64_t at = first * s.seq_len * s.qkv_row;
  pointers[q] = element(qkv, at);
  pointers[k] = element(qkv, at + s.key_at);
  pointers[v] = element(qkv, at + s.value_at);
}

// Returns the operands that both passes use, for the sequences that start at `first`.
template <class Args>
Pointers pointers_of(const Shape& s, const Args& a, int64_t first) {
  Pointers pointers;
  add_qkv(pointers, s, a.qkv, first, kQ, kK, kV);
  pointers[kO] = element(a.out, first * s.seq_len * s.out_row);
  pointers[kStats] = element(a.lse, first * s.seq_len * a.lse[1]);
  return pointers;
}

}  // namespace

struct CudnnAttention::State {
  // A graph with its plan, or the reason why there is none.
  struct Entry {
    GraphPtr graph;
    int64_t workspace_bytes = 0;
    Result<void> prepared;
  };
  Mutex mutex;
  cudnnHandle_t handle = nullptr;
  std::map<std::pair<Shape, Pass>, Entry> entries TRI_GUARDED_BY(mutex);

  State() {
    if (cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) handle = nullptr;
  }
  ~State() {
    entries.clear();
    if (handle != nullptr) cudnnDestroy(handle);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Result<void> build(Entry& entry) TRI_REQUIRES(mutex) {
    if (handle == nullptr) return Error{"cuDNN attention: cuDNN does not start on this GPU", ExitCode::kDevice};
    fe::graph::Graph& graph = *entry.graph;
    if (const auto status = graph.validate(); status.is_bad()) return refusal(status, "validate");
    if (const auto status = graph.build_operation_graph(handle); status.is_bad()) return refusal(status, "build");
    if (const auto status = graph.create_execution_plans({fe::HeurMode_t::A}); status.is_bad())
      return refusal(status, "plans");
    if (const auto status = graph.check_support(handle); status.is_bad()) return refusal(status, "support");
    if (const auto status = graph.build_plans(handle); status.is_bad()) return refusal(status, "build plans");
    if (const auto status = graph.get_workspace_size(entry.workspace_bytes); status.is_bad())
      return refusal(status, "workspace");
    return {};
  }

  Entry& entry_of(const Shape& shape, Pass pass) TRI_REQUIRES(mutex) {
    const bool backward = pass == Pass::kBackward;
    const auto [at, is_new] = entries.try_emplace({shape, pass});
    Entry& entry = at->second;
    if (is_new) {
      try {
        entry.graph = backward ? describe_backward(shape) : describe_forward(shape);
        entry.prepared = build(entry);
      } catch (const std::exception& refusal) {  // the frontend reports errors by status and by exception
        entry.prepared = Error{fmt::format("cuDNN attention: {}", refusal.what()), ExitCode::kDevice};
      }
      if (!entry.prepared) entry.graph.reset();
    }
    return entry;
  }

  // Prepares all executions of a call; fails with the first refusal.
  template <class Args>
  Result<void> prepare(const Args& a, Pass pass) {
    const MutexLock lock(mutex);
    Result<void> prepared;
    for (const Shape& shape : shapes_of(a))
      if (prepared) prepared = entry_of(shape, pass).prepared;
    return prepared;
  }

  template <class Args>
  int64_t workspace_bytes(const Args& a, Pass pass) {
    const MutexLock lock(mutex);
    int64_t bytes = 0;
    for (const Shape& shape : shapes_of(a)) bytes = std::max(bytes, entry_of(shape, pass).workspace_bytes);
    return bytes;
  }

  void execute(const Shape& shape, Pass pass, Pointers pointers, CudaStream& stream) {
    const MutexLock lock(mutex);
    Entry& entry = entry_of(shape, pass);
    value_or_throw(entry.prepared);
    if (cudnnSetStream(handle, stream) != CUDNN_STATUS_SUCCESS) throw Fatal(ExitCode::kDevice, "cudnnSetStream");
    void* scratch = workspace(stream, Scratch::kAttention, static_cast<size_t>(entry.workspace_bytes));
    if (const auto status = entry.graph->execute(handle, pointers, scratch); status.is_bad())
      value_or_throw(Result<void>(refusal(status, "execute")));
  }
};

bool built_with_cudnn() { return true; }

CudnnAttention::CudnnAttention() : state_(std::make_unique<State>()) {}
CudnnAttention::~CudnnAttention() = default;

Result<void> CudnnAttention::prepare(const AttentionForward& a) { return state_->prepare(a, Pass::kForward); }
Result<void> CudnnAttention::prepare(const AttentionBackward& a) { return state_->prepare(a, Pass::kBackward); }
int64_t CudnnAttention::workspace_bytes(const AttentionForward& a) {
  return state_->workspace_bytes(a, Pass::kForward);
}
int64_t CudnnAttention::workspace_bytes(const AttentionBackward& a) {
  return state_->workspace_bytes(a, Pass::kBackward);
}

void CudnnAttention::forward(const AttentionForward& a, CudaStream& stream) {
  for_executions(
      a, [&](const Shape& s, int64_t first) { state_->execute(s, Pass::kForward, pointers_of(s, a, first), stream); });
}

void CudnnAttention::backward(const AttentionBackward& a, CudaStream& stream) {
  for_executions(a, [&](const Shape& s, int64_t first) {
    Pointers pointers = pointers_of(s, a, first);
    pointers[kDO] = element(a.dout, first * s.seq_len * s.out_row);
    add_qkv(pointers, s, a.dqkv, first, kDQ, kDK, kDV);
    state_->execute(s, Pass::kBackward, std::move(pointers), stream);
  });
}

}  // namespace tri::cuda
