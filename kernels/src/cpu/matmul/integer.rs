//! Weights that are small integers, packed ([`super::super::packed`]), times activations that are codes too.
//!
//! The products of a group of 32 columns, or of up to [`SEGMENT`] columns where an output has one scale, are summed exactly,
//! as integers: `sum of (code - zero) * activation code`. Then, group by group in ascending order, that sum, as f32, times
//! the scale is added to the result by fused multiply-add; at the end the result is multiplied by the row's scale.

use super::super::input::GROUP;
use super::super::packed::{PANEL, Packed};
use super::super::simd::{Kernel, Simd};
use super::Part;

/// Columns whose products fit 32 bits together: `255 * 127 * SEGMENT < 2^31`.
pub(super) const SEGMENT: usize = 32 << 10;

/// Some rows of one matrix, for all rows of `x`.
pub(super) struct Product<'a> {
    pub(super) part: &'a Part<'a>,
    pub(super) packed: &'a Packed,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (layout, stride) = (self.packed.layout(), self.part.x.code_stride());
        let (codes, scales, _) = self.part.x.codes();
        let width = if layout.format.has_groups() { GROUP } else { SEGMENT };
        for (m, row_scale) in scales.iter().enumerate() {
            let codes = &codes[m * stride..][..layout.cols];
            // SAFETY: one at a time.
            let y = unsafe { self.part.y(m) };
            for n in 0..self.part.count {
                let row = self.part.first + n;
                let mut sum = 0f32;
                for (group, codes) in codes.chunks(width).enumerate() {
                    let (scale, zero) = self.packed.scale_zero(row, group * width);
                    let products = codes.iter().enumerate().map(|(i, code)| {
                        (i32::from(self.packed.code(row, group * width + i)) - i32::from(zero))
                            * i32::from(*code)
                    });
                    sum = (products.sum::<i32>() as f32).mul_add(scale, sum);
                }
                self.part.put(y, n, sum * row_scale);
            }
        }
    }
}

/// Rows of a task are a multiple of this.
pub(super) const ROW_MULTIPLE: usize = 3 * PANEL;
