// tensor_map.h: the contents that the emulated cuTensorMapEncodeTiled writes to the 128 opaque bytes of a
// CUtensorMap, and that the emulated TMA copies read. Fields have the meaning and limits of the driver API's
// cuTensorMapEncodeTiled (CUDA 13.0); the innermost dimension comes first.
#pragma once
#include <cstdint>

namespace emu {

constexpr uint32_t TENSOR_MAP_MAGIC = 0x54534b53;

enum Swizzle : uint8_t { SWIZZLE_NONE = 0, SWIZZLE_32B = 1, SWIZZLE_64B = 2, SWIZZLE_128B = 3 };

struct alignas(128) TensorMap {
  uint32_t magic;              // TENSOR_MAP_MAGIC, or this is no tensor map
  uint8_t rank;                // 1 to 5
  uint8_t element_type;        // CUtensorMapDataType
  uint8_t element_bytes;       // 1, 2, 4 or 8
  uint8_t swizzle;             // Swizzle: within boxes in shared memory
  uint64_t base;               // device address, a multiple of 16
  uint64_t dims[5];            // elements
  uint64_t strides[4];         // bytes from one index of dimension i + 1 to the next; dimension 0 is packed
  uint16_t box[5];             // elements a copy moves, 1 to 256
  uint8_t element_strides[5];  // 1 to 8: every how many elements a copy takes one
  uint8_t nan_fill;            // outside `dims` a copy writes 0, or NaN if this is not 0
};
static_assert(sizeof(TensorMap) == 128, "a CUtensorMap is 128 bytes");

}  // namespace emu
