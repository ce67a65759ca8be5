// device.cpp: one device, as the environment describes it, and its primary context.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace driver {
extern thread_local bool has_context;
}
using namespace driver;

static char context;

API cuDriverGetVersion(int* version) {
  *version = setting("EMU_DRIVER", 13000);
  return SUCCESS;
}
API cuInit(unsigned flags) {
  driver::Call call(driver::Call::NOTHING);
  if (flags != 0) return INVALID_VALUE;
  if (setting("EMU_DEVICES", 1) == 0) return NO_DEVICE;
  if (!state().initialized) arm_from_environment();
  state().initialized = true;
  return SUCCESS;
}
API cuDeviceGetCount(int* count) {
  ENTER(INIT);
  *count = setting("EMU_DEVICES", 1);
  return SUCCESS;
}
API cuDeviceGet(int* device, int ordinal) {
  ENTER(INIT);
  if (ordinal < 0 || ordinal >= setting("EMU_DEVICES", 1)) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}
API cuDeviceGetName(char* name, int length, int) {
  ENTER(INIT);
  snprintf(name, (size_t)length, "Skein emulated device");
  return SUCCESS;
}
API cuDeviceGetUuid_v2(void* uuid, int) {
  ENTER(INIT);
  memcpy(uuid, "skein emulation", 16);
  return SUCCESS;
}
API cuDeviceGetPCIBusId(char* text, int length, int) {
  ENTER(INIT);
  snprintf(text, (size_t)length, "0000:00:00.0");
  return SUCCESS;
}
API cuDeviceTotalMem_v2(size_t* bytes, int) {
  ENTER(INIT);
  const char* limit = getenv("EMU_MEMORY");
  *bytes = limit ? strtoull(limit, nullptr, 10) : (size_t)1 << 30;
  return SUCCESS;
}
API cuDeviceGetAttribute(int* value, int attribute, int) {
  ENTER(INIT);
  int capability = setting("EMU_CAPABILITY", 90);
  switch (attribute) {
    case 1: *value = 1024; break;             // threads a block
    case 2: case 3: *value = 1024; break;     // in x, y
    case 4: *value = 64; break;               // in z
    case 5: *value = 0x7fffffff; break;       // blocks in x
    case 6: case 7: *value = 65535; break;    // in y, z
    case 8: *value = 48 << 10; break;         // shared memory a block has without asking
    case 10: *value = 32; break;              // threads a warp
    case 12: *value = 65536; break;           // registers a block
    case 16: *value = 4; break;               // multiprocessors: few, so that persistent grids loop
    case 31: *value = 1; break;               // concurrent kernels
    case 38: *value = 1 << 20; break;         // L2
    case 39: *value = 2048; break;            // threads a multiprocessor
    case 40: *value = 2; break;               // copy engines
    case 41: *value = 1; break;               // unified addressing
    case 75: *value = capability / 10; break;
    case 76: *value = capability % 10; break;
    case 81: *value = 228 << 10; break;       // shared memory a multiprocessor
    case 82: *value = 65536; break;           // registers a multiprocessor
    case 97: *value = 227 << 10; break;       // shared memory a block can ask for
    case 106: *value = 32; break;             // blocks a multiprocessor
    case 115: *value = 0; break;              // memory pools
    default:
      return complain(INVALID_VALUE, "device attribute " + std::to_string(attribute) + " is not emulated");
  }
  return SUCCESS;
}
API cuDevicePrimaryCtxRetain(void** to, int) {
  ENTER(INIT);
  *to = &context;
  return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return SUCCESS; }
API cuCtxSetCurrent(void* of) {
  ENTER(INIT);
  if (of && of != &context) return INVALID_CONTEXT;
  has_context = of != nullptr;
  return SUCCESS;
}
API cuCtxGetCurrent(void** of) {
  ENTER(INIT);
  *of = has_context ? &context : nullptr;
  return SUCCESS;
}
API cuCtxGetDevice(int* device) {
  ENTER(CONTEXT);
  *device = 0;
  return SUCCESS;
}
API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTER(CONTEXT);
  *least = 0, *greatest = -5;
  return SUCCESS;
}
