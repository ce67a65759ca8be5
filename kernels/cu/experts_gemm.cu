// experts_gemm.cu: products of experts with many rows each, by mma m16n8k16 from shared memory.
//
//   w       [experts * n, k]   T or e4m3; GATED: [experts * 2 n, k]
//   scales                     f32, of e4m3 weights: one for each row of w
//   others                     see experts.cuh; k is a multiple of 8 (16 with e4m3 weights), n of 8
// Grid (most tiles, ceil(n / outputs)), outputs = BN (GATED: BN / 2): blocks that run together have the same
// outputs of neighbouring tiles, so mostly the same weights. Tiles of up to BM rows. Block: 32 WARPS. Shared
// memory and sums: gemm.cuh. Reference: check/experts. Not yet run on a GPU.
#include "experts.cuh"
#include "gemm.cuh"

#define EXPERTS_GEMM(name, T, W, MODE, BN, BM, WN, WM, STAGES)                                              \
  extern "C" __global__ void __launch_bounds__((BN / WN) * (BM / WM) * 32)                                  \
      name(const W* w, const float* scales, EXPERT_PARAMETERS(T)) {                                         \
    EXPERT_ROWS(T, MODE)                                                                                    \
    size_t row = by.first_row();                                                                            \
    Scales of{scales + row, 0, 1, 0, 0};                                                                    \
    gemm<T, W, T, MODE, BN, BM, WN, WM, STAGES>(by, w + row * k, of, blockIdx.y, 0);                        \
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
