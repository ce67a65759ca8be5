// experts_gemv.cu: products of experts with few rows each, limited by reading the chosen experts' weights
// once. Operands: experts.cuh; k is a multiple of 8 (16 with e4m3 weights).
//
// Grid (most tiles, ceil(n / outputs)), outputs = 16 (GATED: 8); block 256: as in gemv.cu, each warp computes
// all outputs for one of the 8 slices of k. Tiles of up to 8 rows. Sums as in linear.cuh: a row's bits are
// those of experts_gemm.cu, whichever tile it is in. An expert with more rows has several tiles, and all but
// the first read its weights from L2. Weights are not loaded before the grid waits, because the choice comes
// from a kernel before. Reference: check/experts.
//
// Bytes in flight: as in gemv.cu. Predicted at 90% of 4.3 TB/s with bf16 weights, not yet run on a GPU, for
// one row of Qwen3-30B-A3B (8 of 128 experts, 2048 x 768): gate_up 50 MB 13 us, down 25 MB 6.5 us.
#include "experts.cuh"

template <class T, class W, Mode M>
__device__ __forceinline__ void experts_gemv(ExpertProduct<T, W> by) {
  using Of = Weight<T, W>;
  constexpr int STAGE = 2 * Of::STEP, ROWS = 8, OUTPUTS = M == GATED ? 8 : 16;
  __shared__ float partial[SLICES][16][ROWS + 1];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (blockIdx.x >= by.tiles[0].expert) return;
  ExpertTile tile = by.tiles[1 + blockIdx.x];
  by.template select<M>(tile.expert);
  int slice = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, k = by.k;
  int begin = min(slice * slice_length(k), k), end = min(begin + slice_length(k), k);
  int chunk = begin + t * Of::CHUNK, left = end - chunk;
  int rows[2] = {weight_row<M>(blockIdx.y, g, by.n), weight_row<M>(blockIdx.y, g + 8, by.n)};
  const W* w[2] = {by.w + (size_t)rows[0] * k + chunk, by.w + (size_t)rows[1] * k + chunk};
  bool has_row = g < (int)tile.rows;
  const T* x = by.template x_row<M>(tile.first + (has_row ? g : 0)) + chunk;

  Words weights[2][2][2];
  auto load = [&](int at, int b) {
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        weights[b][step][half] = Words{};
        int i = at + step * Of::STEP;
        if (i < left) weights[b][step][half] = words(ptx::load_stream16(w[half] + i));
      }
  };
  float sum[4] = {};
  // Multiplies the stage at `at` in buffer b. With e4m3 weights, it is a block of 128 k.
  auto multiply = [&](int at, int b) {
    float block[4] = {};
    float* d = Of::SCALED ? block : sum;
#pragma unroll
    for (int step = 0; step < 2; step++) {
      Words xs[Of::X_CHUNKS];
#pragma unroll
      for (int i = 0; i < Of::X_CHUNKS; i++) {
        int from = at + step * Of::STEP + i * 8;
        xs[i] = Words{};
        if (has_row && from < left) xs[i] = words(*(const uint4*)(x + from));
      }
#pragma unroll
      for (int i = 0; i < Of::MMAS; i++) {
        u32 a[4];
        fragment(T{}, W{}, weights[b][step][0], weights[b][step][1], i, a);
        ptx::mma_m16n8k16(T{}, d, a, &xs[i / 2].v[i % 2 * 2]);
      }
    }
    if (Of::SCALED) {
#pragma unroll
      for (int i = 0; i < 4; i++) sum[i] = __fmaf_rn(by.scales[rows[i / 2]], block[i], sum[i]);
    }
  };
  load(0, 0);
  int stages = (end - begin + STAGE - 1) / STAGE;
#pragma unroll 1
  for (int s = 0; s < stages; s += 2) {
    load((s + 1) * STAGE, 1);
    multiply(s * STAGE, 0);
    load((s + 2) * STAGE, 0);
    if (s + 1 < stages) multiply((s + 1) * STAGE, 1);
  }

#pragma unroll
  for (int i = 0; i < 4; i++) partial[slice][g + i / 2 * 8][t * 2 + i % 2] = sum[i];
  __syncthreads();
  auto total = [&](int output, int r) {
    float v = 0.f;
#pragma unroll
    for (int s = 0; s < SLICES; s++) v += partial[s][output][r];
    return v;
  };
  for (int i = threadIdx.x; i < OUTPUTS * ROWS; i += blockDim.x) {
    int r = i / OUTPUTS, output = i % OUTPUTS, column = blockIdx.y * OUTPUTS + output;
    if (r >= (int)tile.rows || column >= by.n) continue;
    float high = M == GATED ? total(output + 8, r) : 0.f;
    by.template out_row<M>(tile.first + r)[column] = by.template result<M>(column, total(output, r), high);
  }
}

// With e4m3 weights, three blocks would spill.
#define EXPERTS_GEMV(name, T, W, MODE)                                                                      \
  extern "C" __global__ void __launch_bounds__(256, sizeof(W) == 1 ? 2 : 3)                                 \
      name(EXPERT_PRODUCT_PARAMETERS(T, W)) {                                                               \
    experts_gemv<T, W, MODE>(EXPERT_PRODUCT(T, W));                                                         \
  }                                                                                                         \
  EXPORT(name)
EXPERTS_GEMV(experts_gemv_bf16_same_gated, bf16, bf16, GATED)
EXPERTS_GEMV(experts_gemv_bf16_same_plain, bf16, bf16, PLAIN)
EXPERTS_GEMV(experts_gemv_bf16_e4m3_gated, bf16, e4m3, GATED)
EXPERTS_GEMV(experts_gemv_bf16_e4m3_plain, bf16, e4m3, PLAIN)
EXPERTS_GEMV(experts_gemv_f16_same_gated, f16, f16, GATED)
EXPERTS_GEMV(experts_gemv_f16_same_plain, f16, f16, PLAIN)
EXPERTS_GEMV(experts_gemv_f16_e4m3_gated, f16, e4m3, GATED)
EXPERTS_GEMV(experts_gemv_f16_e4m3_plain, f16, e4m3, PLAIN)
