// probe_sm90.cu: each of Hopper's asynchronous instructions on random data: wgmma with every layout, tensor
// copies with every swizzle, mbarriers and named barriers. Run first on a new machine: within a second it
// shows whether the hardware agrees with the documents that the emulation follows. Not yet run on a GPU.
// Reference: check/sm90.rs.
#include "device.cuh"
#include "ptx_sm90.cuh"

#ifdef HAS_SM90
namespace {

// Parameters of one wgmma; operands are at byte offsets of the image.
struct Probe {
  u32 a_at, b_at, leading, stride, swizzle, from_registers, mn_major_b, accumulate;
};

template <class T, int N, bool REGISTERS, int MN_MAJOR_B>
__device__ __forceinline__ void probe(float* out, const u8* image, const u32* a, const Probe& p) {
  float d[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; i++) d[i] = 0.25f * i;
  u64 from_a = ptx::matrix_descriptor(image + p.a_at, p.leading, p.stride, (ptx::Swizzle)p.swizzle);
  u64 from_b = ptx::matrix_descriptor(image + p.b_at, p.leading, p.stride, (ptx::Swizzle)p.swizzle);
  ptx::wgmma_fence();
  if (REGISTERS) ptx::wgmma_rs<MN_MAJOR_B>(T{}, d, a, from_b, p.accumulate);
  else ptx::wgmma_ss<MN_MAJOR_B>(T{}, d, from_a, from_b, p.accumulate);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::wgmma_pin(d);
#pragma unroll
  for (int i = 0; i < N / 2; i++) out[threadIdx.x * (N / 2) + i] = d[i];
}

template <class T, int N>
__device__ __forceinline__ void probe_any(float* out, const u8* image, const u32* a, const Probe& p) {
  if (p.from_registers && p.mn_major_b) probe<T, N, true, 1>(out, image, a, p);
  else if (p.from_registers) probe<T, N, true, 0>(out, image, a, p);
  else if (p.mn_major_b) probe<T, N, false, 1>(out, image, a, p);
  else probe<T, N, false, 0>(out, image, a, p);
}

}  // namespace
#endif

// probe_wgmma_{T}: one wgmma of n = 64 or 128 columns.
//   out          [128, n / 2]  f32: each thread's sums; they start as 0.25 * index
//   image        [bytes / 16]  uint4: copied to shared memory as it is
//   a_registers  [128, 4]      u32: A if it comes from registers
// Grid (1), 128 threads, `bytes` of dynamic shared memory.
template <class T>
__device__ void probe_wgmma(u8* shared, float* out, const uint4* image, const u32* a_registers, i32 bytes,
                            i32 n, u32 a_at, u32 b_at, u32 leading, u32 stride, u32 swizzle,
                            u32 from_registers, u32 mn_major_b, u32 accumulate) {
#ifdef HAS_SM90
  for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) ptx::store_for_async(shared + i * 16, image[i]);
  ptx::fence_proxy_async();
  __syncthreads();
  u32 a[4];
#pragma unroll
  for (int i = 0; i < 4; i++) a[i] = a_registers[threadIdx.x * 4 + i];
  Probe what{a_at, b_at, leading, stride, swizzle, from_registers, mn_major_b, accumulate};
  if (n == 64) probe_any<T, 64>(out, shared, a, what);
  else probe_any<T, 128>(out, shared, a, what);
#endif
}

#define PROBE_WGMMA(T)                                                                                      \
  extern "C" __global__ void __launch_bounds__(128)                                                         \
      probe_wgmma_##T(float* out, const uint4* image, const u32* a_registers, i32 bytes, i32 n, u32 a_at,   \
                      u32 b_at, u32 leading, u32 stride, u32 swizzle, u32 from_registers, u32 mn_major_b,   \
                      u32 accumulate) {                                                                     \
    DYN_SHARED(u8, shared);                                                                                 \
    probe_wgmma<T>(shared, out, image, a_registers, bytes, n, a_at, b_at, leading, stride, swizzle,         \
                   from_registers, mn_major_b, accumulate);                                                 \
  }                                                                                                         \
  EXPORT(probe_wgmma_##T)

PROBE_WGMMA(bf16)
PROBE_WGMMA(f16)

// probe_tensor_load: one box at column x, row y, as it arrives in shared memory.
//   out  [bytes]  u8
// Grid (1), 32 threads, bytes + 16 of dynamic shared memory.
extern "C" __global__ void __launch_bounds__(32)
    probe_tensor_load(u8* out, const __grid_constant__ ptx::TensorMap map, i32 x, i32 y, i32 bytes) {
#ifdef HAS_SM90
  DYN_SHARED(u8, shared);
  u64* barrier = (u64*)(shared + bytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_init_fence();
    ptx::mbarrier_arrive_expect(barrier, bytes);
    ptx::tensor_load_2d(shared, &map, x, y, barrier);
  }
  __syncwarp();
  ptx::mbarrier_wait(barrier, 0);
  for (int i = threadIdx.x; i < bytes; i += 32) out[i] = shared[i];
#endif
}
EXPORT(probe_tensor_load)

// probe_barriers: one warp passes `rounds` lines of 32 words to another through a ring of two, first with
// mbarriers, then with named barriers.
//   out   [2, 32]          u32: per lane, a hash of the words it received
//   data  [rounds, 32]     u32
// Grid (1), 64 threads, 512 bytes of dynamic shared memory.
extern "C" __global__ void __launch_bounds__(64) probe_barriers(u32* out, const u32* data, i32 rounds) {
#ifdef HAS_SM90
  DYN_SHARED(u32, line);
  u64 *full = (u64*)(line + 64), *empty = full + 2;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; i++) ptx::mbarrier_init(full + i, 32);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  int lane = threadIdx.x % 32, from = (lane * 7 + 3) % 32;
  for (int by_name = 0; by_name < 2; by_name++) {
    u32 hash = 0;
    for (int i = 0; i < rounds; i++) {
      int stage = i % 2, parity = i / 2 % 2;
      if (threadIdx.x < 32) {
        if (!by_name) ptx::mbarrier_wait(empty + stage, parity ^ 1);
        else if (i >= 2) ptx::named_barrier_sync(3 + stage, 64);
        line[stage * 32 + lane] = data[i * 32 + lane];
        if (by_name) ptx::named_barrier_arrive(1 + stage, 64);
        else ptx::mbarrier_arrive(full + stage);
      } else {
        if (by_name) ptx::named_barrier_sync(1 + stage, 64);
        else ptx::mbarrier_wait(full + stage, parity);
        hash = (hash ^ line[stage * 32 + from]) * 0x01000193u;
        if (!by_name) ptx::mbarrier_arrive(empty + stage);
        else if (i + 2 < rounds) ptx::named_barrier_arrive(3 + stage, 64);
      }
    }
    if (threadIdx.x >= 32) out[by_name * 32 + lane] = hash;
    __syncthreads();
  }
#endif
}
EXPORT(probe_barriers)
