// attention_plan.cu: lists attention's work on the device, once per step, so that one captured graph serves
// any content.
#include "attention.cuh"

constexpr u32 THREADS = 256;

// Sum of `v` over the threads before this one; `total` is the sum over all.
__device__ __forceinline__ u32 scan(u32 v, u32& total) {
  __shared__ u32 sums[THREADS / 32];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, inclusive = v;
#pragma unroll
  for (u32 o = 1; o < 32; o *= 2) {
    u32 other = __shfl_up_sync(FULL_WARP, inclusive, o);
    if (lane >= o) inclusive += other;
  }
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  u32 before = 0;
  total = 0;
#pragma unroll
  for (u32 i = 0; i < THREADS / 32; i++) {
    before += i < warp ? sums[i] : 0;
    total += sums[i];
  }
  __syncthreads();
  return before + inclusive - v;
}

// Parameters that are the same for all sequences.
struct Plan {
  Sequences sequences;
  u32 capacity, group;
  Window window;
  u32 max_rows;  // sequences with this many rows or more are for another kernel; 0: none
};

// One sequence's tiles.
struct Share {
  u32 large, tiles;  // size (0 = small); number
  u32 first, seen;   // first position of the first part; number of positions

  __device__ __forceinline__ Share(const Plan& plan, u32 sequence, u32 align)
      : large(0), tiles(0), first(0), seen(0) {
    if (sequence >= plan.capacity) return;
    Span span(plan.sequences, sequence, plan.group);
    if (span.rows == 0 || (plan.max_rows && span.rows >= plan.max_rows)) return;
    large = span.packed() > SMALL_ROWS;
    u32 rows = large ? LARGE_ROWS : SMALL_ROWS;
    tiles = (span.packed() + rows - 1) / rows;
    first = span.first_seen(0, plan.window) / align * align;
    seen = span.context - first;
  }
};

// Writes the items of one sequence and the groups to merge. Called by whole warps. Later tiles come first,
// because they see most positions.
__device__ __forceinline__ void write_items(const Share& share, u32 sequence, u32 parts, u32 slot, u32 kv_heads,
                                            Item* items, Item* groups, u32* group_count) {
  for (u32 i = threadIdx.x % 32; i < share.tiles * parts; i += 32) {
    u32 tile = share.tiles - 1 - i / parts, part = i % parts;
    Item item{sequence, tile, part | parts << 16, slot + tile * kv_heads * parts};
    items[i] = item;
    if (parts > 1 && part == 0) groups[atomicAdd(group_count, 1u)] = item;
  }
}

// attention_plan: lists the tiles of a step. Divides their contexts into parts if there would be too few
// items.
//   header        Header
//   items_small, items_large, groups_small, groups_large   sized by ops/attention
//   row_starts    [capacity + 1]  u32
//   context_lens  [capacity]      u32
// Grid (1), block 256. A sequence gets one small tile if its rows, times `group`, are at most 16, and large
// tiles otherwise. Parts have max(least, positions of all tiles / wanted) positions, a multiple of 64: so no
// item is longer than a fair share, and the parts of divided tiles need at most 2 * wanted slots. With
// `fixed`, parts always have that many positions, counted from position 0; a tile that finds no slots becomes
// one item, which merges its parts itself in the same order.
// Sequences with `max_rows` rows or more get no tiles, because attention_sm90 handles them; 0: all sequences
// get tiles.
// Order: sequences as given, later tiles first. Reads and writes a few KiB; predicted 3 to 6 us per step (not
// yet run on a GPU).
// Reference: check/attention.rs checks through the whole path that every (row, head) is computed once.
extern "C" __global__ void __launch_bounds__(256)
    attention_plan(Header* header, Item* items_small, Item* items_large, Item* groups_small, Item* groups_large,
                   const u32* row_starts, const u32* context_lens, u32 capacity, u32 kv_heads, u32 group, u32 window,
                   u32 chunked, u32 fixed, u32 least_small, u32 least_large, u32 wanted_small, u32 wanted_large, u32 slots_small,
                   u32 slots_large, u32 max_rows) {
  __shared__ unsigned long long work[2];
  __shared__ u32 length[2], group_counts[2];
  __shared__ Item cuts[THREADS];  // sequence, first item, parts, first slot
  ptx::grid_dependency_wait();
  Plan plan{{row_starts, context_lens}, capacity, group, {window, chunked}, max_rows};
  u32 align = fixed ? fixed : 64;
  if (threadIdx.x < 2) work[threadIdx.x] = group_counts[threadIdx.x] = 0;
  __syncthreads();
  for (u32 s = threadIdx.x; s < capacity; s += THREADS) {
    Share share(plan, s, align);
    if (share.tiles) atomicAdd(&work[share.large], (unsigned long long)share.tiles * share.seen);
  }
  __syncthreads();
  if (threadIdx.x < 2) {
    u32 i = threadIdx.x;
    u32 wanted = i ? wanted_large : wanted_small, least = i ? least_large : least_small;
    u32 fair = (u32)((work[i] * kv_heads + wanted - 1) / wanted);
    fair = fair > least ? fair : least;
    length[i] = fixed ? fixed : (fair + 63) / 64 * 64;
  }
  __syncthreads();
  u32 item_counts[2] = {0, 0}, slot_counts[2] = {0, 0};
  for (u32 start = 0; start < capacity; start += THREADS) {
    u32 s = start + threadIdx.x;
    Share share(plan, s, align);
    u32 most = length[share.large], parts = share.tiles ? (share.seen + most - 1) / most : 0, slot = 0, first = 0;
    // In batch-invariant mode large tiles merge their parts themselves, because there are many of them,
    // except where decode needs large tiles.
    if (fixed && share.large && parts > 1 && group <= SMALL_ROWS) parts = 1;
#pragma unroll
    for (u32 size = 0; size < 2; size++) {
      bool mine = share.large == size && share.tiles;
      u32 needed = mine && parts > 1 ? share.tiles * parts * kv_heads : 0, total;
      u32 at = slot_counts[size] + scan(needed, total);
      slot_counts[size] += total;
      if (needed) {
        slot = at;
        if (at + needed > (size ? slots_large : slots_small)) parts = 1;
      }
      at = item_counts[size] + scan(mine ? share.tiles * parts : 0, total);
      item_counts[size] += total;
      if (mine) first = at;
    }
    cuts[threadIdx.x] = Item{s, first, parts, slot};
    __syncthreads();
    for (u32 i = threadIdx.x / 32; i < THREADS && start + i < capacity; i += THREADS / 32) {
      Item cut = cuts[i];
      Share of(plan, cut.sequence, align);
      if (of.tiles == 0) continue;
      Item* items = (of.large ? items_large : items_small) + cut.tile;
      write_items(of, cut.sequence, cut.part, cut.slot, kv_heads, items, of.large ? groups_large : groups_small,
                  &group_counts[of.large]);
    }
    __syncthreads();
  }
  if (threadIdx.x < 2) {
    u32 i = threadIdx.x;
    header->items[i] = i ? item_counts[1] : item_counts[0];
    header->groups[i] = group_counts[i];
    header->next[i] = 0;
    header->length[i] = length[i];
  }
}
EXPORT(attention_plan)
