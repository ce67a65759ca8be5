// driver.cpp: libcuda.so.1 whose device is this CPU. The subset of the driver API that Skein calls, on kernels compiled
// with emulation.h. Work is done at once, in the order of the calls.
#include <dlfcn.h>
#include <string.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

namespace {

enum Result { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NOT_FOUND = 500 };
typedef void (*Launch)(const unsigned*, const unsigned*, size_t, void**);
struct Function {
  Launch launch;
  const size_t* params;
};
std::mutex one_launch_at_a_time;

int env(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value ? atoi(value) : otherwise;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int

API cuDriverGetVersion(int* version) {
  *version = env("SKEIN_EMULATED_DRIVER", 13000);
  return SUCCESS;
}
API cuInit(unsigned) { return env("SKEIN_EMULATED_DEVICES", 1) ? SUCCESS : NO_DEVICE; }
API cuDeviceGetCount(int* count) {
  *count = env("SKEIN_EMULATED_DEVICES", 1);
  return SUCCESS;
}
API cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return SUCCESS;
}
API cuDeviceGetName(char* name, int length, int) {
  snprintf(name, (size_t)length, "Skein emulated device");
  return SUCCESS;
}
API cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = (size_t)1 << 30;
  return SUCCESS;
}
API cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 75: *value = 9; break;           // compute capability, major
    case 76: *value = 0; break;           // and minor
    case 16: *value = 4; break;           // multiprocessors: few, so that persistent grids loop
    case 38: *value = 1 << 20; break;     // L2
    case 97: *value = 227 << 10; break;   // shared memory a block can ask for
    default: return INVALID_VALUE;
  }
  return SUCCESS;
}
API cuDevicePrimaryCtxRetain(void** context, int) {
  *context = (void*)&one_launch_at_a_time;
  return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API cuCtxSetCurrent(void*) { return SUCCESS; }
API cuMemGetInfo_v2(size_t* available, size_t* total) {
  *available = *total = (size_t)1 << 30;
  return SUCCESS;
}

API cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  void* memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!memory) return OUT_OF_MEMORY;
  memset(memory, 0xff, bytes);
  *address = (uint64_t)memory;
  return SUCCESS;
}
API cuMemFree_v2(uint64_t address) {
  free((void*)address);
  return SUCCESS;
}
API cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *memory ? SUCCESS : OUT_OF_MEMORY;
}
API cuMemFreeHost(void* memory) {
  free(memory);
  return SUCCESS;
}
API cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
  memcpy((void*)to, from, bytes);
  return SUCCESS;
}
API cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
  memcpy(to, (const void*)from, bytes);
  return SUCCESS;
}
API cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void*) {
  memset((void*)to, byte, bytes);
  return SUCCESS;
}

API cuStreamCreate(void** stream, unsigned) {
  *stream = malloc(1);
  return SUCCESS;
}
API cuStreamDestroy_v2(void* stream) {
  free(stream);
  return SUCCESS;
}
API cuStreamSynchronize(void*) { return SUCCESS; }
API cuEventCreate(void** event, unsigned) {
  *event = malloc(1);
  return SUCCESS;
}
API cuEventDestroy_v2(void* event) {
  free(event);
  return SUCCESS;
}
API cuEventRecord(void*, void*) { return SUCCESS; }
API cuEventQuery(void*) { return SUCCESS; }
API cuEventSynchronize(void*) { return SUCCESS; }
API cuEventElapsedTime_v2(float* milliseconds, void*, void*) {
  *milliseconds = 0;
  return SUCCESS;
}

API cuModuleLoadData(void** module, const void*) {
  *module = (void*)&one_launch_at_a_time;
  return SUCCESS;
}
API cuModuleUnload(void*) { return SUCCESS; }
API cuModuleGetFunction(void** function, void*, const char* name) {
  static void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* launch = dlsym(self, (std::string("emu_launch_") + name).c_str());
  void* params = dlsym(self, (std::string("emu_params_") + name).c_str());
  if (!launch || !params) return NOT_FOUND;
  *function = new Function{(Launch)launch, ((const size_t* (*)())params)()};
  return SUCCESS;
}
API cuFuncSetAttribute(void*, int, int) { return SUCCESS; }
API cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* size) {
  const size_t* params = ((Function*)function)->params;
  for (size_t i = 0; i < index; i++) {
    if (!params[i]) return INVALID_VALUE;
  }
  if (!params[index]) return INVALID_VALUE;
  *offset = 0;
  *size = params[index];
  return SUCCESS;
}

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};
API cuLaunchKernelEx(const LaunchConfig* config, void* function, void** args, void**) {
  std::lock_guard<std::mutex> lock(one_launch_at_a_time);
  ((Function*)function)->launch(config->grid, config->block, config->shared_bytes, args);
  return SUCCESS;
}

API cuGetErrorName(int code, const char** name) {
  *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR";
  return SUCCESS;
}
API cuGetErrorString(int, const char** text) {
  *text = "emulated";
  return SUCCESS;
}
