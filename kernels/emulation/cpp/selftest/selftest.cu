// selftest.cu: kernels for tests of the emulation itself: correct ones, and one for each kind of fault.
#include "device.cuh"

// Writes out[i] = i + value, and one more on each repetition.
extern "C" __global__ void selftest_count(u32* out, u32 value, i32 count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = (i + value) + (out[i] == 0xffffffffu ? 0 : out[i]);
}
EXPORT(selftest_count)

// Half of the threads wait for the block, the others for their warp.
extern "C" __global__ void selftest_deadlock() {
  if (threadIdx.x < 16) __syncthreads();
  else __syncwarp();
}
EXPORT(selftest_deadlock)

extern "C" __global__ void selftest_wrong_mask() {
  if (threadIdx.x < 16) __shfl_sync(0xffff0000u, 1, 20);
}
EXPORT(selftest_wrong_mask)

extern "C" __global__ void selftest_returned_lane() {
  if (threadIdx.x == 3) return;
  __shfl_sync(FULL_WARP, 1, 0);
}
EXPORT(selftest_returned_lane)

extern "C" __global__ void selftest_misaligned(const u8* from) {
  __shared__ __align__(16) u8 to[64];
  ptx::cp_async16(to, from + 4);
}
EXPORT(selftest_misaligned)

extern "C" __global__ void selftest_null(u32* out) { out[threadIdx.x] = 1; }
EXPORT(selftest_null)

extern "C" __global__ void selftest_past_end(u32* out, i32 count) {
  if (threadIdx.x == 0) out[count] = 1;
}
EXPORT(selftest_past_end)

// Sums the values that a kernel reads without a barrier after the writes: correct only in the order of the
// threads.
extern "C" __global__ void selftest_race(u32* out) {
  DYN_SHARED(u32, shared);
  shared[threadIdx.x] = threadIdx.x + 1;
  out[threadIdx.x] = shared[(threadIdx.x + 63) % 64];
}
EXPORT(selftest_race)

// Uninitialised dynamic shared memory.
extern "C" __global__ void selftest_fresh_shared(u32* out) {
  DYN_SHARED(u32, shared);
  out[threadIdx.x] = shared[threadIdx.x];
  shared[threadIdx.x] = 7;
}
EXPORT(selftest_fresh_shared)
