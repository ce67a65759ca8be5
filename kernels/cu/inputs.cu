// inputs.cu: expands a step's packed message into the arrays that other kernels read.
#include "device.cuh"

// expand_inputs: one copy brings a step's message to the device. This kernel expands it to addresses that
// never change, so that a captured graph can be replayed with any content, and pads it to the graph's size.
//   packed       message: HEADER words, then the arrays it points to (word offsets); see ops/inputs.rs
//   sampled      [token_capacity]         u32, tokens of the previous step, in the order of its samples
//   previous     [token_capacity]         u32, out: a copy, for history while `sampled` is overwritten
//   tokens       [row_capacity]           u32, out: a packed token, or the sampled one if its top bit is set
//   positions    [row_capacity]           u32, out
//   slots        [row_capacity]           u32, out; 0xffffffff in padding rows
//   row_starts   [sequence_capacity + 1]  u32, out; padding sequences have no rows
//   context_lens [sequence_capacity]      u32, out; 0 in padding sequences
//   block_tables [sequence_capacity, table_stride]  u32, out; unchanged past a sequence's blocks
//   logit_rows   [logit_capacity]         u32, out; 0 in padding
//   window_slots, window_tables   as slots and block_tables, of window blocks; or null
// Data that only the sampler reads stays in the message, because the sampler is launched after the graph.
// With a message without rows, capacities are 0 and tokens ... block_tables are left unchanged. Grid: any
// number of blocks of 256 threads; all loops stride over the grid, tables one per block at a time. Bytes:
// twice the message's. Reference: check/inputs.rs; the CPU backend has none, because it reads the batch
// itself. Not yet run on a GPU.

constexpr u32 CARRIED = 0x80000000u;
constexpr u32 NO_SLOT = 0xffffffffu;

// Words of the header, in the order of ops/inputs.rs.
enum Header {
  ROWS,
  SEQUENCES,
  LOGIT_ROWS,
  TOKENS_AT,
  POSITIONS_AT,
  SLOTS_AT,
  ROW_STARTS_AT,
  CONTEXT_LENS_AT,
  TABLE_STARTS_AT,
  TABLES_AT,
  LOGIT_ROWS_AT,
  WINDOW_SLOTS_AT,
  WINDOW_TABLES_AT,
  ROW_TILES_AT,  // these two: low_rank.cu
  LOGIT_TILES_AT,
};

extern "C" __global__ void __launch_bounds__(256)
    expand_inputs(const u32* packed, const u32* sampled, u32* previous, u32* tokens, u32* positions,
                  u32* slots, u32* row_starts, u32* context_lens, u32* block_tables, u32* logit_rows,
                  u32* window_slots, u32* window_tables, i32 token_capacity, i32 row_capacity, i32 sequence_capacity, i32 table_stride,
                  i32 logit_capacity) {
  ptx::grid_dependency_wait();
  int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  int rows = packed[ROWS], sequences = packed[SEQUENCES], logits = packed[LOGIT_ROWS];

  for (int i = first; i < token_capacity; i += step) previous[i] = sampled[i];
  for (int i = first; i < row_capacity; i += step) {
    bool used = i < rows;
    u32 token = used ? packed[packed[TOKENS_AT] + i] : 0;
    tokens[i] = token & CARRIED ? sampled[token & ~CARRIED] : token;
    positions[i] = used ? packed[packed[POSITIONS_AT] + i] : 0;
    slots[i] = used ? packed[packed[SLOTS_AT] + i] : NO_SLOT;
    if (window_slots) window_slots[i] = used ? packed[packed[WINDOW_SLOTS_AT] + i] : NO_SLOT;
  }
  // The host has checked that the counts are within the capacities.
  for (int i = first; i <= sequence_capacity && sequence_capacity > 0; i += step) {
    row_starts[i] = i < sequences ? packed[packed[ROW_STARTS_AT] + i] : (u32)rows;
    if (i < sequence_capacity) context_lens[i] = i < sequences ? packed[packed[CONTEXT_LENS_AT] + i] : 0;
  }
  int tables = sequences < sequence_capacity ? sequences : sequence_capacity;
  for (int s = blockIdx.x; s < tables; s += gridDim.x) {
    u32 start = packed[packed[TABLE_STARTS_AT] + s], end = packed[packed[TABLE_STARTS_AT] + s + 1];
    const u32* from = packed + packed[TABLES_AT] + start;
    u32* to = block_tables + (size_t)s * table_stride;
    for (u32 i = threadIdx.x; i < end - start; i += blockDim.x) to[i] = from[i];
    if (!window_tables) continue;
    from = packed + packed[WINDOW_TABLES_AT] + start;
    to = window_tables + (size_t)s * table_stride;
    for (u32 i = threadIdx.x; i < end - start; i += blockDim.x) to[i] = from[i];
  }
  for (int i = first; i < logit_capacity; i += step) {
    logit_rows[i] = i < logits ? packed[packed[LOGIT_ROWS_AT] + i] : 0;
  }
}
EXPORT(expand_inputs)

// gather_rows: the rows of the residual stream whose logits are requested, with the last layer's output
// added.
//   out       [n, hidden]     f32
//   residual  [rows, hidden]  f32
//   delta     [rows, hidden]  T, or null to add nothing
//   wanted    [n]             u32, rows
// Grid (n). hidden is a multiple of 4. Reads 6 and writes 4 bytes a value. Reference: check/inputs.rs. Not
// yet run on a GPU.
template <class T>
__device__ void gather_rows(float* out, const float* residual, const T* delta, const u32* wanted,
                            i32 hidden) {
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  size_t from = (size_t)wanted[blockIdx.x] * hidden, to = (size_t)blockIdx.x * hidden;
  for (int i = threadIdx.x * 4; i < hidden; i += blockDim.x * 4) {
    float4 x = *(const float4*)(residual + from + i);
    if (delta) {
      Pack<T, 4> d = *(const Pack<T, 4>*)(delta + from + i);
      x.x += to_f32(d.v[0]);
      x.y += to_f32(d.v[1]);
      x.z += to_f32(d.v[2]);
      x.w += to_f32(d.v[3]);
    }
    *(float4*)(out + to + i) = x;
  }
}

extern "C" __global__ void __launch_bounds__(256)
    gather_rows_bf16(float* out, const float* residual, const bf16* delta, const u32* wanted, i32 hidden) {
  gather_rows<bf16>(out, residual, delta, wanted, hidden);
}
EXPORT(gather_rows_bf16)

extern "C" __global__ void __launch_bounds__(256)
    gather_rows_f16(float* out, const float* residual, const f16* delta, const u32* wanted, i32 hidden) {
  gather_rows<f16>(out, residual, delta, wanted, hidden);
}
EXPORT(gather_rows_f16)
