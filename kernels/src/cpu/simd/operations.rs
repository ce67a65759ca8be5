//! What an instruction set provides.

/// Lanes of a vector, on every instruction set.
pub const LANES: usize = 16;

/// A vector instruction set. A value of such a type proves that this machine has it.
///
/// Methods are `inline(always)`: they must end up inside a function compiled for the set, see
/// [`Isa::run`](super::Isa::run).
pub trait Simd: Copy + Send + Sync {
    /// Vector of sixteen `f32`.
    type V: Copy;
    /// Thirty-two bfloat16 values as in memory: lane `j` holds the pair `2j` (even), `2j + 1` (odd).
    type Pairs: Copy;
    /// Table of sixteen `f32` for 4-bit lookups.
    type Table: Copy;
    /// Accumulators that fit the register file besides the operands.
    const ACCUMULATORS: usize;
    /// Whether [`Simd::dot_pairs`] is one instruction.
    const HAS_DOT: bool = false;

    /// Runs `kernel` in a separate function compiled for this set. Used for code that several callers share,
    /// or that would make its callers too large to compile in reasonable time.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;

    /// The same value in all lanes.
    fn splat(self, value: f32) -> Self::V;
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Sum of the lanes in one fixed order: lanes 8 apart, then 4, 2 and 1.
    fn sum(self, v: Self::V) -> f32;
    /// [`Simd::sum`] of four vectors, the same bits in fewer instructions.
    #[inline(always)]
    fn sum4(self, v: [Self::V; 4]) -> [f32; 4] {
        [self.sum(v[0]), self.sum(v[1]), self.sum(v[2]), self.sum(v[3])]
    }

    /// Lane `j` of vector `i` becomes lane `i` of vector `j`. Lanes may hold any bits.
    #[inline(always)]
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES] {
        let (mut lanes, mut columns) = ([[0f32; LANES]; LANES], rows);
        for (row, lanes) in rows.into_iter().zip(&mut lanes) {
            // SAFETY: sixteen values.
            unsafe { self.store(row, lanes.as_mut_ptr()) };
        }
        for (j, column) in columns.iter_mut().enumerate() {
            let mut column_lanes = [0f32; LANES];
            for i in 0..LANES {
                column_lanes[i] = lanes[i][j];
            }
            // SAFETY: sixteen values.
            *column = unsafe { self.load(column_lanes.as_ptr()) };
        }
        columns
    }

    /// Loads sixteen values.
    ///
    /// # Safety
    /// `from` is readable for 16 values; it needs no alignment.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// Loads sixteen bfloat16 values, widened.
    ///
    /// # Safety
    /// `from` is readable for 32 bytes.
    unsafe fn load_bf16(self, from: *const u8) -> Self::V;
    /// Loads sixteen IEEE half values, widened.
    ///
    /// # Safety
    /// `from` is readable for 32 bytes.
    unsafe fn load_f16(self, from: *const u8) -> Self::V;
    /// Loads thirty-two bfloat16 values.
    ///
    /// # Safety
    /// `from` is readable for 64 bytes; it needs no alignment.
    unsafe fn load_pairs(self, from: *const u8) -> Self::Pairs;
    /// Stores thirty-two bfloat16 values.
    ///
    /// # Safety
    /// `to` is writable for 64 bytes; it needs no alignment.
    unsafe fn store_pairs(self, pairs: Self::Pairs, to: *mut u8);
    /// Unpacks a unit of folded bfloat16, as `packed::formats::bf16_folded` lays it out: 128 values whose
    /// high bytes come from a table of sixteen.
    ///
    /// # Safety
    /// `unit` is readable for 192 bytes and `table` for 16; they need no alignment.
    unsafe fn unfold(self, unit: *const u8, table: *const u8) -> [Self::Pairs; 4];
    /// The same pair in all lanes, with its even value in the low half.
    fn splat_pair(self, pair: u32) -> Self::Pairs;
    /// Loads sixteen signed bytes, converted to `f32`.
    ///
    /// # Safety
    /// `from` is readable for 16 bytes.
    unsafe fn load_i8(self, from: *const u8) -> Self::V;
    /// Loads sixteen FP8 values (E4M3 without infinities) times 2^-8, widened like [`e4m3_in_256ths`].
    ///
    /// # Safety
    /// 16 bytes at `from` are readable.
    unsafe fn load_e4m3(self, from: *const u8) -> Self::V;
    /// Loads a table for [`Simd::look_up`].
    ///
    /// # Safety
    /// 16 values at `from` are readable; no alignment is required.
    unsafe fn load_table(self, from: *const f32) -> Self::Table;
    /// Table values for sixteen bytes: of their low halves, and of their high halves.
    ///
    /// # Safety
    /// 16 bytes at `from` are readable.
    unsafe fn look_up(self, table: Self::Table, from: *const u8) -> [Self::V; 2];
    /// The even values of the pairs, widened.
    fn widen_even(self, pairs: Self::Pairs) -> Self::V;
    /// The odd values of the pairs, widened.
    fn widen_odd(self, pairs: Self::Pairs) -> Self::V;
    /// `a_even * b_even + (a_odd * b_odd + c)`, with one rounding per multiply-add. The bits are the same
    /// everywhere if every input and sum is zero or at least 2^-126: `VDPBF16PS` takes smaller ones for zero.
    #[inline(always)]
    fn dot_pairs(self, a: Self::Pairs, b: Self::Pairs, c: Self::V) -> Self::V {
        let odd = self.fma(self.widen_odd(a), self.widen_odd(b), c);
        self.fma(self.widen_even(a), self.widen_even(b), odd)
    }
    /// Stores sixteen values.
    ///
    /// # Safety
    /// `to` is writable for 16 values; it needs no alignment.
    unsafe fn store(self, v: Self::V, to: *mut f32);
    /// Stores sixteen values rounded to bfloat16, ties to even, subnormals as zeros. Returns the stored
    /// values, widened.
    ///
    /// # Safety
    /// `to` is writable for 16 values; it needs no alignment.
    #[inline(always)]
    unsafe fn store_bf16(self, v: Self::V, to: *mut u16) -> Self::V {
        // SAFETY: guaranteed by the caller.
        unsafe { store_nearest_bf16(self, v, to) }
    }

    /// Prefetches the cache line at `at`, which may be any address.
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        let _ = at;
    }

    /// Prefetches the cache line at `at` into the second-level cache.
    #[inline(always)]
    fn prefetch_later(self, at: *const u8) {
        let _ = at;
    }

    /// All lanes zero.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

    /// Loads the first `count` values and pads with zeros.
    ///
    /// # Safety
    /// `from` is readable for `count <= 16` values.
    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, count: usize) -> Self::V {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller guarantees `from`; `lanes` has 16.
        unsafe {
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count.min(LANES));
            self.load(lanes.as_ptr())
        }
    }

    /// Stores the first `count` values.
    ///
    /// # Safety
    /// `to` is writable for `count <= 16` values.
    #[inline(always)]
    unsafe fn store_part(self, v: Self::V, to: *mut f32, count: usize) {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller guarantees `to`; `lanes` has 16.
        unsafe {
            self.store(v, lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count.min(LANES));
        }
    }
}

/// [`Simd::store_bf16`] for sets without an instruction for it.
///
/// # Safety
/// `to` is writable for 16 values.
#[inline(always)]
pub(super) unsafe fn store_nearest_bf16<S: Simd>(s: S, v: S::V, to: *mut u16) -> S::V {
    let (mut lanes, mut halves) = ([0f32; LANES], [0u16; LANES]);
    // SAFETY: the caller guarantees `to`; the arrays have 16.
    unsafe {
        s.store(v, lanes.as_mut_ptr());
        for i in 0..LANES {
            halves[i] = nearest_bf16(lanes[i]);
        }
        to.cast::<[u16; LANES]>().write_unaligned(halves);
        s.load_bf16(halves.as_ptr().cast())
    }
}

/// Bits of the nearest bfloat16, ties to even; subnormals become zero.
#[inline(always)]
pub(in crate::cpu) fn nearest_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let rounded = if value.is_nan() { bits | 0x40_0000 } else { rounded };
    let rounded = if value.abs() < f32::MIN_POSITIVE { bits & 0x8000_0000 } else { rounded };
    (rounded >> 16) as u16
}

/// FP8 value (E4M3 without infinities) times 2^-8. Its shifted bits are an IEEE half of that value, including
/// subnormals. The code of NaN gives 1.875.
#[inline(always)]
pub(in crate::cpu) fn e4m3_in_256ths(code: u8) -> f32 {
    half::f16::from_bits(u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7).to_f32()
}

/// A computation that can be compiled for any instruction set.
pub trait Kernel {
    /// Result of the computation.
    type Output;
    /// Whether it uses [`Simd::dot_pairs`]. Other kernels are not compiled separately for sets that only
    /// differ in it.
    const USES_DOT: bool = false;
    /// Computes the result. Implementations are `inline(always)`, and so is everything they call that takes
    /// `simd`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}
