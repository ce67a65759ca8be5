// collectives.h: barriers and warp collectives, at which fibers wait for each other.
#pragma once
#include <cstring>

#include "fibers.h"

namespace emu {

// Returns which buffer holds this barrier's reductions.
inline unsigned syncthreads(int predicate = 0) {
  Runtime& r = rt();
  Barrier& barrier = r.barrier;
  unsigned buffer = barrier.round & 1;
  if (barrier.arrived == 0) {
    barrier.count[buffer] = barrier.any[buffer] = 0;
    barrier.all[buffer] = 1;
  }
  barrier.count[buffer] += predicate != 0;
  barrier.all[buffer] &= predicate != 0;
  barrier.any[buffer] |= predicate != 0;
  unsigned round = barrier.round;
  barrier.arrived++;
  open_barrier_if_all_came();
  if (barrier.round == round) {
    r.current->state = WAIT_BLOCK;
    yield();
  }
  return buffer;
}

constexpr size_t MAX_MASKS = 16;

inline Meeting& meeting_of(Warp& warp, uint32_t mask) {
  for (Meeting& meeting : warp.meetings) {
    if (meeting.mask == mask) return meeting;
  }
  // A returned reference survives a switch: its target never moves.
  if (warp.meetings.capacity() == 0) warp.meetings.reserve(MAX_MASKS);
  if (warp.meetings.size() == MAX_MASKS) die("too many different masks in one warp");
  warp.meetings.emplace_back();
  warp.meetings.back().mask = mask;
  return warp.meetings.back();
}

// Every lane of `mask` passes `bytes` bytes. The last one to arrive turns them into the lanes' results with
// `combine(slots)`. Returns all 32 slots.
template <class Combine>
inline const Slot* meet(uint32_t mask, const void* mine, size_t bytes, Combine combine) {
  Runtime& r = rt();
  Fiber* fiber = r.current;
  Warp& warp = emu::warp();
  unsigned lane = fiber->index & 31;
  mask &= warp.lanes;
  if (!(mask >> lane & 1)) die("a lane calls a warp collective with a mask that leaves it out");
  if ((mask & warp.live) != mask) die("a warp collective names a lane that has already returned");
  Meeting& meeting = meeting_of(warp, mask);
  Slot* slots = meeting.slots[meeting.round & 1];
  if (bytes) memcpy(slots[lane].bytes, mine, bytes);
  meeting.arrived |= 1u << lane;
  if (meeting.arrived == mask) {
    meeting.arrived = 0;
    meeting.round++;
    combine(slots);
    Fiber* first = &r.fibers[fiber->index & ~31u];
    for (uint32_t left = mask; left; left &= left - 1) wake(first[__builtin_ctz(left)], WAIT_WARP);
  } else {
    fiber->state = WAIT_WARP;
    yield();
  }
  return slots;
}

inline const Slot* exchange(uint32_t mask, const void* mine, size_t bytes) {
  return meet(mask, mine, bytes, [](Slot*) {});
}

template <class T> inline T get(const Slot* slots, unsigned lane) {
  T value;
  memcpy(&value, slots[lane & 31].bytes, sizeof(T));
  return value;
}

template <class T> inline T shuffle(uint32_t mask, T value, unsigned source, bool is_inside) {
  static_assert(sizeof(T) <= sizeof(Slot), "a shuffle moves one slot");
  const Slot* slots = exchange(mask, &value, sizeof(T));
  if (!is_inside) return value;
  if (!(mask >> (source & 31) & 1)) die("a shuffle reads a lane outside its mask");
  return get<T>(slots, source);
}

}  // namespace emu

inline void __syncthreads() { emu::syncthreads(); }
inline int __syncthreads_or(int p) { return emu::rt().barrier.any[emu::syncthreads(p)]; }
inline int __syncthreads_and(int p) { return emu::rt().barrier.all[emu::syncthreads(p)]; }
inline int __syncthreads_count(int p) { return emu::rt().barrier.count[emu::syncthreads(p)]; }
inline void __syncwarp(unsigned mask = ~0u) { emu::exchange(mask, nullptr, 0); }
inline unsigned __activemask() { return emu::warp().live; }

template <class T> inline T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
  unsigned lane = emu::lane();
  return emu::shuffle(mask, v, (lane & ~(width - 1)) | (source & (width - 1)), true);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int lane_mask, int width = 32) {
  unsigned lane = emu::lane(), source = lane ^ lane_mask;
  return emu::shuffle(mask, v, source, (source & ~(width - 1)) <= (lane & ~(width - 1)));
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  unsigned lane = emu::lane();
  return emu::shuffle(mask, v, lane + delta, (lane & (width - 1)) + delta < (unsigned)width);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  unsigned lane = emu::lane();
  return emu::shuffle(mask, v, lane - delta, (lane & (width - 1)) >= delta);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const emu::Slot* slots = emu::exchange(mask, &predicate, sizeof predicate);
  mask &= emu::warp().lanes;
  unsigned ballot = 0;
  for (unsigned i = 0; i < 32; i++) {
    if (mask >> i & 1 && emu::get<int>(slots, i)) ballot |= 1u << i;
  }
  return ballot;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <class T> inline unsigned __match_any_sync(unsigned mask, T value) {
  const emu::Slot* slots = emu::exchange(mask, &value, sizeof value);
  unsigned same = 0;
  for (unsigned i = 0; i < 32; i++) {
    if (mask >> i & 1 && emu::get<T>(slots, i) == value) same |= 1u << i;
  }
  return same;
}
template <class T, class Op> inline T emu_reduce(unsigned mask, T value, Op op) {
  const emu::Slot* slots = emu::exchange(mask, &value, sizeof value);
  mask &= emu::warp().lanes;
  T all = value;
  for (unsigned i = 0; i < 32; i++) {
    if (mask >> i & 1 && i != emu::lane()) all = op(all, emu::get<T>(slots, i));
  }
  return all;
}
inline unsigned __reduce_add_sync(unsigned m, unsigned v) {
  return emu_reduce(m, v, [](auto a, auto b) { return a + b; });
}
inline unsigned __reduce_or_sync(unsigned m, unsigned v) {
  return emu_reduce(m, v, [](auto a, auto b) { return a | b; });
}
inline unsigned __reduce_and_sync(unsigned m, unsigned v) {
  return emu_reduce(m, v, [](auto a, auto b) { return a & b; });
}
template <class T> inline T __reduce_max_sync(unsigned m, T v) {
  return emu_reduce(m, v, [](auto a, auto b) { return a > b ? a : b; });
}
template <class T> inline T __reduce_min_sync(unsigned m, T v) {
  return emu_reduce(m, v, [](auto a, auto b) { return a < b ? a : b; });
}
