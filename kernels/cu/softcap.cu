// softcap.cu: a smooth limit of values to -cap..cap (Gemma 2, Gemma Team 2024).
#include "device.cuh"

// softcap: values = cap * tanh(values / cap).
//   values  [count]  f32, in and out
// Any grid and block. 8 bytes a value: 256 rows of 256,000 logits are 0.5 GB, 0.12 ms at 4.3 TB/s (predicted,
// not yet run on a GPU). Reference: cpu::softcap::softcap.
extern "C" __global__ void __launch_bounds__(256) softcap(float* values, u32 count, float cap) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    values[i] = cap * tanhf(values[i] / cap);
  }
}
EXPORT(softcap)
