// ipc.cpp: memory of one process that others map, and access between devices. With several devices, all
// device memory lies in files without a name, which another process opens through /proc.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

using namespace driver;

namespace {

constexpr unsigned LAZY_ENABLE_PEER_ACCESS = 1;
constexpr uint64_t MAGIC = 0x6e69656b73637069;

struct File {
  int descriptor;
  size_t length;
};
std::map<void*, File> files;

// CUipcMemHandle.
struct Handle {
  uint64_t magic, bytes, offset, length;
  int32_t process, descriptor;
  char unused[24];
};
static_assert(sizeof(Handle) == 64, "a CUipcMemHandle is 64 bytes");

// Opened allocations: the mapping of each, by the address that the caller got.
struct Mapping {
  void* memory;
  size_t length;
};
std::map<uintptr_t, Mapping> mappings;

bool fault_is(const char* name) {
  const char* fault = getenv("EMU_PEER");
  return fault && strcmp(fault, name) == 0;
}

}  // namespace

namespace driver {

void* allocate_shared(size_t bytes) {
  int descriptor = memfd_create("skein-emulated-device", MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (ftruncate(descriptor, (off_t)bytes) == 0)
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    close(descriptor);
    return nullptr;
  }
  files[memory] = {descriptor, bytes};
  return memory;
}

bool free_shared(void* memory) {
  auto found = files.find(memory);
  if (found == files.end()) return false;
  munmap(memory, found->second.length);
  close(found->second.descriptor);
  files.erase(found);
  return true;
}

}  // namespace driver

API cuDeviceCanAccessPeer(int* can, int device, int peer) {
  ENTER(INIT);
  *can = device != peer && !fault_is("none");
  return SUCCESS;
}
API cuIpcGetMemHandle(Handle* handle, uint64_t address) {
  ENTER(CONTEXT);
  auto after = state().device_memory.upper_bound(address);
  if (!handle || after == state().device_memory.begin()) return INVALID_VALUE;
  auto [start, bytes] = *std::prev(after);
  if (address - start >= bytes) return complain(INVALID_VALUE, "cuIpcGetMemHandle of what was not allocated");
  auto file = files.upper_bound((void*)start);
  if (file == files.begin()) return NOT_SUPPORTED;
  auto [memory, of] = *std::prev(file);
  *handle = Handle{MAGIC, bytes, start - (uintptr_t)memory, of.length, (int32_t)getpid(), of.descriptor, {}};
  return SUCCESS;
}
// The address is that of the whole allocation, whatever part of it the handle was made of.
API cuIpcOpenMemHandle_v2(uint64_t* address, Handle handle, unsigned flags) {
  ENTER(CONTEXT);
  if (!address || handle.magic != MAGIC || flags != LAZY_ENABLE_PEER_ACCESS) return INVALID_VALUE;
  if (handle.process == getpid())
    return complain(INVALID_CONTEXT, "a handle of this process's own memory is opened");
  if (fault_is("none")) return PEER_ACCESS_UNSUPPORTED;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.descriptor);
  int descriptor = open(path, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return complain(INVALID_VALUE, "the process of a memory handle has ended");
  // "wrong": the driver reports access, and what is written does not arrive.
  int kind = fault_is("wrong") ? MAP_PRIVATE : MAP_SHARED;
  void* memory = mmap(nullptr, handle.length, PROT_READ | PROT_WRITE, kind, descriptor, 0);
  close(descriptor);
  if (memory == MAP_FAILED) return OUT_OF_MEMORY;
  uintptr_t start = (uintptr_t)memory + handle.offset;
  mappings[start] = {memory, handle.length};
  state().peer_memory[start] = handle.bytes;
  *address = start;
  return SUCCESS;
}
API cuIpcCloseMemHandle(uint64_t address) {
  driver::Call call(driver::Call::CONTEXT);
  if (call.error && call.error != state().sticky) return call.error;
  auto found = mappings.find(address);
  if (found == mappings.end()) return complain(INVALID_VALUE, "cuIpcCloseMemHandle of what was not opened");
  Result result = call.error ? call.error : drain_all(call);
  munmap(found->second.memory, found->second.length);
  state().peer_memory.erase(address);
  mappings.erase(found);
  return result;
}
