// roofline.cu: plain reading, to compare memory-bound kernels with.
#include "device.cuh"

// read_all: out[block] = xor of every word that the block read.
//   out   [blocks]  u32
//   data  [count]   uint4, 16 bytes each
// Grid: a few blocks per multiprocessor; every thread keeps eight 16-byte loads in flight, and a block's
// loads are consecutive. Reads 16 * count bytes once and only keeps the xor. Reference: the xor on the host.
constexpr int LOADS = 8;

extern "C" __global__ void __launch_bounds__(512) read_all(u32* out, const uint4* data, u64 count) {
  u64 stride = (u64)gridDim.x * blockDim.x * LOADS;
  u32 mix = 0;
  for (u64 at = (u64)blockIdx.x * blockDim.x * LOADS + threadIdx.x; at < count; at += stride) {
    uint4 v[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      u64 mine = at + (u64)i * blockDim.x;
      v[i] = mine < count ? data[mine] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++) mix ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) mix ^= __shfl_xor_sync(FULL_WARP, mix, o);
  __shared__ u32 part[32];
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = mix;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned w = 1; w < blockDim.x / 32; w++) mix ^= part[w];
    out[blockIdx.x] = mix;
  }
}
EXPORT(read_all)
