//! The same integers as those of 8-bit codes: for few rows of `x` a group's sum of 4-bit codes is multiplied, for some the codes
//! are as each tile reads them, for many once for all tiles.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::mem::MaybeUninit;

use super::super::int8::{self, Int8};
use super::{FORMAT, Format, Layout, PANEL, STEP_BYTES, STEP_GROUPS, STEP_LINE_BYTES};
use crate::cpu::input::GROUP;
use crate::cpu::matmul::integer::tile::{Floats, Kind, Source, VECTOR, eight_bits, four_bits};
use crate::cpu::matmul::integer::{SEGMENT, all_tiles, one_tile, registers};
use crate::cpu::matmul::part::Part;
use crate::cpu::matmul::room::with_room;
use crate::cpu::simd::integer::{IntegerIsa, IntegerKernel, Integers};
use crate::cpu::simd::{Isa, Simd};

/// Bytes that a group's 4-bit codes take in a panel.
const GROUP_BYTES: usize = GROUP * PANEL / 2;
/// Rows up to which it is their sums of 4-bit codes that are multiplied; for more rows the codes are.
const FEW: usize = 4;

pub(in super::super) fn multiply(part: &Part<'_>, _: Isa, integers: IntegerIsa) {
    integers.run(Product { part });
}

/// Some rows of one matrix, for all rows of `x`.
struct Product<'a> {
    part: &'a Part<'a>,
}

impl IntegerKernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        if S::HAS_DOT && self.part.rows.len() > const { registers::<S>(FORMAT).highest() } {
            widened_tiles(s, self.part);
        } else {
            all_tiles::<S, Int4>(s, self.part);
        }
    }
}

/// Panels of 4-bit codes that several tiles of rows meet: they become 8 bits once, for all of those.
#[inline(always)]
fn widened_tiles<S: Integers>(s: S, part: &Part<'_>) {
    let layout = Layout { format: int8::FORMAT, ..part.linear.weights.layout() };
    with_room(|room| {
        part.for_each_tile(const { registers::<S>(FORMAT) }, |tile| {
            let from = Source::of(part, &tile);
            let (weights, is_there) = part.place(room, &tile, layout.panel_bytes());
            if !is_there {
                s.call(Widen { from, panels: tile.width, to: weights });
            }
            one_tile::<S, Int8>(s, part, &tile, &Source { weights, layout, ..from });
        });
    });
}

/// A tile's panels of 4-bit codes as [`Format::INT8`] has them.
struct Widen<'a> {
    from: Source<'a>,
    panels: usize,
    to: &'a mut [u8],
}

impl IntegerKernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Integers>(self, s: S) {
        widen_panels(s, &self.from, self.panels, self.to);
    }
}

/// Writes `panels` of 4-bit codes down as [`Format::INT8`] has them, one after another.
#[inline(always)]
fn widen_panels<S: Integers>(s: S, from: &Source<'_>, panels: usize, to: &mut [u8]) {
    from.check(0, panels);
    let (layout, groups) = (from.layout, from.layout.groups());
    let panel = groups * GROUP * PANEL;
    assert!(to.len() >= panels * panel, "room for all panels");
    for n in 0..panels {
        // SAFETY: the checks above.
        unsafe {
            let mut w = from.weights.as_ptr().add(n * from.apart * layout.panel_bytes());
            let mut steps = w;
            for group in 0..groups {
                (w, steps) = next_group(group, w, steps);
                widen(s, w, steps, to.as_mut_ptr().add(n * panel + group * GROUP * PANEL));
                w = w.add(GROUP_BYTES);
            }
        }
    }
}

/// 4 bits that steps make 8, a scale for each output.
struct Int4;

impl Kind for Int4 {
    const FORMAT: Format = FORMAT;

    #[inline(always)]
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(s: S, t: &Source<'_>) -> Floats<S, MR, NR> {
        t.check(MR, NR);
        let (f, groups) = (s.floats(), t.layout.groups());
        let apart = t.apart * t.layout.panel_bytes();
        let mut ahead = t.ahead.over(groups);
        let mut results = [[f.zero(); NR]; MR];
        let widens = S::HAS_DOT && MR > FEW;
        let mut room = [const { Room(MaybeUninit::uninit()) }; NR];
        let mut from = 0;
        while from < groups {
            let to = groups.min(from + SEGMENT / GROUP);
            let mut sums = [[s.splat(0); NR]; MR];
            if widens {
                sums = t.bytes_begin::<S, MR, NR>(s, from..to);
            }
            // SAFETY: the check above; a group of all rows and panels lies inside.
            unsafe {
                let mut x = t.codes.as_ptr().add(from * GROUP);
                let mut w = t.weights.as_ptr().add(from / STEP_GROUPS * STEP_LINE_BYTES);
                let mut steps = w;
                for group in from..to {
                    (w, steps) = next_group(group, w, steps);
                    ahead.ask::<_, NR>(f, w, apart, GROUP_BYTES);
                    if widens {
                        for n in 0..NR {
                            let (w, steps) = (w.add(n * apart), steps.add(n * apart));
                            widen(s, w, steps, room[n].0.as_mut_ptr().cast());
                        }
                        let room = room.as_ptr().cast();
                        sums = eight_bits::<S, MR, NR>(s, t, x, room, size_of::<Room>(), sums);
                    } else {
                        sums = stepped::<S, MR, NR>(s, t, x, w, (steps, group), sums);
                    }
                    (x, w) = (x.add(GROUP), w.add(GROUP_BYTES));
                }
                results = t.add_scaled(s, results, sums);
            }
            from = to;
        }
        results
    }
}

/// 8-bit codes of a panel's group.
#[repr(align(64))]
struct Room(MaybeUninit<[u8; GROUP * PANEL]>);

/// Where the codes of the next group of 4-bit codes lie, and its steps, if codes end at `w` and the last steps lay at `steps`: before
/// each [`STEP_GROUPS`] groups comes a line of their steps.
#[inline(always)]
fn next_group(group: usize, w: *const u8, steps: *const u8) -> (*const u8, *const u8) {
    match group % STEP_GROUPS {
        0 => (w.wrapping_add(STEP_BYTES), w),
        _ => (w, steps.wrapping_add(PANEL)),
    }
}

/// Writes a group of a panel of 4-bit codes down as [`Format::INT8`] has it.
///
/// # Safety
/// `w` and `steps` are readable for a group, and `to` is writable for it.
#[inline(always)]
unsafe fn widen<S: Integers>(s: S, w: *const u8, steps: *const u8, to: *mut u8) {
    // SAFETY: by the contract.
    unsafe {
        let steps = s.load_byte_steps(steps);
        for step in 0..GROUP / 8 {
            let both = s.load(w.add(step * VECTOR));
            s.store(s.stepped(s.low(both), steps), to.add(2 * step * VECTOR));
            s.store(s.stepped(s.high(both), steps), to.add((2 * step + 1) * VECTOR));
        }
    }
}

/// Adds the products of a group of 4-bit codes that steps make 8: the group, and the panels' steps from there on.
///
/// # Safety
/// A group of `MR` rows of `x` and `NR` panels of `w` and steps is readable.
#[inline(always)]
unsafe fn stepped<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    t: &Source<'_>,
    x: *const i8,
    w: *const u8,
    (from, index): (*const u8, usize),
    mut sums: [[S::Sums; NR]; MR],
) -> [[S::Sums; NR]; MR] {
    let apart = t.apart * t.layout.panel_bytes();
    // SAFETY: by the contract.
    unsafe {
        let row_sums = t.sums.as_ptr().add(index);
        let mut steps = [s.load_steps(from); NR];
        for n in 1..NR {
            steps[n] = s.load_steps(from.add(n * apart));
        }
        let mut group = [[s.begin_small(s.splat(0)); NR]; MR];
        for m in 0..MR {
            let sum = *row_sums.add(m * t.sum_stride);
            for n in 0..NR {
                group[m][n] = s.begin_stepped(steps[n], sum);
            }
        }
        group = four_bits::<S, MR, NR>(s, t, x, w, apart, group);
        for m in 0..MR {
            let sum = *row_sums.add(m * t.sum_stride);
            for n in 0..NR {
                sums[m][n] = s.end_stepped(group[m][n], sums[m][n], steps[n], sum);
            }
        }
    }
    sums
}
