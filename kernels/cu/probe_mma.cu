// probe_mma.cu: one warp's matrix instructions and number conversions on random bits, to check that hardware,
// emulation and the references on the host agree. Not yet run on a GPU.
#include "device.cuh"

// probe_mma: d = a * b + c by one m16n8k16, with unconverted registers.
//   d, c  [32, 4]  f32, a lane's registers
//   a     [32, 4]  u32, two values each
//   b     [32, 2]  u32
// One block of 32 threads. Reference: check/mma.rs, from the tables of PTX ISA 9.0, 9.7.14.5.8.
template <class T> __device__ void probe_mma(float* d, const float* c, const u32* a, const u32* b) {
  int lane = threadIdx.x;
  float sums[4];
  for (int i = 0; i < 4; i++) sums[i] = c[lane * 4 + i];
  ptx::mma_m16n8k16(T{}, sums, a + lane * 4, b + lane * 2);
  for (int i = 0; i < 4; i++) d[lane * 4 + i] = sums[i];
}
extern "C" __global__ void __launch_bounds__(32)
    probe_mma_bf16(float* d, const float* c, const u32* a, const u32* b) {
  probe_mma<bf16>(d, c, a, b);
}
EXPORT(probe_mma_bf16)
extern "C" __global__ void __launch_bounds__(32)
    probe_mma_f16(float* d, const float* c, const u32* a, const u32* b) {
  probe_mma<f16>(d, c, a, b);
}
EXPORT(probe_mma_f16)

// probe_ldmatrix: four 8x8 matrices of 16-bit values through shared memory, plain and transposed.
//   out  [2, 32, 4]  u32, a lane's registers: plain, then transposed
//   in   [32, 8]     u16, row i % 8 of matrix i / 8
//   rows [32]        u32, position of each row in shared memory, in rows: a permutation
// One block of 32 threads. The rows are copied by cp.async; a predicate zeros every fifth row.
extern "C" __global__ void __launch_bounds__(32) probe_ldmatrix(u32* out, const u16* in, const u32* rows) {
  __shared__ __align__(16) u16 shared[32][8];
  int lane = threadIdx.x;
  ptx::cp_async16(shared[rows[lane]], in + lane * 8, lane % 5 != 0);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();
  u32 registers[4];
  ptx::ldmatrix_x4(registers, shared[rows[lane]]);
  for (int i = 0; i < 4; i++) out[lane * 4 + i] = registers[i];
  ptx::ldmatrix_x4_trans(registers, shared[rows[lane]]);
  for (int i = 0; i < 4; i++) out[128 + lane * 4 + i] = registers[i];
}
EXPORT(probe_ldmatrix)

// probe_convert: conversions between all number types.
//   widened   [3, count]  f32: bits[i] read as bf16, as f16, as e4m3 (its low byte)
//   narrowed  [3, count]  u32: values[i] rounded to bf16, f16, e4m3
//   bits      [count]     u32
//   values    [count]     f32
// Any grid. Reference: the `half` crate, and for e4m3 all of its values.
extern "C" __global__ void __launch_bounds__(256)
    probe_convert(float* widened, u32* narrowed, const u32* bits, const float* values, i32 count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    widened[i] = to_f32(bf16{(u16)bits[i]});
    widened[count + i] = to_f32(f16{(u16)bits[i]});
    widened[2 * count + i] = to_f32(e4m3{(u8)bits[i]});
    narrowed[i] = from_f32<bf16>(values[i]).bits;
    narrowed[count + i] = from_f32<f16>(values[i]).bits;
    narrowed[2 * count + i] = from_f32<e4m3>(values[i]).bits;
  }
}
EXPORT(probe_convert)
