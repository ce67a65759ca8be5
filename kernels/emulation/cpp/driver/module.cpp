// module.cpp: modules, kernels, launches. Every image holds every kernel that was compiled with the
// emulation.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

#include "state.h"

namespace driver {

namespace {

constexpr unsigned MAX_THREADS = 1024, MAX_BLOCKS_YZ = 65535, MAX_BLOCKS_X = 0x7fffffff;
constexpr int SHARED_WITHOUT_ASKING = 48 << 10, SHARED_LIMIT = 227 << 10;
constexpr int DYNAMIC_SHARED_ATTRIBUTE = 8;
constexpr size_t ARGUMENT_ALIGNMENT = 128, MAX_ARGUMENT_BYTES = 32764;

std::set<void*> modules;
// The launch that waits for another device.
const void* suspended = nullptr;
// Grids that have stored to other devices.
int grids_to_peers = 0;
std::unordered_map<const void*, int> allowed_shared;

// Whether the device has griddepcontrol.wait, and so do its images.
bool has_waits() { return setting("EMU_CAPABILITY", 90) >= 90; }

int shared_allowed(const void* kernel) {
  auto found = allowed_shared.find(kernel);
  return found == allowed_shared.end() ? SHARED_WITHOUT_ASKING : found->second;
}

const emu::Kernel* as_kernel(const void* function) {
  for (const emu::Kernel* kernel = emu::kernels; kernel; kernel = kernel->next) {
    if (kernel == function) return kernel;
  }
  return nullptr;
}

// A launch with its arguments copied.
struct Launch {
  const emu::Kernel* kernel;
  dim3 grid, block;
  size_t shared_bytes;
  bool overlaps = false;
  std::unique_ptr<char, decltype(&free)> values{nullptr, free};
  std::vector<void*> pointers;

  void copy_arguments(void** args) {
    size_t total = 0;
    std::vector<size_t> offsets;
    for (const size_t* bytes = kernel->parameter_bytes; *bytes; bytes++) {
      offsets.push_back(total);
      total += (*bytes + ARGUMENT_ALIGNMENT - 1) / ARGUMENT_ALIGNMENT * ARGUMENT_ALIGNMENT;
    }
    values.reset((char*)aligned_alloc(ARGUMENT_ALIGNMENT, std::max(total, ARGUMENT_ALIGNMENT)));
    for (size_t i = 0; i < offsets.size(); i++) {
      memcpy(values.get() + offsets[i], args[i], kernel->parameter_bytes[i]);
      pointers.push_back(values.get() + offsets[i]);
    }
  }

  Result run() {
    if (launches_nothing()) return SUCCESS;
    if (suspended && suspended != this) return NOT_READY;
    if (!suspended) {
      if (Result result = strike()) return result;
      if (state().hangs) return SUCCESS;
      emu::rt().drops_peer_stores = is_silent(grids_to_peers + 1);
    }
    emu::Outcome outcome = kernel->launch(grid, block, shared_bytes, pointers.data());
    suspended = outcome == emu::Outcome::WAITS ? this : nullptr;
    if (suspended) return NOT_READY;
    grids_to_peers += emu::rt().stored_to_peers;
    if (outcome == emu::Outcome::FAULTED) {
      bool address = strncmp(emu::last_fault(), "illegal address", 15) == 0;
      return fail(address ? ILLEGAL_ADDRESS : LAUNCH_FAILED, "");
    }
    if (overlaps && !emu::rt().waited_for_grids) {
      return fail(LAUNCH_FAILED,
                  std::string(kernel->name) +
                      " may overlap with the grid before it, and never waits for it (griddepcontrol.wait)");
    }
    return check_guards(kernel->name);
  }

  // Injected faults.
  Result strike() {
    if (strikes(HANG) || strikes_by_name("hang", kernel->name)) {
      state().hangs = true;
      return SUCCESS;
    }
    if (strikes(FAULT_ADDRESS) || strikes_by_name("illegal", kernel->name))
      return fail(ILLEGAL_ADDRESS, std::string("injected: illegal address in ") + kernel->name);
    if (strikes(FAULT_ECC))
      return fail(ECC_UNCORRECTABLE, std::string("injected: memory error in ") + kernel->name);
    return SUCCESS;
  }
};

struct Config {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  struct Attribute {
    int id;
    char pad[4];
    union {
      int number;
      unsigned dims[3];
      char bytes[64];
    };
  } * attributes;
  unsigned attribute_count;
};

// The checks of cuLaunchKernelEx: null if a device would accept the launch.
const char* why_not(const Config& config, const void* kernel) {
  const unsigned *grid = config.grid, *block = config.block;
  for (int i = 0; i < 3; i++) {
    if (grid[i] == 0 || block[i] == 0) return "no blocks or no threads";
  }
  if ((uint64_t)block[0] * block[1] * block[2] > MAX_THREADS || block[2] > 64)
    return "too many threads in a block";
  if (grid[0] > MAX_BLOCKS_X || grid[1] > MAX_BLOCKS_YZ || grid[2] > MAX_BLOCKS_YZ) return "too many blocks";
  if ((int64_t)config.shared_bytes > shared_allowed(kernel)) {
    return "more dynamic shared memory than cuFuncSetAttribute has allowed";
  }
  return nullptr;
}

enum AttributeId { IGNORE = 0, CLUSTER = 4, OVERLAP = 6, PRIORITY = 8 };

Result read_attributes(const Config& config, Launch& launch) {
  for (unsigned i = 0; i < config.attribute_count; i++) {
    const Config::Attribute& attribute = config.attributes[i];
    if (attribute.id == OVERLAP) {
      // No document says what a driver does with it on an older device.
      if (!has_waits()) return complain(NOT_SUPPORTED, "overlapping launches before capability 9.0");
      launch.overlaps = attribute.number != 0;
    }
    else if (attribute.id == CLUSTER && attribute.dims[0] * attribute.dims[1] * attribute.dims[2] == 1)
      continue;
    else if (attribute.id != IGNORE && attribute.id != PRIORITY) {
      return complain(NOT_SUPPORTED, "launch attribute " + std::to_string(attribute.id) + " is not emulated");
    }
  }
  return SUCCESS;
}

bool is_image(const unsigned char* image) {
  const unsigned char fatbin[4] = {0x50, 0xed, 0x55, 0xba}, elf[4] = {0x7f, 'E', 'L', 'F'};
  if (memcmp(image, fatbin, 4) == 0 || memcmp(image, elf, 4) == 0) return true;
  return strnlen((const char*)image, 1 << 16) < 1 << 16 && strstr((const char*)image, ".version");
}

}  // namespace

void forget_suspended() {
  suspended = nullptr;
  emu::forget_suspended();
}

}  // namespace driver

using namespace driver;

static_assert(sizeof(Config::Attribute) == 72, "a CUlaunchAttribute is 72 bytes");

API cuModuleLoadData(void** module, const void* image) {
  ENTER(CONTEXT);
  if (Result result = refuse_while_capturing("cuModuleLoadData")) return result;
  if (!module || !image) return INVALID_VALUE;
  if (!is_image((const unsigned char*)image))
    return complain(INVALID_IMAGE, "neither a fatbin, nor a cubin, nor PTX");
  *module = malloc(1);
  modules.insert(*module);
  return SUCCESS;
}
API cuModuleUnload(void* module) {
  driver::Call call(driver::Call::CONTEXT);
  if (!modules.erase(module)) return complain(INVALID_HANDLE, "a module that is not loaded");
  free(module);
  return call.error;
}
API cuModuleGetFunction(void** function, void* module, const char* name) {
  ENTER(CONTEXT);
  if (!modules.count(module)) return complain(INVALID_HANDLE, "a module that is not loaded");
  for (const emu::Kernel* kernel = emu::kernels; kernel; kernel = kernel->next) {
    if (strcmp(kernel->name, name) != 0) continue;
    *function = (void*)kernel;
    return SUCCESS;
  }
  return NOT_FOUND;
}
API cuFuncLoad(void* function) {
  ENTER(CONTEXT);
  return as_kernel(function) ? SUCCESS : INVALID_HANDLE;
}
API cuFuncGetName(const char** name, void* function) {
  ENTER(CONTEXT);
  const emu::Kernel* kernel = as_kernel(function);
  if (!kernel) return INVALID_HANDLE;
  *name = kernel->name;
  return SUCCESS;
}
API cuFuncSetAttribute(void* function, int attribute, int value) {
  ENTER(CONTEXT);
  if (!as_kernel(function)) return INVALID_HANDLE;
  if (attribute != DYNAMIC_SHARED_ATTRIBUTE) return SUCCESS;  // the others are hints
  if (value < 0 || value > SHARED_LIMIT) return INVALID_VALUE;
  allowed_shared[function] = value;
  return SUCCESS;
}
API cuFuncGetAttribute(int* value, int attribute, void* function) {
  ENTER(CONTEXT);
  if (!as_kernel(function)) return INVALID_HANDLE;
  enum { THREADS = 0, SHARED, CONSTANT, LOCAL, REGISTERS, PTX, BINARY, CACHED };
  switch (attribute) {
    case THREADS: *value = MAX_THREADS; break;
    case SHARED: case CONSTANT: case LOCAL: case CACHED: *value = 0; break;
    case REGISTERS: *value = 32; break;
    // Like an image for 8.0 before capability 9.0, else like one for 9.0.
    case PTX: case BINARY: *value = has_waits() ? 90 : 80; break;
    case DYNAMIC_SHARED_ATTRIBUTE: *value = shared_allowed(function); break;
    default: return INVALID_VALUE;
  }
  return SUCCESS;
}
API cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* size) {
  ENTER(CONTEXT);
  const emu::Kernel* kernel = as_kernel(function);
  if (!kernel) return INVALID_HANDLE;
  size_t at = 0;
  const size_t* bytes = kernel->parameter_bytes;
  for (size_t i = 0; *bytes && i < index; i++) at += *bytes++;
  if (!*bytes) return INVALID_VALUE;
  *offset = at;
  *size = *bytes;
  return SUCCESS;
}
// From threads and shared memory alone: the emulation has no registers.
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads,
                                                size_t shared_bytes) {
  ENTER(CONTEXT);
  if (!as_kernel(function) || threads <= 0 || threads > (int)MAX_THREADS) return INVALID_VALUE;
  int by_threads = 2048 / ((threads + 31) / 32 * 32);
  int by_shared = (int)((228 << 10) / (shared_bytes + 1024));
  *blocks = std::min({by_threads, by_shared, 32});
  return SUCCESS;
}
API cuLaunchKernelEx(const Config* config, void* function, void** args, void**) {
  ENTER(CONTEXT);
  const emu::Kernel* kernel = as_kernel(function);
  if (!config || !kernel) return complain(INVALID_HANDLE, "a kernel that does not exist");
  std::shared_ptr<Stream> stream = find_stream(config->stream);
  if (!stream) return complain(INVALID_HANDLE, "a stream that does not exist");
  if (const char* why = why_not(*config, kernel))
    return complain(INVALID_VALUE, std::string(kernel->name) + ": " + why);
  const unsigned *grid = config->grid, *block = config->block;
  auto launch = std::make_shared<Launch>();
  launch->kernel = kernel;
  launch->grid = dim3(grid[0], grid[1], grid[2]);
  launch->block = dim3(block[0], block[1], block[2]);
  launch->shared_bytes = config->shared_bytes;
  if (Result result = read_attributes(*config, *launch)) return result;
  if (stream->capture && launch->overlaps && is_armed(NO_OVERLAP_IN_CAPTURE)) {
    stream->capture->is_valid = false;
    return complain(INVALID_HANDLE, "injected: no overlapping launches in captures");
  }
  launch->copy_arguments(args);
  auto run = [launch] { return launch->run(); };
  return enqueue(*stream, Operation{Operation::KERNEL, run, kernel, nullptr, 0});
}

// For the emulated cuBLASLt: `run(data)` in the stream's order, with `bytes` bytes of `data` copied. Nonzero
// is a fault.
API skein_emulation_enqueue(void* handle, int (*run)(void*), const void* data, size_t bytes) {
  ENTER(CONTEXT);
  std::shared_ptr<Stream> stream = find_stream(handle);
  if (!stream) return INVALID_HANDLE;
  auto copied = std::make_shared<std::vector<char>>((const char*)data, (const char*)data + bytes);
  auto work = [=]() -> Result {
    if (launches_nothing()) return SUCCESS;
    if (run(copied->data())) return fail(ILLEGAL_ADDRESS, "illegal address in a matrix product");
    return check_guards("a matrix product");
  };
  return enqueue(*stream, Operation{Operation::KERNEL, work, (const void*)run, nullptr, 0});
}
// For the emulated NCCL: the same for work that waits for other processes, which runs again while it returns
// NOT_READY.
API skein_emulation_enqueue_waiting(void* handle, int (*run)(void*), const void* data, size_t bytes) {
  ENTER(CONTEXT);
  std::shared_ptr<Stream> stream = find_stream(handle);
  if (!stream) return INVALID_HANDLE;
  auto copied = std::make_shared<std::vector<char>>((const char*)data, (const char*)data + bytes);
  auto work = [=]() -> Result {
    int result = run(copied->data());
    if (result && result != NOT_READY) return fail(LAUNCH_FAILED, "a collective operation failed");
    return (Result)result;
  };
  return enqueue(*stream, Operation{Operation::KERNEL, work, (const void*)run, nullptr, 0});
}
// Called while work runs, under the lock.
API skein_emulation_is_device(uint64_t address, size_t bytes) {
  return is_device(address, bytes) || is_pinned(address, bytes);
}
