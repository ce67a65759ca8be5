// segment.h: shared memory of a group's ranks, and one rank's communicator.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace nccl {

// ncclResult_t.
enum Status {
  SUCCESS = 0,
  SYSTEM_ERROR = 2,
  INVALID_ARGUMENT = 4,
  INVALID_USAGE = 5,
  REMOTE_ERROR = 6,
  IN_PROGRESS = 7,
};

constexpr int MAX_RANKS = 16;
constexpr size_t CHUNK = 128 << 10;  // bytes of a rank that are moved at once

// Operation that a rank requests. All ranks must request the same one.
struct Request {
  uint64_t number;  // of the communicator's collective operations, from 1
  uint64_t count;
  int32_t type;
  int32_t is_captured;
};

// One rank's part. `posted` and `read` count chunks. A chunk is written once all ranks have read the previous
// one.
struct Slot {
  std::atomic<uint32_t> ranks;  // number of ranks as this one was told; 0: it has not joined
  std::atomic<int32_t> host, device;  // EMU_HOST tells apart the machines that processes stand for
  std::atomic<uint64_t> posted, read;
  Request request;
  char data[CHUNK];
};

struct Segment {
  std::atomic<uint32_t> is_broken;
  char complaint[512];
  Slot slots[MAX_RANKS];
};

// One all-gather in flight. A graph has one for all its launches.
struct Work;

struct Communicator {
  std::string name;
  Segment* segment;
  int rank, ranks;
  std::atomic<int> state{IN_PROGRESS};
  std::atomic<bool> is_busy{false}, is_aborted{false}, has_joined{false};
  std::atomic<int> polls{0};  // how often the state is still "in progress"
  uint64_t chunk = 0, works = 0;
  bool hangs = false;
  Work* active = nullptr;
  std::string last_error;
};

// ---- faults.cpp -----------------------------------------------------------------------------
// A fault of `rank` at its `at`-th collective operation, as EMU_NCCL_FAULT says: kind:rank[:at].
bool has_fault(const char* kind, int rank, uint64_t at);
int version();
int host();

}  // namespace nccl
