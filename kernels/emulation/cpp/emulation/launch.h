// launch.h: converts the driver's form of a launch, an array of pointers to arguments, to a C++ call in every
// fiber.
#pragma once
#include <type_traits>
#include <utility>

#include "fibers.h"

namespace emu {

template <class... A, size_t... I>
inline void call_packed(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
  kernel(*(std::remove_reference_t<A>*)args[I]...);
}

template <class... A>
inline Outcome launch_packed(const char* name, void (*kernel)(A...), dim3 grid, dim3 block, size_t shared,
                             void** args) {
  struct Call {
    void (*kernel)(A...);
    void** args;
  } call{kernel, args};
  auto entry = [](void* of) {
    Call* call = (Call*)of;
    call_packed(call->kernel, call->args, std::index_sequence_for<A...>{});
  };
  return run(Launch{name, grid, block, shared, entry, &call});
}

// A kernel as the driver finds it; the list of parameter sizes ends with 0.
struct Kernel {
  const char* name;
  Outcome (*launch)(dim3 grid, dim3 block, size_t shared, void** args);
  const size_t* parameter_bytes;
  const Kernel* next;
};
__attribute__((visibility("hidden"))) extern const Kernel* kernels;

template <class... A> struct ParameterBytes {
  static constexpr size_t bytes[] = {sizeof(A)..., 0};
};
template <class... A>
constexpr const size_t* parameter_bytes(void (*)(A...)) {
  return ParameterBytes<A...>::bytes;
}

struct Registration {
  Kernel kernel;
  Registration(const char* name, decltype(Kernel::launch) launch, const size_t* parameter_bytes)
      : kernel{name, launch, parameter_bytes, kernels} {
    kernels = &kernel;
  }
};

}  // namespace emu

#define EXPORT(kernel)                                                                         \
  static emu::Outcome emu_launch_##kernel(dim3 grid, dim3 block, size_t shared, void** args) { \
    return emu::launch_packed(#kernel, &kernel, grid, block, shared, args);                    \
  }                                                                                            \
  static emu::Registration emu_registration_##kernel(#kernel, emu_launch_##kernel,             \
                                                     emu::parameter_bytes(&kernel));

#define threadIdx (emu::rt().current->thread)
#define blockIdx (emu::rt().block_index)
#define blockDim (emu::rt().block)
#define gridDim (emu::rt().grid)
constexpr int warpSize = 32;
#define DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(emu::rt().shared)
