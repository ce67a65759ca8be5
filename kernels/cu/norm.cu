// norm.cu: root mean square normalisation (Zhang & Sennrich 2019) after the residual addition.
#include "device.cuh"

// 1 / rms(x), computed by the whole block.
template <class T> __device__ __forceinline__ float per_rms(const T* x, i32 hidden, float eps) {
  float squares = 0.f;
  for (int i = threadIdx.x * 4; i < hidden; i += blockDim.x * 4) {
    Pack<T, 4> v = *(const Pack<T, 4>*)(x + i);
#pragma unroll
    for (int j = 0; j < 4; j++) squares += to_f32(v.v[j]) * to_f32(v.v[j]);
  }
  return rsqrtf(block_sum(squares) / (float)hidden + eps);
}

// add_rms_norm: residual += delta; out = residual / rms(residual) * weight.
//   out           [rows, hidden]  T
//   residual      [rows, hidden]  f32, in and out
//   delta         [rows, hidden]  T, or null to add nothing
//   delta_weight  [hidden]        f32, or null; if given, delta / rms(delta) * delta_weight is added
//   weight        [hidden]        f32
// Grid (rows), block a multiple of 32. hidden is a multiple of 4. The second pass reads residual again from
// L1/L2: 4 + 4 + 2 + 2 bytes a value, and delta again if it is normalised. References: cpu::norm::rms_norm
// and rms_norm_add.
template <class T>
__device__ void add_rms_norm(T* out, float* residual, const T* delta, const float* delta_weight,
                             const float* weight, i32 hidden, float eps) {
  ptx::grid_dependency_wait();
  size_t row = (size_t)blockIdx.x * hidden;
  float delta_scale = delta_weight ? per_rms(delta + row, hidden, eps) : 1.f;
  float squares = 0.f;
  for (int i = threadIdx.x * 4; i < hidden; i += blockDim.x * 4) {
    float4 x = *(const float4*)(residual + row + i);
    if (delta) {
      Pack<T, 4> d = *(const Pack<T, 4>*)(delta + row + i);
      float4 w = delta_weight ? *(const float4*)(delta_weight + i) : float4{1.f, 1.f, 1.f, 1.f};
      x.x += to_f32(d.v[0]) * delta_scale * w.x;
      x.y += to_f32(d.v[1]) * delta_scale * w.y;
      x.z += to_f32(d.v[2]) * delta_scale * w.z;
      x.w += to_f32(d.v[3]) * delta_scale * w.w;
      *(float4*)(residual + row + i) = x;
    }
    squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
  }
  float scale = rsqrtf(block_sum(squares) / (float)hidden + eps);
  ptx::grid_dependency_launch();
  for (int i = threadIdx.x * 4; i < hidden; i += blockDim.x * 4) {
    float4 x = *(const float4*)(residual + row + i);
    float4 w = *(const float4*)(weight + i);
    Pack<T, 4> y;
    y.v[0] = from_f32<T>(x.x * scale * w.x);
    y.v[1] = from_f32<T>(x.y * scale * w.y);
    y.v[2] = from_f32<T>(x.z * scale * w.z);
    y.v[3] = from_f32<T>(x.w * scale * w.w);
    *(Pack<T, 4>*)(out + row + i) = y;
  }
}

extern "C" __global__ void __launch_bounds__(1024)
    add_rms_norm_bf16(bf16* out, float* residual, const bf16* delta, const float* delta_weight,
                      const float* weight, i32 hidden, float eps) {
  add_rms_norm<bf16>(out, residual, delta, delta_weight, weight, hidden, eps);
}
EXPORT(add_rms_norm_bf16)

extern "C" __global__ void __launch_bounds__(1024)
    add_rms_norm_f16(f16* out, float* residual, const f16* delta, const float* delta_weight,
                      const float* weight, i32 hidden, float eps) {
  add_rms_norm<f16>(out, residual, delta, delta_weight, weight, hidden, eps);
}
EXPORT(add_rms_norm_f16)
