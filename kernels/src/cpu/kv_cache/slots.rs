//! Writes keys and values to the cache, slot by slot, from several tasks.

#![allow(clippy::needless_range_loop)] // the compiler vectorises these loops

use super::super::disjoint::DisjointMut;
use super::super::simd::{Kernel, LANES, Simd};
use super::encode::{FP8_MOST, INT8_MOST, row_scale, to_bf16, to_f16, to_fp8, to_int8};
use super::kind::KvType;
use super::layout::{Layout, Places, TILE};

/// The slots of one layer, each written by one task at a time.
pub(in super::super) struct Slots<'a> {
    pub(super) memory: DisjointMut<'a, u8>,
    pub(super) layout: Layout,
    /// Number of slots.
    pub(super) count: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

impl Slots<'_> {
    /// A kernel that writes `x`, the keys of all heads and then the values that are stored, to a slot.
    ///
    /// # Safety
    /// No other task accesses this slot at the same time.
    #[inline]
    pub(in super::super) unsafe fn write<'a>(&'a self, slot: u32, x: &'a [f32]) -> WriteSlot<'a> {
        let (slot, width) = (slot as usize, self.kv_heads * self.head_dim);
        assert!(slot < self.count, "slot {slot} is outside the cache of {} slots", self.count);
        let values = if self.layout.latent.is_some() { 0 } else { width };
        assert!(x.len() == width + values, "a key and a value for every head");
        let (keys, values) = x.split_at(width);
        WriteSlot { slots: self, slot, keys, values }
    }
}

/// Writes the keys and values of all heads to one slot.
pub(in super::super) struct WriteSlot<'a> {
    slots: &'a Slots<'a>,
    slot: usize,
    keys: &'a [f32],
    values: &'a [f32],
}

impl Kernel for WriteSlot<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        match self.slots.layout.kind {
            KvType::F32 => self.heads::<F32>(),
            KvType::Bf16 => self.heads::<Bf16>(),
            KvType::F16 => self.heads::<F16>(),
            KvType::Int8 => self.heads::<Int8>(),
            KvType::Fp8 => self.heads::<Fp8>(),
        }
    }
}

impl WriteSlot<'_> {
    #[inline(always)]
    fn heads<N: Number>(&self) {
        let Slots { layout, kv_heads, head_dim, .. } = *self.slots;
        let (tile, lane) = (self.slot / TILE, self.slot % TILE);
        let (key_places, value_places) = (layout.key_places(lane), layout.value_places(lane));
        for head in 0..kv_heads {
            let at = (tile * kv_heads + head) * layout.bytes();
            let tile = self.slots.memory.pointer(at, layout.bytes());
            let part = head * head_dim..(head + 1) * head_dim;
            // SAFETY: a head's numbers and scales are inside its tile, and the contract of `Slots::write`
            // excludes other accesses to this slot.
            unsafe {
                let scale = write_row::<N>(&self.keys[part.clone()], tile, key_places);
                let scales = tile.wrapping_add(layout.scales()).cast::<f32>().wrapping_add(lane);
                if N::MOST.is_some() {
                    scales.write(scale * N::UNITS);
                }
                if layout.latent.is_some() {
                    continue;
                }
                let value_scale = write_row::<N>(&self.values[part], tile, value_places);
                if N::MOST.is_some() {
                    scales.add(TILE).write(value_scale * N::UNITS);
                }
            }
        }
    }
}

/// Encodes a row, sixteen values at a time. Returns its scale.
///
/// # Safety
/// `places` are the row's offsets in `tile`, and nothing else accesses them at the same time.
#[inline(always)]
unsafe fn write_row<N: Number>(row: &[f32], tile: *mut u8, places: Places) -> f32 {
    let (scale, per_unit) = N::MOST.map_or((0.0, 0.0), |most| row_scale(row, most));
    let (vectors, rest) = row.as_chunks::<LANES>();
    // Other tasks write between these numbers, so they are stored one by one.
    for (vector, values) in vectors.iter().enumerate() {
        // A separate loop, so that the compiler vectorises it.
        let mut codes = [N::default(); LANES];
        for i in 0..LANES {
            codes[i] = N::of(values[i], per_unit);
        }
        let tile = tile.wrapping_add(places.of(vector * LANES));
        for i in 0..LANES {
            // SAFETY: guaranteed by the caller; offsets repeat for every pair, and sixteen is even.
            unsafe { tile.add(i / 2 * places.pair + i % 2 * places.odd).cast::<N>().write(codes[i]) };
        }
    }
    for (i, value) in rest.iter().enumerate() {
        let at = places.of(vectors.len() * LANES + i);
        // SAFETY: guaranteed by the caller.
        unsafe { tile.add(at).cast::<N>().write(N::of(*value, per_unit)) };
    }
    scale
}

/// A number type of the cache.
trait Number: Copy + Default {
    /// Largest code, if rows have scales.
    const MOST: Option<f32> = None;
    /// What a code is divided by when it is loaded.
    const UNITS: f32 = 1.0;
    fn of(value: f32, per_unit: f32) -> Self;
}

macro_rules! number {
    ($name:ident, $repr:ty, |$value:ident, $per_unit:ident| $of:expr $(, $most:expr, $units:expr)?) => {
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        struct $name($repr);

        impl Number for $name {
            $(const MOST: Option<f32> = Some($most);
            const UNITS: f32 = $units;)?
            #[inline(always)]
            fn of($value: f32, $per_unit: f32) -> Self {
                Self($of)
            }
        }
    };
}

number!(F32, f32, |value, _per_unit| value);
number!(Bf16, u16, |value, _per_unit| to_bf16(value));
number!(F16, u16, |value, _per_unit| to_f16(value));
number!(Int8, u8, |value, per_unit| to_int8(value, per_unit), INT8_MOST, 1.0);
number!(Fp8, u8, |value, per_unit| to_fp8(value, per_unit), FP8_MOST, 256.0);
