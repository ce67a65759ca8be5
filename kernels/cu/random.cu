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

// fill_bits: word i = (random & keep) | set, a function of (seed, i): word i % 4 of Philox at counter
// (i / 4, 0, 0, 2). With `keep` all ones it is uniform; a mask that keeps low bits of a number's significand
// gives numbers in a narrow range, none of them NaN or infinite. Codes and scales of benchmark weights.
//   out  u32, aligned to 16 bytes; word i is at i / run * stride + i % run, so that a part of each of many
//        equal pieces can be filled; run and stride are multiples of 4
// Any grid and block. 24 integer operations and 4 bytes a word. Reference: ops::random::bits, exact.
extern "C" __global__ void __launch_bounds__(256)
    fill_bits(u32* out, u64 words, u64 run, u64 stride, u64 seed, u32 keep, u32 set) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  uint2 key = make_uint2((u32)seed, (u32)(seed >> 32));
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i * 4 < words; i += (u64)gridDim.x * blockDim.x) {
    uint4 r = philox(make_uint4((u32)i, (u32)(i >> 32), 0, 2), key);
    r = make_uint4((r.x & keep) | set, (r.y & keep) | set, (r.z & keep) | set, (r.w & keep) | set);
    u32* to = out + (i * 4 / run * stride + i * 4 % run);
    u64 left = words - i * 4;
    if (left >= 4) {
      *(uint4*)to = r;
    } else {
      to[0] = r.x;
      if (left > 1) to[1] = r.y;
      if (left > 2) to[2] = r.z;
    }
  }
}
EXPORT(fill_bits)
