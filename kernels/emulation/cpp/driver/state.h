// state.h: the state of the emulated driver: memory, streams with pending work, events, captures.
//
// Each API call holds one lock. Work on a stream runs when a call needs its result, on a thread that waits
// for it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "../emulation/launch.h"

namespace driver {

// CUresult.
enum Result {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  ECC_UNCORRECTABLE = 214,
  INVALID_HANDLE = 400,
  ILLEGAL_STATE = 401,
  NOT_FOUND = 500,
  PEER_ACCESS_UNSUPPORTED = 217,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  LAUNCH_OUT_OF_RESOURCES = 701,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_MERGE = 902,
  CAPTURE_UNMATCHED = 903,
  CAPTURE_UNJOINED = 904,
  CAPTURE_ISOLATION = 905,
  CAPTURE_IMPLICIT = 906,
  CAPTURED_EVENT = 907,
  CAPTURE_WRONG_THREAD = 908,
  GRAPH_UPDATE_FAILURE = 910,
};

struct Stream;

struct CudaEvent {
  uint64_t recorded = 0, completed = 0;  // how often; the latest record is done when they are equal
  int64_t nanoseconds = 0;
  bool keeps_time = true;
  std::shared_ptr<Stream> stream;  // of the latest record
  // Recorded in a capture: the nodes that come before it.
  std::shared_ptr<struct Capture> capture;
  std::vector<bool> before;
};

// One piece of work, or a node of a graph. If it returns NOT_READY because it waits for other processes, it
// runs again later.
struct Operation {
  enum Kind { KERNEL, COPY, FILL, HOST, GRAPH, RECORD, WAIT } kind;
  std::function<Result()> run;
  const void* function = nullptr;  // a kernel's, to compare graphs by
  std::shared_ptr<CudaEvent> event;    // of RECORD and WAIT
  uint64_t record = 0;             // which of the event's records
};

struct Capture {
  std::shared_ptr<std::vector<Operation>> nodes = std::make_shared<std::vector<Operation>>();
  Stream* origin = nullptr;
  std::thread::id thread;
  int mode = 0;
  bool is_valid = true;
};

struct Stream : std::enable_shared_from_this<Stream> {
  std::vector<Operation> queue;
  size_t next = 0;  // of `queue`
  std::shared_ptr<Capture> capture;
  std::vector<bool> before;  // nodes of the capture that the stream's next one comes after
  bool is_idle() const { return next == queue.size(); }
};

struct State {
  std::mutex lock;
  bool initialized = false, hangs = false;
  Result sticky = SUCCESS;
  std::map<uintptr_t, size_t> device_memory, pinned_memory, peer_memory;
  size_t used_bytes = 0;
  std::unordered_map<void*, std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Stream>> abandoned;  // destroyed with work left
  std::unordered_map<void*, std::shared_ptr<CudaEvent>> events;
  std::shared_ptr<Stream> default_stream = std::make_shared<Stream>();
  std::vector<std::weak_ptr<Capture>> captures;
};
State& state();

// Holds the lock; `error` is what the call must return at once, if anything.
struct Call {
  enum Need { NOTHING, INIT, CONTEXT };
  std::unique_lock<std::mutex> lock;
  Result error;
  explicit Call(Need need = CONTEXT);
};

int setting(const char* name, int otherwise);
Result complain(Result result, const std::string& why);

// ---- stream.cpp -----------------------------------------------------------------------------
std::shared_ptr<Stream> find_stream(void* handle);
// Queues the operation, or adds it to the stream's capture.
Result enqueue(Stream& stream, Operation operation);
// Runs up to `most` operations.
Result proceed(Stream& stream, size_t most);
// Runs all operations. Waits forever, without the lock, if the device hangs.
Result drain(Call& call, Stream& stream);
Result drain_all(Call& call);
Result fail(Result result, const std::string& why);

// ---- capture.cpp ----------------------------------------------------------------------------
Result add_node(Stream& stream, Operation operation);
// Whether this call may be made while captures are under way; invalidates them if not.
Result refuse_while_capturing(const char* call);

// ---- module.cpp -----------------------------------------------------------------------------
// Forgets a kernel that waits for another device.
void forget_suspended();

// ---- ipc.cpp --------------------------------------------------------------------------------
// Memory that other processes can map, or null; what was not allocated here is left alone.
void* allocate_shared(size_t bytes);
bool free_shared(void* memory);

// ---- memory.cpp -----------------------------------------------------------------------------
bool is_device(uintptr_t address, size_t bytes);
bool is_pinned(uintptr_t address, size_t bytes);
// Finds kernels that wrote just outside of an allocation.
Result check_guards(const char* kernel);

// ---- injection.cpp --------------------------------------------------------------------------
enum Injection {
  HANG,
  FAULT_ADDRESS,
  FAULT_ECC,
  NO_MEMORY,
  NO_OVERLAP_IN_CAPTURE,
  NO_CAPTURE,
  NO_GRAPH_LAUNCH,
  INJECTIONS
};
bool is_armed(Injection injection);
void arm_from_environment();
// Whether stores to other devices of this grid, counted from 1 among those with such stores, never land.
bool is_silent(int grid);
// Counts one launch or allocation; returns whether the fault occurs at it.
bool strikes(Injection injection);
// Whether EMU_FAULT asks for `fault` in this kernel.
bool strikes_by_name(const char* fault, const char* kernel);
// Whether kernels and products are skipped, so that only the host's work takes time.
bool launches_nothing();

}  // namespace driver

#define API extern "C" __attribute__((visibility("default"))) int
#define ENTER(need)                        \
  driver::Call call(driver::Call::need);   \
  if (call.error) return call.error
