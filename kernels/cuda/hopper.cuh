// Hopper's building blocks (sm_90a): multiplication by warpgroups (wgmma), copies of tensor boxes between global and
// shared memory (TMA), barriers in shared memory (mbarrier) and registers moved between warpgroups. PTX ISA, chapters
// "Asynchronous Warpgroup Level Matrix Instructions" and "Tensors".
//
// Tiles in shared memory are of boxes of 64 bf16 columns, 128 bytes a row, the rows one after the other; 16-byte chunk
// c of row r lies at chunk c ^ (r % 8) (the 128-byte swizzle of TMA and wgmma alike). Boxes start at multiples of 1024
// bytes.
//
// Fragments, lane = 4 · g + t of warp w of the warpgroup: an accumulator of 64 x N has d[4 · n + e] = element
// (16 · w + g + e / 2 · 8, 8 · n + 2 · t + e % 2), as mma.sync's (mma.cuh); A in registers has the same layout.
#pragma once

#include "kernels/cuda/mma.cuh"

namespace tri::cuda::hopper {

constexpr uint32_t kBoxColumns = 64, kBoxRow = 128;  // bytes a row

// ---- barriers

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes newly initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and lets the phase end only after `bytes` have been copied.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits for the end of the phase of this parity: 0 for the first. For a new barrier, phase 1 counts as ended.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra again;\n"
      "end:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A place in a ring of kStages buffers, and the number of rounds so far.
template <int kStages>
struct RingPlace {
  uint32_t stage = 0, round = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, round ^= 1;
  }
};

// Named barriers, which whole warps join.
__device__ __forceinline__ void named_barrier_sync(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// ---- clusters of blocks

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Waits for all threads of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Arrives at the barrier at the same address in the block `rank` of the cluster. Does not order ordinary accesses of
// memory for other blocks: a fence of their scope would cost hundreds of cycles.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Stores in the block `rank` of the cluster, at the same address, and counts 4 bytes for the barrier there.
__device__ __forceinline__ void store_at(uint32_t rank, uint32_t to, int value, uint32_t barrier) {
  asm volatile(
      "{\n.reg .b32 remote, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %3;\n"
      "mapa.shared::cluster.u32 remote_barrier, %2, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [remote], %1, [remote_barrier];\n}" ::"r"(to),
      "r"(value), "r"(barrier), "r"(rank)
      : "memory");
}

// ---- copies of boxes; `map` is a CUtensorMap, a __grid_constant__ parameter

__device__ __forceinline__ void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void load_box(uint32_t to, const void* map, uint32_t barrier, int c0, int c1, int c2,
                                         int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
// Of tensors of three dims. The box also arrives, at the same addresses, in every block of the cluster whose bit is in
// `blocks`, and its bytes count for that block's barrier.
__device__ __forceinline__ void load_box(uint32_t to, const void* map, uint32_t barrier, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void load_box_to(uint16_t blocks, uint32_t to, const void* map, uint32_t barrier, int c0,
                                            int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "h"(blocks)
      : "memory");
}
// Elements outside of the tensor are not written.
__device__ __forceinline__ void store_box(const void* map, uint32_t from, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(from), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
// Adds the box to the tensor's elements.
__device__ __forceinline__ void add_box(const void* map, uint32_t from, int c0, int c1, int c2) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void store_box(const void* map, uint32_t from, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
// Policies for the lines of the L2 cache that a copy touches, and copies with a policy.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t evict_normally() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void load_box(uint32_t to, const void* map, uint32_t barrier, int c0, int c1, int c2, int c3,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void store_box(const void* map, uint32_t from, int c0, int c1, int c2, int c3,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], "
      "%6;" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}
// Copies `bytes` contiguous bytes, a multiple of 16, as both addresses are.
__device__ __forceinline__ void load_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void store_bytes(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
// Adds floats to those in global memory.
__device__ __forceinline__ void add_floats(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until this thread's stores, except the last kPending groups, have read their shared memory.
template <int kPending = 0>
__device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Waits until this thread's stores are done.
__device__ __forceinline__ void store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Makes what this thread has stored in shared memory visible to the copy engine and wgmma.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Orders the copy engine's accesses of global memory with this thread's.
__device__ __forceinline__ void fence_async_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- registers

template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- fragments to shared memory

// Stores four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrix(uint32_t to, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[0]), "r"(from[1]),
               "r"(from[2]), "r"(from[3])
               : "memory");
}
// The same with rows and columns exchanged.
__device__ __forceinline__ void store_matrix_transposed(uint32_t to, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[0]),
               "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}
// Returns the bytes from the first of 16 rows of a box to the address that this lane gives, in the rows' block of 16
// columns.
__device__ __forceinline__ uint32_t block_at(int lane, int block) {
  const auto chunk = static_cast<uint32_t>(block * 2 + (lane >> 4));
  return static_cast<uint32_t>(lane & 15) * kBoxRow + ((chunk ^ static_cast<uint32_t>(lane & 7)) << 4);
}

// ---- wgmma

// Orders this warpgroup's registers and shared memory before the following multiplications.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Registers of a multiplication may not be touched while it runs: keeps the compiler from moving their uses to here.
template <int kN>
__device__ __forceinline__ void hold(float (&registers)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// Operands in shared memory. Rows of K (K-major): `leading` has no meaning, `stride` leads from 8 rows to the next 8.
// Rows of M or N (MN-major): `leading` leads from 64 columns to the next, `stride` from 8 rows of K to the next 8. The
// upper bits of an address say which block of a cluster it is in; they are not part of the operand.
__device__ __forceinline__ uint64_t operand(uint32_t address, uint32_t leading = 16, uint32_t stride = 8 * kBoxRow) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 62;
}
// The operand `bytes` further.
__device__ __forceinline__ uint64_t ahead(uint64_t operand, uint32_t bytes) { return operand + (bytes >> 4); }

// d (64 x N) = a (64 x 16) · b (16 x N), plus d where `add` (wgmma_set: without d, which may be uninitialised); a in
// shared memory or in registers. kTransA, kTransB 1: MN-major.
#define TRI_ACC4(io, i) io(d[i]), io(d[(i) + 1]), io(d[(i) + 2]), io(d[(i) + 3])
#define TRI_ACC16(io, i) TRI_ACC4(io, i), TRI_ACC4(io, (i) + 4), TRI_ACC4(io, (i) + 8), TRI_ACC4(io, (i) + 12)
#define TRI_ACC32(io) TRI_ACC16(io, 0), TRI_ACC16(io, 16)
#define TRI_ACC48(io) TRI_ACC32(io), TRI_ACC16(io, 32)
#define TRI_ACC64(io) TRI_ACC48(io), TRI_ACC16(io, 48)
#define TRI_ACC80(io) TRI_ACC64(io), TRI_ACC16(io, 64)
#define TRI_ACC96(io) TRI_ACC80(io), TRI_ACC16(io, 80)
#define TRI_ACC112(io) TRI_ACC96(io), TRI_ACC16(io, 96)
#define TRI_ACC128(io) TRI_ACC112(io), TRI_ACC16(io, 112)
#define TRI_ACC16_0(io) TRI_ACC16(io, 0)
#define TRI_NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TRI_NAMES32 TRI_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TRI_NAMES48 TRI_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TRI_NAMES64 TRI_NAMES48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TRI_NAMES80 TRI_NAMES64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TRI_NAMES96 TRI_NAMES80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TRI_NAMES112 \
  TRI_NAMES96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TRI_NAMES128 \
  TRI_NAMES112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TRI_WGMMA(n, names, accumulators, r0, r1, r2, r3, r4, r5, r6)                                                  \
  template <int kTransA, int kTransB>                                                                                  \
  __device__ __forceinline__ void wgmma_set(float(&d)[n / 2], uint64_t a, uint64_t b) {                                \
    asm volatile(                                                                                                      \
        "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"                                                                 \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, " r0 ", " r1 ", add, 1, 1, " r2 ", " r3 \
        ";\n}"                                                                                                         \
        : accumulators("=f")                                                                                           \
        : "l"(a), "l"(b), "n"(kTransA), "n"(kTransB));                                                                 \
  }                                                                                                                    \
  template <int kTransA, int kTransB>                                                                                  \
  __device__ __forceinline__ void wgmma(float(&d)[n / 2], uint64_t a, uint64_t b, bool add = true) {                   \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " r2                                                            \
                 ", 0;\n"                                                                                              \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, " r0 ", " r1                   \
                 ", add, 1, 1, " r3 ", " r4 ";\n}"                                                                     \
                 : accumulators("+f")                                                                                  \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kTransA), "n"(kTransB));                            \
  }                                                                                                                    \
  template <int kTransB>                                                                                               \
  __device__ __forceinline__ void wgmma(float(&d)[n / 2], const uint32_t(&a)[4], uint64_t b, bool add = true) {        \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " r5                                                            \
                 ", 0;\n"                                                                                              \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, {" r0 ", " r1 ", " r2 ", " r3  \
                 "}, " r4 ", add, 1, 1, " r6 ";\n}"                                                                    \
                 : accumulators("+f")                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(kTransB));      \
  }
TRI_WGMMA(32, TRI_NAMES16, TRI_ACC16_0, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
TRI_WGMMA(64, TRI_NAMES32, TRI_ACC32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
TRI_WGMMA(96, TRI_NAMES48, TRI_ACC48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
TRI_WGMMA(128, TRI_NAMES64, TRI_ACC64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
TRI_WGMMA(160, TRI_NAMES80, TRI_ACC80, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
TRI_WGMMA(192, TRI_NAMES96, TRI_ACC96, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
TRI_WGMMA(224, TRI_NAMES112, TRI_ACC112, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
TRI_WGMMA(256, TRI_NAMES128, TRI_ACC128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
#undef TRI_WGMMA

// FP8 types of an operand.
struct E4M3 {};
struct E5M2 {};

// d (64 x N) = a (64 x 32) · b (32 x N), plus d without `_set`; both K-major in shared memory.
#define TRI_WGMMA_FP8_OF(a_tag, a_type, b_tag, b_type, n, names, accumulators, r0, r1)                    \
  __device__ __forceinline__ void wgmma_fp8_set(a_tag, b_tag, float(&d)[n / 2], uint64_t a, uint64_t b) { \
    asm volatile(                                                                                         \
        "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"                                                    \
        "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." a_type "." b_type " {" names "}, " r0 ", " r1   \
        ", add, 1, 1;\n}"                                                                                 \
        : accumulators("=f")                                                                              \
        : "l"(a), "l"(b));                                                                                \
  }                                                                                                       \
  __device__ __forceinline__ void wgmma_fp8(a_tag, b_tag, float(&d)[n / 2], uint64_t a, uint64_t b) {     \
    asm volatile(                                                                                         \
        "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"                                                    \
        "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." a_type "." b_type " {" names "}, " r0 ", " r1   \
        ", add, 1, 1;\n}"                                                                                 \
        : accumulators("+f")                                                                              \
        : "l"(a), "l"(b));                                                                                \
  }
#define TRI_WGMMA_FP8(n, names, accumulators, r0, r1)                          \
  TRI_WGMMA_FP8_OF(E4M3, "e4m3", E4M3, "e4m3", n, names, accumulators, r0, r1) \
  TRI_WGMMA_FP8_OF(E4M3, "e4m3", E5M2, "e5m2", n, names, accumulators, r0, r1) \
  TRI_WGMMA_FP8_OF(E5M2, "e5m2", E4M3, "e4m3", n, names, accumulators, r0, r1)
TRI_WGMMA_FP8(32, TRI_NAMES16, TRI_ACC16_0, "%16", "%17")
TRI_WGMMA_FP8(64, TRI_NAMES32, TRI_ACC32, "%32", "%33")
TRI_WGMMA_FP8(96, TRI_NAMES48, TRI_ACC48, "%48", "%49")
TRI_WGMMA_FP8(128, TRI_NAMES64, TRI_ACC64, "%64", "%65")
TRI_WGMMA_FP8(160, TRI_NAMES80, TRI_ACC80, "%80", "%81")
TRI_WGMMA_FP8(192, TRI_NAMES96, TRI_ACC96, "%96", "%97")
TRI_WGMMA_FP8(224, TRI_NAMES112, TRI_ACC112, "%112", "%113")
TRI_WGMMA_FP8(256, TRI_NAMES128, TRI_ACC128, "%128", "%129")
#undef TRI_WGMMA_FP8
#undef TRI_WGMMA_FP8_OF

}  // namespace tri::cuda::hopper
