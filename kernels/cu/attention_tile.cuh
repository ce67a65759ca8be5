// attention_tile.cuh: a warp's 16 packed query rows against one tile of keys and values in shared memory: the
// two products by mma.sync, and the online softmax between them (Dao 2023, FlashAttention-2). Included by
// attention_kernel.cuh.
#pragma once
#include "attention.cuh"

template <class T, class K> struct IsSame {
  static constexpr bool value = false;
};
template <class T> struct IsSame<T, T> {
  static constexpr bool value = true;
};

// Sizes of a kernel. Rows in shared memory are padded by 16 bytes, so that the eight rows that ldmatrix reads
// together are in different banks for every head size that is a multiple of 16.
template <class T, class K, int HD> struct Tile {
  static constexpr bool NARROW = !IsSame<T, K>::value;  // e4m3
  static constexpr int POSITIONS = HD <= 128 ? 64 : 32;
  static constexpr int KV_ROW = HD * (int)sizeof(K) + 16, Q_ROW = HD * 2 + 16;
  static constexpr int KV_BYTES = POSITIONS * KV_ROW;
  static constexpr int STAGES = 2;
  // Widening e4m3 needs extra registers: for larger heads Q is loaded again for each tile, or ptxas would
  // spill.
  static constexpr bool Q_IN_REGISTERS = HD <= (NARROW ? 96 : 128);
};

// Four e4m3 values as two pairs of T: this returns bytes 0 and 2 of `bytes >> 8`, which are 1 and 3 of
// `bytes`. The bits are moved to T's positions, which makes the values too small by 2^8 or 2^120; the product
// that corrects this is exact. The cache contains no NaN, because writes saturate.
__device__ __forceinline__ u32 widen_pair(f16, u32 bytes) {
  return ptx::fma_pair(f16{}, (bytes & 0x80008000) | (bytes & 0x7f007f00) >> 1, 0x5c005c00, 0x80008000);
}
__device__ __forceinline__ u32 widen_pair(bf16, u32 bytes) {
  return ptx::fma_pair(bf16{}, (bytes & 0x80008000) | (bytes & 0x7f007f00) >> 4, 0x7b807b80, 0x80008000);
}

// Bytes 0 and 2 of a word, and bytes 1 and 3. Queries are laid out to match (dims 4t, 4t + 2, and 4t + 1, 4t
// + 3 where an mma expects 2t, 2t + 1, and 2t + 8, 2t + 9), and so are outputs: see dim_of.
template <class T> __device__ __forceinline__ void widen(u32 (&pairs)[2], u32 bytes) {
  pairs[0] = widen_pair(T{}, bytes << 8);
  pairs[1] = widen_pair(T{}, bytes);
}

// Softmax state of a thread's rows, r and r + 8 of its warp: the highest score so far, and the sum over the
// thread's own columns.
struct Softmax {
  float top[2], sum[2];

  __device__ __forceinline__ void reset() {
    top[0] = top[1] = NEG_INF;
    sum[0] = sum[1] = 0.f;
  }
};

// s = Q K^T. `q` has the fragments of all dims if Q_IN_REGISTERS; otherwise they are loaded here.
template <class T, class K, int HD, int COLUMNS>
__device__ __forceinline__ void scores(float (&s)[COLUMNS][4], const u32 (&q)[HD / 16][4], const u8* q_rows,
                                       const u8* keys) {
  using Size = Tile<T, K, HD>;
  u32 lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < COLUMNS; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
#pragma unroll
  for (int k = 0; k < HD / 16; k++) {
    u32 a[4];
    if (Size::Q_IN_REGISTERS) {
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = q[k][i];
    } else {
      ptx::ldmatrix_x4(a, q_rows + (lane % 16) * Size::Q_ROW + k * 32 + lane / 16 * 16);
    }
    if (Size::NARROW) {
#pragma unroll
      for (int n = 0; n < COLUMNS; n += 4) {
        u32 b[4];
        ptx::ldmatrix_x4(b, keys + (n * 8 + lane) * Size::KV_ROW + k * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          u32 pairs[2];
          widen<T>(pairs, b[i]);
          ptx::mma_m16n8k16(T{}, s[n + i], a, pairs);
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < COLUMNS; n += 2) {
        u32 b[4], row = n * 8 + lane / 16 * 8 + lane % 8;
        ptx::ldmatrix_x4(b, keys + row * Size::KV_ROW + k * 32 + lane / 8 % 2 * 16);
        ptx::mma_m16n8k16(T{}, s[n], a, b);
        ptx::mma_m16n8k16(T{}, s[n + 1], a, b + 2);
      }
    }
  }
}

// o += P V, where `s` has the weights of 16 * i positions.
template <class T, class K, int HD, int COLUMNS>
__device__ __forceinline__ void outputs(float (&o)[HD / 8][4], const float (&s)[COLUMNS][4], const u8* values) {
  using Size = Tile<T, K, HD>;
  u32 lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < COLUMNS / 2; k += 2) {
    u32 p[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      p[i / 4][i % 4] = ptx::round_pair(T{}, s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
    }
    if (Size::NARROW) {
#pragma unroll
      for (int d = 0; d < HD / 16; d++) {
        u32 rows[4], low[2], high[2];
        ptx::ldmatrix_x4_trans(rows, values + (k * 16 + lane) * Size::KV_ROW + d * 16);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          widen<T>(low, rows[2 * i]);
          widen<T>(high, rows[2 * i + 1]);
          u32 even[2] = {low[0], high[0]}, odd[2] = {low[1], high[1]};
          ptx::mma_m16n8k16(T{}, o[2 * d], p[i], even);
          ptx::mma_m16n8k16(T{}, o[2 * d + 1], p[i], odd);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int d = 0; d < HD / 16; d++) {
          u32 b[4];
          ptx::ldmatrix_x4_trans(b, values + ((k + i) * 16 + lane % 16) * Size::KV_ROW + d * 32 + lane / 16 * 16);
          ptx::mma_m16n8k16(T{}, o[2 * d], p[i], b);
          ptx::mma_m16n8k16(T{}, o[2 * d + 1], p[i], b + 2);
        }
      }
    }
  }
}

// Sets scores that a row does not see to -inf. `first` is the position of the tile's first column.
template <int COLUMNS>
__device__ __forceinline__ void mask(float (&s)[COLUMNS][4], u32 first, const u32 (&position)[2],
                                     const Window& window) {
  u32 from[2] = {window.first_seen(position[0]), window.first_seen(position[1])};
#pragma unroll
  for (int i = 0; i < COLUMNS * 4; i++) {
    u32 at = first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2, r = i / 2 % 2;
    bool seen = at <= position[r] && at >= from[r];
    s[i / 4][i % 4] = seen ? s[i / 4][i % 4] : NEG_INF;
  }
}

// softcap * tanh(s * scale / softcap); `inner` is 2 log2(e) scale / softcap.
template <int COLUMNS> __device__ __forceinline__ void cap(float (&s)[COLUMNS][4], float softcap, float inner) {
#pragma unroll
  for (int i = 0; i < COLUMNS * 4; i++) {
    float& x = s[i / 4][i % 4];
    x = __fsub_rn(softcap, __fdividef(2.f * softcap, __fadd_rn(ptx::exp2_approx(__fmul_rn(x, inner)), 1.f)));
  }
}

// Turns scores into weights 2^(unit * (s - top)) and rescales earlier outputs to the new maximum (Milakov &
// Gimelshein 2018). A tile of which a row sees nothing changes none of the row's bits. The compiler must not
// contract anything here: kernels differ in the surrounding code but must agree in results.
template <int COLUMNS, int DIMS>
__device__ __forceinline__ void soften(float (&s)[COLUMNS][4], float (&o)[DIMS][4], Softmax& rows, float unit) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = rows.top[r];
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
    top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
    float base = top == NEG_INF ? 0.f : __fmul_rn(top, -unit);  // nothing visible yet: weights 0, not NaN
    // Subtract rounded bases, not the exact product: if the top is unchanged, this must be exactly 1.
    float shrink = ptx::exp2_approx(__fadd_rn(__fmul_rn(rows.top[r], unit), base)), sum = 0.f;
    rows.top[r] = top;
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; i++) {
        s[n][i] = ptx::exp2_approx(__fmaf_rn(s[n][i], unit, base));
        sum = __fadd_rn(sum, s[n][i]);
      }
    }
    rows.sum[r] = __fmaf_rn(rows.sum[r], shrink, sum);
#pragma unroll
    for (int d = 0; d < DIMS; d++) {
      o[d][2 * r] = __fmul_rn(o[d][2 * r], shrink);
      o[d][2 * r + 1] = __fmul_rn(o[d][2 * r + 1], shrink);
    }
  }
}
