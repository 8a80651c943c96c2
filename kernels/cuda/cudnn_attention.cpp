// Causal attention by cuDNN's SDPA graphs. A graph is built and its plan chosen once a shape; calls only execute it.
// Queries, keys and values are read where they lie in the grouped QKV rows (strided), gradients written likewise.
// The backward pass uses cuDNN's deterministic algorithm.
#include "kernels/cuda/cudnn_attention.h"

#include <cudnn_frontend.h>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>

#include "kernels/cuda/check.h"
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

void require_good(fe::error_t status, const char* what) {
  if (status.is_bad())
    throw Fatal(ExitCode::kDevice, fmt::format("cuDNN attention, {}: {}", what, status.get_message()));
}

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

class Context {
 public:
  static Context& instance() {
    static Context context;
    return context;
  }

  void execute(const Shape& shape, bool backward, std::unordered_map<int64_t, void*> pointers, cudaStream_t stream) {
    std::lock_guard lock(mutex_);
    if (cudnnSetStream(handle_, stream) != CUDNN_STATUS_SUCCESS) throw Fatal(ExitCode::kDevice, "cudnnSetStream");
    auto& graph = graphs_[shape.key(backward)];
    if (!graph) graph = backward ? build_backward(shape) : build_forward(shape);
    int64_t bytes = 0;
    require_good(graph->get_workspace_size(bytes), "workspace");
    require_good(graph->execute(handle_, pointers, workspace(stream, Scratch::kAttention, static_cast<size_t>(bytes))),
                 "execute");
  }

 private:
  Context() {
    if (cudnnCreate(&handle_) != CUDNN_STATUS_SUCCESS) throw Fatal(ExitCode::kDevice, "cudnnCreate");
  }

  std::shared_ptr<fe::graph::Graph> finish(std::shared_ptr<fe::graph::Graph> graph) {
    require_good(graph->validate(), "validate");
    require_good(graph->build_operation_graph(handle_), "build");
    require_good(graph->create_execution_plans({fe::HeurMode_t::A}), "plans");
    require_good(graph->check_support(handle_), "support");
    require_good(graph->build_plans(handle_), "build plans");
    return graph;
  }

  static std::shared_ptr<fe::graph::Graph> new_graph() {
    auto graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    return graph;
  }

  std::shared_ptr<fe::graph::Graph> build_forward(const Shape& s) {
    auto graph = new_graph();
    auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    set_band(options, s);
    auto [out, stats] = graph->sdpa(graph->tensor(qkv_part("q", kQ, s)), graph->tensor(qkv_part("k", kK, s)),
                                    graph->tensor(qkv_part("v", kV, s)), options);
    describe_output(out, out_like("o", kO, s));
    describe_output(stats, stats_like(s));
    stats->set_data_type(fe::DataType_t::FLOAT);
    return finish(graph);
  }

  std::shared_ptr<fe::graph::Graph> build_backward(const Shape& s) {
    auto graph = new_graph();
    auto options =
        fe::graph::SDPA_backward_attributes().set_name("attention gradient").set_deterministic_algorithm(true);
    set_band(options, s);
    auto [dq, dk, dv] =
        graph->sdpa_backward(graph->tensor(qkv_part("q", kQ, s)), graph->tensor(qkv_part("k", kK, s)),
                             graph->tensor(qkv_part("v", kV, s)), graph->tensor(out_like("o", kO, s)),
                             graph->tensor(out_like("do", kDO, s)), graph->tensor(stats_like(s)), options);
    describe_output(dq, qkv_part("dq", kDQ, s));
    describe_output(dk, qkv_part("dk", kDK, s));
    describe_output(dv, qkv_part("dv", kDV, s));
    return finish(graph);
  }

  std::mutex mutex_;
  cudnnHandle_t handle_ = nullptr;
  std::map<decltype(Shape{}.key(false)), std::shared_ptr<fe::graph::Graph>> graphs_;
};

// Where q, k and v begin in grouped rows with one query head a key/value head.
void* part(const Tensor& rows, int64_t head_size, int index) {
  return static_cast<char*>(rows.data) + index * head_size * static_cast<int64_t>(dtype_bytes(rows.dtype));
}

}  // namespace

bool cudnn_takes(Dtype dtype, int64_t head_size, int group) {
  return dtype == Dtype::kBF16 && group == 1 && head_size % 8 == 0 && head_size <= 128;
}

void cudnn_attention_forward(const AttentionForward& a, cudaStream_t stream) {
  const Shape s = shape_of(a);
  Context::instance().execute(s, false,
                              {{kQ, part(a.qkv, s.head_size, 0)},
                               {kK, part(a.qkv, s.head_size, 1)},
                               {kV, part(a.qkv, s.head_size, 2)},
                               {kO, a.out.data},
                               {kStats, a.lse.data}},
                              stream);
}

void cudnn_attention_backward(const AttentionBackward& a, cudaStream_t stream) {
  const Shape s = shape_of(a);
  Context::instance().execute(s, true,
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
