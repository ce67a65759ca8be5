// activation.cu: gated linear units of feed-forward networks (Shazeer 2020), and activations without a gate.
#include "gate.cuh"

__device__ __forceinline__ float activated(u32 function, float x) {
  return __fdividef(x, 1.f + __expf(-gate_logit(function, x)));
}

// glu: out = function(gate) * up.
//   out      [rows, inner]      T
//   gate_up  [rows, 2 * inner]  T: in each row the gate, then the up projection
//   function                    activation of the gate: see gate.cuh
// Grid (parts, rows), any block; inner is a multiple of 8: 16 bytes per thread and access. 6 bytes a value:
// 8,192 rows of 14,336 values are 0.7 GB, 165 us at 4.3 TB/s (predicted, not yet run on a GPU). Reference:
// cpu::mlp::glu.
template <class T> __device__ void glu(T* out, const T* gate_up, i32 inner, u32 function) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  const T* gates = gate_up + (size_t)blockIdx.y * 2 * inner;
  T* to = out + (size_t)blockIdx.y * inner;
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8; i < inner; i += gridDim.x * blockDim.x * 8) {
    Pack<T, 8> gate = *(const Pack<T, 8>*)(gates + i), up = *(const Pack<T, 8>*)(gates + inner + i), y;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      float g = to_f32(gate.v[j]);
      y.v[j] = from_f32<T>(activated(function, g) * to_f32(up.v[j]));
    }
    *(Pack<T, 8>*)(to + i) = y;
  }
}

extern "C" __global__ void __launch_bounds__(256) glu_bf16(bf16* out, const bf16* gate_up, i32 inner, u32 function) {
  glu<bf16>(out, gate_up, inner, function);
}
EXPORT(glu_bf16)

extern "C" __global__ void __launch_bounds__(256) glu_f16(f16* out, const f16* gate_up, i32 inner, u32 function) {
  glu<f16>(out, gate_up, inner, function);
}
EXPORT(glu_f16)

// activate: x = function(x), in place.
//   x         [count]  T, count a multiple of 8
//   function  see gate.cuh
// Any grid and block. 4 bytes a value. Reference: cpu::mlp::activate_into.
template <class T> __device__ void activate(T* x, i32 count, u32 function) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8; i < count; i += gridDim.x * blockDim.x * 8) {
    Pack<T, 8> v = *(const Pack<T, 8>*)(x + i);
#pragma unroll
    for (int j = 0; j < 8; j++) v.v[j] = from_f32<T>(activated(function, to_f32(v.v[j])));
    *(Pack<T, 8>*)(x + i) = v;
  }
}

extern "C" __global__ void __launch_bounds__(256) activate_bf16(bf16* x, i32 count, u32 function) {
  activate<bf16>(x, count, function);
}
EXPORT(activate_bf16)

extern "C" __global__ void __launch_bounds__(256) activate_f16(f16* x, i32 count, u32 function) {
  activate<f16>(x, count, function);
}
EXPORT(activate_f16)
