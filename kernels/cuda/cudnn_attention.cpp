// Causal attention by cuDNN's SDPA graphs. Queries, keys and values are read where they lie in the grouped QKV rows
// (strided), gradients written likewise. The backward pass uses cuDNN's deterministic algorithm.
#include "kernels/cuda/cudnn_attention.h"

#include <cudnn_frontend.h>

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include "kernels/cuda/workspace.h"

namespace tri::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV };

struct Shape {
  int64_t batch, heads, seq_len, head_size;
  int window;
  float scale;
  auto key(bool backward) const { return std::tuple(batch, heads, seq_len, head_size, window, scale, backward); }
};

template <class Args>
Shape shape_of(const Args& a) {
  const int64_t heads = a.num_kv_heads;
  return {a.qkv[0] / a.seq_len, heads, a.seq_len, a.qkv[1] / (3 * heads), a.window, a.scale};
}

Error refusal(fe::error_t status, const char* what) {
  return {fmt::format("cuDNN attention, {}: {}", what, status.get_message()), ExitCode::kDevice};
}

using GraphPtr = std::shared_ptr<fe::graph::Graph>;
using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

// (B, NH, T, HS) inside rows of `row` elements, heads `head` elements apart.
fe::graph::Tensor_attributes strided(const char* name, Uid uid, const Shape& s, int64_t row, int64_t head) {
  return fe::graph::Tensor_attributes()
      .set_name(name)
      .set_uid(uid)
      .set_dim({s.batch, s.heads, s.seq_len, s.head_size})
      .set_stride({s.seq_len * row, head, row, 1});
}

fe::graph::Tensor_attributes qkv_part(const char* name, Uid uid, const Shape& s) {
  return strided(name, uid, s, 3 * s.heads * s.head_size, 3 * s.head_size);
}
fe::graph::Tensor_attributes out_like(const char* name, Uid uid, const Shape& s) {
  return strided(name, uid, s, s.heads * s.head_size, s.head_size);
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
  auto [out, stats] = graph->sdpa(graph->tensor(qkv_part("q", kQ, s)), graph->tensor(qkv_part("k", kK, s)),
                                  graph->tensor(qkv_part("v", kV, s)), options);
  describe_output(out, out_like("o", kO, s));
  describe_output(stats, stats_like(s));
  stats->set_data_type(fe::DataType_t::FLOAT);
  return graph;
}

GraphPtr describe_backward(const Shape& s) {
  auto graph = new_graph();
  auto options = fe::graph::SDPA_backward_attributes().set_name("attention gradient").set_deterministic_algorithm(true);
  set_band(options, s);
  auto [dq, dk, dv] =
      graph->sdpa_backward(graph->tensor(qkv_part("q", kQ, s)), graph->tensor(qkv_part("k", kK, s)),
                           graph->tensor(qkv_part("v", kV, s)), graph->tensor(out_like("o", kO, s)),
                           graph->tensor(out_like("do", kDO, s)), graph->tensor(stats_like(s)), options);
  describe_output(dq, qkv_part("dq", kDQ, s));
  describe_output(dk, qkv_part("dk", kDK, s));
  describe_output(dv, qkv_part("dv", kDV, s));
  return graph;
}

// Where q, k and v begin in grouped rows with one query head a key/value head.
void* part(const Tensor& rows, int64_t head_size, int index) {
  return static_cast<char*>(rows.data) + index * head_size * static_cast<int64_t>(dtype_bytes(rows.dtype));
}

}  // namespace

struct CudnnAttention::State {
  // A graph with its plan, or why there is none.
  struct Entry {
    GraphPtr graph;
    int64_t workspace_bytes = 0;
    Result<void> prepared;
  };
  std::mutex mutex;
  cudnnHandle_t handle = nullptr;
  std::map<decltype(Shape{}.key(false)), Entry> entries;

  State() {
    if (cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) handle = nullptr;
  }
  ~State() {
    entries.clear();
    if (handle != nullptr) cudnnDestroy(handle);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Result<void> build(Entry& entry) {
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

  Entry& entry_of(const Shape& shape, Pass pass) {
    const bool backward = pass == Pass::kBackward;
    const auto [at, is_new] = entries.try_emplace(shape.key(backward));
    Entry& entry = at->second;
    if (is_new) {
      try {
        entry.graph = backward ? describe_backward(shape) : describe_forward(shape);
        entry.prepared = build(entry);
      } catch (const std::exception& refusal) {  // the frontend has both: statuses and exceptions
        entry.prepared = Error{fmt::format("cuDNN attention: {}", refusal.what()), ExitCode::kDevice};
      }
      if (!entry.prepared) entry.graph.reset();
    }
    return entry;
  }

  void execute(const Shape& shape, Pass pass, std::unordered_map<int64_t, void*> pointers, CudaStream& stream) {
    std::lock_guard lock(mutex);
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

Result<void> CudnnAttention::prepare(const AttentionForward& a) {
  std::lock_guard lock(state_->mutex);
  return state_->entry_of(shape_of(a), Pass::kForward).prepared;
}
Result<void> CudnnAttention::prepare(const AttentionBackward& a) {
  std::lock_guard lock(state_->mutex);
  return state_->entry_of(shape_of(a), Pass::kBackward).prepared;
}
int64_t CudnnAttention::workspace_bytes(const AttentionForward& a) {
  std::lock_guard lock(state_->mutex);
  return state_->entry_of(shape_of(a), Pass::kForward).workspace_bytes;
}
int64_t CudnnAttention::workspace_bytes(const AttentionBackward& a) {
  std::lock_guard lock(state_->mutex);
  return state_->entry_of(shape_of(a), Pass::kBackward).workspace_bytes;
}

void CudnnAttention::forward(const AttentionForward& a, CudaStream& stream) {
  const Shape s = shape_of(a);
  state_->execute(s, Pass::kForward,
                  {{kQ, part(a.qkv, s.head_size, 0)},
                   {kK, part(a.qkv, s.head_size, 1)},
                   {kV, part(a.qkv, s.head_size, 2)},
                   {kO, a.out.data},
                   {kStats, a.lse.data}},
                  stream);
}

void CudnnAttention::backward(const AttentionBackward& a, CudaStream& stream) {
  const Shape s = shape_of(a);
  state_->execute(s, Pass::kBackward,
                  {{kQ, part(a.qkv, s.head_size, 0)},
                   {kK, part(a.qkv, s.head_size, 1)},
                   {kV, part(a.qkv, s.head_size, 2)},
                   {kO, a.out.data},
                   {kStats, a.lse.data},
                   {kDO, a.dout.data},
                   {kDQ, part(a.dqkv, s.head_size, 0)},
                   {kDK, part(a.dqkv, s.head_size, 1)},
                   {kDV, part(a.dqkv, s.head_size, 2)}},
                  stream);
}

}  // namespace tri::cuda
