// device.cuh: included by every kernel file. Number types and their conversions, reductions, and EXPORT.
//
// The same source is compiled by nvcc (ahead of time), by NVRTC (at first start, so no host or CUDA header is
// included here) and by g++ with the emulation in kernels/emulation (for tests without a GPU). Rules:
// arithmetic in f32, small types only for storage; no inline PTX outside ptx.cuh; dynamic shared memory by
// DYN_SHARED; every kernel is extern "C" __global__ and followed by EXPORT(name).
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;

#ifdef SKEIN_EMULATED
#include "emulation.h"
#else
#define DYN_SHARED(T, name)                             \
  extern __shared__ __align__(1024) u8 dyn_shared_[];   \
  T* name = reinterpret_cast<T*>(dyn_shared_)
#define EXPORT(kernel)
#endif

// Storage types: bfloat16, IEEE half, and FP8 e4m3 (OCP 8-bit floating point, finite and NaN, largest 448).
struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};
struct e4m3 {
  u8 bits;
};

#include "ptx.cuh"

constexpr float NEG_INF = __builtin_bit_cast(float, 0xff800000u);  // NVRTC has no huge_valf
constexpr u32 FULL_WARP = 0xffffffffu;

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float to_f32(f16 x) { return ptx::f16_to_f32(x.bits); }
__device__ __forceinline__ float to_f32(e4m3 x) { return ptx::e4m3_to_f32(x.bits); }

// Rounds to nearest, ties to even; e4m3 saturates at +-448.
template <class T> __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_f32<bf16>(float x) { return bf16{ptx::f32_to_bf16(x)}; }
template <> __device__ __forceinline__ f16 from_f32<f16>(float x) { return f16{ptx::f32_to_f16(x)}; }
template <> __device__ __forceinline__ e4m3 from_f32<e4m3>(float x) { return e4m3{ptx::f32_to_e4m3(x)}; }

// N values moved in one access; N * sizeof(T) is 4, 8 or 16 bytes, and the address has that alignment.
template <class T, int N> struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(FULL_WARP, v, o);
  return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, o));
  return v;
}

// WARP over a block of up to 32 whole warps; 0 is its neutral value, every thread gets it, and the order only
// depends on the block's size.
template <float (*WARP)(float)> __device__ __forceinline__ float block_reduce(float v) {
  __shared__ float part[33];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  v = WARP(v);
  __syncthreads();  // an earlier call's result has been read
  if (lane == 0) part[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = WARP(lane < warps ? part[lane] : 0.f);
    if (lane == 0) part[32] = v;
  }
  __syncthreads();
  return part[32];
}
__device__ __forceinline__ float block_sum(float v) { return block_reduce<warp_sum>(v); }
// Of values that are not negative.
__device__ __forceinline__ float block_max(float v) { return block_reduce<warp_max>(v); }
