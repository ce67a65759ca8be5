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
//! value's place in [`Format::Bf16`]'s panel above its high byte.

#![allow(clippy::needless_range_loop)] // values index several arrays

use super::super::Cpu;
use super::super::matrix::WeightMatrix;
use super::super::shared::Shared;
use super::super::simd::{Kernel, Simd};
use super::pack::{LaidOut, PackError};
use super::{Format, Layout, PANEL};

/// Columns of a unit.
pub(in super::super) const UNIT: usize = 8;
/// Its bytes.
pub(in super::super) const UNIT_BYTES: usize = 192;
/// Its bytes in [`Format::Bf16`].
pub(in super::super) const UNFOLDED_BYTES: usize = UNIT * PANEL * 2;
/// High bytes of a table.
pub(in super::super) const TABLE: usize = 16;
/// Values for each patch there is room for: normal weights need one in some thousands.
const VALUES_PER_PATCH: usize = 256;
/// Bytes of a patch, and of where a panel's start.
const WORD: usize = size_of::<u32>();
/// Values that a patch can tell apart.
const MOST_VALUES: usize = 1 << 24;

impl Layout {
    /// Patches there is room for.
    pub(super) fn most_patches(&self) -> usize {
        match self.format {
            Format::Bf16Folded => self.panels() * self.cols.next_multiple_of(UNIT) * PANEL / VALUES_PER_PATCH,
            _ => 0,
        }
    }

    /// Where the tables start, where the patches' starts, where the patches, and where all that ends.
    pub(super) fn folded_at(&self) -> [usize; 4] {
        let tables = (self.panels() * self.panel_bytes()).next_multiple_of(super::PART_ALIGN);
        let starts = (tables + self.panels() * TABLE).next_multiple_of(super::PART_ALIGN);
        let patches = (starts + (self.panels() + 1) * WORD).next_multiple_of(super::PART_ALIGN);
        [tables, starts, patches, (patches + self.most_patches() * WORD).next_multiple_of(super::PART_ALIGN)]
    }
}

/// Values of a panel whose high bytes are not in its table, ascending.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Patches<'a>(&'a [[u8; WORD]]);

impl<'a> Patches<'a> {
    /// Those of a panel of a matrix in `bytes`.
    pub(super) fn of(bytes: &'a [u8], layout: &Layout, panel: usize) -> Self {
        let [_, starts, patches, end] = layout.folded_at();
        let starts = bytes[starts + panel * WORD..].as_chunks().0;
        let [start, next] = [starts[0], starts[1]].map(|at| u32::from_le_bytes(at) as usize);
        Self(&bytes[patches..end].as_chunks().0[start..next])
    }

    /// Bytes of all of a matrix's.
    pub(super) fn bytes(bytes: &'a [u8], layout: &Layout) -> usize {
        (0..layout.panels()).map(|panel| size_of_val(Self::of(bytes, layout, panel).0)).sum()
    }

    /// The unit that the next one is in; one that no panel has if there is none.
    #[inline(always)]
    pub(in super::super) fn next_unit(&self) -> usize {
        match self.0.first() {
            Some(patch) => place(*patch).0 / (UNFOLDED_BYTES / 2),
            None => usize::MAX,
        }
    }

    /// Mends `unit` of the panel, unfolded in `values`, if a patch is due. Units come one after another.
    pub(in super::super) fn mend(&mut self, unit: usize, values: &mut [u8; UNFOLDED_BYTES]) {
        while self.next_unit() == unit
            && let Some((patch, rest)) = self.0.split_first()
        {
            let (at, high) = place(*patch);
            values[at % (UNFOLDED_BYTES / 2) * 2 + 1] = high;
            self.0 = rest;
        }
    }

    /// The high byte of the value at `at`, if it is patched.
    pub(super) fn get(&self, at: usize) -> Option<u8> {
        let found = self.0.binary_search_by_key(&at, |patch| place(*patch).0);
        found.ok().map(|index| place(self.0[index]).1)
    }
}

/// Which value of a panel, and its high byte.
fn place(patch: [u8; WORD]) -> (usize, u8) {
    let word = u32::from_le_bytes(patch);
    ((word >> 8) as usize, word as u8)
}

/// Where a value of [`Format::Bf16`]'s panel lies in a folded one: its low byte, the byte with its number, and whether that is
/// in the high half.
pub(super) fn folded_at(value: usize) -> (usize, usize, bool) {
    let (unit, vector, word) = (value / 128, value / 32 % 4, value % 32);
    let at = word / 8 * 16 + vector % 2 * 8 + word % 8;
    let unit = unit * UNIT_BYTES;
    (unit + 64 + vector / 2 * 64 + at, unit + at, vector >= 2)
}

/// Writes `from` to `to`, with all threads.
///
/// # Errors
/// [`PackError::ManyExponents`] where there are more patches than room.
pub(super) fn pack(
    cpu: &mut Cpu,
    from: &WeightMatrix,
    layout: Layout,
    to: &mut [u8],
) -> Result<(), PackError> {
    let [tables_at, starts_at, patches_at, end] = layout.folded_at();
    let (isa, panels) = (cpu.isa, layout.panels());
    let unfolded = Layout { format: Format::Bf16, ..layout };
    let panel_of = |panel: usize| {
        let mut values = vec![0; layout.panel_bytes() / UNIT_BYTES * UNFOLDED_BYTES];
        isa.run(LaidOut { from, layout: unfolded, first: panel * PANEL, to: &mut values });
        values
    };
    let mut counts = vec![0u32; panels];
    {
        let (counts, tables) = (Shared::new(&mut counts), Shared::new(&mut to[tables_at..starts_at]));
        cpu.threads.run(panels, |panel, _| {
            let (table, patches) = table(&panel_of(panel));
            // SAFETY: each panel is in one task.
            unsafe {
                tables.part(panel * TABLE, TABLE).copy_from_slice(&table);
                counts.part(panel, 1)[0] = patches;
            }
        });
    }
    let room = layout.most_patches();
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
    let (values, patches) = (Shared::new(values), Shared::new(&mut patches[..end - patches_at]));
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

/// A panel of [`Format::Bf16`], and where it goes.
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
