// faults.cpp: faults, version and host, configured by the environment.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "segment.h"

namespace nccl {

bool has_fault(const char* kind, int rank, uint64_t at) {
  const char* fault = getenv("EMU_NCCL_FAULT");
  char name[32];
  int of_rank = 0;
  unsigned long long from = 0;
  if (!fault || sscanf(fault, "%31[a-z]:%d:%llu", name, &of_rank, &from) < 2) return false;
  return strcmp(name, kind) == 0 && of_rank == rank && from == at;
}

int version() {
  const char* version = getenv("EMU_NCCL_VERSION");
  return version ? atoi(version) : 22803;
}

int host() {
  const char* host = getenv("EMU_HOST");
  return host ? atoi(host) : 0;
}

}  // namespace nccl
