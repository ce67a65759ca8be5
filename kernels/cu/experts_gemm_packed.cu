// experts_gemm_packed.cu: products of experts in codes with many rows each; codes are dequantised in
// registers.
//
//   w       [experts * n, k]   see packed.cuh; GATED: [experts * 2 n, k]; without leaves
//   others                     see experts.cuh; k and n are multiples of 8
// Grid (most tiles, ceil(n / outputs)), outputs as in gemm_packed.cuh. Tiles of up to BM rows. Shared memory
// and sums: gemm_packed.cuh. Reference: check/experts. Not yet run on a GPU.
#include "experts.cuh"
#include "gemm_packed.cuh"

#define EXPERTS_GEMM(name, T, BITS, MODE, TN, WN, WM)                                                       \
  extern "C" __global__ void __launch_bounds__(32 * WN * WM) name(MATRIX_PARAMETERS, EXPERT_PARAMETERS(T)) { \
    EXPERT_ROWS(T, MODE)                                                                                    \
    PACKED_MATRIX(n / 8, k, 0, by.first_row() / 8)                                                          \
    gemm<T, BITS, MODE, TN, WN, WM, 3>(by, w, blockIdx.y);                                                  \
  }                                                                                                         \
  EXPORT(name)
#define EXPERTS_GEMM_TILES(name, T, BITS, MODE)           \
  EXPERTS_GEMM(name##_medium, T, BITS, MODE, 1, 4, 1)     \
  EXPERTS_GEMM(name##_large, T, BITS, MODE, 2, 4, 2)
#define EXPERTS_GEMM_ALL(t, T)                                        \
  EXPERTS_GEMM_TILES(experts_gemm_packed4_##t##_gated, T, 4, GATED)   \
  EXPERTS_GEMM_TILES(experts_gemm_packed4_##t##_plain, T, 4, PLAIN)   \
  EXPERTS_GEMM_TILES(experts_gemm_packed6_##t##_gated, T, 6, GATED)   \
  EXPERTS_GEMM_TILES(experts_gemm_packed6_##t##_plain, T, 6, PLAIN)   \
  EXPERTS_GEMM_TILES(experts_gemm_packed8_##t##_gated, T, 8, GATED)   \
  EXPERTS_GEMM_TILES(experts_gemm_packed8_##t##_plain, T, 8, PLAIN)
EXPERTS_GEMM_ALL(bf16, bf16)
EXPERTS_GEMM_ALL(f16, f16)
