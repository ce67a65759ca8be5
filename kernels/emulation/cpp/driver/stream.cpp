// stream.cpp: events, and streams whose work runs as late as a call allows.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "state.h"

namespace driver {

namespace {

// Length of a launch queue: like a device, further launches wait until the first have run.
constexpr size_t MAX_QUEUED = 1024;

int64_t now() {
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

uint64_t random_bits() {
  static uint64_t bits = (uint64_t)setting("EMU_SEED", 0) * 0x9e3779b97f4a7c15ull;
  bits ^= bits << 13;
  bits ^= bits >> 7;
  bits ^= bits << 17;
  return bits;
}

// Progress of the device at a query: one operation, or with EMU_SEED a random small number, possibly none.
size_t progress() {
  static const bool is_seeded = setting("EMU_SEED", 0) != 0;
  return is_seeded ? random_bits() % 4 : 1;
}

bool is_done(const Operation& wait) { return wait.event->completed >= wait.record; }

Result run_one(Stream& stream, Operation& operation) {
  if (operation.kind == Operation::WAIT) {
    while (!is_done(operation)) {
      std::shared_ptr<Stream> other = operation.event->stream;
      if (!other || other->is_idle() || other.get() == &stream) break;
      size_t at = other->next;
      if (Result result = proceed(*other, 1)) return result;
      if (state().hangs) return SUCCESS;
      if (!other->is_idle() && other->next == at) return NOT_READY;
    }
    return SUCCESS;
  }
  if (operation.kind == Operation::RECORD) {
    operation.event->completed = operation.record;
    operation.event->nanoseconds = now();
    return SUCCESS;
  }
  return operation.run();
}

}  // namespace

std::shared_ptr<Stream> find_stream(void* handle) {
  if ((uintptr_t)handle <= 2) return state().default_stream;  // null, legacy, per thread
  auto found = state().streams.find(handle);
  return found == state().streams.end() ? nullptr : found->second;
}

Result fail(Result result, const std::string& why) {
  state().sticky = result;
  forget_suspended();
  if (!why.empty()) complain(result, why);
  auto drop = [](Stream& stream) {
    stream.queue.clear();
    stream.next = 0;
  };
  drop(*state().default_stream);
  for (auto& [handle, stream] : state().streams) drop(*stream);
  state().abandoned.clear();
  return result;
}

Result enqueue(Stream& stream, Operation operation) {
  static const bool eager = setting("EMU_EAGER", 0) != 0;
  if (stream.capture) return add_node(stream, std::move(operation));
  stream.queue.push_back(std::move(operation));
  // Errors here are reported by the next call, as on a device.
  if (eager) proceed(stream, SIZE_MAX);
  else if (stream.queue.size() - stream.next > MAX_QUEUED) proceed(stream, 1);
  return SUCCESS;
}

Result proceed(Stream& stream, size_t most) {
  while (most-- > 0 && !stream.is_idle() && !state().hangs) {
    // Moved out because running it may destroy the whole queue.
    Operation operation = std::move(stream.queue[stream.next]);
    Result result = run_one(stream, operation);
    if (result == NOT_READY) {
      stream.queue[stream.next] = std::move(operation);
      return SUCCESS;
    }
    if (result) return state().sticky ? state().sticky : fail(result, "");
    if (state().hangs) {
      stream.queue[stream.next] = std::move(operation);
      return SUCCESS;
    }
    stream.next++;
    if (stream.is_idle()) {
      stream.queue.clear();
      stream.next = 0;
    }
  }
  return SUCCESS;
}

static Result wait_while_hanging(Call& call) {
  while (state().hangs) {
    call.lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    call.lock.lock();
  }
  return state().sticky;
}

// Lets other threads and processes proceed.
static Result pause(Call& call) {
  call.lock.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(50));
  call.lock.lock();
  return state().sticky;
}

Result drain(Call& call, Stream& stream) {
  for (;;) {
    if (Result result = proceed(stream, SIZE_MAX)) return result;
    if (state().hangs) return wait_while_hanging(call);
    if (stream.is_idle()) return SUCCESS;
    if (Result result = pause(call)) return result;
  }
}

Result drain_all(Call& call) {
  std::vector<std::shared_ptr<Stream>> all = state().abandoned;
  all.push_back(state().default_stream);
  for (auto& [handle, stream] : state().streams) all.push_back(stream);
  for (auto& stream : all) {
    if (Result result = drain(call, *stream)) return result;
  }
  state().abandoned.clear();
  return SUCCESS;
}

}  // namespace driver

using namespace driver;

#define STREAM(name, handle)                            \
  std::shared_ptr<Stream> name = find_stream(handle);   \
  if (!name) return complain(INVALID_HANDLE, "a stream that does not exist")
#define EVENT(name, handle)                                       \
  auto found_##name = state().events.find(handle);                \
  if (found_##name == state().events.end()) return complain(INVALID_HANDLE, "an event that does not exist"); \
  std::shared_ptr<CudaEvent> name = found_##name->second

API cuStreamCreateWithPriority(void** handle, unsigned flags, int) {
  ENTER(CONTEXT);
  if (!handle || flags > 1) return INVALID_VALUE;
  auto stream = std::make_shared<Stream>();
  *handle = stream.get();
  state().streams[stream.get()] = stream;
  return SUCCESS;
}
API cuStreamCreate(void** handle, unsigned flags) { return cuStreamCreateWithPriority(handle, flags, 0); }
API cuStreamDestroy_v2(void* handle) {
  driver::Call call(driver::Call::INIT);
  if (call.error) return call.error;
  auto found = state().streams.find(handle);
  if (found == state().streams.end()) return complain(INVALID_HANDLE, "a stream that does not exist");
  if (!found->second->is_idle()) state().abandoned.push_back(found->second);
  state().streams.erase(found);
  return SUCCESS;
}
static Result refuse_captured(Stream& stream) {
  if (!stream.capture) return SUCCESS;
  stream.capture->is_valid = false;
  return complain(CAPTURE_UNSUPPORTED, "a stream is waited for while it is captured");
}
API cuStreamSynchronize(void* handle) {
  ENTER(CONTEXT);
  STREAM(stream, handle);
  if (Result result = refuse_captured(*stream)) return result;
  return drain(call, *stream);
}
API cuStreamQuery(void* handle) {
  ENTER(CONTEXT);
  STREAM(stream, handle);
  if (Result result = refuse_captured(*stream)) return result;
  if (Result result = proceed(*stream, progress())) return result;
  return stream->is_idle() ? SUCCESS : NOT_READY;
}
API cuCtxSynchronize() {
  ENTER(CONTEXT);
  if (Result result = refuse_while_capturing("cuCtxSynchronize")) return result;
  return drain_all(call);
}
API cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
  ENTER(CONTEXT);
  STREAM(stream, handle);
  auto run = [=] {
    function(data);
    return SUCCESS;
  };
  return enqueue(*stream, Operation{Operation::HOST, run, (const void*)function, nullptr, 0});
}

API cuEventCreate(void** handle, unsigned flags) {
  ENTER(CONTEXT);
  auto event = std::make_shared<CudaEvent>();
  event->keeps_time = !(flags & 2);
  *handle = event.get();
  state().events[event.get()] = event;
  return SUCCESS;
}
API cuEventDestroy_v2(void* handle) {
  driver::Call call(driver::Call::INIT);
  if (call.error) return call.error;
  return state().events.erase(handle) ? SUCCESS : complain(INVALID_HANDLE, "an event that does not exist");
}
API cuEventRecord(void* handle, void* of) {
  ENTER(CONTEXT);
  EVENT(event, handle);
  STREAM(stream, of);
  if (stream->capture) {
    event->capture = stream->capture;
    event->before = stream->before;
    return SUCCESS;
  }
  event->capture = nullptr;
  event->stream = stream;
  event->recorded++;
  return enqueue(*stream, Operation{Operation::RECORD, nullptr, nullptr, event, event->recorded});
}
API cuEventQuery(void* handle) {
  ENTER(CONTEXT);
  EVENT(event, handle);
  if (event->capture) return complain(CAPTURED_EVENT, "an event recorded in a capture is asked for");
  if (event->completed < event->recorded && event->stream) {
    if (Result result = proceed(*event->stream, progress())) return result;
  }
  return event->completed >= event->recorded ? SUCCESS : NOT_READY;
}
API cuEventSynchronize(void* handle) {
  ENTER(CONTEXT);
  EVENT(event, handle);
  if (event->capture) return complain(CAPTURED_EVENT, "an event recorded in a capture is waited for");
  while (event->completed < event->recorded && !event->stream->is_idle()) {
    size_t at = event->stream->next;
    if (Result result = proceed(*event->stream, 1)) return result;
    if (state().hangs) {
      if (Result result = wait_while_hanging(call)) return result;
    } else if (!event->stream->is_idle() && event->stream->next == at) {
      if (Result result = pause(call)) return result;
    }
  }
  return SUCCESS;
}
API cuEventElapsedTime_v2(float* milliseconds, void* first, void* second) {
  ENTER(CONTEXT);
  EVENT(start, first);
  EVENT(end, second);
  if (!start->keeps_time || !end->keeps_time || !start->recorded || !end->recorded) return INVALID_HANDLE;
  if (start->completed < start->recorded || end->completed < end->recorded) return NOT_READY;
  *milliseconds = (float)(end->nanoseconds - start->nanoseconds) * 1e-6f;
  return SUCCESS;
}
API cuEventElapsedTime(float* milliseconds, void* first, void* second) {
  return cuEventElapsedTime_v2(milliseconds, first, second);
}
API cuStreamWaitEvent(void* handle, void* of, unsigned) {
  ENTER(CONTEXT);
  STREAM(stream, handle);
  EVENT(event, of);
  if (event->capture) {
    if (!event->capture->is_valid) return CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != event->capture) return CAPTURE_MERGE;
    stream->capture = event->capture;
    stream->before.resize(std::max(stream->before.size(), event->before.size()));
    for (size_t i = 0; i < event->before.size(); i++)
      stream->before[i] = stream->before[i] || event->before[i];
    return SUCCESS;
  }
  if (stream->capture)
    return complain(CAPTURE_ISOLATION, "a captured stream waits for an event outside of the capture");
  return enqueue(*stream, Operation{Operation::WAIT, nullptr, nullptr, event, event->recorded});
}
