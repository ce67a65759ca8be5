// linear.cuh: the arithmetic shared by gemv.cuh and gemm.cuh, so that a row has the same bits in both. Their
// forms for weights in codes share the ends of it.
//
//   out[r, n] = sum over k of x[r, k] * w[n, k]
//
// Order of summation, for any number of rows and any tile:
// 1. K is divided into SLICES slices of slice_length(K), a multiple of 128; slices past the end of K are
//    empty.
// 2. A slice's sum starts at 0 and adds its k ascending, 16 at a time, by mma m16n8k16. Weights are the
//    operand A (16 outputs), x is B (8 rows): a row of x is a column of the instruction, so other rows of the
//    batch cannot affect it. With e4m3 weights, each 128 k have a sum of their own, which is added to the
//    slice's as fma(scale, sum, slice).
// 3. The result starts at 0 and adds the slices' sums ascending, then the bias; then it is rounded.
//
// Products whose inputs may be split over ranks (mode LEAVES) have leaves instead of slices: a power of two
// up to SLICES, of equal length, set by the model. Leaf sums are added as a balanced tree, so one rank with
// all leaves and several ranks with whole subtrees give the same bits (src/leaves.rs). With e4m3 weights,
// blocks of 128 k start at the start of a leaf.
//
// Which 16 k: lane (g, t) = (lane / 4, lane % 4) of a warp holds the values 2t, 2t+1, 2t+8, 2t+9 of row g of
// A, and the same values of column g of B. The order of k within an instruction does not matter if A and B
// agree on it. So the lane loads 16 consecutive bytes of a weight row, as memory prefers, and uses them as
// its values of 2 (T) or 4 (e4m3) instructions: no shuffle, no shared memory. It loads the same k of x, also
// 16 bytes at a time.
#pragma once
#include "gate.cuh"

constexpr int SLICES = 8;

__device__ __forceinline__ int slice_length(int k) { return (k + SLICES * 128 - 1) / (SLICES * 128) * 128; }

// How sums become results: unchanged; gated, act(gate) * up; as a tree of leaves.
enum Mode { PLAIN, GATED, LEAVES };
constexpr int LEVELS = 3;  // of a tree of SLICES leaves

// Sum of v[0..count) as a balanced tree; count is a power of two up to SLICES.
__device__ __forceinline__ float tree(float (&v)[SLICES], int count) {
#pragma unroll
  for (int apart = 1; apart < SLICES; apart *= 2)
#pragma unroll
    for (int i = 0; i < SLICES; i += 2 * apart)
      if (apart < count) v[i] += v[i + apart];
  return v[0];
}

// 16 bytes in registers.
struct Words {
  u32 v[4];
};

__device__ __forceinline__ Words words(uint4 x) { return Words{{x.x, x.y, x.z, x.w}}; }

// How weights of type W feed instructions of type T.
//   CHUNK   consecutive k in 16 bytes
//   STEP    k that 4 lanes' chunks cover, and MMAS instructions consume
template <class T, class W> struct Weight {
  static constexpr int CHUNK = 16 / sizeof(W);
  static constexpr int STEP = 4 * CHUNK;
  static constexpr int MMAS = STEP / 16;
  static constexpr int X_CHUNKS = CHUNK / 8;
  static constexpr bool SCALED = sizeof(W) == 1;
};

// Two e4m3 in the upper bytes of the halves of v, as bf16; exact. Exponent and mantissa, moved to their
// positions, are too small by 2^120. (The code for NaN becomes 480; weights with NaN are rejected when they
// are loaded.)
__device__ __forceinline__ u32 widen_pair(bf16 t, u32 v) {
  return ptx::fma_pair(t, ((v >> 4) & 0x07f007f0u) | (v & 0x80008000u), 0x7b807b80u, 0x80008000u);
}
// As above, to f16: too small by 2^8.
__device__ __forceinline__ u32 widen_pair(f16 t, u32 v) {
  return ptx::fma_pair(t, ((v >> 1) & 0x3f803f80u) | (v & 0x80008000u), 0x5c005c00u, 0x80008000u);
}

// Operand A of instruction i: `low` is a chunk of row g, `high` of row g + 8.
template <class T>
__device__ __forceinline__ void operand_a(T, const Words& low, const Words& high, int i, u32* a) {
  a[0] = low.v[2 * i];
  a[1] = high.v[2 * i];
  a[2] = low.v[2 * i + 1];
  a[3] = high.v[2 * i + 1];
}
template <class T>
__device__ __forceinline__ void operand_a_e4m3(const Words& low, const Words& high, int i, u32* a) {
  a[0] = widen_pair(T{}, __byte_perm(low.v[i], 0, 0x1404));
  a[1] = widen_pair(T{}, __byte_perm(high.v[i], 0, 0x1404));
  a[2] = widen_pair(T{}, __byte_perm(low.v[i], 0, 0x3424));
  a[3] = widen_pair(T{}, __byte_perm(high.v[i], 0, 0x3424));
}
__device__ __forceinline__ void fragment(bf16, bf16, const Words& l, const Words& h, int i, u32* a) {
  operand_a(bf16{}, l, h, i, a);
}
__device__ __forceinline__ void fragment(f16, f16, const Words& l, const Words& h, int i, u32* a) {
  operand_a(f16{}, l, h, i, a);
}
template <class T>
__device__ __forceinline__ void fragment(T, e4m3, const Words& l, const Words& h, int i, u32* a) {
  operand_a_e4m3<T>(l, h, i, a);
}

// Scales of e4m3 weights: row n and k in [128 b, 128 b + 128) have the scale values[(n >> row_shift) *
// row_stride + b * k_stride]. One for all: (31, 0, 0). One per row: (0, 1, 0). One per block of 128 x 128:
// (7, ceil(K / 128), 1). One per row and leaf: (0, leaves, 0), and `values` advances with the leaf by
// leaf_stride.
struct Scales {
  const float* values;
  i32 row_shift, row_stride, k_stride, leaf_stride;
  __device__ __forceinline__ float at(int row, int block) const {
    return values[(size_t)(row >> row_shift) * row_stride + (size_t)block * k_stride];
  }
};

// Weight row of row r of tile `tile` (16 rows). GATED: gate and up are stacked [2 * n, K], and a tile has 8
// rows of each, so that a lane's sums of rows g and g + 8 are a gate and its up. Rows past the end repeat the
// last one: they are computed but not written.
template <Mode M> __device__ __forceinline__ int weight_row(int tile, int r, int n) {
  if (M != GATED) return min(tile * 16 + r, n - 1);
  return min(tile * 8 + r % 8, n - 1) + (r < 8 ? 0 : n);
}

// The result of a gate and its up; `function` as in gate.cuh.
__device__ __forceinline__ float gated(u32 function, float gate, float up) {
  return gate / (1.f + expf(-gate_logit(function, gate))) * up;
}

// to += from; from = 0.
template <int TN, int TM> __device__ __forceinline__ void join(float (*to)[TM][4], float (*from)[TM][4]) {
#pragma unroll
  for (int tile = 0; tile < TN; tile++)
#pragma unroll
    for (int j = 0; j < TM; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        to[tile][j][i] += from[tile][j][i];
        from[tile][j][i] = 0.f;
      }
}

// Adds a leaf's sum to the tree. `open` holds the finished left half of each level whose bit in `leaf` is
// set. Afterwards `sum` is the whole tree after the last leaf, otherwise the stored sum.
template <int TN, int TM>
__device__ __forceinline__ void close_leaf(float (*open)[TN][TM][4], float (*sum)[TM][4], int leaf) {
  bool carries = true;
#pragma unroll
  for (int level = 0; level < LEVELS; level++) {
    bool has_left = leaf >> level & 1;
#pragma unroll
    for (int tile = 0; tile < TN; tile++)
#pragma unroll
      for (int j = 0; j < TM; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          if (carries && has_left) sum[tile][j][i] = open[level][tile][j][i] + sum[tile][j][i];
          if (carries && !has_left) open[level][tile][j][i] = sum[tile][j][i];
        }
    carries = carries && has_left;
  }
}

// Rows of x and of results of a block, which are counted from its first one. Here all rows of a launch have
// one matrix; in experts.cuh a tile's rows have that of their expert.
template <class T, class Out, Mode M> struct DenseRows {
  Out* out;       // [rows, n]
  const T* x;     // [rows, k]
  const T* bias;  // [n], GATED [2 n], or null
  int first, rows, n, k;
  u32 function;

  // Before the first access to x. Weights do not depend on the grid before, so they are loaded earlier.
  __device__ __forceinline__ void wait() const {
    ptx::grid_dependency_wait();
    ptx::grid_dependency_launch();
  }
  __device__ __forceinline__ bool has(int r) const { return first + r < rows; }
  // Rows past the end repeat the last one: they are computed but not written.
  __device__ __forceinline__ const T* x_row(int r) const { return x + (size_t)min(first + r, rows - 1) * k; }
  __device__ __forceinline__ Out* out_row(int r) const { return out + (size_t)(first + r) * n; }
  __device__ __forceinline__ void store(int r, int column, float value) const {
    out_row(r)[column] = from_f32<Out>(value);
  }
  // Adds the bias of a row of the matrix, or 0. Ranks' sums have theirs when they are joined.
  __device__ __forceinline__ float biased(float sum, int row) const {
    if (M == LEAVES && !bias) return sum;
    return sum + (bias ? to_f32(bias[row]) : 0.f);
  }
  __device__ __forceinline__ float activated(float gate, float up) const {
    return gated(function, gate, up);
  }
};

// Writes the results of a gemv's block from its warps' sums. Each `slices` warps have one set of OUTPUTS rows
// of the matrix, with COLUMNS - 1 rows of x. `block` counts the blocks of the matrix.
template <Mode M, int OUTPUTS, int COLUMNS, class Rows>
__device__ __forceinline__ void write_sums(const Rows& by, const float (*partial)[OUTPUTS][COLUMNS], int slices,
                                           int block) {
  constexpr int ROWS = COLUMNS - 1, EACH = M == GATED ? OUTPUTS / 2 : OUTPUTS;
  auto total = [&](int group, int output, int r) {
    if (M == LEAVES) {
      float v[SLICES];
#pragma unroll
      for (int s = 0; s < SLICES; s++) v[s] = s < slices ? partial[group * slices + s][output][r] : 0.f;
      return tree(v, slices);
    }
    float sum = 0.f;
#pragma unroll
    for (int s = 0; s < SLICES; s++) sum += partial[s][output][r];
    return sum;
  };
  int written = EACH * (SLICES / slices);
#pragma unroll 1
  for (int i = threadIdx.x; i < written * ROWS; i += blockDim.x) {
    int r = i / written, of_block = i % written, column = block * written + of_block;
    int group = of_block / EACH, output = of_block % EACH;
    if (!by.has(r) || column >= by.n) continue;
    float value;
    if (M == GATED) {
      int gate = output / 8 * 16 + output % 8;
      value = by.biased(total(group, gate, r), column);
      value = by.activated(value, by.biased(total(group, gate + 8, r), by.n + column));
    } else {
      value = by.biased(total(group, output, r), column);
    }
    by.store(r, column, value);
  }
}

// Puts a warp's results of a gemm into shared memory, which has STRIDE values for each of the block's rows.
// The warp's TN tiles start at tile `first` of the matrix and `local` of the block, its 8 * TM rows at `wm`.
template <Mode M, int STRIDE, int TN, int TM, class Out, class Rows>
__device__ __forceinline__ void stage_results(const Rows& by, const float (*sum)[TM][4], int first, int local, int wm,
                                              Out* staged) {
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < TN; i++) {
    int low = weight_row<M>(first + i, g, by.n), high = weight_row<M>(first + i, g + 8, by.n);
#pragma unroll
    for (int j = 0; j < TM; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float a = by.biased(sum[i][j][e], low), b = by.biased(sum[i][j][e + 2], high);
        Out* to = staged + (wm + j * 8 + t * 2 + e) * STRIDE + (local + i) * (M == GATED ? 8 : 16) + g;
        to[0] = from_f32<Out>(M == GATED ? by.activated(a, b) : a);
        if (M != GATED) to[8] = from_f32<Out>(b);
      }
  }
}
