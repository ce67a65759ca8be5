//! Packs blocks panel by panel and block by block, without changing any code, scale or minimum.

use std::sync::atomic::{AtomicUsize, Ordering};

use half::f16;

use super::super::super::rounding::{Codes, Panel};
use super::super::super::{Format, Layout, PANEL, PackError, Weights, values};
use super::super::f32::F32;
use super::section::{HALVES, Section, code_places, group_bytes};
use crate::cpu::Cpu;
use crate::cpu::blocks::{Block, BlockType};
use crate::cpu::disjoint::DisjointMut;
use crate::cpu::input::GROUP;
use crate::cpu::matrix::{Storage, WeightMatrix};
use crate::cpu::simd::LANES;

/// Packs blocks of type `kind` to a format that preserves them, with all threads.
///
/// # Errors
/// If the format stores scales in half precision and a scale does not fit.
pub(in crate::cpu::packed) fn pack(
    cpu: &mut Cpu,
    from: &WeightMatrix,
    kind: BlockType,
    layout: Layout,
    to: &mut [u8],
) -> Result<(), PackError> {
    if layout.format == Format::F32 {
        return values::pack::<F32>(cpu, &widened(from), layout, to);
    }
    let is_bytes = layout.format == Format::INT8_GROUP;
    assert!(
        is_bytes || matches!(layout.format.0.weights, Weights::Blocks { kind: of, .. } if of == kind),
        "{} is packed to a format that keeps it",
        kind.name()
    );
    let (to, first_bad) = (DisjointMut::new(to), AtomicUsize::new(usize::MAX));
    cpu.threads.run(layout.panels(), |panel, _| {
        if is_bytes {
            // SAFETY: each panel is in one task.
            let to = unsafe { Panel::of(&to, &layout, panel) };
            if let Err(row) = pack_bytes(from, kind, &layout, panel, to) {
                first_bad.fetch_min(row, Ordering::Relaxed);
            }
        } else {
            // SAFETY: each panel is in one task.
            let to = unsafe { to.part(panel * layout.panel_bytes(), layout.panel_bytes()) };
            pack_panel(from, kind, &layout, panel, to);
        }
    });
    match first_bad.into_inner() {
        usize::MAX => Ok(()),
        row => Err(PackError::WideScale { row }),
    }
}

/// Copy in `f32`.
fn widened(from: &WeightMatrix) -> WeightMatrix {
    let mut bytes = Vec::with_capacity(from.rows() * from.cols() * size_of::<f32>());
    let mut row = vec![0.0; from.cols()];
    for i in 0..from.rows() {
        from.widen_row(i, &mut row);
        bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
    }
    WeightMatrix::new(Storage::F32(bytes.into()), from.rows(), from.cols())
}

/// Outputs of a panel, with their lanes.
fn outputs(layout: &Layout, panel: usize) -> impl Iterator<Item = (usize, usize)> {
    let first = panel * PANEL;
    (0..PANEL.min(layout.rows - first)).map(move |lane| (lane, first + lane))
}

/// Packs the outputs of a panel to a format of this module. `to` must be zero.
fn pack_panel(from: &WeightMatrix, kind: BlockType, layout: &Layout, panel: usize, to: &mut [u8]) {
    let (form, section) = (kind.form(), Section::in_layout(layout));
    let (mut block, bits) = (Block::default(), layout.format.bits() as usize);
    for (lane, row) in outputs(layout, panel) {
        for (i, bytes) in from.row(row).chunks_exact(form.bytes).enumerate() {
            kind.decode(bytes, &mut block);
            let groups = form.values / GROUP;
            let (header, _) = section.places(bits, i * groups);
            let first = i * groups % section.groups * GROUP / form.group;
            put_parameters(&section, &block, first, lane, &mut to[header..][..section.header]);
            for (group, codes) in block.codes[..form.values].chunks_exact(GROUP).enumerate() {
                let (_, at) = section.places(bits, i * groups + group);
                put_codes(codes, bits, lane, &mut to[at..][..group_bytes(bits)]);
            }
        }
    }
}

/// Writes a block's parameters to its section, where its first scale has number `first`.
fn put_parameters(section: &Section, block: &Block, first: usize, lane: usize, to: &mut [u8]) {
    let mut put = |at: usize, value: f32| {
        to[at + 2 * lane..][..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    };
    if !section.form.has_factors {
        put(section.scale_at(first), block.scale);
        if section.form.has_minimum {
            put(section.minimum_at(first), block.minimum);
        }
        return;
    }
    put(0, block.scale);
    put(HALVES, block.minimum);
    for index in 0..section.scales() {
        to[section.scale_at(index) + lane] = block.factors[index] as u8;
        if section.form.has_minimum {
            to[section.minimum_at(index) + lane] = block.minimum_factors[index] as u8;
        }
    }
}

/// Writes 32 codes of an output. Those of four columns are adjacent bytes.
fn put_codes(codes: &[u8], bits: usize, lane: usize, to: &mut [u8]) {
    const LOW: u32 = 0x0f0f_0f0f;
    let mut add = |at: usize, four: u32| {
        let to = &mut to[at..][..4];
        let sum = u32::from_le_bytes(std::array::from_fn(|i| to[i])) | four;
        to.copy_from_slice(&sum.to_le_bytes());
    };
    for (four, codes) in codes.chunks_exact(4).enumerate() {
        let codes = u32::from_le_bytes(std::array::from_fn(|i| codes[i]));
        let ((low, is_high), (upper, shift)) = code_places(bits, 4 * four, lane);
        add(low, (codes & LOW) << if is_high { 4 } else { 0 });
        if bits > 4 {
            add(upper, (codes >> 4 & LOW) << shift);
        }
    }
}

/// Packs the outputs of a panel to [`Format::INT8_GROUP`].
///
/// # Errors
/// The first output with a scale that does not fit half precision.
fn pack_bytes(
    from: &WeightMatrix,
    kind: BlockType,
    layout: &Layout,
    panel: usize,
    mut to: Panel<'_>,
) -> Result<(), usize> {
    let (form, mut block) = (kind.form(), Block::default());
    for group in 0..layout.groups() {
        let (mut codes, mut scale): (Codes, _) = ([[0; LANES]; GROUP], [0.0; LANES]);
        for (lane, row) in outputs(layout, panel) {
            kind.decode(&from.row(row)[group * form.bytes..][..form.bytes], &mut block);
            scale[lane] = block.scale;
            if f16::from_f32(block.scale).to_f32().to_bits() != block.scale.to_bits() {
                return Err(row);
            }
            for (codes, code) in codes.iter_mut().zip(&block.codes) {
                codes[lane] = u32::from(*code);
            }
        }
        to.put_scales(group, &scale);
        to.put_codes(layout, group, &codes);
    }
    Ok(())
}
