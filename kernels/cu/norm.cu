// norm.cu: normalisation after the residual addition: by the root mean square (Zhang & Sennrich 2019), or by
// mean and variance (Ba et al. 2016).
#include "norm.cuh"

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

// What is added to the residual stream.
template <class T> struct Added {
  const T *delta, *beside;
  const float* delta_weight;
};

// Adds to this block's row of the residual stream. Returns this thread's part of the sum of its values, or of
// their squares.
template <class T, bool SQUARES>
__device__ __forceinline__ float add(float* residual, const Added<T>& added, i32 hidden, float eps) {
  size_t row = (size_t)blockIdx.x * hidden;
  float delta_scale = added.delta_weight ? per_rms(added.delta + row, hidden, eps) : 1.f;
  float sum = 0.f;
  for (int i = threadIdx.x * 4; i < hidden; i += blockDim.x * 4) {
    float4 x = *(const float4*)(residual + row + i);
    if (added.delta) {
      Pack<T, 4> d = *(const Pack<T, 4>*)(added.delta + row + i);
      float4 w = added.delta_weight ? *(const float4*)(added.delta_weight + i) : float4{1.f, 1.f, 1.f, 1.f};
      x.x += to_f32(d.v[0]) * delta_scale * w.x;
      x.y += to_f32(d.v[1]) * delta_scale * w.y;
      x.z += to_f32(d.v[2]) * delta_scale * w.z;
      x.w += to_f32(d.v[3]) * delta_scale * w.w;
      if (added.beside) {
        Pack<T, 4> b = *(const Pack<T, 4>*)(added.beside + row + i);
        x.x += to_f32(b.v[0]);
        x.y += to_f32(b.v[1]);
        x.z += to_f32(b.v[2]);
        x.w += to_f32(b.v[3]);
      }
      *(float4*)(residual + row + i) = x;
    }
    sum += SQUARES ? sum_of_squares(x) : sum_of(x);
  }
  return sum;
}

// add_rms_norm: residual += delta + beside; out = residual / rms(residual) * weight.
//   out           [rows, hidden]  T
//   residual      [rows, hidden]  f32, in and out
//   delta         [rows, hidden]  T, or null to add nothing
//   beside        [rows, hidden]  T, added after delta, or null
//   delta_weight  [hidden]        f32, or null; if given, delta / rms(delta) * delta_weight is added
//   weight        [hidden]        f32, or null: out = residual
// Grid (rows), block a multiple of 32. hidden is a multiple of 4. The second pass reads residual again from
// L1/L2: 4 + 4 + 2 + 2 bytes a value, and delta again if it is normalised. References: cpu::norm::rms_norm
// and rms_norm_add.
template <class T>
__device__ void add_rms_norm(T* out, float* residual, const Added<T>& added, const float* weight, i32 hidden,
                             float eps) {
  ptx::grid_dependency_wait();
  size_t row = (size_t)blockIdx.x * hidden;
  float squares = add<T, true>(residual, added, hidden, eps);
  float scale = weight ? rsqrtf(block_sum(squares) / (float)hidden + eps) : 1.f;
  ptx::grid_dependency_launch();
  for (int i = threadIdx.x * 4; i < hidden; i += blockDim.x * 4) {
    float4 x = *(const float4*)(residual + row + i);
    float4 w = weight ? *(const float4*)(weight + i) : float4{1.f, 1.f, 1.f, 1.f};
    write4(out + row + i, x.x * scale * w.x, x.y * scale * w.y, x.z * scale * w.z, x.w * scale * w.w);
  }
}

// add_layer_norm: residual += delta + beside; out = (residual - mean) / sqrt(variance + eps) * weight + bias.
//   bias  [hidden]  f32, or null
// Everything else as for add_rms_norm, but `weight` is given. The variance is summed from differences, in a
// pass of its own from L1/L2, because the difference of two large sums would lose it. Reference:
// cpu::layer_norm::layer_norm_into.
template <class T>
__device__ void add_layer_norm(T* out, float* residual, const Added<T>& added, const float* weight,
                               const float* bias, i32 hidden, float eps) {
  ptx::grid_dependency_wait();
  size_t row = (size_t)blockIdx.x * hidden;
  float mean = block_sum(add<T, false>(residual, added, hidden, eps)) / (float)hidden, squares = 0.f;
  for (int i = threadIdx.x * 4; i < hidden; i += blockDim.x * 4) {
    float4 x = *(const float4*)(residual + row + i);
    squares += sum_of_squares(float4{x.x - mean, x.y - mean, x.z - mean, x.w - mean});
  }
  float scale = rsqrtf(block_sum(squares) / (float)hidden + eps);
  ptx::grid_dependency_launch();
  for (int i = threadIdx.x * 4; i < hidden; i += blockDim.x * 4) {
    float4 x = *(const float4*)(residual + row + i), w = *(const float4*)(weight + i);
    float4 b = bias ? *(const float4*)(bias + i) : float4{0.f, 0.f, 0.f, 0.f};
    write4(out + row + i, (x.x - mean) * scale * w.x + b.x, (x.y - mean) * scale * w.y + b.y,
           (x.z - mean) * scale * w.z + b.z, (x.w - mean) * scale * w.w + b.w);
  }
}

#define NORMS(T)                                                                                            \
  extern "C" __global__ void __launch_bounds__(1024)                                                        \
      add_rms_norm_##T(T* out, float* residual, const T* delta, const T* beside, const float* delta_weight, \
                       const float* weight, i32 hidden, float eps) {                                        \
    add_rms_norm<T>(out, residual, Added<T>{delta, beside, delta_weight}, weight, hidden, eps);             \
  }                                                                                                         \
  EXPORT(add_rms_norm_##T)                                                                                  \
  extern "C" __global__ void __launch_bounds__(1024)                                                        \
      add_layer_norm_##T(T* out, float* residual, const T* delta, const T* beside, const float* delta_weight, \
                         const float* weight, const float* bias, i32 hidden, float eps) {                   \
    add_layer_norm<T>(out, residual, Added<T>{delta, beside, delta_weight}, weight, bias, hidden, eps);     \
  }                                                                                                         \
  EXPORT(add_layer_norm_##T)

NORMS(bf16)
NORMS(f16)
