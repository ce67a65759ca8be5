//! Grids of codes, and rounding to the nearest code.

use half::{bf16, f16};

use super::for_each_part;

/// Type in which scales are stored. They are rounded to it before codes are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleType {
    /// Half precision of IEEE 754.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// Single precision of IEEE 754.
    F32,
}

impl ScaleType {
    /// `scale` rounded to this type: positive and finite for a positive finite scale.
    pub fn round(self, scale: f32) -> f32 {
        match self {
            Self::F16 => f16::from_f32(scale).to_f32().clamp(2f32.powi(-24), f16::MAX.to_f32()),
            Self::Bf16 => bf16::from_f32(scale).to_f32().clamp(f32::MIN_POSITIVE, bf16::MAX.to_f32()),
            Self::F32 => scale,
        }
    }
}

/// Rule by which the grid of a group follows from its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Bits of a code, 2 to 8.
    pub bits: u32,
    /// Whether the zero point is the middle code. Otherwise it is chosen for each group.
    pub is_symmetric: bool,
    /// Smallest zero point that can be stored.
    pub least_zero: u8,
    /// Type of the scales.
    pub scales: ScaleType,
}

/// A weight is `scale * (code - zero)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    /// Distance between two weights.
    pub scale: f32,
    /// Code of weight 0.
    pub zero: u8,
}

impl Rule {
    /// Largest code that the bits can hold.
    pub fn most(&self) -> u8 {
        u8::MAX >> (8 - self.bits)
    }

    /// The grid that covers `weights`.
    pub fn grid(&self, weights: impl Iterator<Item = f32>) -> Grid {
        let (low, high) = weights.fold((0f32, 0f32), |(low, high), it| (low.min(it), high.max(it)));
        let most = f32::from(self.most());
        if self.is_symmetric {
            let middle = self.most() / 2 + 1;
            // As in GPTQ: the largest weight lies half a step beyond the last code if it is positive.
            let scale = 2.0 * high.max(-low) / most;
            return Grid { scale: self.scale(scale), zero: middle };
        }
        let scale = self.scale((high - low) / most);
        let zero = (-low / scale).round_ties_even().clamp(f32::from(self.least_zero), most);
        Grid { scale, zero: zero as u8 }
    }

    /// `scale` as stored; 1 for a group of zeros.
    fn scale(&self, scale: f32) -> f32 {
        if scale > 0.0 { self.scales.round(scale) } else { 1.0 }
    }

    /// The code nearest to `weight`.
    pub fn code(&self, grid: Grid, weight: f32) -> u8 {
        let code = (weight / grid.scale).round_ties_even() + f32::from(grid.zero);
        code.clamp(0.0, f32::from(self.most())) as u8
    }
}

impl Grid {
    /// Weight of `code`.
    pub fn value(self, code: u8) -> f32 {
        self.scale * (i32::from(code) - i32::from(self.zero)) as f32
    }
}

/// A matrix of codes.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantised {
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
    /// Bits of a code.
    pub bits: u32,
    /// Inputs that share a grid.
    pub group: usize,
    /// Codes of all weights, `[rows, cols]`.
    pub codes: Vec<u8>,
    /// Grids of all groups, `[rows, groups]`.
    pub grids: Vec<Grid>,
    /// Group of each input; `None` if groups are consecutive inputs.
    pub group_of: Option<Vec<u32>>,
}

impl Quantised {
    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Grid of an output and group.
    pub fn grid(&self, row: usize, group: usize) -> Grid {
        self.grids[row * self.groups() + group]
    }

    /// Sets `to` to the weights of output `row`.
    pub fn widen_row(&self, row: usize, to: &mut [f32]) {
        for (col, to) in to.iter_mut().enumerate() {
            let group = self.group_of.as_ref().map_or(col / self.group, |of| of[col] as usize);
            *to = self.grid(row, group).value(self.codes[row * self.cols + col]);
        }
    }

    /// All weights, `[rows, cols]`.
    pub fn widen(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.cols];
        for_each_part(&mut values, self.cols, |row, to| self.widen_row(row, to));
        values
    }
}

/// Rounds each weight to the nearest code of its group's grid.
pub fn round_to_nearest(weights: &[f32], cols: usize, rule: Rule, group: usize) -> Quantised {
    let (rows, groups) = (weights.len() / cols, cols.div_ceil(group));
    let mut grids = vec![Grid { scale: 1.0, zero: 0 }; rows * groups];
    for_each_part(&mut grids, groups, |row, grids| {
        let row = &weights[row * cols..][..cols];
        grids.iter_mut().zip(row.chunks(group)).for_each(|(grid, weights)| {
            *grid = rule.grid(weights.iter().copied());
        });
    });
    let mut codes = vec![0; rows * cols];
    for_each_part(&mut codes, cols, |row, codes| {
        for (col, code) in codes.iter_mut().enumerate() {
            *code = rule.code(grids[row * groups + col / group], weights[row * cols + col]);
        }
    });
    Quantised { rows, cols, bits: rule.bits, group, codes, grids, group_of: None }
}
