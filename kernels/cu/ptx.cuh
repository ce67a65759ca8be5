// ptx.cuh: wrappers for all PTX instructions of the kernels. Under g++, the emulation's ptx_emulated.h
// replaces it, function by function. Source: PTX ISA 9.0.
#pragma once
#ifdef SKEIN_EMULATED
#include "ptx_emulated.h"
#else
namespace ptx {

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- conversions ----------------------------------------------------------------------------
__device__ __forceinline__ float f16_to_f32(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ __forceinline__ u16 f32_to_bf16(float x) {
  u16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ u16 f32_to_f16(float x) {
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
// Exact: e4m3's exponent and mantissa, moved to f32's positions, are too small by 2^120.
__device__ __forceinline__ float e4m3_to_f32(u8 x) {
  float y = __uint_as_float((u32)(x & 0x7f) << 20) * 0x1p120f;
  y = (x & 0x7f) == 0x7f ? __uint_as_float(0x7fffffffu) : y;
  return x & 0x80 ? -y : y;
}
__device__ __forceinline__ u8 f32_to_e4m3(float x) {
#if __CUDA_ARCH__ >= 890
  u16 y;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(0.f), "f"(x));
  return (u8)y;
#else
  // Below the smallest normal value, 2^-6, values are multiples of 2^-9; above it three bits of mantissa are
  // kept.
  u32 sign = (__float_as_uint(x) >> 24) & 0x80;
  float a = fabsf(x);
  if (!(a <= 448.f)) return (u8)(sign | (a != a ? 0x7f : 0x7e));
  if (a < 0x1p-6f) return (u8)(sign | (u32)__float2int_rn(a * 512.f));
  u32 bits = __float_as_uint(a);
  bits += 0x7ffff + ((bits >> 20) & 1);
  u32 code = (bits >> 20) - (120u << 3);
  return (u8)(sign | (code > 0x7e ? 0x7e : code));
#endif
}

// ---- cp.async -------------------------------------------------------------------------------
// Copies 16 bytes to shared memory, or writes zeros if `pred` is false. Complete after cp_async_wait.
__device__ __forceinline__ void cp_async16(void* s, const void* g, bool pred = true) {
  int n = pred ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(s)), "l"(g), "r"(n)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- warp matrix instructions ---------------------------------------------------------------
// d += a (16x16, row) * b (16x8, col), f32 sums. Fragments as in the ISA's m16n8k16.
__device__ __forceinline__ void mma_m16n8k16(bf16, float* d, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_m16n8k16(f16, float* d, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Lane i gives the address of row i % 8 of matrix i / 8 (8x8 values of 16 bits), 16-byte aligned.
__device__ __forceinline__ void ldmatrix_x4(u32* r, const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(u32* r, const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p))
               : "memory");
}

// ---- softmax --------------------------------------------------------------------------------
// 2^x to 2 ulp; subnormal results become 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Two values in one register, `low` in the lower half, each rounded to nearest.
__device__ __forceinline__ u32 round_pair(bf16, float low, float high) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
__device__ __forceinline__ u32 round_pair(f16, float low, float high) {
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

// ---- streaming loads ------------------------------------------------------------------------
// Loads 16 bytes that no kernel in flight writes and that are not read again soon: bypasses L1, and L2
// fetches the whole 128-byte line. Volatile keeps the program's order, so that early loads are issued early.
__device__ __forceinline__ uint4 load_stream16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// ---- packed pairs: a * b + c, rounded once; the lower half is the first value ----------------
__device__ __forceinline__ u32 fma_pair(bf16, u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ u32 fma_pair(f16, u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// ---- memory of other devices ----------------------------------------------------------------
// Relaxed at system scope: each word of 4 bytes arrives whole, and words in any order.
__device__ __forceinline__ void store_peer16(void* p, uint4 v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_peer8(void* p, uint2 v) {
  asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_peer4(u32* p, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// Arrives after all that this thread has stored, and that other threads had stored before a barrier which
// both have passed.
__device__ __forceinline__ void store_release(u32* p, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// Loads of what other devices store; never from a stale cache line.
__device__ __forceinline__ uint4 load_peer16(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_peer8(const void* p) {
  uint2 v;
  asm volatile("ld.relaxed.sys.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ u32 load_peer4(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// Nanoseconds; its resolution depends on the device.
__device__ __forceinline__ u64 globaltimer() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
// In every turn of a loop that waits for another device; the emulation lets others run here.
__device__ __forceinline__ void poll_pause() {}

// ---- programmatic dependent launch ----------------------------------------------------------
// Waits until the grids that this one depends on have ended (no-op in an ordinary launch). Must precede the
// first read of their output and the first write to their input.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next grid start its preamble.
__device__ __forceinline__ void grid_dependency_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace ptx
#endif
