// experts_gemv_packed.cu: products of experts in codes with few rows each, limited by reading the chosen
// experts' codes once. Operands: experts_gemm_packed.cu.
//
// Grid (most tiles, ceil(n / 16)) (GATED: n / 8); block 256. Tiles of up to 8 rows. Sums as in packed.cuh: a
// row's bits are those of experts_gemm_packed.cu, whichever tile it is in. Reference: check/experts.
//
// Predicted at 90% of 4.3 TB/s, not yet run on a GPU, for one row of GPT-OSS 120B in MXFP4 (4 of 128 experts,
// 2880 x 2880, 4.25 bits a weight): gate_up 35 MB 9 us, down 18 MB 4.6 us.
#include "experts.cuh"
#include "gemv_packed.cuh"

#define EXPERTS_GEMV(name, T, BITS, MODE)                                                                   \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                      \
      name(MATRIX_PARAMETERS, EXPERT_PARAMETERS(T)) {                                                       \
    EXPERT_ROWS(T, MODE)                                                                                    \
    PACKED_MATRIX(n / 8, k, 0, by.first_row() / 8)                                                          \
    gemv<T, BITS, MODE, 1>(by, w, blockIdx.y);                                                              \
  }                                                                                                         \
  EXPORT(name)
#define EXPERTS_GEMV_ALL(t, T)                                  \
  EXPERTS_GEMV(experts_gemv_packed4_##t##_gated, T, 4, GATED)   \
  EXPERTS_GEMV(experts_gemv_packed4_##t##_plain, T, 4, PLAIN)   \
  EXPERTS_GEMV(experts_gemv_packed6_##t##_gated, T, 6, GATED)   \
  EXPERTS_GEMV(experts_gemv_packed6_##t##_plain, T, 6, PLAIN)   \
  EXPERTS_GEMV(experts_gemv_packed8_##t##_gated, T, 8, GATED)   \
  EXPERTS_GEMV(experts_gemv_packed8_##t##_plain, T, 8, PLAIN)
EXPERTS_GEMV_ALL(bf16, bf16)
EXPERTS_GEMV_ALL(f16, f16)
