// fault.cpp: a kernel's access to unmapped memory becomes a fault of its launch, as on a device.
#include "fault.h"

#include <signal.h>
#include <ucontext.h>

#include <cstdio>

#include "fibers.h"

namespace emu {

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
namespace {

struct sigaction before[2];
int position(int signal) { return signal == SIGSEGV ? 0 : 1; }

[[noreturn]] void land() { die("illegal address"); }

// Continues the faulting fiber in `land`, which switches away from it for good. Outside of kernels, calls the
// previous handler.
void on_signal(int signal, siginfo_t*, void* context) {
  if (!runtime.current) {
    sigaction(signal, &before[position(signal)], nullptr);
    return;
  }
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  registers[REG_RIP] = (greg_t)&land;
  registers[REG_RSP] = ((registers[REG_RSP] - 256) & ~(greg_t)15) - 8;
}

}  // namespace

void catch_bad_addresses() {
  for (int signal : {SIGSEGV, SIGBUS}) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_signal) continue;
    before[position(signal)] = now;
    struct sigaction ours {};
    ours.sa_sigaction = on_signal;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(signal, &ours, nullptr);
  }
}
#else
void catch_bad_addresses() {}
#endif

}  // namespace emu
