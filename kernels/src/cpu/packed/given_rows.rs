//! Packs weights quantised elsewhere row by row, without a copy of the whole matrix.

use std::sync::Mutex;

use super::super::Cpu;
use super::super::disjoint::DisjointMut;
use super::rounding::Panel;
use super::{Layout, PANEL, PackError, Packed, Scales, Weights};

/// Source of rows of codes with their scales and zero points.
pub trait GivenRows: Sync {
    /// Writes row `row` to `to`, which is zero.
    ///
    /// # Errors
    /// If the row cannot be packed.
    fn row(&self, row: usize, to: GivenRow<'_>) -> Result<(), PackError>;

    /// Values of 4-bit codes, for formats with table lookups.
    fn table(&self) -> [f32; 16] {
        [0.0; 16]
    }
}

/// Destination of a row.
pub struct GivenRow<'a> {
    /// One code per column, within the format's range.
    pub codes: &'a mut [u8],
    /// One scale per entry of `starts`, exact in half precision if the format stores that.
    pub scales: &'a mut [f32],
    /// Codes of zero, one per scale; empty if the format stores none.
    pub zeros: &'a mut [u8],
    /// First column of each scale.
    pub starts: &'a [usize],
}

impl Packed {
    /// Writes the codes of output `row`, as they are multiplied, its scales and zero points to `to`, whose
    /// starts are [`Layout::scale_starts`]. For integer formats other than blocks.
    pub fn codes_of_row(&self, row: usize, to: GivenRow<'_>) {
        to.codes.iter_mut().enumerate().for_each(|(col, code)| *code = self.code(row, col));
        for (i, start) in to.starts.iter().enumerate() {
            (to.scales[i], to.zeros[i]) = self.scale_zero(row, *start);
        }
    }
}

/// Packs `rows` to `to`, which must be zero, in `layout`, with all threads.
///
/// # Errors
/// The error of the first row that fails. `to` is then unusable.
///
/// # Panics
/// If the format has no scales, or `to` has a different size.
pub fn pack_rows(
    cpu: &mut Cpu,
    rows: &dyn GivenRows,
    layout: Layout,
    to: &mut [u8],
) -> Result<(), PackError> {
    assert_eq!(to.len(), layout.bytes(), "a packed matrix fills its bytes");
    assert!(layout.format.scales().is_some(), "the format has scales");
    layout.check();
    if let Some(tail) = &layout.format.0.tail {
        let to = &mut to[layout.tail_at()..][..(tail.bytes)(&layout)];
        let table = rows.table();
        to.chunks_exact_mut(4).zip(table).for_each(|(to, value)| to.copy_from_slice(&value.to_le_bytes()));
    }
    let (to, starts, failed) = (DisjointMut::new(to), layout.scale_starts(), Mutex::new(None));
    cpu.threads.run(layout.panels(), |panel, _| {
        // SAFETY: each panel is in one task.
        let mut to = unsafe { Panel::of(&to, &layout, panel) };
        if let Err(error) = pack_panel(rows, &layout, panel, &starts, &mut to) {
            let mut first = failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if first.is_none_or(|(other, _)| panel < other) {
                *first = Some((panel, error));
            }
        }
    });
    let failed = failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    failed.map_or(Ok(()), |(_, error)| Err(error))
}

/// Packs the rows of a panel.
fn pack_panel(
    rows: &dyn GivenRows,
    layout: &Layout,
    panel: usize,
    starts: &[usize],
    to: &mut Panel<'_>,
) -> Result<(), PackError> {
    let has_zeros = layout.panel_zeros() > 0;
    let (mut codes, mut scales) = (vec![0; layout.cols], vec![0.0; starts.len()]);
    let mut zeros = vec![0; if has_zeros { starts.len() } else { 0 }];
    for lane in 0..PANEL.min(layout.rows - panel * PANEL) {
        codes.fill(0);
        scales.fill(0.0);
        zeros.fill(0);
        let (row, codes, scales, zeros) = (panel * PANEL + lane, &mut codes, &mut scales, &mut zeros);
        rows.row(row, GivenRow { codes, scales, zeros, starts })?;
        put_codes(layout, lane, codes, to.codes);
        put_scales(layout, lane, scales, to.scales);
        zeros.iter().enumerate().for_each(|(i, zero)| to.zeros[i * PANEL + lane] = *zero);
    }
    Ok(())
}

fn put_codes(layout: &Layout, lane: usize, codes: &[u8], to: &mut [u8]) {
    for (col, code) in codes.iter().enumerate() {
        let (at, is_high) = layout.code_at(col, lane);
        to[at] |= if is_high { code << 4 } else { *code };
    }
}

fn put_scales(layout: &Layout, lane: usize, scales: &[f32], to: &mut [u8]) {
    let units = match layout.format.0.weights {
        Weights::Numbers { units, .. } => units,
        Weights::Codes { .. } | Weights::Values { .. } | Weights::Blocks { .. } => 1.0,
    };
    for (i, scale) in scales.iter().enumerate() {
        let at = i * PANEL + lane;
        if layout.format.scales() == Some(Scales::Groups) {
            to[2 * at..][..2].copy_from_slice(&half::f16::from_f32(*scale).to_le_bytes());
        } else {
            to[4 * at..][..4].copy_from_slice(&(scale * units).to_le_bytes());
        }
    }
}
