// device.cpp: the devices described by the environment, and their primary contexts. They share one memory,
// because a process uses only one of them.
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <cstring>

#include "state.h"

namespace driver {
extern thread_local void* current_context;
}
using namespace driver;

constexpr int MAX_DEVICES = 64;
// A context is the address of its device's element.
static char contexts[MAX_DEVICES];

// Visible devices, in order: EMU_DEVICES of them, or those in CUDA_VISIBLE_DEVICES before the first that does
// not exist.
static const std::vector<int>& visible() {
  static const std::vector<int> list = [] {
    std::vector<int> list;
    int count = std::min(setting("EMU_DEVICES", 1), MAX_DEVICES);
    const char* chosen = getenv("CUDA_VISIBLE_DEVICES");
    if (!chosen) {
      for (int device = 0; device < count; device++) list.push_back(device);
      return list;
    }
    for (char* end; *chosen; chosen = *end == ',' ? end + 1 : end) {
      long device = strtol(chosen, &end, 10);
      if (end == chosen || device < 0 || device >= count) break;
      list.push_back((int)device);
    }
    return list;
  }();
  return list;
}

API cuDriverGetVersion(int* version) {
  *version = setting("EMU_DRIVER", 13000);
  return SUCCESS;
}
API cuInit(unsigned flags) {
  driver::Call call(driver::Call::NOTHING);
  if (flags != 0) return INVALID_VALUE;
  if (visible().empty()) return NO_DEVICE;
  if (!state().initialized) arm_from_environment();
  state().initialized = true;
  return SUCCESS;
}
API cuDeviceGetCount(int* count) {
  ENTER(INIT);
  *count = (int)visible().size();
  return SUCCESS;
}
API cuDeviceGet(int* device, int ordinal) {
  ENTER(INIT);
  if (ordinal < 0 || ordinal >= (int)visible().size()) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}
API cuDeviceGetName(char* name, int length, int) {
  ENTER(INIT);
  snprintf(name, (size_t)length, "Skein emulated device");
  return SUCCESS;
}
API cuDeviceGetUuid_v2(void* uuid, int device) {
  ENTER(INIT);
  memcpy(uuid, "skein emulation", 16);
  ((char*)uuid)[14] = (char)setting("EMU_HOST", 0);
  ((char*)uuid)[15] = (char)visible()[device];
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
API cuDevicePrimaryCtxRetain(void** to, int device) {
  ENTER(INIT);
  *to = &contexts[device];
  return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return SUCCESS; }
API cuCtxSetCurrent(void* of) {
  ENTER(INIT);
  if (of && (of < contexts || of >= contexts + MAX_DEVICES)) return INVALID_CONTEXT;
  current_context = of;
  return SUCCESS;
}
API cuCtxGetCurrent(void** of) {
  ENTER(INIT);
  *of = current_context;
  return SUCCESS;
}
API cuCtxGetDevice(int* device) {
  ENTER(CONTEXT);
  *device = (int)((char*)current_context - contexts);
  return SUCCESS;
}
// For the emulated NCCL: number of the current device among all devices of the machine, or -1.
API skein_emulation_current_device() {
  return current_context ? visible()[(char*)current_context - contexts] : -1;
}
API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTER(CONTEXT);
  *least = 0, *greatest = -5;
  return SUCCESS;
}
