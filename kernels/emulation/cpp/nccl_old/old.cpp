// old.cpp: a libnccl that lacks functions.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 21903;
  return 0;
}
extern "C" __attribute__((visibility("default"))) int ncclGetUniqueId(void*) { return 3; }
