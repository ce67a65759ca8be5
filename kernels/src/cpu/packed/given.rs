//! Weights whose codes, scales and zero points somebody else chose: they are laid out as they are.

#![allow(clippy::needless_range_loop)] // lanes and columns index several arrays

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::Cpu;
use super::super::disjoint::DisjointMut;
use super::super::input::GROUP;
use super::super::simd::LANES;
use super::rounding::Panel;
use super::{Layout, PANEL, PackError, Scales};

/// Weights that somebody else rounded: a weight is `scale * (code - zero)`.
#[derive(Debug, Clone, Copy)]
pub struct GivenCodes<'a> {
    /// `[rows, cols]`, of up to 4 bits for [`Format::INT4_ZERO`].
    pub codes: &'a [u8],
    /// `[rows, groups]`: one for each 32 columns. Where a checkpoint's groups are larger, theirs over and over.
    pub scales: &'a [half::f16],
    /// `[rows, groups]`: which code is zero. Without them it is 128, as [`Format::INT8_GROUP`] has it.
    pub zeros: Option<&'a [u8]>,
}

/// Writes `given` to `to` in `layout`, as they are, with all threads.
///
/// # Errors
/// If a code is larger than the format's largest. `to` then holds nothing of use.
///
/// # Panics
/// If the shapes disagree, the format has no scales for groups, or zero points are given for one that stores none, or the other
/// way round.
pub fn pack_codes(
    cpu: &mut Cpu,
    given: GivenCodes<'_>,
    layout: Layout,
    to: &mut [u8],
) -> Result<(), PackError> {
    let Layout { format, rows, cols } = layout;
    let groups = layout.groups();
    assert!(format.scales() == Some(Scales::Groups), "groups have scales");
    assert!(given.zeros.is_some() == (layout.panel_zeros() > 0), "zero points, if the format stores them");
    assert_eq!(given.codes.len(), rows * cols, "codes are [rows, cols]");
    assert_eq!(given.scales.len(), rows * groups, "scales are [rows, groups]");
    assert!(given.zeros.is_none_or(|zeros| zeros.len() == rows * groups), "zero points are [rows, groups]");
    assert_eq!(to.len(), layout.bytes(), "a packed matrix fills its bytes");
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

/// Writes a group of a panel. Outputs and columns that the matrix does not have are zero.
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
            // Activations behind the last column are zero, so that any code will do.
            codes[lane] = u32::from(if row < rows && col < cols { given.codes[row * cols + col] } else { 0 });
        }
        if row < rows {
            scale[lane] = given.scales[at].to_f32();
        }
    }
    to.put_scales(group, &scale);
    to.put_codes(layout, group, &codes);
}
