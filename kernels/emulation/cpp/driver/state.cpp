// state.cpp: the driver's single state, and how calls enter it.
#include "state.h"

#include <cstdio>
#include <cstdlib>

namespace driver {

thread_local void* current_context = nullptr;

State& state() {
  // Never destroyed: handles outlive static destructors.
  static State* state = new State;
  return *state;
}

Call::Call(Need need) : lock(state().lock), error(SUCCESS) {
  if (need != NOTHING && !state().initialized) error = NOT_INITIALIZED;
  else if (need == CONTEXT && !current_context) error = INVALID_CONTEXT;
  else if (need == CONTEXT) error = state().sticky;
}

int setting(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value ? atoi(value) : otherwise;
}

Result complain(Result result, const std::string& why) {
  fprintf(stderr, "emulated driver: %s\n", why.c_str());
  return result;
}

}  // namespace driver
