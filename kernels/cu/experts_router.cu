// experts_router.cu: logits of the router, in f32 throughout, because rounding could change the choice.
#include "device.cuh"

// router_logits: out = x / rms(x) * norm * w^T + bias.
//   out   [rows, n]  f32
//   x     [rows, k]  f32: the residual stream, not normalised; k a multiple of 4
//   norm  [k]        f32
//   w     [n, k]     f32
//   bias  [n]        f32 or null
// Grid (ceil(n / EXPERTS), ceil(rows / ROWS)), block 256: each warp sums one of 8 slices of k. The product is
// scaled by 1 / rms(x) at the end, so x is read once. A lane adds its k of a slice ascending, then the slices
// ascending; then the lanes are added: the same for any tile, so a row's bits do not depend on the others.
// Reads x n / EXPERTS times and w rows / ROWS times, from L2: for 8,192 rows, 128 experts and k = 2048 in
// tiles of 8 x 8, 2.1 GB: 0.4 ms at 5.5 TB/s, predicted, not yet run on a GPU. Reference: check/experts.
constexpr int WARPS = 8;
constexpr int PASS = 16;  // sums that go through shared memory at once

template <int ROWS, int EXPERTS>
__device__ void router_logits(float* out, const float* x, const float* norm, const float* w,
                              const float* bias, int rows, int n, int k, float eps) {
  constexpr int DOTS = ROWS * EXPERTS, SUMS = DOTS + ROWS;  // the last are sums of squares
  __shared__ float partial[WARPS][PASS][32];
  __shared__ float total[(SUMS + PASS - 1) / PASS * PASS];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int first_row = blockIdx.y * ROWS, first_expert = blockIdx.x * EXPERTS;
  int length = (k + WARPS * 128 - 1) / (WARPS * 128) * 128;
  int begin = min(warp * length, k), end = min(begin + length, k);
  float sums[SUMS] = {};
#pragma unroll 1
  for (int i = begin + lane * 4; i < end; i += 128) {
    float4 by = *(const float4*)(norm + i), values[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      // Rows and experts past the end repeat the last one: they are computed but not written.
      float4 v = *(const float4*)(x + (size_t)min(first_row + r, rows - 1) * k + i);
      float& squares = sums[DOTS + r];
      squares = __fmaf_rn(v.x, v.x, squares);
      squares = __fmaf_rn(v.y, v.y, squares);
      squares = __fmaf_rn(v.z, v.z, squares);
      squares = __fmaf_rn(v.w, v.w, squares);
      values[r] = make_float4(v.x * by.x, v.y * by.y, v.z * by.z, v.w * by.w);
    }
#pragma unroll
    for (int e = 0; e < EXPERTS; e++) {
      float4 v = *(const float4*)(w + (size_t)min(first_expert + e, n - 1) * k + i);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        float& dot = sums[r * EXPERTS + e];
        dot = __fmaf_rn(values[r].x, v.x, dot);
        dot = __fmaf_rn(values[r].y, v.y, dot);
        dot = __fmaf_rn(values[r].z, v.z, dot);
        dot = __fmaf_rn(values[r].w, v.w, dot);
      }
    }
  }
#pragma unroll
  for (int pass = 0; pass < (SUMS + PASS - 1) / PASS; pass++) {
#pragma unroll
    for (int i = 0; i < PASS; i++)
      partial[warp][i][lane] = pass * PASS + i < SUMS ? sums[pass * PASS + i] : 0.f;
    __syncthreads();
#pragma unroll
    for (int i = warp; i < PASS; i += WARPS) {
      float sum = 0.f;
#pragma unroll
      for (int slice = 0; slice < WARPS; slice++) sum += partial[slice][i][lane];
      sum = warp_sum(sum);
      if (lane == 0) total[pass * PASS + i] = sum;
    }
    __syncthreads();
  }
  if (threadIdx.x >= DOTS) return;
  int r = threadIdx.x / EXPERTS, e = threadIdx.x % EXPERTS, row = first_row + r, expert = first_expert + e;
  if (row >= rows || expert >= n) return;
  float scale = rsqrtf(total[DOTS + r] / (float)k + eps);
  out[(size_t)row * n + expert] = __fmaf_rn(total[threadIdx.x], scale, bias ? bias[expert] : 0.f);
}

#define ROUTER(name, ROWS, EXPERTS)                                                                         \
  extern "C" __global__ void __launch_bounds__(256)                                                         \
      name(float* out, const float* x, const float* norm, const float* w, const float* bias, i32 rows,      \
           i32 n, i32 k, float eps) {                                                                       \
    router_logits<ROWS, EXPERTS>(out, x, norm, w, bias, rows, n, k, eps);                                   \
  }                                                                                                         \
  EXPORT(name)
ROUTER(router_logits_few, 4, 4)
ROUTER(router_logits_many, 8, 8)
