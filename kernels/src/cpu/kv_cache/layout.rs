//! Memory layout of a tile: the keys and values of one head in sixteen slots.

use super::super::simd::LANES;
use super::kind::KvType;

/// Slots in a tile. A vector holds one number of each.
pub(in super::super) const TILE: usize = LANES;

/// Layout of a tile: its keys, its values, and for types with scales those of all keys and then of all
/// values.
///
/// Keys are transposed, `[width][16]`: a vector holds the same dimension of sixteen positions, so a score
/// needs no sum across lanes. Values are `[16][width]`. bfloat16 is stored in pairs, as one instruction
/// multiplies them: keys `[width / 2][16][2]`, values `[8][width][2]`.
///
/// In a latent cache a value is the start of its key, so a tile has no values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Layout {
    /// Type of the cached numbers.
    pub kind: KvType,
    /// Dimensions of a head, rounded up to whole vectors. The padding is zero.
    pub width: usize,
    /// Dimensions of a key that are its value, if values are not stored.
    pub latent: Option<usize>,
}

impl KvType {
    /// Bytes of one token's key or value in one head.
    pub fn head_bytes(self, head_dim: usize) -> usize {
        Layout::new(self, head_dim).slot_bytes() / 2
    }
}

/// Byte offsets of a key's or value's dimensions in a tile: even ones are `pair` apart, each odd one is `odd`
/// further.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    pub(super) start: usize,
    pub(super) odd: usize,
    pub(super) pair: usize,
}

impl Places {
    /// Byte offset of dimension `i`.
    #[inline(always)]
    pub(super) fn of(self, i: usize) -> usize {
        self.start + i / 2 * self.pair + i % 2 * self.odd
    }
}

impl Layout {
    pub(in super::super) fn new(kind: KvType, head_dim: usize) -> Self {
        Self { kind, width: head_dim.next_multiple_of(LANES), latent: None }
    }

    #[inline(always)]
    pub(in super::super) fn value_vectors(&self) -> usize {
        self.latent.map_or(self.width, |dims| dims.next_multiple_of(LANES)) / LANES
    }

    /// Rows of numbers in a slot: a key, and usually a value.
    #[inline(always)]
    fn rows(&self) -> usize {
        if self.latent.is_some() { 1 } else { 2 }
    }

    /// Bytes of one cached number.
    #[inline(always)]
    pub(in super::super) fn number(&self) -> usize {
        match self.kind {
            KvType::F32 => 4,
            KvType::Bf16 | KvType::F16 => 2,
            KvType::Int8 | KvType::Fp8 => 1,
        }
    }

    /// Bytes in a tile.
    #[inline(always)]
    pub(in super::super) fn bytes(&self) -> usize {
        TILE * self.slot_bytes()
    }

    /// Bytes in a tile per slot.
    #[inline(always)]
    pub(in super::super) fn slot_bytes(&self) -> usize {
        let scale = if self.kind.is_scaled() { size_of::<f32>() } else { 0 };
        self.rows() * (self.width * self.number() + scale)
    }

    /// Byte offset of the values, which follow the keys.
    #[inline(always)]
    pub(in super::super) fn values(&self) -> usize {
        TILE * self.width * self.number()
    }

    /// Byte offset of the keys' scales; the values' scales follow.
    #[inline(always)]
    pub(in super::super) fn scales(&self) -> usize {
        self.rows() * self.values()
    }

    /// Offsets of the key in slot `lane`.
    #[inline(always)]
    pub(super) fn key_places(&self, lane: usize) -> Places {
        match self.kind {
            KvType::Bf16 => Places { start: 4 * lane, odd: 2, pair: 4 * TILE },
            _ => {
                let across = TILE * self.number();
                Places { start: lane * self.number(), odd: across, pair: 2 * across }
            }
        }
    }

    /// Offsets of the value in slot `lane`.
    #[inline(always)]
    pub(super) fn value_places(&self, lane: usize) -> Places {
        let (start, along) = match self.kind {
            KvType::Bf16 => (4 * (lane / 2 * self.width) + 2 * (lane % 2), 4),
            _ => (lane * self.width * self.number(), self.number()),
        };
        Places { start: self.values() + start, odd: along, pair: 2 * along }
    }

    /// Calls `each(from, to, bytes)` with the offsets of every number in two slots, padding included.
    pub(in super::super) fn for_each_number(
        &self,
        from: usize,
        to: usize,
        mut each: impl FnMut(usize, usize, usize),
    ) {
        let places =
            [(self.key_places(from), self.key_places(to)), (self.value_places(from), self.value_places(to))];
        for (row, (from_places, to_places)) in places.into_iter().enumerate().take(self.rows()) {
            (0..self.width).for_each(|i| each(from_places.of(i), to_places.of(i), self.number()));
            if self.kind.is_scaled() {
                let scales = self.scales() + size_of::<f32>() * TILE * row;
                each(scales + size_of::<f32>() * from, scales + size_of::<f32>() * to, size_of::<f32>());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_own_place() {
        for kind in KvType::ALL {
            for (head_dim, latent) in [(1, None), (10, None), (64, None), (80, None), (80, Some(60))] {
                let layout = Layout { latent, ..Layout::new(kind, head_dim) };
                let mut taken = vec![false; layout.bytes()];
                let mut take = |at: usize, bytes: usize| {
                    for byte in &mut taken[at..at + bytes] {
                        assert!(!std::mem::replace(byte, true), "{kind:?} {head_dim}: two at {at}");
                    }
                };
                for lane in 0..TILE {
                    let places = [layout.key_places(lane), layout.value_places(lane)];
                    for (row, places) in places.into_iter().enumerate().take(layout.rows()) {
                        (0..layout.width).for_each(|i| take(places.of(i), layout.number()));
                        if kind.is_scaled() {
                            take(layout.scales() + 4 * (TILE * row + lane), 4);
                        }
                    }
                }
                assert!(taken.iter().all(|taken| *taken), "{kind:?} {head_dim}: holes");
                assert_eq!(layout.bytes() % 64, 0, "tiles start at cache lines");
            }
        }
    }
}
