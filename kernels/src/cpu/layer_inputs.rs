//! Inputs that layers have besides the residual stream, and factors of the residual stream (Gemma 3n).

use super::disjoint::DisjointMut;
use super::{Cpu, for_each_row_of};

/// `values = (values + looked_up) * factor`; both are `[rows, width]`.
///
/// # Panics
/// If the shapes disagree.
pub fn add_looked_up(cpu: &mut Cpu, looked_up: &[f32], width: usize, factor: f32, values: &mut [f32]) {
    assert!(looked_up.len() == values.len() && values.len().is_multiple_of(width), "both are [rows, width]");
    let (rows, values) = (values.len() / width, DisjointMut::new(values));
    for_each_row_of(cpu, rows, width, |row, _| {
        // SAFETY: each row is in one task.
        let values = unsafe { values.part(row * width, width) };
        let looked_up = &looked_up[row * width..][..width];
        values.iter_mut().zip(looked_up).for_each(|(value, other)| *value = (*value + other) * factor);
    });
}

/// Multiplies `x`, `[rows, width]`, by `factor`.
///
/// # Panics
/// If `x` is not whole rows.
pub fn scale_rows(cpu: &mut Cpu, x: &mut [f32], width: usize, factor: f32) {
    assert!(x.len().is_multiple_of(width), "x is [rows, width]");
    let (rows, x) = (x.len() / width, DisjointMut::new(x));
    for_each_row_of(cpu, rows, width, |row, _| {
        // SAFETY: each row is in one task.
        unsafe { x.part(row * width, width) }.iter_mut().for_each(|x| *x *= factor);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_added_and_scaled_with_any_number_of_threads() {
        let values: Vec<f32> = (0..7 * 1000).map(|i| (i % 97) as f32 - 40.0).collect();
        let looked_up: Vec<f32> = values.iter().rev().copied().collect();
        for threads in [1, 3] {
            let (mut got, mut scaled) = (values.clone(), values.clone());
            add_looked_up(&mut Cpu::new(threads), &looked_up, 1000, 0.5, &mut got);
            scale_rows(&mut Cpu::new(threads), &mut scaled, 1000, 1.5);
            for i in 0..values.len() {
                assert_eq!((got[i], scaled[i]), ((values[i] + looked_up[i]) * 0.5, values[i] * 1.5));
            }
        }
    }
}
