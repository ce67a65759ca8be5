// embed_packed.cu: embedding lookup in a table of codes, which starts the residual stream.
//
//   out     [rows, k]   f32
//   tokens  [rows]      u32; tokens that are not below n read row 0, as in embed.cu
//   table   [n, k]      see packed.cuh; without leaves, columns in the order of inputs
//   bits                4, 6 or 8
// Grid (rows), block a multiple of 32: a thread writes 4 values at a time, k a multiple of 8. Dequantised in
// f32, with the operations of packed.cuh: scale * value(code), then + minimum, then * scale of the model.
// Reference: cpu::packed, exact.
#include "packed.cuh"

// The code of input k of row g, in the octet's blocks at `codes`.
__device__ __forceinline__ u32 code_at(const u8* codes, int bits, i32 meaning, int g, int k) {
  const u8* block = codes + (size_t)(k / BLOCK_K) * octet_bytes(bits);
  int i = k % BLOCK_K / 16, lane = g * 4 + k % 16 / 4, e = k % 4;
  if (bits == 8) return block[i / 4 * 512 + lane * 16 + i % 4 * 4 + e];
  u32 word = *(const u32*)(block + lane * 16 + i / 2 * 4);
  if (meaning == TABLE) return word >> (i % 2 * 16 + e * 4) & 15;
  u32 code = word >> (i % 2 * 8 + e / 2 * 4 + e % 2 * 16) & 15;
  if (bits == 4) return code;
  word = *(const u32*)(block + 512 + lane * 8 + i / 4 * 4);
  return code | (word >> (i % 4 * 4 + e / 2 * 2 + e % 2 * 16) & 3) << 4;
}

template <class T> __device__ __forceinline__ float number(const Matrix& w, u32 code, u32 zero) {
  if (w.meaning == E4M3) return ptx::e4m3_to_f32((u8)code);
  if (w.meaning == INTEGERS) return (float)((int)code - (int)zero);
  float sum = 0.f;  // parts from the smallest: exact
  for (int part = w.parts - 1; part >= 0; part--) {
    const u8* bytes = (const u8*)(w.table + part * 8) + code;
    sum += to_f32(T{(u16)(bytes[0] | bytes[16] << 8)});
  }
  return sum;
}

template <class T>
__device__ void embed_packed(float* out, const u32* tokens, const Matrix& w, i32 bits, i32 n, i32 k,
                             float times) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  u32 token = tokens[blockIdx.x];
  int row = token < (u32)n ? (int)token : 0, octet = row / 8, g = row % 8;
  const u8* codes = w.codes + (size_t)octet * w.blocks() * octet_bytes(bits);
  float* to = out + (size_t)blockIdx.x * k;
  for (int at = threadIdx.x * 4; at < k; at += blockDim.x * 4) {
    int block = at / BLOCK_K, in_block = at % BLOCK_K / 16 >> w.span;
    int s = w.span == WHOLE ? 0 : block * w.block_spans() + in_block;
    size_t span = ((size_t)octet * w.spans() + s) * 8 + g;
    float scale = scale_at(w.scales, w.units, w.scale_kind, span, row, block, w.blocks());
    float minimum = 0.f;
    if (w.minima) minimum = scale_at(w.minima, w.minimum_units, w.scale_kind, span, row, block, w.blocks());
    u32 zero = w.zeros ? w.zeros[span] : w.zero;
    Pack<float, 4> four;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      float value = __fmul_rn(scale, number<T>(w, code_at(codes, bits, w.meaning, g, at + e), zero));
      if (w.minima) value = __fadd_rn(value, minimum);
      four.v[e] = __fmul_rn(value, times);
    }
    *(Pack<float, 4>*)(to + at) = four;
  }
}

#define EMBED_PACKED(name, T)                                                                             \
  extern "C" __global__ void __launch_bounds__(1024)                                                      \
      name(float* out, const u32* tokens, MATRIX_PARAMETERS, i32 bits, i32 n, i32 k, float times) {       \
    PACKED_MATRIX((n + 7) / 8, k, 0, 0)                                                                   \
    embed_packed<T>(out, tokens, w, bits, n, k, times);                                                   \
  }                                                                                                       \
  EXPORT(name)
EMBED_PACKED(embed_packed_bf16, bf16)
EMBED_PACKED(embed_packed_f16, f16)
