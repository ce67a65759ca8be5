// cublaslt.cpp: the calls of libcublasLt.so.13 that Skein makes. Products run on the emulated driver's
// streams.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "product.h"

using namespace blas;

extern "C" int skein_emulation_enqueue(void* stream, int (*run)(void*), const void* data, size_t bytes);

namespace {

struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t alignment = 256;
};
struct Result {
  Algorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Algorithm) == 64, "a cublasLtMatmulAlgo_t is 64 bytes");

int complain(Status status, const char* why) {
  fprintf(stderr, "emulated cuBLASLt: %s\n", why);
  return status;
}

template <class T> bool read(T& to, const void* from, size_t bytes) {
  if (!from || bytes != sizeof(T)) return false;
  memcpy(&to, from, bytes);
  return true;
}

Product product_of(const Operation* operation, const Matrix* a, const Matrix* b, const Matrix* c,
                   const Matrix* d) {
  Product product{};
  product.operation = *operation;
  product.a = *a, product.b = *b, product.c = *c, product.d = *d;
  return product;
}

Algorithm algorithm_of(const Product& product, uint64_t number) {
  return {MAGIC, number, signature(product), {}};
}

bool is_algorithm(const Product& product, const Algorithm& algorithm) {
  return algorithm.magic == MAGIC && algorithm.number < ALGORITHMS &&
         algorithm.signature == signature(product);
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() {
  const char* version = getenv("EMU_CUBLASLT_VERSION");
  return version ? strtoul(version, nullptr, 10) : 130000;
}
extern "C" __attribute__((visibility("default"))) size_t cublasLtGetCudartVersion() { return 13000; }
extern "C" __attribute__((visibility("default"))) const char* cublasLtGetStatusName(int status) {
  switch (status) {
    case SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS unknown";
  }
}
extern "C" __attribute__((visibility("default"))) const char* cublasLtGetStatusString(int status) {
  return cublasLtGetStatusName(status);
}

API cublasLtCreate(void** handle) {
  *handle = new char;
  return SUCCESS;
}
API cublasLtDestroy(void* handle) {
  delete (char*)handle;
  return SUCCESS;
}

API cublasLtMatrixLayoutCreate(Matrix** layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  *layout = new Matrix{type, rows, columns, stride};
  return SUCCESS;
}
API cublasLtMatrixLayoutDestroy(Matrix* layout) {
  delete layout;
  return SUCCESS;
}
API cublasLtMatrixLayoutSetAttribute(Matrix* layout, int attribute, const void* from, size_t bytes) {
  enum { TYPE, ORDER, ROWS, COLUMNS, STRIDE, BATCH };
  int32_t number = 0;
  bool ok = false;
  switch (attribute) {
    case TYPE: ok = read(layout->type, from, bytes); break;
    case ORDER: ok = read(number, from, bytes) && number == 0; break;  // by columns
    case ROWS: ok = read(layout->rows, from, bytes); break;
    case COLUMNS: ok = read(layout->columns, from, bytes); break;
    case STRIDE: ok = read(layout->stride, from, bytes); break;
    case BATCH: ok = read(number, from, bytes) && number == 1; break;
  }
  return ok ? SUCCESS
            : complain(INVALID_VALUE, "a layout attribute that is not emulated, or its size is wrong");
}

API cublasLtMatmulDescCreate(Operation** operation, int compute_type, int scale_type) {
  constexpr int COMPUTE_32F = 68;
  if (compute_type != COMPUTE_32F || scale_type != F32)
    return complain(NOT_SUPPORTED, "only f32 sums are emulated");
  *operation = new Operation;
  return SUCCESS;
}
API cublasLtMatmulDescDestroy(Operation* operation) {
  delete operation;
  return SUCCESS;
}
API cublasLtMatmulDescSetAttribute(Operation* of, int attribute, const void* from, size_t bytes) {
  enum {
    POINTER_MODE = 2,
    TRANSPOSE_A = 3,
    TRANSPOSE_B = 4,
    EPILOGUE = 7,
    BIAS_POINTER = 8,
    A_SCALE = 17,
    B_SCALE = 18
  };
  enum { FAST_ACCUMULATION = 25, BIAS_TYPE = 26, A_SCALE_MODE = 31, B_SCALE_MODE = 32 };
  int32_t number = 0;
  int8_t flag = 0;
  bool ok = false;
  switch (attribute) {
    case POINTER_MODE: ok = read(number, from, bytes) && number == 0; break;  // on the host
    case TRANSPOSE_A:
      ok = read(number, from, bytes) && number >= 0 && number <= 1;
      of->transpose_a = number;
      break;
    case TRANSPOSE_B:
      ok = read(number, from, bytes) && number >= 0 && number <= 1;
      of->transpose_b = number;
      break;
    case EPILOGUE: ok = read(of->epilogue, from, bytes); break;
    case BIAS_POINTER: ok = read(of->bias, from, bytes); break;
    case A_SCALE: ok = read(of->a.address, from, bytes); break;
    case B_SCALE: ok = read(of->b.address, from, bytes); break;
    case FAST_ACCUMULATION: ok = read(flag, from, bytes); break;
    case BIAS_TYPE: ok = read(of->bias_type, from, bytes); break;
    case A_SCALE_MODE: ok = read(of->a.mode, from, bytes); break;
    case B_SCALE_MODE: ok = read(of->b.mode, from, bytes); break;
  }
  return ok ? SUCCESS
            : complain(INVALID_VALUE, "a product's attribute that is not emulated, or its size is wrong");
}

API cublasLtMatmulPreferenceCreate(Preference** preference) {
  *preference = new Preference;
  return SUCCESS;
}
API cublasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  return SUCCESS;
}
API cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* from,
                                         size_t bytes) {
  enum { WORKSPACE = 1, FIRST_ALIGNMENT = 5, LAST_ALIGNMENT = 8 };
  uint32_t number = 0;
  if (attribute == WORKSPACE) return read(preference->workspace_bytes, from, bytes) ? SUCCESS : INVALID_VALUE;
  if (attribute < FIRST_ALIGNMENT || attribute > LAST_ALIGNMENT)
    return read(number, from, bytes) ? SUCCESS : INVALID_VALUE;
  return read(preference->alignment, from, bytes) ? SUCCESS : INVALID_VALUE;
}

API cublasLtMatmulAlgoGetHeuristic(void*, const Operation* operation, const Matrix* a, const Matrix* b,
                                   const Matrix* c, const Matrix* d, const Preference* preference, int asked,
                                   Result* results, int* count) {
  *count = 0;
  Product product = product_of(operation, a, b, c, d);
  if (Status status = check(product)) return status;
  if (const char* fault = getenv("EMU_BLAS_SEARCH_FAULT")) {
    if (d->columns == strtoull(fault, nullptr, 10)) return INTERNAL_ERROR;
  }
  for (uint64_t number = 0; number < ALGORITHMS && *count < asked; number++) {
    size_t workspace = workspace_bytes(product, number);
    if (workspace > preference->workspace_bytes) continue;
    results[(*count)++] = Result{algorithm_of(product, number), workspace, SUCCESS, 1.f, {}};
  }
  return SUCCESS;
}
API cublasLtMatmulAlgoCheck(void*, const Operation* operation, const Matrix* a, const Matrix* b,
                            const Matrix* c, const Matrix* d, const Algorithm* algorithm, Result* result) {
  Product product = product_of(operation, a, b, c, d);
  if (Status status = check(product)) return status;
  if (!is_algorithm(product, *algorithm)) return NOT_SUPPORTED;
  *result = Result{*algorithm, workspace_bytes(product, algorithm->number), SUCCESS, 1.f, {}};
  return SUCCESS;
}
API cublasLtMatmul(void*, const Operation* operation, const float* alpha, uint64_t a_at, const Matrix* a,
                   uint64_t b_at, const Matrix* b, const float* beta, uint64_t c_at, const Matrix* c,
                   uint64_t d_at, const Matrix* d, const Algorithm* algorithm, uint64_t workspace,
                   size_t workspace_size, void* stream) {
  Product product = product_of(operation, a, b, c, d);
  product.a_at = a_at, product.b_at = b_at, product.c_at = c_at, product.d_at = d_at,
  product.workspace = workspace;
  product.alpha = *alpha, product.beta = *beta;
  if (Status status = check(product)) return complain(status, "a product that there is not");
  product.algorithm = algorithm ? *algorithm : algorithm_of(product, 0);
  if (!is_algorithm(product, product.algorithm))
    return complain(INVALID_VALUE, "an algorithm of another product");
  if (workspace_bytes(product, product.algorithm.number) > workspace_size)
    return complain(INVALID_VALUE, "workspace too small");
  for (uint64_t address : {a_at, b_at, d_at}) {
    if (address % 16) return complain(INVALID_VALUE, "an address is not a multiple of 16");
  }
  auto run = [](void* data) { return compute(*(const Product*)data); };
  return skein_emulation_enqueue(stream, run, &product, sizeof product) ? EXECUTION_FAILED : SUCCESS;
}
