// norm.cu: root mean square normalisation (Zhang & Sennrich 2019), with the residual addition before it.
#include "device.cuh"

// add_rms_norm: residual += delta; out = residual / rms(residual) * weight.
//   out       [rows, hidden]  T
//   residual  [rows, hidden]  f32, in and out
//   delta     [rows, hidden]  T, or null: nothing is added
//   weight    [hidden]        f32
// Grid (rows), block a multiple of 32. hidden is a multiple of 4. Reads residual once more from L1/L2 for the
// second pass: 4 + 4 + 2 + 2 bytes a value. Reference: cpu::norm::rms_norm.
template <class T>
__device__ void add_rms_norm(T* out, float* residual, const T* delta, const float* weight, i32 hidden,
                             float eps) {
  ptx::grid_dependency_wait();
  size_t row = (size_t)blockIdx.x * hidden;
  float squares = 0.f;
  for (int i = threadIdx.x * 4; i < hidden; i += blockDim.x * 4) {
    float4 x = *(const float4*)(residual + row + i);
    if (delta) {
      Pack<T, 4> d = *(const Pack<T, 4>*)(delta + row + i);
      x.x += to_f32(d.v[0]);
      x.y += to_f32(d.v[1]);
      x.z += to_f32(d.v[2]);
      x.w += to_f32(d.v[3]);
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
    add_rms_norm_bf16(bf16* out, float* residual, const bf16* delta, const float* weight, i32 hidden,
                      float eps) {
  add_rms_norm<bf16>(out, residual, delta, weight, hidden, eps);
}
EXPORT(add_rms_norm_bf16)

extern "C" __global__ void __launch_bounds__(1024)
    add_rms_norm_f16(f16* out, float* residual, const f16* delta, const float* weight, i32 hidden,
                     float eps) {
  add_rms_norm<f16>(out, residual, delta, weight, hidden, eps);
}
EXPORT(add_rms_norm_f16)
