//! Packs weights that were quantised elsewhere, with their own codes, scales and zero points.

#![allow(clippy::needless_range_loop)] // lanes and columns index several arrays

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::Cpu;
use super::super::disjoint::DisjointMut;
use super::super::input::GROUP;
use super::super::simd::LANES;
use super::rounding::Panel;
use super::{Layout, PANEL, PackError, Scales};

/// Weights that were quantised elsewhere: a weight is `scale * (code - zero)`.
#[derive(Debug, Clone, Copy)]
pub struct GivenCodes<'a> {
    /// `[rows, cols]` codes; up to 4 bits for [`Format::INT4_ZERO`].
    pub codes: &'a [u8],
    /// `[rows, groups]`, one per 32 columns. If a checkpoint has larger groups, repeat their scales.
    pub scales: &'a [half::f16],
    /// `[rows, groups]` codes that mean zero. `None`: 128, as in [`Format::INT8_GROUP`].
    pub zeros: Option<&'a [u8]>,
}

/// Packs `given` to `to` in `layout` unchanged, with all threads.
///
/// # Errors
/// If a code is larger than the format allows. `to` is then unusable.
///
/// # Panics
/// If the shapes disagree, if the format does not have one scale per group, or if zero points are given for a
/// format without them or missing for one with them.
pub fn pack_codes(
    cpu: &mut Cpu,
    given: GivenCodes<'_>,
    layout: Layout,
    to: &mut [u8],
) -> Result<(), PackError> {
    let Layout { format, rows, cols, .. } = layout;
    let groups = layout.groups();
    assert!(format.scales() == Some(Scales::Groups), "the format has one scale per group");
    assert!(given.zeros.is_some() == (layout.panel_zeros() > 0), "zero points, if the format stores them");
    assert_eq!(given.codes.len(), rows * cols, "codes are [rows, cols]");
    assert_eq!(given.scales.len(), rows * groups, "scales are [rows, groups]");
    assert!(given.zeros.is_none_or(|zeros| zeros.len() == rows * groups), "zero points are [rows, groups]");
    assert_eq!(to.len(), layout.bytes(), "a packed matrix fills its bytes");
    layout.check();
    let most = u8::MAX >> (8 - format.bits());
    let (to, first_bad) = (DisjointMut::new(to), AtomicUsize::new(usize::MAX));
    cpu.threads.run(layout.panels(), |panel, _| {
        let first = panel * PANEL * cols;
        let codes = &given.codes[first..given.codes.len().min(first + PANEL * cols)];
        if let Some(at) = codes.iter().position(|code| *code > most) {
            first_bad.fetch_min(first + at, Ordering::Relaxed);
            return;
        }
        // SAFETY: each panel is in one task.
        let mut to = unsafe { Panel::of(&to, &layout, panel) };
        (0..groups).for_each(|group| put_group(&given, &layout, panel, group, &mut to));
    });
    match first_bad.into_inner() {
        usize::MAX => Ok(()),
        at => Err(PackError::LargeCode { row: at / cols, col: at % cols, code: given.codes[at], most }),
    }
}

/// Writes a group of a panel. Padding outputs and columns get zeros.
fn put_group(given: &GivenCodes<'_>, layout: &Layout, panel: usize, group: usize, to: &mut Panel<'_>) {
    let Layout { rows, cols, .. } = *layout;
    let (mut codes, mut scale) = ([[0; LANES]; GROUP], [0.0; LANES]);
    for lane in 0..LANES {
        let row = panel * PANEL + lane;
        let at = row * layout.groups() + group;
        let zero = if row < rows { given.zeros.map_or(0, |zeros| zeros[at]) } else { 0 };
        if layout.panel_zeros() > 0 {
            to.zeros[group * PANEL + lane] = zero;
        }
        for (j, codes) in codes.iter_mut().enumerate() {
            let col = group * GROUP + j;
            // Activations after the last column are zero, so any code will do.
            codes[lane] = u32::from(if row < rows && col < cols { given.codes[row * cols + col] } else { 0 });
        }
        if row < rows {
            scale[lane] = given.scales[at].to_f32();
        }
    }
    to.put_scales(group, &scale);
    to.put_codes(layout, group, &codes);
}
