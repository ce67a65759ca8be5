// gemv_packed.cu: out = x w^T for few rows (1 to 16) and weights in codes, limited by reading w once.
//
//   out     [rows, n]          T, or f32 if is_wide
//   x       [rows, k]          T, k a multiple of 8
//   w       see packed.cuh; GATED: gate over up, [2 n, k], n a multiple of 8; out = function(gate) * up
//   bias    [n], GATED [2 n]   T or null
//   function                   activation of the gate: see gate.cuh
//   leaf                       k in a leaf, a multiple of 32; LEAVES only, else 0
// Grid (ceil(n / 16)) (GATED: n / 8); block 256. Sums and the division among warps: gemv_packed.cuh.
// Reference: cpu::packed. Not yet run on a GPU.
#include "gemv_packed.cuh"

#define GEMV(name, T, BITS, MODE, NT, BLOCKS)                                                                \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS) name(PACKED_PARAMETERS(T)) {                     \
    PACKED_MATRIX(octets, k, leaf, 0)                                                                        \
    PackedRows<T, MODE> by{{out, x, bias, 0, rows, n, k, function}, is_wide};                                \
    gemv<T, BITS, MODE, NT>(by, w, blockIdx.x);                                                              \
  }                                                                                                          \
  EXPORT(name)
#define GEMV_ROWS(name, T, BITS, MODE)          \
  GEMV(name##_rows8, T, BITS, MODE, 1, 2)       \
  GEMV(name##_rows16, T, BITS, MODE, 2, 1)
#define GEMV_MODES(name, T, BITS)               \
  GEMV_ROWS(name##_plain, T, BITS, PLAIN)       \
  GEMV_ROWS(name##_gated, T, BITS, GATED)       \
  GEMV_ROWS(name##_leaves, T, BITS, LEAVES)
#define GEMV_ALL(t, T)                          \
  GEMV_MODES(gemv_packed4_##t, T, 4)            \
  GEMV_MODES(gemv_packed6_##t, T, 6)            \
  GEMV_MODES(gemv_packed8_##t, T, 8)
GEMV_ALL(bf16, bf16)
GEMV_ALL(f16, f16)
