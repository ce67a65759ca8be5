// peers.cpp: stores to memory of other devices, which land late.
#include <algorithm>

#include "fibers.h"

namespace emu {

namespace {

void put(uint32_t* to, uint32_t value) {
  if (!runtime.drops_peer_stores) __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

void land(size_t index) {
  std::vector<PeerStore>& stores = runtime.peer_stores;
  std::swap(stores[index], stores.back());
  PeerStore store = stores.back();
  stores.pop_back();
  put(store.to, store.value);
}

}  // namespace

void store_to_peer(void* to, uint32_t value) {
  Runtime& r = runtime;
  r.stored_to_peers = true;
  r.peer_stores.push_back({(uint32_t*)to, value, r.current->index, r.barrier.round, r.blocks_run});
}

void release_to_peer(void* to, uint32_t value) {
  Runtime& r = runtime;
  for (size_t i = r.peer_stores.size(); i-- > 0;) {
    const PeerStore& store = r.peer_stores[i];
    if (store.block != r.blocks_run) continue;
    if (store.fiber == r.current->index || store.round != r.barrier.round) land(i);
  }
  r.stored_to_peers = true;
  put((uint32_t*)to, value);
}

void land_some_peer_stores() {
  std::vector<PeerStore>& stores = runtime.peer_stores;
  for (size_t left = std::max(stores.size() / 4, (size_t)1); left > 0; left--)
    land(runtime.random ? random_bits() % stores.size() : stores.size() - 1);
}

void land_peer_stores() {
  while (!runtime.peer_stores.empty()) land_some_peer_stores();
}

void poll_peers() {
  runtime.polls_peers = true;
  runtime.current->state = POLLING;
  yield();
}

}  // namespace emu
