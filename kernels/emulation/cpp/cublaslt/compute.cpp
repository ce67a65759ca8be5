// compute.cpp: the product itself, with f32 sums. Algorithms differ in the order of their sums, so a product
// whose algorithm is not pinned shows it in its bits.
#include <cmath>
#include <cstring>
#include <vector>

#include "product.h"

extern "C" int skein_emulation_is_device(uint64_t address, size_t bytes);

namespace blas {

namespace {

float bits_to_f32(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
uint32_t f32_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

float load(int type, const char* at) {
  if (type == F32) {
    float value;
    memcpy(&value, at, 4);
    return value;
  }
  if (type == E4M3) {
    unsigned code = (unsigned char)*at, exponent = code >> 3 & 15, mantissa = code & 7;
    if ((code & 127) == 127) return NAN;
    float a = exponent ? ldexpf(8.f + (float)mantissa, (int)exponent - 10) : ldexpf((float)mantissa, -9);
    return code & 128 ? -a : a;
  }
  uint16_t code;
  memcpy(&code, at, 2);
  if (type == BF16) return bits_to_f32((uint32_t)code << 16);
  _Float16 half;
  memcpy(&half, &code, 2);
  return (float)half;
}

void store(int type, char* at, float value) {
  if (type == F32) memcpy(at, &value, 4);
  else if (type == F16) {
    _Float16 half = (_Float16)value;
    memcpy(at, &half, 2);
  } else {
    uint32_t bits = f32_to_bits(value);
    uint16_t code = value != value ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    memcpy(at, &code, 2);
  }
}

// `vectors` vectors of `k` values: the columns of B, or the rows of A.
std::vector<float> unpack(const Matrix& matrix, uint64_t address, bool by_columns, uint64_t vectors,
                          uint64_t k) {
  std::vector<float> values(vectors * k);
  size_t size = bytes_of(matrix.type);
  for (uint64_t v = 0; v < vectors; v++) {
    for (uint64_t i = 0; i < k; i++) {
      uint64_t at = by_columns ? i + v * (uint64_t)matrix.stride : v + i * (uint64_t)matrix.stride;
      values[v * k + i] = load(matrix.type, (const char*)address + at * size);
    }
  }
  return values;
}

float dot(const float* a, const float* b, uint64_t from, uint64_t to) {
  float lanes[8] = {0};
  uint64_t i = from;
  for (; i + 8 <= to; i += 8) {
    for (int lane = 0; lane < 8; lane++) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (int lane = 0; i < to; i++, lane++) lanes[lane] += a[i] * b[i];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Location of the scales of blocks of 128. For vectors, those of consecutive vectors are adjacent; for
// 128x128 blocks, those of a row of blocks, with its length rounded up to 4.
float block_scale(const Scales& scales, uint64_t vector, uint64_t vectors, uint64_t block, uint64_t blocks) {
  const float* values = (const float*)scales.address;
  if (scales.mode == BLOCK_128) return values[vector / 128 * ((blocks + 3) / 4 * 4) + block];
  return values[block * vectors + vector];
}

float sum(const Product& p, const float* a, const float* b, uint64_t row, uint64_t column) {
  uint64_t k = p.k();
  const Operation& of = p.operation;
  if (of.a.mode == BLOCK_128 || of.a.mode == VECTOR_128) {
    float all = 0;
    uint64_t blocks = (k + 127) / 128;
    for (uint64_t block = 0; block < blocks; block++) {
      uint64_t end = block * 128 + 128 < k ? block * 128 + 128 : k;
      float scale =
          block_scale(of.a, row, p.m(), block, blocks) * block_scale(of.b, column, p.n(), block, blocks);
      all += dot(a, b, block * 128, end) * scale;
    }
    return all;
  }
  uint64_t split = p.algorithm.number == 0 ? k : p.algorithm.number == 1 ? (k + 1) / 2 : (k + 3) / 4;
  float all = dot(a, b, 0, split);
  if (p.algorithm.number == 2) {  // its first part waits in the workspace
    float* partial = (float*)p.workspace + row;
    *partial = all;
    return dot(a, b, split, k) + *partial;
  }
  return split < k ? all + dot(a, b, split, k) : all;
}

float outer_scale(const Scales& scales, uint64_t index) {
  if (!scales.address || scales.mode == BLOCK_128 || scales.mode == VECTOR_128) return 1;
  return ((const float*)scales.address)[scales.mode == OUTER_VECTOR ? index : 0];
}

size_t scale_count(const Scales& scales, uint64_t vectors, uint64_t k) {
  uint64_t blocks = (k + 127) / 128;
  switch (scales.mode) {
    case OUTER_VECTOR: return vectors;
    case VECTOR_128: return vectors * blocks;
    case BLOCK_128: return (vectors + 127) / 128 * ((blocks + 3) / 4 * 4);
    default: return 1;
  }
}

bool is_there(const Matrix& matrix, uint64_t address) {
  size_t values = (matrix.columns - 1) * (uint64_t)matrix.stride + matrix.rows;
  return skein_emulation_is_device(address, values * bytes_of(matrix.type));
}

bool all_is_there(const Product& p) {
  const Operation& of = p.operation;
  auto scales_there = [](const Scales& scales, size_t count) {
    return !scales.address || skein_emulation_is_device(scales.address, count * sizeof(float));
  };
  int bias_type = of.bias_type < 0 ? p.d.type : of.bias_type;
  bool bias_there = of.epilogue != BIAS || skein_emulation_is_device(of.bias, p.m() * bytes_of(bias_type));
  size_t workspace = workspace_bytes(p, p.algorithm.number);
  return is_there(p.a, p.a_at) && is_there(p.b, p.b_at) && is_there(p.d, p.d_at) && bias_there &&
         (p.beta == 0 || is_there(p.c, p.c_at)) && scales_there(of.a, scale_count(of.a, p.m(), p.k())) &&
         scales_there(of.b, scale_count(of.b, p.n(), p.k())) &&
         (workspace == 0 || skein_emulation_is_device(p.workspace, workspace));
}

}  // namespace

size_t workspace_bytes(const Product& p, uint64_t number) { return number == 2 ? p.m() * sizeof(float) : 0; }

int compute(const Product& p) {
  if (!all_is_there(p)) return 1;
  const Operation& of = p.operation;
  uint64_t m = p.m(), n = p.n(), k = p.k();
  std::vector<float> a = unpack(p.a, p.a_at, of.transpose_a, m, k),
                     b = unpack(p.b, p.b_at, !of.transpose_b, n, k);
  int bias_type = of.bias_type < 0 ? p.d.type : of.bias_type;
  size_t d_bytes = bytes_of(p.d.type);
  for (uint64_t column = 0; column < n; column++) {
    for (uint64_t row = 0; row < m; row++) {
      float value = sum(p, &a[row * k], &b[column * k], row, column);
      value *= outer_scale(of.a, row) * outer_scale(of.b, column) * p.alpha;
      uint64_t at = row + column * (uint64_t)p.d.stride;
      if (p.beta != 0)
        value += p.beta * load(p.c.type, (const char*)p.c_at + (row + column * p.c.stride) * d_bytes);
      if (of.epilogue == BIAS) value += load(bias_type, (const char*)of.bias + row * bytes_of(bias_type));
      store(p.d.type, (char*)p.d_at + at * d_bytes, value);
    }
  }
  return 0;
}

}  // namespace blas
