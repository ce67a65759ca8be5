//! The states of sequences in slots: matrices, the window of the convolution, and pending draft rows.

use std::io;

use bytemuck::{cast_slice, cast_slice_mut};
use skein_sys::mapped::ZeroedBytes;

use super::super::Cpu;
use super::super::disjoint::DisjointMut;
use super::mark::Mark;
use super::plan::Stretch;
use super::shape::StateShape;
use super::stateful_rows::{MOST_DRAFTED, StateSave, StatefulRows};

/// States of the recurrent layers, a slot for each sequence. A slot uses physical memory once it is written.
///
/// For each layer, a slot has a position (tokens in its state), matrices, a window of raw rows before the
/// position, and the pending rows at the position and after it: drafts that may turn out right.
pub struct StateCache {
    shape: StateShape,
    layers: usize,
    slots: usize,
    /// `[slots, layers]`
    marks: Vec<Mark>,
    /// `[slots, layers, value_heads, tiles, key_dim, TILE]`
    matrices: ZeroedBytes,
    /// `[slots, layers, taps - 1, channels]`: the raw row of position `p` is in place `p % (taps - 1)`.
    windows: ZeroedBytes,
    /// `[slots, layers, MOST_DRAFTED, channels + logits]`: raw rows without the output's gates.
    pending: ZeroedBytes,
}

/// Numbers of a slot in one layer.
#[derive(Clone, Copy)]
struct Sizes {
    matrices: usize,
    window: usize,
    pending: usize,
}

impl Sizes {
    fn of(shape: &StateShape) -> Self {
        Self {
            matrices: shape.value_heads * shape.tiles() * shape.tile_len(),
            window: (shape.taps - 1) * shape.channels(),
            pending: MOST_DRAFTED * shape.kept_width(),
        }
    }
}

/// Memory of one kind, in parts of equal size: one for each slot and layer.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    memory: &'a [f32],
    size: usize,
}

impl<'a> Parts<'a> {
    #[inline(always)]
    pub(super) fn of(&self, part: usize) -> &'a [f32] {
        &self.memory[part * self.size..][..self.size]
    }
}

/// As [`Parts`], for several tasks to write.
pub(super) struct PartsMut<'a> {
    memory: DisjointMut<'a, f32>,
    size: usize,
}

impl<'a> PartsMut<'a> {
    fn new(memory: &'a mut [u8], size: usize) -> Self {
        Self { memory: DisjointMut::new(cast_slice_mut(memory)), size }
    }

    /// `len` numbers of a part, from `start` on.
    ///
    /// # Safety
    /// No two live ranges may overlap.
    #[allow(clippy::mut_from_ref)] // as `DisjointMut`
    pub(super) unsafe fn range(&self, part: usize, start: usize, len: usize) -> &mut [f32] {
        assert!(start + len <= self.size, "a range lies inside its part");
        // SAFETY: guaranteed by the caller.
        unsafe { self.memory.part(part * self.size + start, len) }
    }
}

impl StateCache {
    /// Empty states at position 0. Fails if there is not enough address space.
    ///
    /// # Panics
    /// If the shape is not that of a layer: see the fields of the kind's shape.
    pub fn new(shape: impl Into<StateShape>, layers: usize, slots: usize) -> io::Result<Self> {
        let shape = shape.into();
        shape.check();
        let Sizes { matrices, window, pending } = Sizes::of(&shape);
        let memory = |numbers: usize| {
            let factors = [layers, slots, size_of::<f32>()];
            let bytes = factors.iter().try_fold(numbers, |product, factor| product.checked_mul(*factor));
            ZeroedBytes::new(bytes.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?)
        };
        let (matrices, windows, pending) = (memory(matrices)?, memory(window)?, memory(pending)?);
        let marks = vec![Mark::default(); layers * slots];
        Ok(Self { shape, layers, slots, marks, matrices, windows, pending })
    }

    /// Bytes of a slot with the states of `layers` layers.
    pub fn slot_bytes<'a, T>(shape: &'a T, layers: usize) -> u64
    where
        StateShape: From<&'a T>,
    {
        let Sizes { matrices, window, pending } = Sizes::of(&shape.into());
        ((matrices + window + pending) * size_of::<f32>()) as u64 * layers as u64
    }

    /// Size of all slots, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.matrices.len() + self.windows.len() + self.pending.len()) as u64
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Sizes of a layer.
    pub(super) fn shape(&self) -> StateShape {
        self.shape
    }

    /// Copies a slot's states in all layers, pending rows included.
    ///
    /// # Panics
    /// If `from` or `to` is outside the cache.
    pub fn copy(&mut self, cpu: &mut Cpu, from: u32, to: u32) {
        for layer in 0..self.layers {
            self.copy_layer(cpu, layer, from, to);
        }
    }

    /// Copies a slot's state of one layer as it is after `save.position` tokens.
    ///
    /// # Panics
    /// If the slot's state does not reach that position with its pending rows.
    pub(super) fn save(&mut self, cpu: &mut Cpu, layer: usize, from: u32, save: &StateSave) {
        let to = self.copy_layer(cpu, layer, from, save.slot);
        let Mark { position, pending } = self.marks[to];
        let rows = save.position.checked_sub(position).filter(|rows| *rows <= pending);
        let rows =
            rows.unwrap_or_else(|| panic!("slot {from} is at {position} and {pending} more, not {save:?}"));
        self.marks[to] = Mark { position, pending: rows };
    }

    /// Copies what a slot has of one layer; returns the part written.
    fn copy_layer(&mut self, cpu: &mut Cpu, layer: usize, from: u32, to: u32) -> usize {
        let (from, to) = (self.part(layer, from as usize), self.part(layer, to as usize));
        let mark = self.marks[from];
        self.marks[to] = mark;
        if from == to {
            return to;
        }
        let Sizes { matrices, window, pending } = Sizes::of(&self.shape);
        if mark.position > 0 {
            copy_long(cpu, &self.matrices(), matrices, from, to);
            copy(&mut self.windows, window, window, from, to);
        }
        let rows = mark.pending as usize * self.shape.kept_width();
        copy(&mut self.pending, pending, rows, from, to);
        to
    }

    /// Index of a slot's part for a layer.
    pub(super) fn part(&self, layer: usize, slot: usize) -> usize {
        assert!(layer < self.layers && slot < self.slots, "layer {layer}, slot {slot} is outside the cache");
        slot * self.layers + layer
    }

    /// Joins pieces to their slots in a layer. Returns the number of rows, pending ones included.
    ///
    /// # Panics
    /// If a piece's position is not in its slot's reach.
    pub(super) fn stretches(
        &self,
        layer: usize,
        pieces: &[StatefulRows],
        stretches: &mut Vec<Stretch>,
    ) -> usize {
        stretches.clear();
        let mut rows = 0;
        for piece in pieces {
            let part = self.part(layer, piece.slot as usize);
            let stretch = Stretch::new(piece, part, self.marks[part], rows);
            rows += stretch.len();
            stretches.push(stretch);
        }
        rows
    }

    /// Moves a part on.
    pub(super) fn set_mark(&mut self, part: usize, mark: Mark) {
        self.marks[part] = mark;
    }

    /// Windows and pending rows.
    pub(super) fn rows(&self) -> [Parts<'_>; 2] {
        let Sizes { window, pending, .. } = Sizes::of(&self.shape);
        [
            Parts { memory: cast_slice(&self.windows), size: window },
            Parts { memory: cast_slice(&self.pending), size: pending },
        ]
    }

    /// As [`rows`](Self::rows), to write.
    pub(super) fn rows_mut(&mut self) -> [PartsMut<'_>; 2] {
        let Sizes { window, pending, .. } = Sizes::of(&self.shape);
        [PartsMut::new(&mut self.windows, window), PartsMut::new(&mut self.pending, pending)]
    }

    /// Matrices `[value_heads, tiles, key_dim, TILE]`.
    pub(super) fn matrices(&mut self) -> PartsMut<'_> {
        let size = Sizes::of(&self.shape).matrices;
        PartsMut::new(&mut self.matrices, size)
    }
}

/// Copies the first `count` numbers of part `from` to part `to`; a part has `size` numbers.
fn copy(memory: &mut [u8], size: usize, count: usize, from: usize, to: usize) {
    let numbers: &mut [f32] = cast_slice_mut(memory);
    numbers.copy_within(from * size..from * size + count, to * size);
}

/// Numbers that a task copies.
const COPIED_AT_ONCE: usize = 64 * 1024;

/// Copies the `size` numbers of part `from` to another part.
fn copy_long(cpu: &mut Cpu, parts: &PartsMut<'_>, size: usize, from: usize, to: usize) {
    assert!(from != to, "a part is not copied to itself");
    cpu.threads.run(size.div_ceil(COPIED_AT_ONCE), |task, _| {
        let start = task * COPIED_AT_ONCE;
        let len = COPIED_AT_ONCE.min(size - start);
        // SAFETY: the parts differ, and each range is in one task.
        let (from, to) = unsafe { (parts.range(from, start, len), parts.range(to, start, len)) };
        to.copy_from_slice(from);
    });
}
