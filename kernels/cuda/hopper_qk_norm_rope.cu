// QK-norm and rotary position embedding on Hopper, for heads whose halves are multiples of 16 bytes: formulas in
// kernels/qk_norm_rope.h.
// Mapping: a tile is some key/value heads of a row with their queries. Persistent blocks have a ring of tiles in shared
// memory; one thread loads and stores tiles as boxes (TMA), and the other warps compute in place. Boxes bring heads of
// either order (qkv_row.h) into one: queries, keys, values. No warp computes on values. A warp works on queries or on
// keys; kLanes neighbouring lanes work on a head, each on kVec elements of the first half and the kVec elements that
// they rotate with. Backward keeps the gradients of the weights in registers; a second kernel adds the blocks' sums in
// a fixed order.
// Bound: memory; forward reads and writes each element once, backward reads queries and keys of inp, and dout, and
// writes dinp.  Reference: kernels/cpu/qk_norm_rope.cpp.
#include <algorithm>
#include <type_traits>

#include "kernels/core/dims.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/hopper_qk_norm_rope.h"
#include "kernels/cuda/qk_norm_rope.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tri::cuda {
namespace {

// As measured on an H100: whole rows of about 48 heads, three or four blocks per multiprocessor.
constexpr int64_t kTileBytes = 12 * 1024;  // of one operand, unless a single key/value head needs more
constexpr int kRingBytes = 54 * 1024;
// Backward has 96 registers, so two or three blocks per multiprocessor, and needs three stages of two operands: with
// two, the next tile is loaded only after the current one is computed.
constexpr int kBackwardRingBytes = 72 * 1024;
constexpr int kMaxStages = 16;
constexpr int kMaxWarps = 8;  // of a block that compute
constexpr int kMaxThreads = 32 * (kMaxWarps + 1);
constexpr int kMaxSharedBytes = 227 * 1024;
constexpr int kMaxBox = 256;             // elements in each dimension
constexpr uint32_t kBoxAlignment = 128;  // bytes, of boxes in shared memory

// Maps of the queries, keys and values of a tensor (R, heads) with the boxes of a tile.
struct HeadMaps {
  CUtensorMap query, key, value;
};

struct Maps {
  HeadMaps inp;   // backward: `value` is dout's
  HeadMaps dout;  // backward alone
  HeadMaps out;   // backward: dinp
};

struct Shape {
  int64_t rows;
  int half, seq_len, group;
  int tiles, tile_heads;                                          // of a row; key/value heads of a tile
  int query_warps, key_warps;                                     // of a block
  int stages;                                                     // of the ring
  uint32_t query_at, key_at, value_at, gradient_at, stage_bytes;  // bytes in a stage, which begins with the angles
  uint32_t loaded_bytes;                                          // of a tile
  float eps, weight_offset;
  bool copies;  // values are copied
};

// Queries or keys of a tile, as a warp processes them.
template <class T, int kVec, int kLanes, bool kBackward>
struct Heads {
  using L = Lane<T, kVec, kLanes, 1>;
  using Packs = typename L::Packs;
  const Shape& s;
  const L lane;
  const bool of_queries;
  const int first, step, heads;  // of the warp's first head, to its next ones; heads in a tile
  const uint32_t at;
  const Packs weight;
  float dweight[2][kVec];  // of either half

  __device__ Heads(const Shape& s_, int warp, const T* query_weight, const T* key_weight)
      : s(s_),
        lane(s_.half),
        of_queries(warp < s_.query_warps),
        first((of_queries ? warp : warp - s_.query_warps) * L::kGroups + lane.group),
        step((of_queries ? s_.query_warps : s_.key_warps) * L::kGroups),
        heads(s_.tile_heads * (of_queries ? s_.group : 1)),
        at(of_queries ? s_.query_at : s_.key_at),
        weight(lane.load(of_queries ? query_weight : key_weight, true)),
        dweight{} {}

  __device__ void process(unsigned char* stage) {
    // Every lane runs the loop equally often, because the sums need all of them.
    for (int n = first; n - lane.group < heads; n += step) {
      const bool present = n < heads;
      T* x = reinterpret_cast<T*>(stage + at) + (present ? n : 0) * 2 * s.half;
      Packs packs = lane.load(x, present);
      if constexpr (kBackward)
        packs = gradient(packs, lane.load(x + s.gradient_at / sizeof(T), present), stage);
      else
        packs = normed(packs, stage);
      if (present) lane.store(x, packs);
    }
  }

  // Adding 0 changes no bit of what follows.
  __device__ void unpack_weights(float (&a)[kVec], float (&b)[kVec]) const {
    unpack(weight.first[0], a);
    unpack(weight.second[0], b);
#pragma unroll
    for (int i = 0; i < kVec; ++i) a[i] += s.weight_offset, b[i] += s.weight_offset;
  }

  __device__ Packs normed(Packs x, const unsigned char* stage) const {
    float2 angles[1][kVec];
    lane.load_angles(reinterpret_cast<const float*>(stage), angles);
    float a[kVec], b[kVec], wa[kVec], wb[kVec], squares = 0;
    unpack(x.first[0], a);
    unpack(x.second[0], b);
    unpack_weights(wa, wb);
#pragma unroll
    for (int i = 0; i < kVec; ++i) squares += a[i] * a[i] + b[i] * b[i];
    const float rstd = rsqrtf(head_sum<kLanes>(squares) * (0.5f / static_cast<float>(s.half)) + s.eps);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const float cosine = angles[0][i].x, sine = angles[0][i].y;
      const float turned = a[i] * (wa[i] * cosine) - b[i] * (wb[i] * sine);
      b[i] = rstd * (b[i] * (wb[i] * cosine) + a[i] * (wa[i] * sine));
      a[i] = rstd * turned;
    }
    x.first[0] = pack_floats<T>(a);
    x.second[0] = pack_floats<T>(b);
    return x;
  }

  __device__ Packs gradient(const Packs& x, Packs g, const unsigned char* stage) {
    float2 angles[1][kVec];
    lane.load_angles(reinterpret_cast<const float*>(stage), angles);
    const float mean_factor = 0.5f / static_cast<float>(s.half);
    float a[kVec], b[kVec], wa[kVec], wb[kVec], na[kVec], nb[kVec];  // na, nb: the gradient of the norm's output
    unpack(x.first[0], a);
    unpack(x.second[0], b);
    unpack(g.first[0], na);
    unpack(g.second[0], nb);
    unpack_weights(wa, wb);
    float squares = 0, product = 0;  // of x; of x times the gradient of x · rstd
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const float ga = na[i], gb = nb[i], cosine = angles[0][i].x, sine = angles[0][i].y;
      na[i] = ga * cosine + gb * sine;
      nb[i] = gb * cosine - ga * sine;
      squares += a[i] * a[i] + b[i] * b[i];
      product += na[i] * wa[i] * a[i] + nb[i] * wb[i] * b[i];
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      squares += __shfl_xor_sync(kAllLanes, squares, offset);
      product += __shfl_xor_sync(kAllLanes, product, offset);
    }
    const float rstd = rsqrtf(squares * mean_factor + s.eps);
    const float slope = -product * mean_factor * rstd * rstd * rstd;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      na[i] *= rstd;
      nb[i] *= rstd;
      dweight[0][i] += na[i] * a[i];  // zero for heads that are not present
      dweight[1][i] += nb[i] * b[i];
      a[i] = na[i] * wa[i] + a[i] * slope;
      b[i] = nb[i] * wb[i] + b[i] * slope;
    }
    g.first[0] = pack_floats<T>(a);
    g.second[0] = pack_floats<T>(b);
    return g;
  }
};

// partial (blocks, 2, HS), backward alone: each block's sums for the gradients of both weights.
// Shared memory: the stages, then their barriers.
template <class T, int kVec, int kLanes, bool kBackward>
__global__ void __launch_bounds__(kMaxThreads)
    hopper_norm_rope_kernel(const __grid_constant__ Maps maps, const T* query_weight, const T* key_weight,
                            const float* table, float* partial, const Shape s) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warps = s.query_warps + s.key_warps, warp = static_cast<int>(threadIdx.x) / 32;
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t full = address + s.stages * s.stage_bytes, computed = full + 8 * s.stages;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < s.stages; ++stage) {
      hopper::barrier_init(full + 8 * stage, 1);
      hopper::barrier_init(computed + 8 * stage, warps);
    }
    hopper::barrier_init_done();
  }
  __syncthreads();
  // The kernel that adds the blocks' sums may be launched; it waits for the end of this one.
  if constexpr (kBackward) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const int64_t tiles = s.rows * s.tiles;
  Heads<T, kVec, kLanes, kBackward> heads(s, warp, query_weight, key_weight);
  if (warp < warps) {
    int stage = 0;
    uint32_t round = 0;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      hopper::barrier_wait(full + 8 * stage, round);
      heads.process(shared + stage * s.stage_bytes);
      hopper::fence_async_proxy();
      __syncwarp();
      if (threadIdx.x % 32 == 0) hopper::barrier_arrive(computed + 8 * stage);
      if (++stage == s.stages) stage = 0, round ^= 1;
    }
  } else if (threadIdx.x % 32 == 0) {
    // In the forward pass it is faster to evict the copied lines from the L2 cache first, in the backward pass slower.
    const uint64_t policy = kBackward ? hopper::evict_normally() : hopper::evict_first();
    const auto load_box = [&](uint32_t to, const CUtensorMap& map, uint32_t barrier, int head, int row) {
      hopper::load_box(to, &map, barrier, 0, 0, head, row, policy);
    };
    const auto store_box = [&](const CUtensorMap& map, uint32_t from, int head, int row) {
      hopper::store_box(&map, from, 0, 0, head, row, policy);
    };
    const auto load = [&](int64_t tile, int stage) {
      if (tile >= tiles) return;
      const uint32_t to = address + stage * s.stage_bytes, barrier = full + 8 * stage;
      const int row = static_cast<int>(tile / s.tiles), head = static_cast<int>(tile % s.tiles) * s.tile_heads;
      hopper::barrier_expect(barrier, s.loaded_bytes);
      hopper::load_bytes(to, table + int64_t{row % s.seq_len} * 2 * s.half, sizeof(float) * 2 * s.half, barrier);
      load_box(to + s.query_at, maps.inp.query, barrier, head, row);
      load_box(to + s.key_at, maps.inp.key, barrier, head, row);
      if (s.copies) load_box(to + s.value_at, maps.inp.value, barrier, head, row);
      if constexpr (kBackward) {
        load_box(to + s.query_at + s.gradient_at, maps.dout.query, barrier, head, row);
        load_box(to + s.key_at + s.gradient_at, maps.dout.key, barrier, head, row);
      }
    };
    for (int stage = 0; stage < s.stages; ++stage) load(blockIdx.x + int64_t{stage} * gridDim.x, stage);
    int stage = 0, previous = s.stages - 1;
    uint32_t round = 0;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const uint32_t from = address + stage * s.stage_bytes;
      const int row = static_cast<int>(tile / s.tiles), head = static_cast<int>(tile % s.tiles) * s.tile_heads;
      hopper::barrier_wait(computed + 8 * stage, round);
      store_box(maps.out.query, from + s.query_at, head, row);
      store_box(maps.out.key, from + s.key_at, head, row);
      if (s.copies) store_box(maps.out.value, from + s.value_at, head, row);
      hopper::store_commit();
      if (tile != blockIdx.x) {
        hopper::store_wait_read<1>();  // the tile before this one has been stored
        load(tile + int64_t{s.stages - 1} * gridDim.x, previous);
      }
      previous = stage;
      if (++stage == s.stages) stage = 0, round ^= 1;
    }
    hopper::store_wait_read();
  }
  if constexpr (kBackward) {
    // Adds the lane groups of a warp by shuffles, then the warps of a kind one after another.
    auto* columns = reinterpret_cast<float*>(shared);  // (2, HS)
#pragma unroll
    for (int side = 0; side < 2; ++side)
#pragma unroll
      for (int i = 0; i < kVec; ++i)
#pragma unroll
        for (int offset = kLanes; offset < 32; offset *= 2)
          heads.dweight[side][i] += __shfl_xor_sync(kAllLanes, heads.dweight[side][i], offset);
    for (int turn = 0; turn < warps; ++turn) {
      __syncthreads();
      if (turn != warp || heads.lane.group != 0 || !heads.lane.owns(0)) continue;
      const bool first = turn == 0 || turn == s.query_warps;
#pragma unroll
      for (int side = 0; side < 2; ++side)
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          float& column = columns[((heads.of_queries ? 0 : 2) + side) * s.half + heads.lane.element(0) + i];
          column = heads.dweight[side][i] + (first ? 0.0f : column);
        }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 4 * s.half; i += static_cast<int>(blockDim.x))
      partial[blockIdx.x * int64_t{4} * s.half + i] = columns[i];
  }
}

// A map of (R, heads, slots, HS) with boxes of `tile_heads` heads: the slots are the queries of a key/value head.
CUtensorMap head_map(const Tensor& tensor, int at, int head_stride, int heads, int slots, int head_size,
                     int tile_heads) {
  static const auto encode = driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  const auto wide = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const auto element = static_cast<int64_t>(dtype_bytes(tensor.dtype));
  const cuuint64_t shape[4] = {wide(head_size), wide(slots), wide(heads), wide(tensor[0])};
  const cuuint64_t strides[3] = {wide(head_size * element), wide(head_stride * element), wide(tensor[1] * element)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(head_size), static_cast<cuuint32_t>(slots),
                             static_cast<cuuint32_t>(tile_heads), 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const auto type = tensor.dtype == Dtype::kF32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  CUtensorMap map;
  driver_check(encode(&map, type, 4, static_cast<char*>(tensor.data) + at * element, shape, strides, box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
  return map;
}

template <class Op>
struct Launch {
  const Op& op;
  CudaStream& stream;
  bool backward, copies;
  Tensor out, dout;
  QkvOrder to, from;
  float *dquery_weight = nullptr, *dkey_weight = nullptr;

  int head_size() const { return static_cast<int>(2 * op.table[1]); }
  HeadMaps maps_of(const Tensor& tensor, QkvOrder order, int tile_heads) const {
    const QkvRow row = qkv_row(order, op.num_kv_heads, op.group, head_size());
    const auto map = [&](int at, int stride, int slots) {
      return head_map(tensor, at, stride, op.num_kv_heads, slots, head_size(), tile_heads);
    };
    return {map(0, row.query_stride, op.group), map(row.key_at, row.key_stride, 1),
            map(row.value_at, row.key_stride, 1)};
  }

  template <class T, int kLanes>
  bool run() const {
    constexpr int kVec = Pack<T>::kSize, kHeadsOnce = 32 / kLanes;
    const int HS = head_size();
    Shape s{.rows = op.inp[0],
            .half = HS / 2,
            .seq_len = static_cast<int>(op.table[0]),
            .group = op.group,
            .eps = op.eps,
            .weight_offset = op.offset,
            .copies = copies};
    const int64_t head_bytes = int64_t{HS} * static_cast<int64_t>(sizeof(T));
    for (s.tile_heads = op.num_kv_heads; s.tile_heads > 1; --s.tile_heads)
      if (op.num_kv_heads % s.tile_heads == 0 && s.tile_heads <= kMaxBox &&
          s.tile_heads * (op.group + 2) * head_bytes <= kTileBytes)
        break;
    s.tiles = op.num_kv_heads / s.tile_heads;
    const auto part = [&](int heads) { return static_cast<uint32_t>(round_up(heads * head_bytes, kBoxAlignment)); };
    s.query_at = static_cast<uint32_t>(round_up(HS * 4, kBoxAlignment));
    s.key_at = s.query_at + part(s.tile_heads * op.group);
    s.value_at = s.key_at + part(s.tile_heads);
    s.stage_bytes = s.value_at + part(s.tile_heads);
    s.gradient_at = s.stage_bytes - s.query_at;
    if (backward) s.stage_bytes += s.value_at - s.query_at;
    s.loaded_bytes = static_cast<uint32_t>(HS * 4 + s.tile_heads * head_bytes *
                                                        ((op.group + 1) * (backward ? 2 : 1) + (copies ? 1 : 0)));
    // Divides the warps between queries and keys so that the warp with most heads has few.
    const auto warps = [&](int heads, int times) {
      return static_cast<int>(ceil_div(ceil_div(heads, kHeadsOnce), times));
    };
    int times = 1;
    while (warps(s.tile_heads * op.group, times) + warps(s.tile_heads, times) > kMaxWarps) ++times;
    s.query_warps = warps(s.tile_heads * op.group, times);
    s.key_warps = warps(s.tile_heads, times);
    const int threads = 32 * (s.query_warps + s.key_warps + 1);

    const auto shared_of = [&](int stages) {
      return std::max<int>(stages * (static_cast<int>(s.stage_bytes) + 16), backward ? 8 * HS : 0);
    };
    s.stages =
        std::clamp((backward ? kBackwardRingBytes : kRingBytes) / static_cast<int>(s.stage_bytes), 2, kMaxStages);
    if (shared_of(s.stages) > kMaxSharedBytes) return false;
    const auto with_pass = [&](auto pass) {
      auto kernel = hopper_norm_rope_kernel<T, kVec, kLanes, decltype(pass)::value>;
      const int shared = shared_of(s.stages);
      TRI_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
      int resident = 0;
      TRI_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, static_cast<size_t>(shared)));
      const int blocks = static_cast<int>(
          std::min<int64_t>(s.rows * s.tiles, int64_t{std::max(resident, 1)} * num_multiprocessors(stream)));
      Maps maps;
      maps.inp = maps_of(op.inp, backward ? to : from, s.tile_heads);
      maps.out = maps_of(out, to, s.tile_heads);
      float* partial = nullptr;
      if (backward) {
        maps.dout = maps_of(dout, from, s.tile_heads);
        maps.inp.value = maps.dout.value;
        partial = static_cast<float*>(
            workspace(stream, Scratch::kColumnSums, sizeof(float) * 2 * static_cast<size_t>(HS) * blocks));
      }
      kernel<<<static_cast<unsigned>(blocks), threads, shared, stream>>>(
          maps, pointer<T>(op.query_weight), pointer<T>(op.key_weight), pointer<float>(op.table), partial, s);
      TRI_CUDA_LAUNCH("hopper_qk_norm_rope");
      if (backward) add_slabs_early<2>({{dquery_weight, dkey_weight}}, partial, HS, blocks, stream);
    };
    backward ? with_pass(std::true_type{}) : with_pass(std::false_type{});
    return true;
  }

  // Returns false if the GPU or the shape is not supported.
  bool operator()() const {
    if (stream.context().properties().capability != 90 || op.group > kMaxBox || head_size() > kMaxBox) return false;
    bool launched = false;
    dispatch(op.inp.dtype, [&](auto type) {
      using T = decltype(type);
      if (!aligned<T>(op.table[1], {out, op.inp, dout, op.query_weight, op.key_weight, op.table})) return;
      const int64_t lanes = op.table[1] / Pack<T>::kSize;
      launched = lanes <= 4    ? run<T, 4>()
                 : lanes <= 8  ? run<T, 8>()
                 : lanes <= 16 ? run<T, 16>()
                               : lanes <= 32 && run<T, 32>();
    });
    return launched;
  }
};

}  // namespace

bool hopper_qk_norm_rope_forward(const QkNormRopeForward& n, CudaStream& stream) {
  return Launch<QkNormRopeForward>{.op = n,
                                   .stream = stream,
                                   .backward = false,
                                   .copies = true,
                                   .out = n.out,
                                   .to = n.out_order,
                                   .from = n.inp_order}();
}

bool hopper_qk_norm_rope_backward(const QkNormRopeBackward& n, CudaStream& stream) {
  return Launch<QkNormRopeBackward>{.op = n,
                                    .stream = stream,
                                    .backward = true,
                                    .copies = n.dinp.data != n.dout.data,
                                    .out = n.dinp,
                                    .dout = n.dout,
                                    .to = n.dinp_order,
                                    .from = n.dout_order,
                                    .dquery_weight = pointer<float>(n.dquery_weight),
                                    .dkey_weight = pointer<float>(n.dkey_weight)}();
}

}  // namespace tri::cuda
