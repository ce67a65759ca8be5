// product.h: a matrix product as cuBLASLt describes it: D = alpha * scales * op(A) op(B) + beta * C + bias.
#pragma once
#include <cstddef>
#include <cstdint>

namespace blas {

enum Status {
  SUCCESS = 0,
  NOT_INITIALIZED = 1,
  INVALID_VALUE = 7,
  ARCH_MISMATCH = 8,
  EXECUTION_FAILED = 13,
  INTERNAL_ERROR = 14,
  NOT_SUPPORTED = 15,
};
enum Type : int { F32 = 0, F16 = 2, BF16 = 14, E4M3 = 28 };
enum ScaleMode : int { SCALAR = 0, OUTER_VECTOR = 3, VECTOR_128 = 4, BLOCK_128 = 5 };
enum Epilogue : unsigned { PLAIN = 1, BIAS = 4 };

// By columns: element (row, column) is at row + column * stride.
struct Matrix {
  int type = F32;
  uint64_t rows = 0, columns = 0;
  int64_t stride = 0;
};
struct Scales {
  int mode = SCALAR;
  uint64_t address = 0;  // 0: scale 1
};
struct Operation {
  bool transpose_a = false, transpose_b = false;
  unsigned epilogue = PLAIN;
  uint64_t bias = 0;
  int bias_type = -1;  // D's
  Scales a, b;
};
// The opaque 64 bytes of an algorithm.
struct Algorithm {
  uint64_t magic, number, signature, reserved[5];
};
struct Product {
  Operation operation;
  Matrix a, b, c, d;
  uint64_t a_at, b_at, c_at, d_at, workspace;
  float alpha, beta;
  Algorithm algorithm;

  uint64_t m() const { return d.rows; }
  uint64_t n() const { return d.columns; }
  uint64_t k() const { return operation.transpose_a ? a.rows : a.columns; }
};

constexpr uint64_t MAGIC = 0x736b65696e626c61, ALGORITHMS = 3;

size_t bytes_of(int type);
// Whether a device with compute capability 9.0 has such a product.
Status check(const Product& product);
// Everything but the sizes: an algorithm fits only the products that it was made for.
uint64_t signature(const Product& product);
// The workspace that algorithm `number` needs.
size_t workspace_bytes(const Product& product, uint64_t number);
// Nonzero if it touches unallocated memory.
int compute(const Product& product);

}  // namespace blas
