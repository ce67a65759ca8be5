// injection.cpp: faults on demand, from the environment or from a test in the same process.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

extern "C" int skein_emulation_current_device();

namespace driver {

namespace {

// Launches or allocations until the fault occurs; 0: not armed. Refusals stay armed.
unsigned countdown[INJECTIONS];

}  // namespace

void arm_from_environment() {
  const char* names[INJECTIONS] = {"EMU_HANG_AT_LAUNCH",
                                   "EMU_ILLEGAL_ADDRESS_AT_LAUNCH", "EMU_ECC_AT_LAUNCH",
                                   "EMU_NO_MEMORY_AT_ALLOCATION",
                                   "EMU_NO_OVERLAP_IN_CAPTURE",
                                   "EMU_NO_CAPTURE",
                                   "EMU_NO_GRAPH_LAUNCH"};
  for (int i = 0; i < INJECTIONS; i++) countdown[i] = (unsigned)setting(names[i], 0);
}

bool is_silent(int grid) {
  const char* fault = getenv("EMU_PEER");
  int device = 0, from = 0;
  return fault && sscanf(fault, "silent:%d:%d", &device, &from) == 2 && grid >= from &&
         skein_emulation_current_device() == device;
}

bool is_armed(Injection injection) { return countdown[injection] != 0; }

bool strikes_by_name(const char* fault, const char* kernel) {
  static const char* asked = getenv("EMU_FAULT");
  size_t length = strlen(fault);
  return asked && strncmp(asked, fault, length) == 0 && asked[length] == ':' &&
         strcmp(asked + length + 1, kernel) == 0;
}

bool launches_nothing() {
  static const char* asked = getenv("EMU_LAUNCH");
  return asked && strcmp(asked, "nothing") == 0;
}

bool strikes(Injection injection) { return countdown[injection] != 0 && --countdown[injection] == 0; }

}  // namespace driver

extern "C" __attribute__((visibility("default"))) void skein_emulation_inject(int injection, unsigned at) {
  driver::Call call(driver::Call::NOTHING);
  if (injection >= 0 && injection < driver::INJECTIONS) driver::countdown[injection] = at;
}

extern "C" __attribute__((visibility("default"))) void skein_emulation_reset() {
  driver::Call call(driver::Call::NOTHING);
  driver::State& state = driver::state();
  for (unsigned& left : driver::countdown) left = 0;
  state.hangs = false;
  driver::forget_suspended();
  state.sticky = driver::SUCCESS;
  auto drop = [](driver::Stream& stream) {
    for (size_t i = stream.next; i < stream.queue.size(); i++) {
      driver::Operation& operation = stream.queue[i];
      if (operation.kind == driver::Operation::RECORD) operation.event->completed = operation.record;
    }
    stream.queue.clear();
    stream.next = 0;
    stream.capture = nullptr;
  };
  drop(*state.default_stream);
  for (auto& [handle, stream] : state.streams) drop(*stream);
  state.abandoned.clear();
}

extern "C" __attribute__((visibility("default"))) const char* skein_emulation_last_fault() {
  return emu::last_fault();
}
