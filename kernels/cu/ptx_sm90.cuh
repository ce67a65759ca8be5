// ptx_sm90.cuh: Hopper's asynchronous instructions (sm_90a): mbarrier, bulk tensor copies (TMA), wgmma, named
// barriers, setmaxnreg. Under g++, the emulation's ptx_sm90_emulated.h replaces it, function by function.
// Include after device.cuh. Source: PTX ISA 9.0, 9.7.13.15 (mbarrier), 9.7.9.25.5 (cp.async.bulk.tensor),
// 9.7.15 (wgmma), 9.7.13.1 (bar), 9.7.19.5 (setmaxnreg). Not yet run on a GPU.
//
// HAS_SM90 is defined if the target has these instructions. Otherwise the kernels are empty, and their
// launchers check for capability 9.0 first.
#pragma once

#if defined(SKEIN_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_SM90 1
#endif

namespace ptx {

// A tensor map as written by the driver's cuTensorMapEncodeTiled; a `const __grid_constant__` parameter of a
// kernel. CUDA 13.0 asks for an alignment of 128 bytes, 12.8 and earlier for 64 (cuda.h, CUtensorMap).
struct alignas(128) TensorMap {
  u64 words[16];
};

// Permutation of a matrix's 16-byte chunks in shared memory: address bits 4.. are XORed with bits 7.., so
// that eight rows of a matrix are in different banks. The numbers are those of wgmma's descriptor.
enum Swizzle { SWIZZLE_NONE = 0, SWIZZLE_128B = 1, SWIZZLE_64B = 2, SWIZZLE_32B = 3 };

}  // namespace ptx

#ifdef SKEIN_EMULATED
#include "ptx_sm90_emulated.h"
#elif defined(HAS_SM90)
namespace ptx {

// ---- mbarrier -------------------------------------------------------------------------------
// A phase ends after `count` arrivals and all announced bytes; the next one then starts by itself.
__device__ __forceinline__ void mbarrier_init(u64* barrier, u32 count) {
  u32 at = shared_address(barrier);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
// Makes this thread's inits visible to the copy engine. Other threads also need a block barrier.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(u64* barrier) {
  u32 at = shared_address(barrier);
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(at) : "memory");
}
// Announces `bytes` for this phase, then arrives.
__device__ __forceinline__ void mbarrier_arrive_expect(u64* barrier, u32 bytes) {
  u32 at = shared_address(barrier);
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(at),
               "r"(bytes)
               : "memory");
}
// Waits for the end of the phase with this parity, which is 0 for the first. On a fresh barrier, waiting for
// parity 1 returns at once.
__device__ __forceinline__ void mbarrier_wait(u64* barrier, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!done);
}

// ---- bulk tensor copies ---------------------------------------------------------------------
__device__ __forceinline__ void tensor_map_prefetch(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Copies the map's box at column x, row y to shared memory, which must be 128-byte aligned; its bytes count
// towards `barrier`. Parts outside the tensor are written as zeros and count, too.
__device__ __forceinline__ void tensor_load_2d(void* to, const TensorMap* map, i32 x, i32 y, u64* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
      : "memory");
}
// Orders this thread's earlier stores to shared memory before accesses by wgmma and the copy engine after the
// next barrier.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// An ordinary store of 16 bytes that wgmma will read; the thread must call fence_proxy_async afterwards.
__device__ __forceinline__ void store_for_async(void* to, uint4 x) { *(uint4*)to = x; }

// ---- named barriers and registers -----------------------------------------------------------
// Barriers 1 to 15 for `threads` threads, a multiple of 32 that includes threads that only arrive.
__device__ __forceinline__ void named_barrier_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Sets the registers per thread that this warpgroup may use from here on.
template <int N> __device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- wgmma ----------------------------------------------------------------------------------
// Descriptor of a matrix of 16-bit values in shared memory for wgmma (9.7.15.5.1.2). With a swizzle of W
// bytes, the unit is an atom of 8 rows of W bytes, aligned to W * 8 bytes (`p` may point 32, 64, ... bytes
// into the rows of an atom):
//   K-major (rows along M or N, each with W bytes of K): `stride` is from 8 rows to the next 8; `leading` is
//   not used.
//   MN-major (rows along K, each with W bytes of M or N): `stride` is from 8 rows to the next 8 along K,
//   `leading` from W bytes of M or N to the next.
// Without a swizzle, the unit is 8 rows of 16 bytes, and both have `stride` along M or N and `leading` along
// K. Adding b >> 4 to a descriptor moves it by b bytes.
__device__ __forceinline__ u64 matrix_descriptor(const void* p, u32 leading, u32 stride, Swizzle swizzle) {
  return (u64)((shared_address(p) & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 |
         (u64)swizzle << 62;
}
// Required before the first wgmma after its registers (sums, or A) were accessed.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most N of the committed groups are unfinished.
template <int N> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Keeps the compiler from moving register accesses across; call it after the wait for these sums.
template <int N> __device__ __forceinline__ void wgmma_pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// d (64 x 2R values over a warpgroup) = a (64 x 16) * b (16 x 2R), plus d if `accumulate`. Sums in f32,
// layout as in 9.7.15.5.1.1: for columns 8j + 2 (t % 4) and the next, thread t holds d[4j], d[4j + 1] of row
// t / 32 * 16 + t % 32 / 4, and d[4j + 2], d[4j + 3] of that row + 8. MN_MAJOR_B: b's rows are along K.
#define SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(d, i) SUMS_4(d, i), SUMS_4(d, i + 4), SUMS_4(d, i + 8), SUMS_4(d, i + 12)
#define SUMS_32(d) SUMS_16(d, 0), SUMS_16(d, 16)
#define SUMS_64(d) SUMS_16(d, 0), SUMS_16(d, 16), SUMS_16(d, 32), SUMS_16(d, 48)
#define NAMES_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
  "%59, %60, %61, %62, %63"

// One overload: N columns, S = N / 2 sums per thread; TYPE as in the instruction's name. Operands after the
// sums are numbered from S.
#define WGMMA(T, TYPE, N, S, A0, A1, A2, A3, A4, A5, A6)                                                    \
  template <int MN_MAJOR_B>                                                                                 \
  __device__ __forceinline__ void wgmma_ss(T, float (&d)[S], u64 a, u64 b, u32 accumulate) {                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #A2 ", 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES_##S "}, "       \
                 "%" #A0 ", %" #A1 ", p, 1, 1, 0, %" #A3 ";\n}"                                             \
                 : SUMS_##S(d)                                                                              \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(MN_MAJOR_B));                                       \
  }                                                                                                         \
  template <int MN_MAJOR_B>                                                                                 \
  __device__ __forceinline__ void wgmma_rs(T, float (&d)[S], const u32* a, u64 b, u32 accumulate) {         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #A5 ", 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES_##S "}, "       \
                 "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #A4 ", p, 1, 1, %" #A6 ";\n}"                \
                 : SUMS_##S(d)                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(MN_MAJOR_B));   \
  }
WGMMA(bf16, "bf16", 64, 32, 32, 33, 34, 35, 36, 37, 38)
WGMMA(f16, "f16", 64, 32, 32, 33, 34, 35, 36, 37, 38)
WGMMA(bf16, "bf16", 128, 64, 64, 65, 66, 67, 68, 69, 70)
WGMMA(f16, "f16", 128, 64, 64, 65, 66, 67, 68, 69, 70)

}  // namespace ptx
#endif
