// fibers.cpp: switches between fibers, schedules those of a block, and runs the blocks of a grid.
#include "fibers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fault.h"
#include "launch.h"

#ifndef __x86_64__
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMU_ASAN 1
#endif

namespace emu {

Runtime runtime;
const Kernel* kernels = nullptr;

namespace {

constexpr unsigned MAX_THREADS = 1024;
constexpr size_t SHARED_LIMIT = 227 << 10, SHARED_ALIGNMENT = 1024, SHARED_GUARD = 1024;
constexpr uint64_t STACK_CANARY = 0x5afec0de5afec0de;
#ifdef EMU_ASAN
constexpr size_t STACK = 256 << 10;
#else
constexpr size_t STACK = 64 << 10;
#endif
// From stack to stack. At a power of two, the tops of all stacks would compete for a few lines of the cache.
constexpr size_t STACKS_APART = STACK + 5 * 64;

std::string fault;
char* stacks = nullptr;
unsigned char* shared_memory = nullptr;
std::vector<unsigned> order;
// Blocks of the grid in the order in which they run, and how many have ended.
std::vector<unsigned> blocks;
size_t ended = 0;

#ifdef __x86_64__
void* main_sp = nullptr;
extern "C" void emu_switch(void** save, void* load);
asm(R"(.text
.hidden emu_switch
.global emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size emu_switch,.-emu_switch
)");
#else
ucontext_t main_context, contexts[MAX_THREADS];
#endif
#ifdef EMU_ASAN
void* main_fake_stack = nullptr;
const void* main_bottom = nullptr;
size_t main_bytes = 0;
bool is_from_main = false;  // whether main switched to the fiber that runs
#endif

// The pass in progress: the position in `order` of the fiber that runs, and whether it had polled before.
size_t at = 0;
bool has_polled = false;

// The next fiber of the pass that can run, or null.
Fiber* next() {
  for (; at < order.size() && !runtime.faulted; at++) {
    Fiber& fiber = runtime.fibers[order[at]];
    if (fiber.state != READY && fiber.state != POLLING) continue;
    has_polled = fiber.state == POLLING;
    return &fiber;
  }
  return nullptr;
}

// Continues the next fiber, or main at the end of the pass.
void leave() {
  Fiber* fiber = runtime.current;
  runtime.progress |= !has_polled || fiber->state != POLLING;
  at++;
  Fiber* to = next();
  runtime.current = to ? to : fiber;
#ifdef EMU_ASAN
  is_from_main = false;
  __sanitizer_start_switch_fiber(fiber->state == DONE ? nullptr : &fiber->fake_stack,
                                 to ? to->stack : main_bottom, to ? STACK : main_bytes);
#endif
#ifdef __x86_64__
  emu_switch(&fiber->sp, to ? to->sp : main_sp);
#else
  swapcontext(&contexts[fiber->index], to ? &contexts[to->index] : &main_context);
#endif
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(fiber->fake_stack, nullptr, nullptr);
#endif
}

// Runs the rest of the pass, from main.
void run_fibers(Fiber& first) {
  runtime.current = &first;
#ifdef EMU_ASAN
  is_from_main = true;
  __sanitizer_start_switch_fiber(&main_fake_stack, first.stack, STACK);
#endif
#ifdef __x86_64__
  emu_switch(&main_sp, first.sp);
#else
  swapcontext(&main_context, &contexts[first.index]);
#endif
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(main_fake_stack, nullptr, nullptr);
#endif
}

void fiber_main() {
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, is_from_main ? &main_bottom : nullptr,
                                  is_from_main ? &main_bytes : nullptr);
#endif
  Runtime& r = runtime;
  r.entry(r.arguments);
  // A thread that has returned no longer counts at barriers. Copies that it did not wait for never arrive.
  Fiber* fiber = r.current;
  fiber->state = DONE;
  r.live--;
  r.warps[fiber->index / 32].live &= ~(1u << (fiber->index % 32));
  open_barrier_if_all_came();
  leave();
  abort();
}

void start(Fiber& fiber, unsigned index) {
  Runtime& r = runtime;
  fiber.index = index;
  fiber.state = READY;
  fiber.fake_stack = nullptr;
  fiber.copies.clear();
  fiber.commits.clear();
  fiber.stack = stacks + index * STACKS_APART;
  fiber.thread =
      make_uint3(index % r.block.x, index / r.block.x % r.block.y, index / (r.block.x * r.block.y));
  memcpy(fiber.stack, &STACK_CANARY, sizeof STACK_CANARY);
#ifdef __x86_64__
  void** sp = (void**)(((uintptr_t)fiber.stack + STACK) & ~(uintptr_t)15);
  *--sp = nullptr;
  *--sp = (void*)fiber_main;
  for (int saved = 0; saved < 6; saved++) *--sp = nullptr;
  fiber.sp = sp;
#else
  ucontext_t& context = contexts[index];
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack;
  context.uc_stack.ss_size = STACK;
  context.uc_link = nullptr;
  makecontext(&context, fiber_main, 0);
#endif
}

void start_block(unsigned threads) {
  Runtime& r = runtime;
  r.barrier = Barrier{};
  r.live = threads;
  r.pending.clear();
  r.blocks_run++;
  r.warps.resize((threads + 31) / 32);
  for (Warp& warp : r.warps) {
    warp.lanes = warp.live = 0;
    warp.meetings.clear();
  }
  memset(r.shared, 0xff, r.shared_bytes);
#ifdef EMU_ASAN
  __asan_unpoison_memory_region(stacks, threads * STACKS_APART);  // frames of the threads before
#endif
  order.resize(threads);
  for (unsigned i = 0; i < threads; i++) order[i] = i;
  for (unsigned i = 0; i < threads; i++) {
    start(r.fibers[i], i);
    r.warps[i / 32].lanes = r.warps[i / 32].live |= 1u << (i % 32);
  }
}

void report(const std::string& what) {
  runtime.faulted = true;
  fault = what;
  fprintf(stderr, "emulated device: %s\n", fault.c_str());
}

// Runs one piece of asynchronous work.
void deliver() {
  Runtime& r = runtime;
  size_t which = random_bits() % r.pending.size();
  std::function<void()> work = std::move(r.pending[which]);
  r.pending.erase(r.pending.begin() + (ptrdiff_t)which);
  work();
}

// Runs every thread that can run; returns whether any did more than poll.
bool pass() {
  Runtime& r = runtime;
  r.progress = false;
  at = 0;
  if (Fiber* first = next()) run_fibers(*first);
  if (r.faulted) return false;
  return r.progress;
}

void shuffle(std::vector<unsigned>& items) {
  if (!runtime.random) return;
  for (size_t i = items.size(); i > 1; i--) std::swap(items[i - 1], items[random_bits() % i]);
}

// Runs the block until it ends, or false if it waits for another device.
bool run_block() {
  Runtime& r = runtime;
  unsigned threads = (unsigned)r.fibers.size();
  while (r.live > 0 && !r.faulted) {
    shuffle(order);
    r.polls_peers = false;
    bool progress = pass();
    if (r.faulted) break;
    bool hurry = r.random && random_bits() % 4 == 0;
    if (!r.pending.empty() && (!progress || hurry)) {
      deliver();
    } else if (!r.peer_stores.empty() && (!progress || hurry)) {
      land_some_peer_stores();
    } else if (!progress && r.polls_peers) {
      r.current = nullptr;
      return false;
    } else if (!progress && r.live > 0) {
      r.current = &r.fibers[0];
      for (Fiber& fiber : r.fibers) {
        if (fiber.state != DONE) r.current = &fiber;
      }
      report(
          describe("deadlock: threads wait for one another at different barriers, or with the wrong mask"));
    }
  }
  for (unsigned i = 0; i < threads && !r.faulted; i++) {
    if (memcmp(r.fibers[i].stack, &STACK_CANARY, sizeof STACK_CANARY) != 0) {
      r.current = &r.fibers[i];
      report(describe("a thread's stack overflowed"));
    }
  }
  r.current = nullptr;
  return true;
}

void reserve_memory() {
  if (stacks) return;
  auto map = [](size_t bytes) {
    void* memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      fprintf(stderr, "emulated device: no memory for stacks\n");
      abort();
    }
    return (char*)memory;
  };
  stacks = map(MAX_THREADS * STACKS_APART);
  shared_memory = (unsigned char*)map(SHARED_LIMIT + SHARED_ALIGNMENT + SHARED_GUARD);
  shared_memory += -(uintptr_t)shared_memory & (SHARED_ALIGNMENT - 1);
}

void set_shared(size_t bytes) {
  runtime.shared = shared_memory;
  runtime.shared_bytes = bytes;
#ifdef EMU_ASAN
  __asan_unpoison_memory_region(shared_memory, SHARED_LIMIT);
  size_t end = (bytes + 7) & ~(size_t)7;
  __asan_poison_memory_region(shared_memory + end, SHARED_LIMIT + SHARED_GUARD - end);
#endif
}

void start_random() {
  const char* seed = getenv("EMU_SEED");
  runtime.random = seed ? strtoull(seed, nullptr, 10) * 0x9e3779b97f4a7c15ull : 0;
}

}  // namespace

std::string describe(const char* what) {
  const Runtime& r = runtime;
  std::string text = std::string(what) + " in kernel " + r.kernel;
  if (!r.current) return text;
  char where[160];
  const uint3 &block = r.block_index, &thread = r.current->thread;
  snprintf(where, sizeof where, ", block (%u,%u,%u), thread (%u,%u,%u)", block.x, block.y, block.z, thread.x,
           thread.y, thread.z);
  return text + where;
}

void die(const char* what) {
  report(describe(what));
  if (!runtime.current) abort();
  runtime.current->state = DONE;
  leave();
  abort();
}

void yield() { leave(); }

uint64_t random_bits() {
  uint64_t& state = runtime.random;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

void later(std::function<void()> work) { runtime.pending.push_back(std::move(work)); }

static void begin(const Launch& launch) {
  Runtime& r = runtime;
  reserve_memory();
  start_random();
  r.kernel = launch.kernel;
  r.grid = launch.grid;
  r.block = launch.block;
  r.faulted = r.waited_for_grids = r.stored_to_peers = false;
  r.peer_stores.clear();
  r.fibers.resize((size_t)launch.block.x * launch.block.y * launch.block.z);
  set_shared(launch.shared_bytes);
  catch_bad_addresses();
  blocks.resize((size_t)r.grid.x * r.grid.y * r.grid.z);
  for (unsigned i = 0; i < blocks.size(); i++) blocks[i] = i;
  shuffle(blocks);
  ended = 0;
}

Outcome run(const Launch& launch) {
  Runtime& r = runtime;
  if (!r.is_suspended) begin(launch);
  r.entry = launch.entry;
  r.arguments = launch.arguments;
  for (; ended < blocks.size() && !r.faulted; ended++) {
    if (!r.is_suspended) {
      unsigned i = blocks[ended];
      r.block_index = make_uint3(i % r.grid.x, i / r.grid.x % r.grid.y, i / (r.grid.x * r.grid.y));
      start_block((unsigned)r.fibers.size());
    }
    r.is_suspended = !run_block();
    if (r.is_suspended) return Outcome::WAITS;
  }
  land_peer_stores();
  return r.faulted ? Outcome::FAULTED : Outcome::ENDED;
}

void forget_suspended() {
  runtime.is_suspended = false;
  runtime.peer_stores.clear();
}

const char* last_fault() { return fault.c_str(); }

}  // namespace emu
