//! bfloat16 in 12 bits, without loss.
//!
//! The high byte of a bfloat16 is its sign and all of its exponent except the last bit. A trained model's
//! weights have few different high bytes, so most of those of a panel are in a table of its sixteen most
//! frequent ones, and four bits select one. The low byte is stored as it is. A value whose high byte is not
//! in the table gets a patch: its position in the panel and its high byte. DFloat11 (arXiv 2504.11651)
//! measures 2.6 bits of entropy in 8-bit exponents and codes them in about that many; four bits at fixed
//! positions need no search.
//!
//! A unit is eight columns of a panel, which are four vectors of pairs, in 192 bytes:
//!
//! ```text
//! numbers [64]: table index of each value; the first two vectors in the low halves of bytes, the other two
//! in the high
//! low bytes [64]: of the first two vectors
//! low bytes [64]: of the other two
//! ```
//!
//! Within each line the values of two vectors alternate, eight by eight, because that is how instructions
//! interleave bytes within 128 bits of a register.
//!
//! After all panels follow `tables [panels][16]`, the index of each panel's first patch (u32 `[panels + 1]`),
//! and the patches (u32). A patch is the value's index in [`Format::BF16`]'s panel, shifted left by 8, and
//! its high byte.

#![allow(clippy::needless_range_loop)] // values index several arrays

pub(super) mod kernel;

use std::marker::PhantomData;

use super::super::values::{PackPanel, Value};
use super::super::{Format, Layout, PANEL, PART_ALIGN, PackError, Packed, Spec, Tail, Weights};
use super::bf16::Bf16;
use crate::cpu::Cpu;
use crate::cpu::disjoint::DisjointMut;
use crate::cpu::matrix::WeightMatrix;
use crate::cpu::simd::{Kernel, Simd};

/// Columns in a unit.
const UNIT: usize = 8;
const UNIT_BYTES: usize = 192;
/// Bytes of a unit in [`Format::BF16`].
const UNFOLDED_BYTES: usize = UNIT * PANEL * 2;
/// High bytes in a table.
const TABLE: usize = 16;
/// There is space for one patch per this many values; trained weights need one in some thousands.
const VALUES_PER_PATCH: usize = 256;
/// Bytes of a patch, and of the index of a panel's first patch.
const WORD: usize = size_of::<u32>();
/// Values that a patch can address.
const MAX_VALUES: usize = 1 << 24;

pub(super) const FORMAT: Format = Format(&SPEC);

static SPEC: Spec = Spec {
    tail: Some(Tail { bytes: |layout| Places::of(layout).end - layout.tail_at(), unread }),
    ..Spec::new(["Bf16Folded", "bf16-folded"], 12, UNIT, Weights::Values { value, is_bf16: true }, pack)
};

/// Byte offsets of the parts after the panels.
struct Places {
    tables: usize,
    starts: usize,
    patches: usize,
    end: usize,
}

impl Places {
    fn of(layout: &Layout) -> Self {
        let tables = layout.tail_at();
        let starts = (tables + layout.panels() * TABLE).next_multiple_of(PART_ALIGN);
        let patches = (starts + (layout.panels() + 1) * WORD).next_multiple_of(PART_ALIGN);
        let end = (patches + max_patches(layout) * WORD).next_multiple_of(PART_ALIGN);
        Self { tables, starts, patches, end }
    }
}

/// Number of patches that there is space for.
fn max_patches(layout: &Layout) -> usize {
    layout.panels() * layout.cols.next_multiple_of(UNIT) * PANEL / VALUES_PER_PATCH
}

/// Bytes of the space for patches that is not used.
fn unread(packed: &Packed) -> usize {
    let layout = packed.layout();
    let patches: usize =
        (0..layout.panels()).map(|panel| size_of_val(Patches::of(packed.bytes(), &layout, panel).0)).sum();
    let Places { patches: at, end, .. } = Places::of(&layout);
    end - at - patches
}

/// The value of an output and column.
fn value(packed: &Packed, row: usize, col: usize) -> f32 {
    let (layout, panel) = (packed.layout(), row / PANEL);
    let value = Bf16::at(col, row % PANEL) / size_of::<u16>();
    let (low_at, number_at, is_high) = folded_at(value);
    let values = packed.panel_of(row);
    let number = if is_high { values[number_at] >> 4 } else { values[number_at] & 15 };
    let high = match Patches::of(packed.bytes(), &layout, panel).get(value) {
        Some(high) => high,
        None => tables(packed)[panel * TABLE + usize::from(number)],
    };
    half::bf16::from_le_bytes([values[low_at], high]).to_f32()
}

/// High bytes `[panels][16]`.
fn tables(packed: &Packed) -> &[u8] {
    let Places { tables, starts, .. } = Places::of(&packed.layout());
    &packed.bytes()[tables..starts]
}

/// Patches of a panel, ascending: values whose high bytes are not in its table.
#[derive(Debug, Clone, Copy)]
struct Patches<'a>(&'a [[u8; WORD]]);

impl<'a> Patches<'a> {
    /// The patches of a panel of the matrix in `bytes`.
    fn of(bytes: &'a [u8], layout: &Layout, panel: usize) -> Self {
        let Places { starts, patches, end, .. } = Places::of(layout);
        let starts = bytes[starts + panel * WORD..].as_chunks().0;
        let [start, next] = [starts[0], starts[1]].map(|at| u32::from_le_bytes(at) as usize);
        Self(&bytes[patches..end].as_chunks().0[start..next])
    }

    /// The unit of the next patch; `usize::MAX` if there is none.
    #[inline(always)]
    fn next_unit(&self) -> usize {
        match self.0.first() {
            Some(patch) => place(*patch).0 / (UNFOLDED_BYTES / 2),
            None => usize::MAX,
        }
    }

    /// Applies the patches of `unit`, unpacked in `values`. Call it for each such unit in order.
    fn apply(&mut self, unit: usize, values: &mut [u8; UNFOLDED_BYTES]) {
        while self.next_unit() == unit
            && let Some((patch, rest)) = self.0.split_first()
        {
            let (at, high) = place(*patch);
            values[at % (UNFOLDED_BYTES / 2) * 2 + 1] = high;
            self.0 = rest;
        }
    }

    /// The high byte of the value with index `at`, if it has a patch.
    fn get(&self, at: usize) -> Option<u8> {
        let found = self.0.binary_search_by_key(&at, |patch| place(*patch).0);
        found.ok().map(|index| place(self.0[index]).1)
    }
}

/// Index of the patched value in its panel, and its high byte.
fn place(patch: [u8; WORD]) -> (usize, u8) {
    let word = u32::from_le_bytes(patch);
    ((word >> 8) as usize, word as u8)
}

/// Position in a folded panel of a value of [`Format::BF16`]'s panel: its low byte, the byte with its table
/// index, and whether the index is in the high half.
fn folded_at(value: usize) -> (usize, usize, bool) {
    let (unit, vector, word) = (value / 128, value / 32 % 4, value % 32);
    let at = word / 8 * 16 + vector % 2 * 8 + word % 8;
    let unit = unit * UNIT_BYTES;
    (unit + 64 + vector / 2 * 64 + at, unit + at, vector >= 2)
}

/// Packs `from` to `to` with all threads.
///
/// # Errors
/// [`PackError::ManyExponents`] if there are more patches than there is space for.
fn pack(cpu: &mut Cpu, from: &WeightMatrix, layout: Layout, to: &mut [u8]) -> Result<(), PackError> {
    assert!(Bf16::is_in(from.storage()), "the matrix is stored in bfloat16");
    let Places { tables: tables_at, starts: starts_at, patches: patches_at, end } = Places::of(&layout);
    let (isa, panels) = (cpu.isa, layout.panels());
    let panel_of = |panel: usize| {
        let mut values = vec![0; layout.panel_bytes() / UNIT_BYTES * UNFOLDED_BYTES];
        isa.run(PackPanel::<Bf16> { from, first: panel * PANEL, to: &mut values, value: PhantomData });
        values
    };
    let mut counts = vec![0u32; panels];
    {
        let (counts, tables) =
            (DisjointMut::new(&mut counts), DisjointMut::new(&mut to[tables_at..starts_at]));
        cpu.threads.run(panels, |panel, _| {
            let (table, patches) = table(&panel_of(panel));
            // SAFETY: each panel is in one task.
            unsafe {
                tables.part(panel * TABLE, TABLE).copy_from_slice(&table);
                counts.part(panel, 1)[0] = patches;
            }
        });
    }
    let room = max_patches(&layout);
    let patches = counts.iter().map(|count| *count as usize).sum();
    if patches > room || layout.panel_bytes() / UNIT_BYTES * UNIT * PANEL > MAX_VALUES {
        return Err(PackError::ManyExponents { patches, room });
    }
    let mut starts = vec![0u32];
    for (count, at) in counts.iter().zip((starts_at..).step_by(WORD)) {
        let start = starts[starts.len() - 1];
        to[at..][..WORD].copy_from_slice(&start.to_le_bytes());
        starts.push(start + count);
    }
    to[starts_at + panels * WORD..][..WORD].copy_from_slice(&starts[panels].to_le_bytes());
    let (values, rest) = to.split_at_mut(tables_at);
    let (tables, patches) = rest.split_at_mut(patches_at - tables_at);
    let (values, patches) = (DisjointMut::new(values), DisjointMut::new(&mut patches[..end - patches_at]));
    cpu.threads.run(panels, |panel, _| {
        let table = &tables[panel * TABLE..][..TABLE];
        let [start, next] = [starts[panel], starts[panel + 1]].map(|at| at as usize);
        // SAFETY: each panel is in one task.
        let (values, patches) = unsafe {
            (
                values.part(panel * layout.panel_bytes(), layout.panel_bytes()),
                patches.part(start * WORD, (next - start) * WORD),
            )
        };
        isa.run(Fold { panel: &panel_of(panel), table, to: values, patches });
    });
    Ok(())
}

/// The most frequent high bytes of a panel, and the number of values with other ones.
fn table(panel: &[u8]) -> ([u8; TABLE], u32) {
    let mut counts = [0u32; 256];
    for value in panel.as_chunks::<2>().0 {
        counts[usize::from(value[1])] += 1;
    }
    let mut order: [u8; 256] = std::array::from_fn(|byte| byte as u8);
    order.sort_by_key(|byte| std::cmp::Reverse(counts[usize::from(*byte)]));
    let others = order[TABLE..].iter().map(|byte| counts[usize::from(*byte)]).sum();
    (std::array::from_fn(|number| order[number]), others)
}

/// Folds a panel of [`Format::BF16`].
struct Fold<'a> {
    panel: &'a [u8],
    table: &'a [u8],
    to: &'a mut [u8],
    patches: &'a mut [u8],
}

impl Kernel for Fold<'_> {
    type Output = ();

    // Plain loops over arrays: compiled for each instruction set, they vectorise.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        const VALUES: usize = UNFOLDED_BYTES / 2;
        /// Values in a vector, and how many of them are adjacent.
        const VECTOR: usize = 32;
        const RUN: usize = 8;
        const NONE: u8 = 0xff;
        let mut patches = self.patches.as_chunks_mut().0.iter_mut();
        let units = self.panel.as_chunks::<UNFOLDED_BYTES>().0.iter().zip(self.to.as_chunks_mut().0);
        for (unit, (values, to)) in units.enumerate() {
            let to: &mut [u8; UNIT_BYTES] = to;
            let (mut low, mut high, mut numbers) = ([0; VALUES], [0; VALUES], [NONE; VALUES]);
            for i in 0..VALUES {
                (low[i], high[i]) = (values[2 * i], values[2 * i + 1]);
            }
            for number in 0..TABLE {
                for i in 0..VALUES {
                    numbers[i] = if high[i] == self.table[number] { number as u8 } else { numbers[i] };
                }
            }
            let mut most = 0;
            for i in 0..VALUES {
                most = numbers[i].max(most);
            }
            if most == NONE {
                for i in 0..VALUES {
                    if numbers[i] == NONE {
                        let patch =
                            patches.next().unwrap_or_else(|| unreachable!("all patches were counted"));
                        *patch = (((unit * VALUES + i) as u32) << 8 | u32::from(high[i])).to_le_bytes();
                        numbers[i] = 0;
                    }
                }
            }
            for at in (0..VALUES).step_by(RUN) {
                let (low_at, number_at, is_high) = folded_at(at);
                for i in 0..RUN {
                    to[low_at + i] = low[at + i];
                    if !is_high {
                        to[number_at + i] = numbers[at + i] | numbers[at + 2 * VECTOR + i] << 4;
                    }
                }
            }
        }
    }
}
