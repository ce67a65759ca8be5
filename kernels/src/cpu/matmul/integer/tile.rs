//! The inner loops: rows of activations against panels of sixteen outputs, all sums in registers.
//!
//! Plain loops over constant bounds, no closures: a closure would not be compiled for the instruction set.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::super::input::GROUP;
use super::super::super::packed::{Format, Layout, PANEL, STEP_BYTES, STEP_GROUPS, STEP_LINE_BYTES, ZERO};
use super::super::super::simd::Simd;
use super::super::super::simd::integer::Integers;
use super::super::tiles::Ahead;
use super::SEGMENT;

/// Bytes that four columns of 8-bit codes, or eight of 4-bit codes, take in a panel.
const VECTOR: usize = 4 * PANEL;
/// Bytes that a group's 4-bit codes take in a panel.
const GROUP_BYTES: usize = GROUP * PANEL / 2;
/// Rows up to which it is their sums of 4-bit codes that are multiplied; for more rows the codes are.
const FEW: usize = 4;

/// Rows of `x` and panels of weights, each from its first one on.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    /// Codes of activations, their rows `code_stride` apart.
    pub(super) codes: &'a [i8],
    pub(super) code_stride: usize,
    /// Sums of groups, their rows `sum_stride` apart.
    pub(super) sums: &'a [i32],
    pub(super) sum_stride: usize,
    /// Sums of rows.
    pub(super) totals: &'a [i32],
    pub(super) weights: &'a [u8],
    pub(super) scales: &'a [u8],
    pub(super) zeros: &'a [u8],
    pub(super) layout: Layout,
    /// Panels from one to the next.
    pub(super) apart: usize,
    pub(super) ahead: &'a Ahead,
}

/// How sums become floats.
pub(super) trait Kind {
    const FORMAT: Format;

    /// The products of `MR` rows and `NR` panels, without the rows' scales.
    ///
    /// # Safety
    /// The tile has as many rows and panels.
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        tile: &Source<'_>,
    ) -> [[<S::Floats as Simd>::V; NR]; MR];
}

impl Source<'_> {
    /// Panics unless all that `MR` rows and `NR` panels need is there.
    #[inline(always)]
    fn check(&self, rows: usize, panels: usize) {
        let last = (panels - 1) * self.apart + 1;
        let columns = self.layout.groups() * GROUP;
        assert!(columns <= self.code_stride && columns / GROUP <= self.sum_stride, "rows have all columns");
        assert!(self.codes.len() >= rows * self.code_stride, "codes of all rows");
        assert!(self.sums.len() >= rows * self.sum_stride, "sums of all rows");
        assert!(self.weights.len() >= last * self.layout.panel_bytes(), "codes of all panels");
        let scales = last * self.layout.panel_scales();
        assert!(self.scales.len() >= scales * self.layout.scale_bytes(), "scales of all panels");
        assert!(self.zeros.len() >= last * self.layout.panel_zeros(), "zero points of all panels");
    }

    /// Writes `panels` of 4-bit codes down as [`Format::Int8`] has them, one after another.
    #[inline(always)]
    pub(super) fn widen<S: Integers>(&self, s: S, panels: usize, to: &mut [u8]) {
        self.check(0, panels);
        let (layout, groups) = (self.layout, self.layout.groups());
        let panel = groups * GROUP * PANEL;
        assert!(to.len() >= panels * panel, "room for all panels");
        for n in 0..panels {
            // SAFETY: the checks above.
            unsafe {
                let mut w = self.weights.as_ptr().add(n * self.apart * layout.panel_bytes());
                let mut steps = w;
                for group in 0..groups {
                    (w, steps) = next_group(group, w, steps);
                    widen(s, w, steps, to.as_mut_ptr().add(n * panel + group * GROUP * PANEL));
                    w = w.add(GROUP_BYTES);
                }
            }
        }
    }

    /// What sums of products with 8-bit codes start at, for some groups' columns.
    #[inline(always)]
    fn bytes_begin<S: Integers, const MR: usize, const NR: usize>(
        &self,
        s: S,
        groups: Range<usize>,
    ) -> [[S::Sums; NR]; MR] {
        let mut sums = [[s.splat(0); NR]; MR];
        for m in 0..MR {
            let sum: i32 = match groups.len() == self.layout.groups() {
                true => self.totals[m],
                false => self.sums[m * self.sum_stride..][groups.clone()].iter().sum(),
            };
            sums[m] = [s.splat(-i32::from(ZERO) * sum); NR];
        }
        sums
    }

    /// Adds whole sums times their outputs' scales.
    ///
    /// # Safety
    /// [`Source::check`] passed for `NR` panels with a scale for each output.
    #[inline(always)]
    unsafe fn add_scaled<S: Integers, const MR: usize, const NR: usize>(
        &self,
        s: S,
        mut results: [[<S::Floats as Simd>::V; NR]; MR],
        sums: [[S::Sums; NR]; MR],
    ) -> [[<S::Floats as Simd>::V; NR]; MR] {
        let f = s.floats();
        for n in 0..NR {
            // SAFETY: by the contract.
            let scale = unsafe { f.load(self.scales.as_ptr().add(n * self.apart * PANEL * 4).cast()) };
            for m in 0..MR {
                results[m][n] = f.fma(s.to_floats(sums[m][n]), scale, results[m][n]);
            }
        }
        results
    }
}

/// 8 bits, a scale for each output.
pub(super) struct PerOutput;

impl Kind for PerOutput {
    const FORMAT: Format = Format::Int8;

    #[inline(always)]
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &Source<'_>,
    ) -> [[<S::Floats as Simd>::V; NR]; MR] {
        t.check(MR, NR);
        let f = s.floats();
        let (columns, apart) = (t.layout.groups() * GROUP, t.apart * t.layout.panel_bytes());
        let mut ahead = t.ahead.over(t.layout.groups());
        let mut results = [[f.zero(); NR]; MR];
        let mut from = 0;
        while from < columns {
            let to = columns.min(from + SEGMENT);
            let mut sums = t.bytes_begin::<S, MR, NR>(s, from / GROUP..to / GROUP);
            // SAFETY: the check above; four columns of all rows and panels lie inside.
            unsafe {
                let mut x = t.codes.as_ptr().add(from);
                let mut w = t.weights.as_ptr().add(from * PANEL);
                let end = x.add(to - from);
                while x < end {
                    ahead.ask::<_, NR>(f, w, apart, GROUP * PANEL);
                    sums = eight_bits::<S, MR, NR>(s, t, x, w, apart, sums);
                    (x, w) = (x.add(GROUP), w.add(GROUP * PANEL));
                }
                results = t.add_scaled(s, results, sums);
            }
            from = to;
        }
        results
    }
}

/// 4 bits that steps make 8, a scale for each output.
pub(super) struct Stepped;

impl Kind for Stepped {
    const FORMAT: Format = Format::Int4;

    #[inline(always)]
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &Source<'_>,
    ) -> [[<S::Floats as Simd>::V; NR]; MR] {
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

/// How codes of groups with scales are read.
pub(super) trait Codes {
    const FORMAT: Format;
}

pub(super) struct GroupedBytes;
pub(super) struct FourBitsZero;

impl Codes for GroupedBytes {
    const FORMAT: Format = Format::Int8Group;
}
impl Codes for FourBitsZero {
    const FORMAT: Format = Format::Int4Zero;
}

/// A scale for each output and group.
pub(super) struct Grouped<C>(PhantomData<C>);

impl<C: Codes> Kind for Grouped<C> {
    const FORMAT: Format = C::FORMAT;

    #[inline(always)]
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &Source<'_>,
    ) -> [[<S::Floats as Simd>::V; NR]; MR] {
        t.check(MR, NR);
        let f = s.floats();
        let (groups, apart) = (t.layout.groups(), t.apart * t.layout.panel_bytes());
        let scales_apart = t.apart * t.layout.panel_scales();
        let mut ahead = t.ahead.over(groups);
        let mut results = [[f.zero(); NR]; MR];
        let mut zeros = [s.splat_zeros(ZERO); NR];
        // SAFETY: the check above; a group of all rows and panels lies inside.
        unsafe {
            let (mut x, mut w) = (t.codes.as_ptr(), t.weights.as_ptr());
            let (mut scales, mut zero_points) = (t.scales.as_ptr(), t.zeros.as_ptr());
            for group in 0..groups {
                let row_sums = t.sums.as_ptr().add(group);
                if matches!(C::FORMAT, Format::Int4Zero) {
                    for n in 0..NR {
                        zeros[n] = s.load_zeros(zero_points.add(n * scales_apart));
                    }
                }
                let mut starts = [[s.splat(0); NR]; MR];
                for m in 0..MR {
                    let sum = *row_sums.add(m * t.sum_stride);
                    for n in 0..NR {
                        starts[m][n] = s.minus_times(zeros[n], sum);
                    }
                }
                let mut sums = starts;
                if C::FORMAT.bits() == 4 {
                    let mut small = [[s.begin_small(starts[0][0]); NR]; MR];
                    for m in 0..MR {
                        for n in 0..NR {
                            small[m][n] = s.begin_small(starts[m][n]);
                        }
                    }
                    small = four_bits::<S, MR, NR>(s, t, x, w, apart, small);
                    for m in 0..MR {
                        for n in 0..NR {
                            sums[m][n] = s.end_small(small[m][n], starts[m][n]);
                        }
                    }
                } else {
                    sums = eight_bits::<S, MR, NR>(s, t, x, w, apart, starts);
                }
                for n in 0..NR {
                    let scale = f.load_f16(scales.add(n * scales_apart * 2));
                    for m in 0..MR {
                        results[m][n] = f.fma(s.to_floats(sums[m][n]), scale, results[m][n]);
                    }
                }
                let group_bytes = GROUP * PANEL * C::FORMAT.bits() as usize / 8;
                if let Ahead::Soon(bytes @ 1..) = *t.ahead {
                    for n in 0..NR {
                        f.prefetch(scales.wrapping_add(n * scales_apart * 2 + bytes / 8));
                    }
                }
                ahead.ask::<_, NR>(f, w, apart, group_bytes);
                (x, w) = (x.add(GROUP), w.add(group_bytes));
                (scales, zero_points) = (scales.add(PANEL * 2), zero_points.wrapping_add(PANEL));
            }
        }
        results
    }
}

/// Adds the products of a group of 8-bit codes.
///
/// # Safety
/// A group of `MR` rows of `x` and `NR` panels of `w` is readable.
#[inline(always)]
unsafe fn eight_bits<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    t: &Source<'_>,
    x: *const i8,
    w: *const u8,
    apart: usize,
    mut sums: [[S::Sums; NR]; MR],
) -> [[S::Sums; NR]; MR] {
    for step in 0..GROUP / 4 {
        // SAFETY: by the contract.
        unsafe {
            let mut codes = [s.load(w.add(step * VECTOR)); NR];
            for n in 0..NR {
                codes[n] = s.load(w.add(n * apart + step * VECTOR));
            }
            for m in 0..MR {
                let four = s.four(x.add(m * t.code_stride + step * 4));
                for n in 0..NR {
                    sums[m][n] = s.dot(sums[m][n], codes[n], four);
                }
            }
        }
    }
    sums
}

/// Adds the products of a group of 4-bit codes.
///
/// # Safety
/// A group of `MR` rows of `x` and `NR` panels of `w` is readable.
#[inline(always)]
unsafe fn four_bits<S: Integers, const MR: usize, const NR: usize>(
    s: S,
    t: &Source<'_>,
    x: *const i8,
    w: *const u8,
    apart: usize,
    mut small: [[S::Small; NR]; MR],
) -> [[S::Small; NR]; MR] {
    for step in 0..GROUP / 8 {
        // SAFETY: by the contract.
        unsafe {
            let mut low = [s.load(w.add(step * VECTOR)); NR];
            let mut high = low;
            for n in 0..NR {
                let both = s.load(w.add(n * apart + step * VECTOR));
                (low[n], high[n]) = (s.low(both), s.high(both));
            }
            for m in 0..MR {
                let at = x.add(m * t.code_stride + step * 8);
                let four = s.four(at);
                for n in 0..NR {
                    small[m][n] = s.dot_small(small[m][n], low[n], four);
                }
                let four = s.four(at.add(4));
                for n in 0..NR {
                    small[m][n] = s.dot_small(small[m][n], high[n], four);
                }
            }
        }
    }
    small
}

/// Where the codes of the next group of 4-bit codes lie, and its steps, if codes end at `w` and the last steps lay at `steps`: before
/// each [`STEP_GROUPS`] groups comes a line of their steps.
#[inline(always)]
fn next_group(group: usize, w: *const u8, steps: *const u8) -> (*const u8, *const u8) {
    match group % STEP_GROUPS {
        0 => (w.wrapping_add(STEP_BYTES), w),
        _ => (w, steps.wrapping_add(PANEL)),
    }
}

/// Writes a group of a panel of 4-bit codes down as [`Format::Int8`] has it.
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
