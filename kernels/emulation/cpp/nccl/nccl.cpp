// nccl.cpp: the functions of libnccl.so.2 that Skein calls. Ranks are processes that share memory; work waits
// on the emulated driver's streams until all ranks have reached it. Calls on which NCCL would hang or compute
// wrong results are refused, with both ranks named.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "segment.h"

using namespace nccl;

extern "C" int skein_emulation_enqueue_waiting(void* stream, int (*run)(void*), const void* data, size_t bytes);
extern "C" int skein_emulation_is_device(uint64_t address, size_t bytes);
extern "C" int skein_emulation_current_device();
extern "C" int cuStreamIsCapturing(void* stream, int* status);

namespace nccl {

struct Work {
  Communicator* communicator;
  const char* own;
  char* all;
  size_t bytes;
  Request request;
  size_t done;
  bool is_posted;
};

}  // namespace nccl

namespace {

constexpr int NOT_READY = 600;  // CUresult
constexpr unsigned MAGIC = 0xcafebeef;

struct UniqueId {
  char name[128];
};
// First fields of ncclConfig_t.
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

std::string without_communicator;
// The communicator with running work. Only one at a time, because several may deadlock.
std::atomic<Communicator*> running{nullptr};

int complain(Communicator* of, Status status, const std::string& why) {
  fprintf(stderr, "emulated NCCL: %s\n", why.c_str());
  (of ? of->last_error : without_communicator) = why;
  if (of) of->state = status;
  return status;
}

// Breaks the group for all ranks.
int break_group(Communicator& of, const std::string& why) {
  snprintf(of.segment->complaint, sizeof of.segment->complaint, "%s", why.c_str());
  of.segment->is_broken = 1;
  return complain(&of, INVALID_USAGE, why);
}

size_t size_of_type(int type) {
  constexpr size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? SIZES[type] : 0;
}

std::string text_of(int rank, const Request& request) {
  char text[160];
  snprintf(text, sizeof text, "rank %d gathers %zu values of type %d in call %zu%s", rank, (size_t)request.count,
           request.type, (size_t)request.number, request.is_captured ? " of a graph" : "");
  return text;
}

Segment* map(const char* name) {
  int file = shm_open(name, O_CREAT | O_RDWR, 0600);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (ftruncate(file, sizeof(Segment)) == 0)
    memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return memory == MAP_FAILED ? nullptr : (Segment*)memory;
}

// Whether all ranks have joined. Checks that they agree.
bool all_joined(Communicator& of) {
  Slot* slots = of.segment->slots;
  for (int rank = 0; rank < of.ranks; rank++) {
    uint32_t ranks = slots[rank].ranks;
    if (ranks == 0) return false;
    if (ranks != (uint32_t)of.ranks) {
      break_group(of, "rank " + std::to_string(rank) + " joins " + std::to_string(ranks) + " ranks, rank " +
                          std::to_string(of.rank) + " joins " + std::to_string(of.ranks));
      return false;
    }
    for (int other = 0; other < rank; other++) {
      if (slots[other].host != slots[rank].host || slots[other].device != slots[rank].device) continue;
      break_group(of, "Duplicate GPU detected: rank " + std::to_string(other) + " and rank " +
                          std::to_string(rank) + " both on CUDA device " + std::to_string(slots[rank].device));
      return false;
    }
  }
  return true;
}

bool is_broken(Communicator& of) {
  if (of.state == SUCCESS && of.segment->is_broken) complain(&of, INVALID_USAGE, of.segment->complaint);
  return of.state != SUCCESS;
}

// Begins the work if no other work is in flight; false if it cannot start.
bool begin(Work& work) {
  Communicator& of = *work.communicator;
  if (of.active == &work) return true;
  if (of.active) {
    break_group(of, "rank " + std::to_string(of.rank) + " uses a communicator on two streams at once");
    return false;
  }
  Communicator* other = nullptr;
  if (!running.compare_exchange_strong(other, &of) && other != &of) {
    break_group(of, "rank " + std::to_string(of.rank) + " uses two communicators at once");
    return false;
  }
  of.active = &work;
  work.request.number = ++of.works;
  work.done = 0;
  work.is_posted = false;
  of.hangs = has_fault("hang", of.rank, of.works);
  if (has_fault("error", of.rank, of.works)) complain(&of, SYSTEM_ERROR, "an injected error");
  if (has_fault("remote", of.rank, of.works)) complain(&of, REMOTE_ERROR, "an injected error of a peer");
  return !of.hangs && of.state == SUCCESS;
}

bool post(Work& work) {
  Communicator& of = *work.communicator;
  Slot* slots = of.segment->slots;
  for (int rank = 0; rank < of.ranks; rank++)
    if (slots[rank].read < of.chunk) return false;
  memcpy(slots[of.rank].data, work.own + work.done, std::min(CHUNK, work.bytes - work.done));
  slots[of.rank].request = work.request;
  slots[of.rank].posted = ++of.chunk;
  work.is_posted = true;
  return true;
}

bool take(Work& work) {
  Communicator& of = *work.communicator;
  Slot* slots = of.segment->slots;
  for (int rank = 0; rank < of.ranks; rank++)
    if (slots[rank].posted < of.chunk) return false;
  for (int rank = 0; rank < of.ranks; rank++) {
    if (memcmp(&slots[rank].request, &work.request, sizeof(Request)) == 0) continue;
    break_group(of, text_of(of.rank, work.request) + ", " + text_of(rank, slots[rank].request) +
                        "; NCCL would hang, or move wrong bytes");
    return false;
  }
  size_t count = std::min(CHUNK, work.bytes - work.done);
  for (int rank = 0; rank < of.ranks; rank++)
    memcpy(work.all + rank * work.bytes + work.done, slots[rank].data, count);
  if (has_fault("wrong", of.rank, of.works)) work.all[work.done] ^= 1;
  work.done += count;
  work.is_posted = false;
  slots[of.rank].read = of.chunk;
  return true;
}

int run(void* data) {
  Work& work = *(Work*)data;
  Communicator& of = *work.communicator;
  if (of.is_aborted || of.hangs || is_broken(of) || !begin(work)) return NOT_READY;
  do {
    if (!work.is_posted && !post(work)) return NOT_READY;
    if (!take(work)) return NOT_READY;
  } while (work.done < work.bytes);
  of.active = nullptr;
  running = nullptr;
  return 0;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API int ncclGetVersion(int* to) {
  *to = version();
  return SUCCESS;
}
API const char* ncclGetErrorString(int status) {
  switch (status) {
    case SUCCESS: return "no error";
    case SYSTEM_ERROR: return "unhandled system error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    case IN_PROGRESS: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}
API const char* ncclGetLastError(Communicator* of) {
  return (of ? of->last_error : without_communicator).c_str();
}
API int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<unsigned> made{0};
  auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  memset(id, 0, sizeof *id);
  snprintf(id->name, sizeof id->name, "/skein-nccl-%d-%u-%llx", (int)getpid(), made++, (unsigned long long)now);
  return SUCCESS;
}

API int ncclCommInitRankConfig(Communicator** to, int ranks, UniqueId id, int rank, Config* config) {
  if (!config || config->magic != MAGIC || config->size < sizeof(Config) || config->version > (unsigned)version())
    return complain(nullptr, INVALID_ARGUMENT, "a configuration that is not initialised, or is too new");
  if (config->blocking != 0)
    return complain(nullptr, INVALID_ARGUMENT, "a blocking communicator can wait for ever");
  if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks)
    return complain(nullptr, INVALID_ARGUMENT, "there is no such rank");
  int device = skein_emulation_current_device();
  if (device < 0) return complain(nullptr, INVALID_USAGE, "no device is current");
  Segment* segment = map(id.name);
  if (!segment) return complain(nullptr, SYSTEM_ERROR, "no shared memory");
  auto made = new Communicator;
  made->name = id.name, made->segment = segment, made->rank = rank, made->ranks = ranks;
  *to = made;
  if (has_fault("absent", rank, 0)) return IN_PROGRESS;
  if (segment->slots[rank].ranks != 0)
    return break_group(*made, "rank " + std::to_string(rank) + " joins twice");
  segment->slots[rank].host = host();
  segment->slots[rank].device = device;
  segment->slots[rank].ranks = ranks;
  return IN_PROGRESS;
}
API int ncclCommGetAsyncError(Communicator* of, int* state) {
  if (of->state == IN_PROGRESS && !of->has_joined && all_joined(*of)) {
    // All ranks have mapped it, so the name is no longer needed.
    shm_unlink(of->name.c_str());
    of->has_joined = true;
    of->state = SUCCESS;
  }
  if (of->has_joined) is_broken(*of);
  bool waits = of->state == SUCCESS && of->polls > 0;
  if (waits) of->polls--;
  *state = waits ? (int)IN_PROGRESS : of->state.load();
  return SUCCESS;
}
API int ncclCommAbort(Communicator* of) {
  while (has_fault("abort", of->rank, 0)) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (of->is_aborted.exchange(true)) return complain(of, INVALID_USAGE, "a communicator is aborted twice");
  if (!of->has_joined) shm_unlink(of->name.c_str());
  Communicator* own = of;
  running.compare_exchange_strong(own, nullptr);
  return SUCCESS;
}

API int ncclAllGather(const void* own, void* all, size_t count, int type, Communicator* of, void* stream) {
  if (of->is_aborted) return complain(of, INVALID_USAGE, "a communicator is used after its abort");
  if (of->is_busy.exchange(true)) return break_group(*of, "two threads use a communicator at once");
  size_t bytes = count * size_of_type(type);
  int capture = 0, result;
  if (!of->has_joined) {
    result = complain(of, INVALID_USAGE, "a communicator is used before all ranks have joined");
  } else if (is_broken(*of)) {
    result = of->state;
  } else if (bytes == 0 || !skein_emulation_is_device((uint64_t)own, bytes) ||
             !skein_emulation_is_device((uint64_t)all, bytes * of->ranks)) {
    result = complain(of, INVALID_ARGUMENT, "memory that is not on the device, or none");
  } else if (cuStreamIsCapturing(stream, &capture) != 0) {
    result = complain(of, INVALID_ARGUMENT, "a stream that does not exist");
  } else {
    Work work{of, (const char*)own, (char*)all, bytes, Request{0, count, type, capture != 0}, 0, false};
    result = skein_emulation_enqueue_waiting(stream, run, &work, sizeof work) == 0 ? SUCCESS : SYSTEM_ERROR;
    of->polls = count % 3;  // a call that does not block may still be in progress
    if (result == SUCCESS && of->polls > 0) result = IN_PROGRESS;
    if (has_fault("breaks", of->rank, of->works + 1)) result = break_group(*of, "an injected break");
  }
  of->is_busy = false;
  return result;
}
