// packed.cuh: weights in codes of 4, 6 or 8 bits, and their arithmetic, shared by gemv_packed.cuh and
// gemm_packed.cuh, so that a row has the same bits in both.
//
// A weight is value(code) * scale, plus a minimum in some formats. Scales belong to a row and a span of k.
//   integers   value(code) = code - zero, exact in T; zero by span, or the same for all
//   table      value(code) = one of 16 numbers, kept as a sum of up to three numbers of T, without loss
//   e4m3       value(code) = the FP8 number, exact in T
//
// Order of summation: slices or leaves as in linear.cuh. Within them k ascends, 16 consecutive k in each
// instruction, those of a span into a sum of its own that starts at 0. At the end of a span,
// slice = fma(scale, sum, slice), and with minima slice = fma(minimum, sum of x, slice). The sum of x is
// computed by the same instructions, with ones as weights.
//
// Layout. A leaf (without leaves: all of k) is divided into blocks of 128 k, the last one padded; rows are
// divided into octets of 8. An octet's block has the 32 codes of lane 4 g + t for i = 0..7: k = 16 i + 4 t +
// (0, 1, 2, 3) of row g. They are the lane's operand of instruction i, so codes go from memory to registers
// in loads of 16 bytes, whole lines a warp, and nothing is moved between lanes.
//   4 bits   [32 lanes][4 words]; word w has i = 2 w and 2 w + 1. Integers: pair p in bits 4 p and 16 + 4 p,
//            where pairs are (i, k 0 and 1), (i, k 2 and 3), (i + 1, k 0 and 1), (i + 1, k 2 and 3). Table:
//            k 0..3 of i in the low half, those of i + 1 in the high half
//   6 bits   as 4 bits of integers; then the upper bits [32 lanes][2 words]: word u has i = 4 u .. 4 u + 3,
//            pair q of 8 in bits 2 q and 16 + 2 q
//   8 bits   [2][32 lanes][4 words]: word w of half h has the four k of i = 4 h + w
//   codes    [octets][blocks of all leaves] of these
//   scales   [octets][blocks][128 / span][8 rows], or [octets][leaves][8 rows] if a span is a whole leaf
//            f32, f16, powers of two (u8), factors (i8) of `units`: f16 [octets][blocks][8 rows], or e4m3,
//            divided by `units`: f32 [octets][8 rows], or multiplied by the magnitude of a negative unit
//   minima   likewise, with units of their own
//   zeros    u8, likewise
//   table    [parts][8] words: the low bytes of 16 numbers of T, then their high bytes
#pragma once
#include "linear.cuh"

constexpr int BLOCK_K = 128;
constexpr int BLOCK_MMAS = BLOCK_K / 16;
constexpr int PARTS = 3;
constexpr int WHOLE = 4;  // log2(span / 16) of a span that is a whole leaf

enum Meaning { INTEGERS, TABLE, E4M3 };
enum ScaleKind { SCALE_F32, SCALE_F16, SCALE_POWER, SCALE_FACTOR, SCALE_E4M3 };

// A matrix, as the host passes it.
struct Matrix {
  const u8* codes;
  const void* scales;
  const void* units;
  const void* minima;
  const void* minimum_units;
  const u8* zeros;
  const u32* table;
  u32 zero;
  i32 meaning, scale_kind;
  i32 span;  // log2(span / 16), or WHOLE
  i32 parts;
  i32 octets, leaf, leaf_blocks, leaves;
  i32 first;  // octet of the first row; those of other matrices may lie before and behind

  // Blocks of a row, and scales of a row.
  __device__ __forceinline__ int blocks() const { return leaves * leaf_blocks; }
  __device__ __forceinline__ int block_spans() const { return BLOCK_MMAS >> span; }
  __device__ __forceinline__ int spans() const { return span == WHOLE ? leaves : blocks() * block_spans(); }
  // Whether a span ends with instruction i of a block.
  __device__ __forceinline__ bool ends(int i) const {
    return span == WHOLE ? i == BLOCK_MMAS - 1 : (i + 1) % (1 << span) == 0;
  }
  __device__ __forceinline__ int octet(int o) const { return first + min(o, octets - 1); }
};

// Bytes of an octet's block.
__device__ __forceinline__ constexpr int octet_bytes(int bits) { return 8 * BLOCK_K * bits / 8; }

// A lane's codes of an octet's block.
template <int BITS> struct Codes {
  static constexpr int WORDS = BITS;
  u32 v[WORDS];

  // Reads them at `block`, from device memory (STREAM) or shared memory.
  template <bool STREAM> __device__ __forceinline__ void read(const u8* block, int lane) {
#pragma unroll
    for (int part = 0; part < BITS / 4; part++) {
      const u8* from = block + (part * 32 + lane) * 16;
      Words w = words(STREAM ? ptx::load_stream16(from) : *(const uint4*)from);
#pragma unroll
      for (int i = 0; i < 4; i++) v[part * 4 + i] = w.v[i];
    }
    if (BITS == 6) {
      uint2 upper = *(const uint2*)(block + 512 + lane * 8);
      v[4 % WORDS] = upper.x;
      v[5 % WORDS] = upper.y;
    }
  }
};

// A lane's parameters of an octet's block: lane 4 g + t has those of row g and of spans t and t + 4.
struct Spans {
  float scale[2], minimum[2];
  u32 zero[2];
};

// The scale with index `at`, of the row with index `row` in block `block` of `blocks`.
__device__ __forceinline__ float scale_at(const void* scales, const void* units, int kind, size_t at,
                                          size_t row, int block, int blocks) {
  if (kind == SCALE_F16) return to_f32(((const f16*)scales)[at]);
  if (kind == SCALE_POWER) {
    u32 exponent = ((const u8*)scales)[at];
    return __uint_as_float(exponent ? exponent << 23 : 1u << 22);
  }
  if (kind == SCALE_FACTOR) {
    float unit = to_f32(((const f16*)units)[(row / 8 * blocks + block) * 8 + row % 8]);
    return __fmul_rn(unit, (float)((const i8*)scales)[at]);
  }
  if (kind == SCALE_E4M3) {
    float by = ((const float*)units)[row];
    float scale = ptx::e4m3_to_f32(((const u8*)scales)[at]);
    return by < 0.f ? __fmul_rn(scale, -by) : __fdiv_rn(scale, by);
  }
  return ((const float*)scales)[at];
}

__device__ __forceinline__ Spans spans_at(const Matrix& w, int octet, int block, int lane) {
  int g = lane / 4, t = lane % 4;
  bool whole = w.span == WHOLE;
  int count = whole ? 1 : w.block_spans();
  size_t first = (size_t)octet * w.spans() + (whole ? block / w.leaf_blocks : block * count);
  size_t row = (size_t)octet * 8 + g;
  Spans found{};
#pragma unroll
  for (int j = 0; j < 2; j++) {
    if (j == 1 && count <= 4) break;
    size_t at = (first + (j * 4 + t) % count) * 8 + g;
    found.scale[j] = scale_at(w.scales, w.units, w.scale_kind, at, row, block, w.blocks());
    if (w.minima)
      found.minimum[j] = scale_at(w.minima, w.minimum_units, w.scale_kind, at, row, block, w.blocks());
    found.zero[j] = w.zeros ? w.zeros[at] : w.zero;
  }
  return found;
}

// The parameter of span s of the block for this lane's row, from the lane that has it.
template <class V> __device__ __forceinline__ V of_span(const V (&v)[2], int s, int lane) {
  return __shfl_sync(FULL_WARP, s < 4 ? v[0] : v[1], (lane & ~3) | (s & 3));
}

// -(128 + zero) twice, to be added to 128 + code; in f16 1024 instead of 128.
__device__ __forceinline__ u32 minus_zero(bf16, u32 zero) { return 0xc300c300u | zero | zero << 16; }
__device__ __forceinline__ u32 minus_zero(f16, u32 zero) { return 0xe400e400u | zero | zero << 16; }
// codes - zero for a code of up to 6 bits in each half of `codes`.
__device__ __forceinline__ u32 small_pair(bf16 t, u32 codes, u32 minus) {
  return ptx::fma_pair(t, codes | 0x43004300u, 0x3f803f80u, minus);
}
__device__ __forceinline__ u32 small_pair(f16 t, u32 codes, u32 minus) {
  return ptx::fma_pair(t, codes | 0x64006400u, 0x3c003c00u, minus);
}
// The same for the bytes that `selectors` pick out of `codes`: by way of f32, since 8 bits and 128 do not fit
// bfloat16. `zero` is 2^23 + zero.
template <class T>
__device__ __forceinline__ u32 byte_pair(T t, u32 codes, u32 low, u32 high, float zero) {
  float a = __uint_as_float(__byte_perm(codes, 0x4b000000u, low));
  float b = __uint_as_float(__byte_perm(codes, 0x4b000000u, high));
  return ptx::round_pair(t, a - zero, b - zero);
}

// Two pairs of numbers of the table at `part` for the four codes in the low half of `codes`.
__device__ __forceinline__ void look_up(const u32* part, u32 codes, u32* pairs) {
  u32 at = codes & 0x7777u, upper = __byte_perm(0xff00u, 0, codes >> 3 & 0x1111u);
  u32 low = (__byte_perm(part[0], part[1], at) & ~upper) | (__byte_perm(part[2], part[3], at) & upper);
  u32 high = (__byte_perm(part[4], part[5], at) & ~upper) | (__byte_perm(part[6], part[7], at) & upper);
  pairs[0] = __byte_perm(low, high, 0x5140);
  pairs[1] = __byte_perm(low, high, 0x7362);
}

// The two words of instruction i, of part `part` of the table if the codes are looked up.
template <class T, int BITS>
__device__ __forceinline__ void widen(T t, const Codes<BITS>& codes, int i, u32 zero, i32 meaning,
                                      const u32* table, u32* pairs) {
  if (BITS == 8) {
    u32 four = codes.v[i % Codes<BITS>::WORDS];
    if (meaning == E4M3) {
      pairs[0] = widen_pair(t, __byte_perm(four, 0, 0x1404));
      pairs[1] = widen_pair(t, __byte_perm(four, 0, 0x3424));
    } else {
      float origin = __uint_as_float(0x4b000000u | zero);
      pairs[0] = byte_pair(t, four, 0x7540, 0x7541, origin);
      pairs[1] = byte_pair(t, four, 0x7542, 0x7543, origin);
    }
    return;
  }
  u32 low = codes.v[i / 2];
  if (BITS == 4 && meaning == TABLE) {
    look_up(table, low >> (i % 2 * 16), pairs);
    return;
  }
  u32 minus = minus_zero(t, zero);
#pragma unroll
  for (int j = 0; j < 2; j++) {
    u32 pair = low >> (i % 2 * 8 + j * 4) & 0x000f000fu;
    if (BITS == 6) {
      u32 upper = codes.v[(4 + i / 4) % Codes<BITS>::WORDS] >> (i % 4 * 4 + j * 2);
      pair |= (upper & 0x00030003u) << 4;
    }
    pairs[j] = small_pair(t, pair, minus);
  }
}

__device__ __forceinline__ u32 ones(bf16) { return 0x3f803f80u; }
__device__ __forceinline__ u32 ones(f16) { return 0x3c003c00u; }

// slice += a block's weights times x, for TN tiles of two octets and NT times 8 rows of x. x(j, i) returns
// this lane's four values of x for instruction i: k = 16 i + 4 t .. + 3 of row 8 j + g. `table` is in shared
// memory.
template <class T, int BITS, int TN, int NT, class X>
__device__ __forceinline__ void multiply_block(const Matrix& w, const u32* table, Codes<BITS> (&codes)[TN][2],
                                               const Spans (&of)[TN][2], int lane, X x,
                                               float (*slice)[NT][4]) {
  float sum[TN][NT][4] = {}, x_sum[NT][4] = {};
  u32 zero[TN][2] = {};
#pragma unroll
  for (int i = 0; i < BLOCK_MMAS; i++) {
    int s = w.span == WHOLE ? 0 : i >> w.span;
    bool begins = i == 0 || w.ends(i - 1);
    u32 xs[NT][2];
#pragma unroll
    for (int j = 0; j < NT; j++) {
      uint2 four = x(j, i);
      xs[j][0] = four.x;
      xs[j][1] = four.y;
      if (w.minima) {
        u32 a[4] = {ones(T{}), ones(T{}), ones(T{}), ones(T{})};
        ptx::mma_m16n8k16(T{}, x_sum[j], a, xs[j]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < TN; tile++) {
#pragma unroll
      for (int half = 0; half < 2; half++)
        if (begins) zero[tile][half] = of_span(of[tile][half].zero, s, lane);
#pragma unroll
      for (int part = 0; part < (BITS == 4 ? PARTS : 1); part++) {
        if (part >= w.parts) break;
        u32 low[2], high[2];
        widen(T{}, codes[tile][0], i, zero[tile][0], w.meaning, table + part * 8, low);
        widen(T{}, codes[tile][1], i, zero[tile][1], w.meaning, table + part * 8, high);
        u32 a[4] = {low[0], high[0], low[1], high[1]};
#pragma unroll
        for (int j = 0; j < NT; j++) ptx::mma_m16n8k16(T{}, sum[tile][j], a, xs[j]);
      }
    }
    if (!w.ends(i)) continue;
#pragma unroll
    for (int tile = 0; tile < TN; tile++) {
      float scale[2], minimum[2] = {};
#pragma unroll
      for (int half = 0; half < 2; half++) {
        scale[half] = of_span(of[tile][half].scale, s, lane);
        if (w.minima) minimum[half] = of_span(of[tile][half].minimum, s, lane);
      }
#pragma unroll
      for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          slice[tile][j][e] = __fmaf_rn(scale[e / 2], sum[tile][j][e], slice[tile][j][e]);
          if (w.minima) slice[tile][j][e] = __fmaf_rn(minimum[e / 2], x_sum[j][e], slice[tile][j][e]);
          sum[tile][j][e] = 0.f;
        }
    }
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) x_sum[j][e] = 0.f;
  }
}

// Octet of half `half` of tile `tile`. GATED: the first half is of the gate, the second of up, which follows
// after `outputs` rows. Octets past the end repeat the last one: they are computed but not written.
template <Mode M> __device__ __forceinline__ int octet_of(const Matrix& w, int tile, int half, int outputs) {
  if (M == GATED) return w.first + min(tile, outputs / 8 - 1) + half * (outputs / 8);
  return w.octet(tile * 2 + half);
}

// Copies the table to shared memory; the caller synchronises.
__device__ __forceinline__ void copy_table(u32* to, const Matrix& w) {
  if (w.meaning == TABLE && (int)threadIdx.x < w.parts * 8) to[threadIdx.x] = w.table[threadIdx.x];
}

// Rows of a dense product, whose results may be f32.
template <class T, Mode M> struct PackedRows : DenseRows<T, T, M> {
  u32 is_wide;
  __device__ __forceinline__ void store(int r, int column, float value) const {
    size_t at = (size_t)(this->first + r) * this->n + column;
    if (is_wide) ((float*)this->out)[at] = value;
    else this->out[at] = from_f32<T>(value);
  }
};

// Parameters of a kernel that describe a matrix, and the matrix whose first row is in octet `first`.
#define MATRIX_PARAMETERS                                                                                   \
  const u8 *codes, const void *scales, const void *units, const void *minima, const void *minimum_units,    \
      const u8 *zeros, const u32 *table, u32 zero, i32 meaning, i32 scale_kind, i32 span, i32 parts
#define PACKED_MATRIX(octets, k, leaf, first)                                                               \
  Matrix w{codes, scales, units, minima, minimum_units, zeros, table, zero, meaning, scale_kind, span,      \
           parts, octets, leaf ? leaf : k, ((leaf ? leaf : k) + BLOCK_K - 1) / BLOCK_K, \
           k / (leaf ? leaf : k), \
           (i32)(first)};

// Parameters of a dense product.
#define PACKED_PARAMETERS(T)                                                                                \
  T *out, u32 is_wide, const T *x, MATRIX_PARAMETERS, i32 octets, const T *bias, i32 rows, i32 n, i32 k,    \
      u32 function, i32 leaf
