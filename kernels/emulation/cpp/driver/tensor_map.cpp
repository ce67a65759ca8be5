// tensor_map.cpp: cuTensorMapEncodeTiled, with the limits that the driver API documents for it.
#include "../tensor_map.h"

#include <cstring>

#include "state.h"

using namespace driver;

namespace {

// By CUtensorMapDataType: u8, u16, u32, i32, u64, i64, f16, f32, f64, bf16, f32 flushed, tf32, tf32 flushed.
constexpr uint8_t ELEMENT_BYTES[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
constexpr int FIRST_FLOAT = 6;
constexpr unsigned SWIZZLE_BYTES[] = {0, 32, 64, 128};
constexpr uint64_t MAX_DIM = 1ull << 32, MAX_STRIDE = 1ull << 40;
constexpr unsigned MAX_BOX = 256, MAX_ELEMENT_STRIDE = 8;

const char* why_not(const emu::TensorMap& map, const uint32_t* box, const uint32_t* element_strides) {
  if (map.base % 16) return "the address is not a multiple of 16";
  for (unsigned i = 0; i < map.rank; i++) {
    if (map.dims[i] == 0 || map.dims[i] > MAX_DIM) return "a dimension is not within 1 to 2^32";
    if (box[i] == 0 || box[i] > MAX_BOX) return "a box dimension is not within 1 to 256";
    if (element_strides[i] == 0 || element_strides[i] > MAX_ELEMENT_STRIDE)
      return "an element stride is not within 1 to 8";
    if (i + 1 == map.rank) continue;
    if (map.strides[i] % 16 || map.strides[i] >= MAX_STRIDE)
      return "a stride is not a multiple of 16 below 2^40";
    uint64_t inner = i == 0 ? map.dims[0] * map.element_bytes : map.dims[i] * map.strides[i - 1];
    if (map.strides[i] < inner) return "a stride is shorter than the dimension inside it";
  }
  unsigned row = box[0] * map.element_bytes, swizzle = SWIZZLE_BYTES[map.swizzle];
  if (row % 16) return "the box's inner dimension is not a multiple of 16 bytes";
  if (swizzle && row > swizzle) return "the box's inner dimension is longer than the swizzle";
  return nullptr;
}

}  // namespace

API cuTensorMapEncodeTiled(void* to, int type, unsigned rank, void* base, const uint64_t* dims,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                           int interleave, int swizzle, int promotion, int fill) {
  driver::Call call(driver::Call::NOTHING);
  auto refuse = [](const char* why) {
    return complain(INVALID_VALUE, std::string("cuTensorMapEncodeTiled: ") + why);
  };
  if (!to || (uintptr_t)to % 128) return refuse("the map is not aligned to 128 bytes");
  if (type < 0 || type >= (int)sizeof ELEMENT_BYTES) return refuse("the element type is not emulated");
  if (rank < 1 || rank > 5) return refuse("the rank is not within 1 to 5");
  if (interleave != 0 || swizzle < 0 || swizzle > 3)
    return refuse("this interleave or swizzle is not emulated");
  if (promotion < 0 || promotion > 3 || fill < 0 || fill > 1) return refuse("no such promotion or fill");
  if (fill == 1 && type < FIRST_FLOAT) return refuse("NaN fills floats only");
  if (!dims || !box || !element_strides || (rank > 1 && !strides)) return refuse("a null pointer");
  emu::TensorMap map{};
  map.magic = emu::TENSOR_MAP_MAGIC;
  map.rank = (uint8_t)rank;
  map.element_type = (uint8_t)type;
  map.element_bytes = ELEMENT_BYTES[type];
  map.swizzle = (uint8_t)swizzle;
  map.base = (uint64_t)base;
  map.nan_fill = (uint8_t)fill;
  memcpy(map.dims, dims, rank * sizeof *dims);
  memcpy(map.strides, strides, (rank - 1) * sizeof *strides);
  if (const char* why = why_not(map, box, element_strides)) return refuse(why);
  for (unsigned i = 0; i < rank; i++) {
    map.box[i] = (uint16_t)box[i];
    map.element_strides[i] = (uint8_t)element_strides[i];
  }
  memcpy(to, &map, sizeof map);
  return SUCCESS;
}
