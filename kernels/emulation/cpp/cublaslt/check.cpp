// check.cpp: the supported products, per the tables in the cuBLAS documentation of cublasLtMatmul (13.0).
#include <cstdlib>
#include <initializer_list>

#include "product.h"

namespace blas {

size_t bytes_of(int type) { return type == F32 ? 4 : type == E4M3 ? 1 : 2; }

namespace {

bool is_type(int type) { return type == F32 || type == F16 || type == BF16 || type == E4M3; }

bool shapes_fit(const Product& p) {
  const Operation& of = p.operation;
  uint64_t a_m = of.transpose_a ? p.a.columns : p.a.rows;
  uint64_t b_k = of.transpose_b ? p.b.columns : p.b.rows, b_n = of.transpose_b ? p.b.rows : p.b.columns;
  if (a_m != p.m() || b_n != p.n() || b_k != p.k() || p.c.rows != p.m() || p.c.columns != p.n()) return false;
  for (const Matrix* matrix : {&p.a, &p.b, &p.c, &p.d}) {
    if (!is_type(matrix->type) || matrix->rows == 0 || matrix->columns == 0) return false;
    if (matrix->stride < (int64_t)matrix->rows) return false;
  }
  return true;
}

bool types_fit(const Product& p) {
  if (p.a.type != p.b.type || p.c.type != p.d.type || p.d.type == E4M3) return false;
  if (p.a.type == F32) return p.d.type == F32;
  return p.d.type == F32 || p.d.type == p.a.type || p.a.type == E4M3;
}

bool bias_fits(const Product& p) {
  if (p.operation.epilogue == PLAIN) return true;
  if (p.operation.epilogue != BIAS) return false;
  int type = p.operation.bias_type < 0 ? p.d.type : p.operation.bias_type;
  return type == (p.a.type == E4M3 && p.d.type == F32 ? BF16 : p.d.type);
}

bool scales_fit(const Product& p) {
  int a = p.operation.a.mode, b = p.operation.b.mode;
  if (p.a.type != E4M3) return a == SCALAR && b == SCALAR && !p.operation.a.address && !p.operation.b.address;
  if (a == SCALAR && b == SCALAR) return true;
  const char* capability = getenv("EMU_CAPABILITY");
  if (capability && atoi(capability) != 90) return false;
  if (!p.operation.a.address || !p.operation.b.address) return false;
  if (a == OUTER_VECTOR && b == OUTER_VECTOR) return true;
  bool by_blocks = (a == BLOCK_128 || a == VECTOR_128) && (b == BLOCK_128 || b == VECTOR_128);
  return by_blocks && !(a == BLOCK_128 && b == BLOCK_128) && p.n() % 4 == 0;
}

// FP8 has one form, A transposed and B not, and 16-byte rows.
bool form_fits(const Product& p) {
  if (p.a.type != E4M3) return true;
  if (!p.operation.transpose_a || p.operation.transpose_b) return false;
  return p.k() % 16 == 0 && p.a.stride % 16 == 0 && p.b.stride % 16 == 0 &&
         p.d.stride * bytes_of(p.d.type) % 16 == 0;
}

}  // namespace

Status check(const Product& p) {
  if (!shapes_fit(p)) return INVALID_VALUE;
  return types_fit(p) && bias_fits(p) && scales_fit(p) && form_fits(p) ? SUCCESS : NOT_SUPPORTED;
}

uint64_t signature(const Product& p) {
  uint64_t words[] = {(uint64_t)p.a.type,           (uint64_t)p.d.type,           p.operation.epilogue,
                      (uint64_t)p.operation.a.mode, (uint64_t)p.operation.b.mode, p.operation.transpose_a,
                      p.operation.transpose_b};
  uint64_t hash = MAGIC;
  for (uint64_t word : words) hash = (hash ^ word) * 0x100000001b3;
  return hash;
}

}  // namespace blas
