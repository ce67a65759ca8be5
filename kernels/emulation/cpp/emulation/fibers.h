// fibers.h: one fiber per CUDA thread, and the block that they form.
//
// Blocks run one after the other. Within a block every thread is a fiber that runs until it waits for others.
// EMU_SEED shuffles the order of threads and of blocks, so that a missing barrier shows. Not modelled: blocks
// that wait for each other, clusters, weak memory, bank conflicts.
//
// A grid may wait for a grid on another device, which is another process. Then `run` returns and continues at
// the next call. Blocks have the same order in all processes, so each may wait for its counterparts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "types.h"

namespace emu {

enum State : uint8_t { READY, WAIT_BLOCK, WAIT_WARP, POLLING, DONE };

struct Copy {
  void* to;
  const void* from;
  unsigned bytes;
  bool zero;  // writes zeros instead
};

struct Fiber {
  void* sp = nullptr;
  char* stack = nullptr;
  void* fake_stack = nullptr;  // ASan's
  State state = READY;
  uint3 thread{};
  unsigned index = 0;             // in the block, x first
  std::vector<Copy> copies;       // cp.async: issued, not landed
  std::vector<unsigned> commits;  // ends of the committed groups in `copies`
};

// Input and result of a lane in a warp collective.
struct alignas(16) Slot {
  unsigned char bytes[64];
};

// Lanes that wait for each other, one set per mask. Two buffers, because a lane may return before another has
// read.
struct Meeting {
  uint32_t mask = 0, arrived = 0;
  unsigned round = 0;
  Slot slots[2][32];
};

struct Warp {
  uint32_t lanes = 0, live = 0;  // those that exist, and those that have not returned
  std::vector<Meeting> meetings;
};

// __syncthreads and its reductions; two buffers as above.
struct Barrier {
  unsigned arrived = 0, round = 0;
  int any[2] = {0, 0}, count[2] = {0, 0}, all[2] = {1, 1};
};

// A store to memory of another device that has not landed. `block` and `round` say before which barrier it
// was made.
struct PeerStore {
  uint32_t* to;
  uint32_t value;
  unsigned fiber, round;
  uint64_t block;
};

struct Runtime {
  dim3 grid, block;
  uint3 block_index{};
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Fiber* current = nullptr;  // null outside of kernels
  unsigned live = 0;
  Barrier barrier;
  unsigned char* shared = nullptr;  // dynamic shared memory, 1024-byte aligned
  size_t shared_bytes = 0;
  std::vector<std::function<void()>> pending;  // asynchronous work that has not happened yet
  std::vector<PeerStore> peer_stores;
  bool polls_peers = false;         // a thread waits for another device in this pass
  bool stored_to_peers = false;     // this grid has
  bool drops_peer_stores = false;   // a fault: they never land
  bool is_suspended = false;        // the grid waits for another device
  uint64_t random = 0;                         // 0: threads and blocks run in their order
  const char* kernel = "?";
  void (*entry)(void*) = nullptr;
  void* arguments = nullptr;
  uint64_t blocks_run = 0;         // those before this one, over all launches
  bool progress = false;           // a thread did more than poll in this pass
  bool waited_for_grids = false;  // griddepcontrol.wait was called
  bool faulted = false;
};

// Hidden visibility, so that kernels access it without the linker's tables.
__attribute__((visibility("hidden"))) extern Runtime runtime;
inline Runtime& rt() { return runtime; }

// Ends the launch with a fault: prints it with its location and never returns.
[[noreturn]] void die(const char* what);
// Lets other threads run. The caller has set its state; READY means that it can continue.
void yield();
// Random bits; 0 without EMU_SEED.
uint64_t random_bits();
// Asynchronous work of the hardware, run as late as possible: when no thread can continue without it, or with
// EMU_SEED at random times.
void later(std::function<void()> work);

// Waits until `is_done()`, for example at an mbarrier. If nothing can end the wait, it is reported as a
// deadlock.
template <class Condition> inline void wait_until(Condition is_done) {
  while (!is_done()) {
    rt().current->state = POLLING;
    yield();
  }
  rt().progress = true;
}

// ---- peers.cpp: other devices --------------------------------------------------------------------
// Stores a word to another device. It lands late: at a release that covers it, when all threads wait, with
// EMU_SEED at random times, or at the grid's end. Without EMU_SEED the latest store lands first.
void store_to_peer(void* to, uint32_t value);
// The same with a release: first lands all stores that it covers, which are this thread's own and those
// before a barrier of its block, and then at once.
void release_to_peer(void* to, uint32_t value);
// Lands some stores, or all.
void land_some_peer_stores();
void land_peer_stores();
// One turn of a loop that waits for another device.
void poll_peers();

inline unsigned lane() { return rt().current->index & 31; }
inline Warp& warp() { return rt().warps[rt().current->index / 32]; }
inline void wake(Fiber& fiber, State from) {
  if (fiber.state == from) fiber.state = READY;
}
// The barrier opens when all threads that have not returned have arrived.
inline void open_barrier_if_all_came() {
  Runtime& r = rt();
  if (r.live == 0 || r.barrier.arrived != r.live) return;
  r.barrier.arrived = 0;
  r.barrier.round++;
  for (Fiber& fiber : r.fibers) wake(fiber, WAIT_BLOCK);
}

// How far a grid has run. If it faulted, last_fault() says why. If it waits for another device, it continues
// when it is run again, before any other.
enum class Outcome { ENDED, FAULTED, WAITS };
struct Launch {
  const char* kernel;
  dim3 grid, block;
  size_t shared_bytes;
  void (*entry)(void*);
  void* arguments;
};
Outcome run(const Launch& launch);
// Forgets a grid that waits.
void forget_suspended();
const char* last_fault();

}  // namespace emu
