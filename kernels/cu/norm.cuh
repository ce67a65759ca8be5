// norm.cuh: sums and stores that kernels with a norm share, so that all have the same bits.
#pragma once
#include "device.cuh"

__device__ __forceinline__ float sum_of(float4 x) { return x.x + x.y + x.z + x.w; }
__device__ __forceinline__ float sum_of_squares(float4 x) {
  return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
}

template <class T> __device__ __forceinline__ void write4(T* to, float x, float y, float z, float w) {
  Pack<T, 4> p;
  p.v[0] = from_f32<T>(x);
  p.v[1] = from_f32<T>(y);
  p.v[2] = from_f32<T>(z);
  p.v[3] = from_f32<T>(w);
  *(Pack<T, 4>*)to = p;
}
