// experts_gemm.cu: products of experts with many rows each, by mma m16n8k16 from shared memory. Operands:
// experts.cuh; k is a multiple of 8 (16 with e4m3 weights).
//
// Grid (most tiles, ceil(n / outputs)), outputs = BN (GATED: BN / 2): blocks that run together have the same
// outputs of neighbouring tiles, so mostly the same weights. Tiles of up to BM rows. Block: 32 WARPS. Dynamic
// shared memory: max(STAGES * (BN * 64 * sizeof(W) + BM * 128), BM * (outputs * 2 + 16)) bytes. Stages,
// swizzle and registers are those of gemm.cu, sums those of linear.cuh. Reference: check/experts. Not yet
// run on a GPU.
#include "experts.cuh"

constexpr int STAGE_K = 64;

template <class T, class W, Mode M, int BN, int BM, int WN, int WM, int STAGES>
__device__ __forceinline__ void experts_gemm(ExpertProduct<T, W> by) {
  using Of = Weight<T, W>;
  constexpr int THREADS = (BN / WN) * (BM / WM) * 32, TN = WN / 16, TM = WM / 8;
  constexpr int W_CHUNKS = STAGE_K / Of::CHUNK, X_CHUNKS = STAGE_K / 8;
  constexpr int W_ROWS = THREADS / W_CHUNKS, X_ROWS = THREADS / X_CHUNKS;
  constexpr int W_BYTES = BN * STAGE_K * sizeof(W), STAGE_BYTES = W_BYTES + BM * STAGE_K * sizeof(T);
  constexpr int OUTPUTS = M == GATED ? BN / 2 : BN;
  DYN_SHARED(u8, shared);
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (blockIdx.x >= by.tiles[0].expert) return;
  ExpertTile rows = by.tiles[1 + blockIdx.x];
  by.template select<M>(rows.expert);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, k = by.k;
  int wn = warp % (BN / WN) * WN, wm = warp / (BN / WN) * WM, first_tile = blockIdx.y * (BN / 16);

  // Address of chunk c (16 bytes) of row r; see gemm.cu for the swizzle.
  auto w_at = [&](u8* stage, int r, int c) {
    if (!Of::SCALED) c ^= (r & 1) << 2;
    return stage + (r * W_CHUNKS + c) * 16;
  };
  auto x_at = [&](u8* stage, int r, int c) {
    return stage + W_BYTES + (r * X_CHUNKS + (c ^ (Of::SCALED ? r & 1 : (r & 1) << 2))) * 16;
  };
  // What this thread copies: a chunk of every W_ROWS-th row of weights, and the same of x. Rows past the end
  // repeat the last one: they are computed but not written.
  int w_row = threadIdx.x / W_CHUNKS, w_chunk = threadIdx.x % W_CHUNKS;
  int x_row = threadIdx.x / X_CHUNKS, x_chunk = threadIdx.x % X_CHUNKS;
  const W* w[BN / W_ROWS];
  const T* x[BM / X_ROWS];
#pragma unroll
  for (int i = 0; i < BN / W_ROWS; i++) {
    int r = w_row + i * W_ROWS;
    w[i] = by.w + (size_t)weight_row<M>(first_tile + r / 16, r % 16, by.n) * k + w_chunk * Of::CHUNK;
  }
#pragma unroll
  for (int i = 0; i < BM / X_ROWS; i++) {
    u32 r = min((u32)(x_row + i * X_ROWS), rows.rows - 1);
    x[i] = by.template x_row<M>(rows.first + r) + x_chunk * 8;
  }
  // Loads stage s; zeros past the end of k.
  auto load = [&](int s) {
    u8* stage = shared + s % STAGES * STAGE_BYTES;
    bool has_w = s * STAGE_K + w_chunk * Of::CHUNK < k, has_x = s * STAGE_K + x_chunk * 8 < k;
#pragma unroll
    for (int i = 0; i < BN / W_ROWS; i++)
      ptx::cp_async16(w_at(stage, w_row + i * W_ROWS, w_chunk), w[i] + (has_w ? s * STAGE_K : 0), has_w);
#pragma unroll
    for (int i = 0; i < BM / X_ROWS; i++)
      ptx::cp_async16(x_at(stage, x_row + i * X_ROWS, x_chunk), x[i] + (has_x ? s * STAGE_K : 0), has_x);
    ptx::cp_async_commit();
  };
  int stages = (k + STAGE_K - 1) / STAGE_K, slice_stages = slice_length(k) / STAGE_K;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) load(s);

  float block[Of::SCALED ? TN : 1][TM][4] = {}, slice[TN][TM][4] = {}, sum[TN][TM][4] = {};
#pragma unroll 1
  for (int s = 0; s < stages; s++) {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();  // stage s is here, for all; and all have read stage s - 1, whose place is next
    load(s + STAGES - 1);
    u8* stage = shared + s % STAGES * STAGE_BYTES;
    float (*d)[TM][4] = Of::SCALED ? block : slice;
#pragma unroll
    for (int step = 0; step < STAGE_K / Of::STEP; step++) {
      Words xs[TM][Of::X_CHUNKS];
#pragma unroll
      for (int j = 0; j < TM; j++)
#pragma unroll
        for (int i = 0; i < Of::X_CHUNKS; i++) {
          int c = step * 4 + t * Of::X_CHUNKS + i;
          xs[j][i] = words(*(const uint4*)x_at(stage, wm + j * 8 + g, c));
        }
#pragma unroll
      for (int tile = 0; tile < TN; tile++) {
        int r = wn + tile * 16 + g, c = step * 4 + t;
        Words low = words(*(const uint4*)w_at(stage, r, c));
        Words high = words(*(const uint4*)w_at(stage, r + 8, c));
#pragma unroll
        for (int i = 0; i < Of::MMAS; i++) {
          u32 a[4];
          fragment(T{}, W{}, low, high, i, a);
#pragma unroll
          for (int j = 0; j < TM; j++) ptx::mma_m16n8k16(T{}, d[tile][j], a, &xs[j][i / 2].v[i % 2 * 2]);
        }
      }
    }
    // A block of 128 k of e4m3 weights ends.
    if (Of::SCALED && (s % 2 || s + 1 == stages)) {
#pragma unroll
      for (int i = 0; i < TN; i++) {
        float low = by.scales[weight_row<M>(first_tile + wn / 16 + i, g, by.n)];
        float high = by.scales[weight_row<M>(first_tile + wn / 16 + i, g + 8, by.n)];
#pragma unroll
        for (int j = 0; j < TM; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            slice[i][j][e] = __fmaf_rn(e < 2 ? low : high, block[i][j][e], slice[i][j][e]);
            block[i][j][e] = 0.f;
          }
      }
    }
    // A slice ends.
    if ((s + 1) % slice_stages == 0 || s + 1 == stages) {
#pragma unroll
      for (int i = 0; i < TN * TM * 4; i++) {
        sum[i / 4 / TM][i / 4 % TM][i % 4] += slice[i / 4 / TM][i / 4 % TM][i % 4];
        slice[i / 4 / TM][i / 4 % TM][i % 4] = 0.f;
      }
    }
  }

  // Write through shared memory, so that whole lines are written.
  constexpr int STRIDE = OUTPUTS + 16 / sizeof(T);
  T* staged = (T*)shared;
  ptx::cp_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < TN; i++) {
    int low = weight_row<M>(first_tile + wn / 16 + i, g, by.n);
    int high = weight_row<M>(first_tile + wn / 16 + i, g + 8, by.n);
    int local = (wn / 16 + i) * (M == GATED ? 8 : 16) + g;
#pragma unroll
    for (int j = 0; j < TM; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        T* to = staged + (wm + j * 8 + t * 2 + e) * STRIDE + local;
        to[0] = by.template result<M>(low, sum[i][j][e], sum[i][j][e + 2]);
        if (M != GATED) to[8] = by.template result<M>(high, sum[i][j][e + 2], 0.f);
      }
  }
  __syncthreads();
  constexpr int VALUES = 16 / sizeof(T), PACKS = OUTPUTS / VALUES;
#pragma unroll 1
  for (int i = threadIdx.x; i < BM * PACKS; i += THREADS) {
    int r = i / PACKS, c = i % PACKS * VALUES, column = blockIdx.y * OUTPUTS + c;
    if (r >= (int)rows.rows || column >= by.n) continue;
    *(uint4*)(by.template out_row<M>(rows.first + r) + column) = *(const uint4*)(staged + r * STRIDE + c);
  }
}

#define EXPERTS_GEMM(name, T, W, MODE, BN, BM, WN, WM, STAGES)                                              \
  extern "C" __global__ void __launch_bounds__((BN / WN) * (BM / WM) * 32)                                  \
      name(EXPERT_PRODUCT_PARAMETERS(T, W)) {                                                               \
    experts_gemm<T, W, MODE, BN, BM, WN, WM, STAGES>(EXPERT_PRODUCT(T, W));                                 \
  }                                                                                                         \
  EXPORT(name)
// With e4m3 weights, the large tile has half of the rows: sums of blocks take registers, too.
#define EXPERTS_GEMM_TILES(name, T, W, MODE, LARGE_M)           \
  EXPERTS_GEMM(name##_medium, T, W, MODE, 64, 64, 32, 32, 4)    \
  EXPERTS_GEMM(name##_large, T, W, MODE, 128, LARGE_M, 128 * LARGE_M / 256, 32, 3)
EXPERTS_GEMM_TILES(experts_gemm_bf16_same_gated, bf16, bf16, GATED, 128)
EXPERTS_GEMM_TILES(experts_gemm_bf16_same_plain, bf16, bf16, PLAIN, 128)
EXPERTS_GEMM_TILES(experts_gemm_bf16_e4m3_gated, bf16, e4m3, GATED, 64)
EXPERTS_GEMM_TILES(experts_gemm_bf16_e4m3_plain, bf16, e4m3, PLAIN, 64)
EXPERTS_GEMM_TILES(experts_gemm_f16_same_gated, f16, f16, GATED, 128)
EXPERTS_GEMM_TILES(experts_gemm_f16_same_plain, f16, f16, PLAIN, 128)
EXPERTS_GEMM_TILES(experts_gemm_f16_e4m3_gated, f16, e4m3, GATED, 64)
EXPERTS_GEMM_TILES(experts_gemm_f16_e4m3_plain, f16, e4m3, PLAIN, 64)
