// memory.cpp: device and page-locked memory, fills and copies. Every address is checked against the
// allocations.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace driver {

namespace {

// Fresh memory holds NaN. Only the start of very large allocations is filled, to keep tests fast.
constexpr size_t POISONED_BYTES = 64 << 20;
constexpr size_t ALIGNMENT = 256;
constexpr unsigned char POISON = 0xff;
#ifdef __SANITIZE_ADDRESS__
constexpr size_t GUARD = 0;  // the sanitizer has its own, and reports the first wrong access
#else
constexpr size_t GUARD = 256;
#endif

size_t limit() {
  const char* bytes = getenv("EMU_MEMORY");
  return bytes ? strtoull(bytes, nullptr, 10) : (size_t)1 << 30;
}

bool is_inside(const std::map<uintptr_t, size_t>& memory, uintptr_t address, size_t bytes) {
  auto after = memory.upper_bound(address);
  if (after == memory.begin()) return false;
  auto [start, size] = *std::prev(after);
  return address - start <= size && bytes <= size - (address - start);
}

std::string span(uintptr_t address, size_t bytes) {
  char text[80];
  snprintf(text, sizeof text, "%zu bytes at 0x%zx", bytes, (size_t)address);
  return text;
}

bool is_known(uintptr_t address, size_t bytes) {
  return is_device(address, bytes) || is_pinned(address, bytes) ||
         is_inside(state().peer_memory, address, bytes);
}

Result copy_now(const char* what, uintptr_t to, uintptr_t from, size_t bytes, bool to_device,
                bool from_device) {
  for (auto [address, is_on_device] : {std::pair(to, to_device), std::pair(from, from_device)}) {
    if (is_on_device && !is_known(address, bytes)) {
      return fail(ILLEGAL_ADDRESS,
                  std::string(what) + ": " + span(address, bytes) + " are not allocated any more");
    }
  }
  memmove((void*)to, (const void*)from, bytes);
  return SUCCESS;
}

Result refuse_unknown(const char* what, uintptr_t address, size_t bytes) {
  if (is_known(address, bytes)) return SUCCESS;
  return complain(INVALID_VALUE,
                  std::string(what) + ": " + span(address, bytes) + " are not allocated on the device");
}

Result refuse_pageable_in_capture(const char* what, Stream& stream) {
  if (!stream.capture) return SUCCESS;
  stream.capture->is_valid = false;
  return complain(CAPTURE_UNSUPPORTED,
                  std::string(what) + " of pageable memory while the stream is captured");
}

Result fill(const char* what, uintptr_t to, const void* value, size_t value_bytes, size_t count,
            void* handle) {
  std::shared_ptr<Stream> stream = find_stream(handle);
  if (!stream) return INVALID_HANDLE;
  if (count == 0) return SUCCESS;
  if (to % value_bytes) return complain(INVALID_VALUE, std::string(what) + ": the address is not aligned");
  if (Result result = refuse_unknown(what, to, count * value_bytes)) return result;
  uint32_t pattern = 0;
  memcpy(&pattern, value, value_bytes);
  auto run = [=]() -> Result {
    if (!is_known(to, count * value_bytes)) {
      return fail(ILLEGAL_ADDRESS, std::string(what) + ": memory is not allocated any more");
    }
    if (value_bytes == 1) memset((void*)to, (int)pattern, count);
    else for (size_t i = 0; i < count; i++) memcpy((char*)to + i * value_bytes, &pattern, value_bytes);
    return SUCCESS;
  };
  return enqueue(*stream, Operation{Operation::FILL, run, nullptr, nullptr, 0});
}

}  // namespace

bool is_device(uintptr_t address, size_t bytes) { return is_inside(state().device_memory, address, bytes); }
bool is_pinned(uintptr_t address, size_t bytes) { return is_inside(state().pinned_memory, address, bytes); }

Result check_guards(const char* kernel) {
  static const std::vector<unsigned char> intact(GUARD, POISON);
  for (auto [start, bytes] : state().device_memory) {
    const char* where = nullptr;
    if (GUARD && memcmp((char*)start - GUARD, intact.data(), GUARD) != 0) where = "before";
    if (GUARD && memcmp((char*)start + bytes, intact.data(), GUARD) != 0) where = "after";
    if (!where) continue;
    memset((char*)start - GUARD, POISON, GUARD);
    memset((char*)start + bytes, POISON, GUARD);
    return fail(ILLEGAL_ADDRESS, std::string("kernel ") + kernel + " wrote just " + where +
                                     " an allocation of " + std::to_string(bytes) + " bytes");
  }
  return SUCCESS;
}

}  // namespace driver

using namespace driver;

API cuMemGetInfo_v2(size_t* available, size_t* total) {
  ENTER(CONTEXT);
  *total = limit();
  *available = limit() - state().used_bytes;
  return SUCCESS;
}
API cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  ENTER(CONTEXT);
  if (!address || bytes == 0) return INVALID_VALUE;
  if (Result result = refuse_while_capturing("cuMemAlloc")) return result;
  size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (strikes(NO_MEMORY) || rounded < bytes || rounded > limit() - state().used_bytes) return OUT_OF_MEMORY;
  void* memory = nullptr;
  bool is_shared = setting("EMU_DEVICES", 1) > 1;
  if (is_shared) memory = allocate_shared(bytes + 2 * GUARD);
  else if (posix_memalign(&memory, ALIGNMENT, bytes + 2 * GUARD) != 0) memory = nullptr;
  if (!memory) return OUT_OF_MEMORY;
  char* start = (char*)memory + GUARD;
  memset(memory, POISON, GUARD + std::min(bytes, POISONED_BYTES));
  memset(start + bytes, POISON, GUARD);
  state().device_memory[(uintptr_t)start] = bytes;
  state().used_bytes += rounded;
  *address = (uint64_t)start;
  return SUCCESS;
}
// Waits for all work, as the driver does, so that no work still uses the memory.
API cuMemFree_v2(uint64_t address) {
  driver::Call call(driver::Call::CONTEXT);
  if (call.error && call.error != state().sticky) return call.error;
  if (address == 0) return SUCCESS;
  if (Result result = refuse_while_capturing("cuMemFree")) return result;
  auto found = state().device_memory.find(address);
  if (found == state().device_memory.end())
    return complain(INVALID_VALUE, "cuMemFree of what was not allocated");
  Result result = call.error ? call.error : drain_all(call);
  state().used_bytes -= (found->second + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  state().device_memory.erase(found);
  void* memory = (char*)address - GUARD;
  if (!free_shared(memory)) free(memory);
  return result;
}
API cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  ENTER(CONTEXT);
  if (!memory || bytes == 0 || flags > 7) return INVALID_VALUE;
  if (Result result = refuse_while_capturing("cuMemHostAlloc")) return result;
  if (posix_memalign(memory, 4096, bytes) != 0) return OUT_OF_MEMORY;
  memset(*memory, POISON, std::min(bytes, POISONED_BYTES));
  state().pinned_memory[(uintptr_t)*memory] = bytes;
  return SUCCESS;
}
API cuMemFreeHost(void* memory) {
  driver::Call call(driver::Call::CONTEXT);
  if (call.error && call.error != state().sticky) return call.error;
  auto found = state().pinned_memory.find((uintptr_t)memory);
  if (found == state().pinned_memory.end())
    return complain(INVALID_VALUE, "cuMemFreeHost of what was not allocated");
  if (Result result = refuse_while_capturing("cuMemFreeHost")) return result;
  Result result = call.error ? call.error : drain_all(call);
  state().pinned_memory.erase(found);
  free(memory);
  return result;
}
API cuMemHostGetDevicePointer_v2(uint64_t* address, void* memory, unsigned) {
  ENTER(CONTEXT);
  if (!is_pinned((uintptr_t)memory, 1)) return INVALID_VALUE;
  *address = (uint64_t)memory;
  return SUCCESS;
}
API cuPointerGetAttribute(void* data, int attribute, uint64_t address) {
  ENTER(CONTEXT);
  constexpr int MEMORY_TYPE = 2, HOST = 1, DEVICE = 2;
  if (attribute != MEMORY_TYPE || !is_known(address, 1)) return INVALID_VALUE;
  *(unsigned*)data = is_device(address, 1) ? DEVICE : HOST;
  return SUCCESS;
}

// Pageable memory is read before the call returns, page-locked memory when the copy runs.
API cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* handle) {
  ENTER(CONTEXT);
  std::shared_ptr<Stream> stream = find_stream(handle);
  if (!stream) return INVALID_HANDLE;
  if (bytes == 0) return SUCCESS;
  if (Result result = refuse_unknown("cuMemcpyHtoD", to, bytes)) return result;
  if (is_pinned((uintptr_t)from, bytes)) {
    auto run = [=] { return copy_now("cuMemcpyHtoD", to, (uintptr_t)from, bytes, true, true); };
    return enqueue(*stream, Operation{Operation::COPY, run, nullptr, nullptr, 0});
  }
  if (Result result = refuse_pageable_in_capture("cuMemcpyHtoD", *stream)) return result;
  auto staged = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + bytes);
  auto run = [=] { return copy_now("cuMemcpyHtoD", to, (uintptr_t)staged->data(), bytes, true, false); };
  return enqueue(*stream, Operation{Operation::COPY, run, nullptr, nullptr, 0});
}
// A copy to pageable memory is done when the call returns. Page-locked memory holds poison until the copy
// runs.
API cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* handle) {
  ENTER(CONTEXT);
  std::shared_ptr<Stream> stream = find_stream(handle);
  if (!stream) return INVALID_HANDLE;
  if (bytes == 0) return SUCCESS;
  if (Result result = refuse_unknown("cuMemcpyDtoH", from, bytes)) return result;
  bool pinned = is_pinned((uintptr_t)to, bytes);
  if (!pinned) {
    if (Result result = refuse_pageable_in_capture("cuMemcpyDtoH", *stream)) return result;
  } else if (!stream->capture) {
    memset(to, POISON, bytes);
  }
  auto run = [=] { return copy_now("cuMemcpyDtoH", (uintptr_t)to, from, bytes, pinned, true); };
  Result result = enqueue(*stream, Operation{Operation::COPY, run, nullptr, nullptr, 0});
  return result || pinned ? result : drain(call, *stream);
}
API cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* handle) {
  ENTER(CONTEXT);
  std::shared_ptr<Stream> stream = find_stream(handle);
  if (!stream) return INVALID_HANDLE;
  if (bytes == 0) return SUCCESS;
  for (uint64_t address : {to, from}) {
    if (Result result = refuse_unknown("cuMemcpy", address, bytes)) return result;
  }
  auto run = [=] { return copy_now("cuMemcpy", to, from, bytes, true, true); };
  return enqueue(*stream, Operation{Operation::COPY, run, nullptr, nullptr, 0});
}
API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* handle) {
  return cuMemcpyAsync(to, from, bytes, handle);
}
// Without a stream: runs at once and does not wait for the pending work of other streams.
API cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  ENTER(CONTEXT);
  if (Result result = refuse_while_capturing("cuMemcpyHtoD")) return result;
  if (Result result = refuse_unknown("cuMemcpyHtoD", to, bytes)) return result;
  return copy_now("cuMemcpyHtoD", to, (uintptr_t)from, bytes, true, false);
}
API cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  ENTER(CONTEXT);
  if (Result result = refuse_while_capturing("cuMemcpyDtoH")) return result;
  if (Result result = refuse_unknown("cuMemcpyDtoH", from, bytes)) return result;
  return copy_now("cuMemcpyDtoH", (uintptr_t)to, from, bytes, false, true);
}
API cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void* handle) {
  ENTER(CONTEXT);
  return fill("cuMemsetD8", to, &value, sizeof value, count, handle);
}
API cuMemsetD16Async(uint64_t to, unsigned short value, size_t count, void* handle) {
  ENTER(CONTEXT);
  return fill("cuMemsetD16", to, &value, sizeof value, count, handle);
}
API cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void* handle) {
  ENTER(CONTEXT);
  return fill("cuMemsetD32", to, &value, sizeof value, count, handle);
}
