// experts_gemv.cu: products of experts with few rows each, limited by reading the chosen experts' weights
// once. Operands: experts_gemm.cu.
//
// Grid (most tiles, ceil(n / outputs)), outputs = 16 (GATED: 8); block 256. Tiles of up to 8 rows. Sums as in
// linear.cuh: a row's bits are those of experts_gemm.cu, whichever tile it is in. An expert with more rows
// has several tiles, and all but the first read its weights from L2. Weights are not loaded before the grid
// waits, because the choice comes from a kernel before. Reference: check/experts.
//
// Bytes in flight: as in gemv.cu. Predicted at 90% of 4.3 TB/s with bf16 weights, not yet run on a GPU, for
// one row of Qwen3-30B-A3B (8 of 128 experts, 2048 x 768): gate_up 50 MB 13 us, down 25 MB 6.5 us.
#include "experts.cuh"
#include "gemv.cuh"

// With e4m3 weights, three blocks would spill.
#define EXPERTS_GEMV(name, T, W, MODE)                                                                      \
  extern "C" __global__ void __launch_bounds__(256, sizeof(W) == 1 ? 2 : 3)                                 \
      name(const W* w, const float* scales, EXPERT_PARAMETERS(T)) {                                         \
    EXPERT_ROWS(T, MODE)                                                                                    \
    size_t row = by.first_row();                                                                            \
    gemv<T, W, MODE, 1, 1>(by, w + row * k, Scales{scales + row, 0, 1, 0, 0}, blockIdx.y, 0);               \
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
