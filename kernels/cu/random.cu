// random.cu: random values generated on the device, for benchmark weights.
#include "math.cuh"

// fill_normal: out[i] = approximately normal with mean 0, a function of (seed, i): the sum of the eight
// 16-bit halves of Philox at counter (i, 0, 0, 1), centred, times `scale` (the host divides the deviation by
// that of the sum). A sum of uniform values (Irwin-Hall) needs no logarithm, so a CPU computes the same bits;
// it reaches 4.9 deviations.
//   out  [len]  T
// Any grid and block. 80 integer operations and sizeof(T) bytes a value: about 70 ms for 8 billion bf16
// values (predicted, not yet run on a GPU). Reference: ops::random::normal, exact.
template <class T> __device__ void fill_normal(T* out, u64 len, u64 seed, float scale) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  uint2 key = make_uint2((u32)seed, (u32)(seed >> 32));
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < len; i += (u64)gridDim.x * blockDim.x) {
    uint4 words = philox(make_uint4((u32)i, (u32)(i >> 32), 0, 1), key);
    u32 low = (words.x & 0xffff) + (words.y & 0xffff) + (words.z & 0xffff) + (words.w & 0xffff);
    u32 high = (words.x >> 16) + (words.y >> 16) + (words.z >> 16) + (words.w >> 16);
    // The mean is eight times 32767.5. Values are below 2^20, so exact in f32.
    out[i] = from_f32<T>(__fmul_rn((float)((i32)(low + high) - 262140), scale));
  }
}

#define FILL_NORMAL(name, T)                                                                          \
  extern "C" __global__ void __launch_bounds__(256) name(T* out, u64 len, u64 seed, float scale) {    \
    fill_normal<T>(out, len, seed, scale);                                                            \
  }                                                                                                   \
  EXPORT(name)

FILL_NORMAL(fill_normal_bf16, bf16)
FILL_NORMAL(fill_normal_f16, f16)
FILL_NORMAL(fill_normal_f32, float)
FILL_NORMAL(fill_normal_e4m3, e4m3)
