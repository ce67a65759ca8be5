//! Computes the same sums as 8-bit codes would give. For few rows of `x`, a group's sum of 4-bit codes is
//! multiplied. For more rows, each tile expands the codes it reads, and for many rows the codes are expanded
//! once for all tiles.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::mem::MaybeUninit;

use super::super::int8::{self, Int8};
use super::{FORMAT, Format, Layout, PANEL, STEP_BYTES, STEP_GROUPS, STEP_LINE_BYTES};
use crate::cpu::input::{GROUP, PARTS};
use crate::cpu::matmul::integer::tile::{Floats, IntegerTileInputs, Kind, VECTOR, add_group, add_part};
use crate::cpu::matmul::integer::{all_tiles, one_tile, registers};
use crate::cpu::matmul::part::Part;
use crate::cpu::matmul::tiles::PrefetchCursor;
use crate::cpu::matmul::unpacked::with_unpack_buffers;
use crate::cpu::rows::Strided;
use crate::cpu::simd::integer::{IntegerIsa, IntegerKernel, Integers};
use crate::cpu::simd::{Isa, Simd};

/// Bytes of a group's 4-bit codes in a panel.
const GROUP_BYTES: usize = GROUP * PANEL / 2;
/// Up to this many rows, sums of 4-bit codes are multiplied; for more rows the codes are expanded.
const MAX_ROWS_IN_4_BITS: usize = 4;

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

/// Expands panels of 4-bit codes to 8 bits once, for several tiles of rows.
#[inline(always)]
fn widened_tiles<S: Integers>(s: S, part: &Part<'_>) {
    let layout = Layout { format: int8::FORMAT, ..part.linear.weights.layout() };
    with_unpack_buffers(|buffers| {
        part.for_each_tile(const { registers::<S>(FORMAT) }, |tile| {
            let from = IntegerTileInputs::of(part, &tile);
            let (weights, is_filled) = part.buffer(buffers, &tile, layout.panel_bytes());
            if !is_filled {
                s.call(Widen { from, panels: tile.width, to: weights });
            }
            one_tile::<S, Int8>(s, part, &tile, &IntegerTileInputs { weights, layout, ..from });
        });
    });
}

/// Expands a tile's panels to the layout of [`Format::INT8`].
struct Widen<'a> {
    from: IntegerTileInputs<'a>,
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

/// Expands `panels` panels to the layout of [`Format::INT8`], one after another.
#[inline(always)]
fn widen_panels<S: Integers>(s: S, from: &IntegerTileInputs<'_>, panels: usize, to: &mut [u8]) {
    from.check(0, panels);
    let (layout, groups) = (from.layout, from.layout.groups());
    let panel = groups * GROUP * PANEL;
    assert!(to.len() >= panels * panel, "the buffer holds all panels");
    for n in 0..panels {
        // SAFETY: checked above.
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

/// Multiplies 4-bit codes, or expands them tile by tile.
struct Int4;

impl Kind for Int4 {
    const FORMAT: Format = FORMAT;

    #[inline(always)]
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &IntegerTileInputs<'_>,
        leaf: usize,
        prefetch: &mut PrefetchCursor,
    ) -> Floats<S, MR, NR> {
        let (f, groups) = (s.floats(), t.layout.leaf_groups());
        let apart = t.apart * t.layout.panel_bytes();
        let mut results = [[f.zero(); NR]; MR];
        let widens = S::HAS_DOT && MR > MAX_ROWS_IN_4_BITS;
        let mut unpacked = [const { UnpackedGroup(MaybeUninit::uninit()) }; NR];
        let first = leaf * groups;
        // SAFETY: checked above; a group of all rows and panels is inside.
        unsafe {
            let (mut w, mut steps) = before_group(t.weights.as_ptr(), first);
            for group in first..first + groups {
                (w, steps) = next_group(group, w, steps);
                prefetch.issue::<_, NR>(f, w, apart, GROUP_BYTES);
                if widens {
                    for n in 0..NR {
                        let (w, steps) = (w.add(n * apart), steps.add(n * apart));
                        widen(s, w, steps, unpacked[n].0.as_mut_ptr().cast());
                    }
                    let unpacked =
                        Strided { at: unpacked.as_ptr().cast(), apart: size_of::<UnpackedGroup>() };
                    results = add_group::<S, MR, NR>(s, 8, t, group, unpacked, None, results);
                } else {
                    results = stepped::<S, MR, NR>(s, t, group, w, steps, results);
                }
                w = w.add(GROUP_BYTES);
            }
            t.times_scales::<S, MR, NR>(s, leaf, results)
        }
    }
}

/// The 8-bit codes of a panel's group.
#[repr(align(64))]
struct UnpackedGroup(MaybeUninit<[u8; GROUP * PANEL]>);

/// Initial addresses for [`next_group`] to reach `group` of the panel at `panel`.
#[inline(always)]
fn before_group(panel: *const u8, group: usize) -> (*const u8, *const u8) {
    let line = panel.wrapping_add(group / STEP_GROUPS * STEP_LINE_BYTES);
    match group % STEP_GROUPS {
        0 => (line, line),
        nth => (line.wrapping_add(STEP_BYTES + nth * GROUP_BYTES), line.wrapping_add((nth - 1) * PANEL)),
    }
}

/// Addresses of the codes and the steps of `group`, if the previous group's codes end at `w` and its steps
/// are at `steps`. A line of steps comes before each [`STEP_GROUPS`] groups.
#[inline(always)]
fn next_group(group: usize, w: *const u8, steps: *const u8) -> (*const u8, *const u8) {
    match group % STEP_GROUPS {
        0 => (w.wrapping_add(STEP_BYTES), w),
        _ => (w, steps.wrapping_add(PANEL)),
    }
}

/// Expands a group of a panel to the layout of [`Format::INT8`].
///
/// # Safety
/// `w` and `steps` are readable for a group, and `to` is writable for one.
#[inline(always)]
unsafe fn widen<S: Integers>(s: S, w: *const u8, steps: *const u8, to: *mut u8) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let steps = s.load_byte_steps(steps);
        for step in 0..GROUP / 8 {
            let both = s.load(w.add(step * VECTOR));
            s.store(s.stepped(s.low(both), steps), to.add(2 * step * VECTOR));
            s.store(s.stepped(s.high(both), steps), to.add((2 * step + 1) * VECTOR));
        }
    }
}

/// Adds the products of a group of 4-bit codes, applying its steps to the sums. `w` and `steps` point to
/// those of the first panel. A sum times its multiplier is below 2^24, so it is the sum of the 8-bit codes in
/// `f32`, too.
///
/// # Safety
/// The group of `MR` rows of `x` exists, and one of `NR` panels of `w` and steps is readable.
#[inline(always)]
unsafe fn stepped<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    t: &IntegerTileInputs<'_>,
    group: usize,
    w: *const u8,
    steps: *const u8,
    mut results: Floats<S, MR, NR>,
) -> Floats<S, MR, NR> {
    let (f, apart) = (s.floats(), t.apart * t.layout.panel_bytes());
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut both = [s.load_steps(steps); NR];
        for n in 1..NR {
            both[n] = s.load_steps(steps.add(n * apart));
        }
        for part in 0..PARTS {
            let group = group * PARTS + part;
            let mut sums = [[s.splat(0); NR]; MR];
            for m in 0..MR {
                let sum = t.inputs(m, group).sum;
                for n in 0..NR {
                    sums[m][n] = s.minus_times(both[n].1, sum);
                }
            }
            let w = Strided { at: w.add(part * GROUP_BYTES / PARTS), apart };
            sums = add_part::<S, MR, NR>(s, 4, t, group, w, sums);
            for m in 0..MR {
                let scale = f.splat(t.inputs(m, group).scale);
                for n in 0..NR {
                    let sum = f.mul(s.to_floats(sums[m][n]), both[n].0);
                    results[m][n] = f.fma(sum, scale, results[m][n]);
                }
            }
        }
    }
    results
}
