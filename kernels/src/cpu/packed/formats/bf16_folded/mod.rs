//! bfloat16 in 12 bits, without loss.
//!
//! The high byte of a bfloat16 is its sign and all of its exponent but the last bit. A model's weights have few of those, so that
//! most of a panel's are in a table of the sixteen that it has most of: four bits say which. The low byte stays as it is. A value
//! whose high byte is in no table is a patch: where it is in the panel, and what it has there. DFloat11 (arXiv 2504.11651)
//! measures 2.6 bits of entropy in exponents of 8 and codes them in as few; four bits at fixed places need no search.
//!
//! A unit is eight columns of a panel, four vectors of pairs, in 192 bytes:
//!
//! ```text
//! numbers [64]: of the first two vectors' values in the low half of each byte, of the other two's in the high one
//! low bytes [64]: of the first two vectors
//! low bytes [64]: of the other two
//! ```
//!
//! In each the values of two vectors take turns, eight by eight: that is how bytes are interleaved within 128 bits of a register.
//!
//! Behind all panels lie `tables [panels][16]`, where each panel's patches start (u32 `[panels + 1]`), and the patches (u32): the
//! value's place in [`Format::BF16`]'s panel above its high byte.

#![allow(clippy::needless_range_loop)] // values index several arrays

pub(super) mod kernel;

use std::marker::PhantomData;

use super::super::values::{LaidOut, Value};
use super::super::{Format, Layout, PANEL, PART_ALIGN, PackError, Packed, Spec, Tail, Weights};
use super::bf16::Bf16;
use crate::cpu::Cpu;
use crate::cpu::disjoint::DisjointMut;
use crate::cpu::matrix::WeightMatrix;
use crate::cpu::simd::{Kernel, Simd};

/// Columns of a unit.
const UNIT: usize = 8;
/// Its bytes.
const UNIT_BYTES: usize = 192;
/// Its bytes in [`Format::BF16`].
const UNFOLDED_BYTES: usize = UNIT * PANEL * 2;
/// High bytes of a table.
const TABLE: usize = 16;
/// Values for each patch there is room for: normal weights need one in some thousands.
const VALUES_PER_PATCH: usize = 256;
/// Bytes of a patch, and of where a panel's start.
const WORD: usize = size_of::<u32>();
/// Values that a patch can tell apart.
const MOST_VALUES: usize = 1 << 24;

pub(super) const FORMAT: Format = Format(&SPEC);

static SPEC: Spec = Spec {
    tail: Some(Tail { bytes: |layout| Places::of(layout).end - layout.tail_at(), unread }),
    ..Spec::new(["Bf16Folded", "bf16-folded"], 12, UNIT, Weights::Values { value, is_bf16: true }, pack)
};

/// Where what lies behind the panels starts.
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
        let end = (patches + most_patches(layout) * WORD).next_multiple_of(PART_ALIGN);
        Self { tables, starts, patches, end }
    }
}

/// Patches there is room for.
fn most_patches(layout: &Layout) -> usize {
    layout.panels() * layout.cols.next_multiple_of(UNIT) * PANEL / VALUES_PER_PATCH
}

/// Room for patches that there are not.
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

/// Values of a panel whose high bytes are not in its table, ascending.
#[derive(Debug, Clone, Copy)]
struct Patches<'a>(&'a [[u8; WORD]]);

impl<'a> Patches<'a> {
    /// Those of a panel of a matrix in `bytes`.
    fn of(bytes: &'a [u8], layout: &Layout, panel: usize) -> Self {
        let Places { starts, patches, end, .. } = Places::of(layout);
        let starts = bytes[starts + panel * WORD..].as_chunks().0;
        let [start, next] = [starts[0], starts[1]].map(|at| u32::from_le_bytes(at) as usize);
        Self(&bytes[patches..end].as_chunks().0[start..next])
    }

    /// The unit that the next one is in; one that no panel has if there is none.
    #[inline(always)]
    fn next_unit(&self) -> usize {
        match self.0.first() {
            Some(patch) => place(*patch).0 / (UNFOLDED_BYTES / 2),
            None => usize::MAX,
        }
    }

    /// Mends `unit` of the panel, unfolded in `values`, if a patch is due. Units come one after another.
    fn mend(&mut self, unit: usize, values: &mut [u8; UNFOLDED_BYTES]) {
        while self.next_unit() == unit
            && let Some((patch, rest)) = self.0.split_first()
        {
            let (at, high) = place(*patch);
            values[at % (UNFOLDED_BYTES / 2) * 2 + 1] = high;
            self.0 = rest;
        }
    }

    /// The high byte of the value at `at`, if it is patched.
    fn get(&self, at: usize) -> Option<u8> {
        let found = self.0.binary_search_by_key(&at, |patch| place(*patch).0);
        found.ok().map(|index| place(self.0[index]).1)
    }
}

/// Which value of a panel, and its high byte.
fn place(patch: [u8; WORD]) -> (usize, u8) {
    let word = u32::from_le_bytes(patch);
    ((word >> 8) as usize, word as u8)
}

/// Where a value of [`Format::BF16`]'s panel lies in a folded one: its low byte, the byte with its number, and whether that is
/// in the high half.
fn folded_at(value: usize) -> (usize, usize, bool) {
    let (unit, vector, word) = (value / 128, value / 32 % 4, value % 32);
    let at = word / 8 * 16 + vector % 2 * 8 + word % 8;
    let unit = unit * UNIT_BYTES;
    (unit + 64 + vector / 2 * 64 + at, unit + at, vector >= 2)
}

/// Writes `from` to `to`, with all threads.
///
/// # Errors
/// [`PackError::ManyExponents`] where there are more patches than room.
fn pack(cpu: &mut Cpu, from: &WeightMatrix, layout: Layout, to: &mut [u8]) -> Result<(), PackError> {
    assert!(Bf16::is_in(from.storage()), "numbers are packed as they are");
    let Places { tables: tables_at, starts: starts_at, patches: patches_at, end } = Places::of(&layout);
    let (isa, panels) = (cpu.isa, layout.panels());
    let panel_of = |panel: usize| {
        let mut values = vec![0; layout.panel_bytes() / UNIT_BYTES * UNFOLDED_BYTES];
        isa.run(LaidOut::<Bf16> { from, first: panel * PANEL, to: &mut values, value: PhantomData });
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
    let room = most_patches(&layout);
    let patches = counts.iter().map(|count| *count as usize).sum();
    if patches > room || layout.panel_bytes() / UNIT_BYTES * UNIT * PANEL > MOST_VALUES {
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

/// The high bytes that a panel has most of, and how many values have others.
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

/// A panel of [`Format::BF16`], and where it goes.
struct Fold<'a> {
    panel: &'a [u8],
    table: &'a [u8],
    to: &'a mut [u8],
    patches: &'a mut [u8],
}

impl Kernel for Fold<'_> {
    type Output = ();

    // Plain loops over arrays: compiled for each instruction set, they are vector instructions.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        const VALUES: usize = UNFOLDED_BYTES / 2;
        /// Values of a vector, and how many of them lie side by side.
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
                        let patch = patches.next().unwrap_or_else(|| unreachable!("they were counted"));
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
