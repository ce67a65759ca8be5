//! Packs floating-point weights in their stored type: panel by panel, sixteen outputs side by side.

#![allow(clippy::needless_range_loop)] // lanes index several arrays

use std::marker::PhantomData;

use super::super::Cpu;
use super::super::disjoint::DisjointMut;
use super::super::matrix::{Storage, WeightMatrix};
use super::super::simd::{Kernel, LANES, Simd};
use super::{Layout, PANEL, PackError, Packed};

/// A floating-point type that is packed without conversion.
pub(super) trait Value {
    /// Whether a matrix is stored in this type.
    fn is_in(storage: &Storage) -> bool;
    /// Byte offset in a panel of the value of column `col` and output `lane`.
    fn at(col: usize, lane: usize) -> usize;
    /// Reads the value at the start of `bytes`.
    fn widen(bytes: &[u8]) -> f32;

    /// Rearranges words of sixteen outputs, each one or two columns, to their order in a panel.
    #[inline(always)]
    fn arrange(words: [u32; LANES]) -> [u32; LANES] {
        words
    }
}

/// Implements [`pack`](fn@super::pack) for floating-point formats.
///
/// # Panics
/// If the matrix is stored in another type.
pub(super) fn pack<V: Value>(
    cpu: &mut Cpu,
    from: &WeightMatrix,
    layout: Layout,
    to: &mut [u8],
) -> Result<(), PackError> {
    assert!(V::is_in(from.storage()), "the matrix is stored in the format's type");
    let (isa, to) = (cpu.isa, DisjointMut::new(to));
    cpu.threads.run(layout.panels(), |panel, _| {
        // SAFETY: each panel is in one task.
        let to = unsafe { to.part(panel * layout.panel_bytes(), layout.panel_bytes()) };
        isa.run(PackPanel::<V> { from, first: panel * PANEL, to, value: PhantomData });
    });
    Ok(())
}

/// The value of an output and column.
pub(super) fn value<V: Value>(packed: &Packed, row: usize, col: usize) -> f32 {
    V::widen(&packed.panel_of(row)[V::at(col, row % PANEL)..])
}

/// Packs sixteen outputs from `first` on without conversion.
pub(super) struct PackPanel<'a, V> {
    pub(super) from: &'a WeightMatrix,
    pub(super) first: usize,
    /// `[columns][16 outputs]`, with at least as many columns as the matrix.
    pub(super) to: &'a mut [u8],
    pub(super) value: PhantomData<V>,
}

impl<V: Value> Kernel for PackPanel<'_, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // One vector of each output at a time: sixteen words of one or two columns each.
        const WORD: usize = size_of::<u32>();
        const VECTOR: usize = LANES * WORD;
        let row_bytes = self.from.row_bytes();
        let rows = PANEL.min(self.from.rows() - self.first);
        for (step, to) in self.to.chunks_mut(VECTOR * LANES).enumerate() {
            let part = step * VECTOR..row_bytes.min((step + 1) * VECTOR);
            let mut vectors = [s.zero(); LANES];
            for row in 0..rows {
                let values = self.from.row(self.first + row);
                let mut padded = [0u8; VECTOR];
                let mut from = values[part.clone()].as_ptr();
                if part.len() < VECTOR {
                    padded[..part.len()].copy_from_slice(&values[part.clone()]);
                    from = padded.as_ptr();
                }
                // SAFETY: a vector's bytes are readable.
                vectors[row] = unsafe { s.load(from.cast()) };
            }
            let outputs = s.transpose(vectors);
            for (output, to) in outputs.into_iter().zip(to.chunks_exact_mut(VECTOR)) {
                let mut words = [0u32; LANES];
                // SAFETY: sixteen words.
                unsafe { s.store(output, words.as_mut_ptr().cast()) };
                let words = V::arrange(words);
                for lane in 0..LANES {
                    to[lane * WORD..][..WORD].copy_from_slice(&words[lane].to_le_bytes());
                }
            }
        }
    }
}
