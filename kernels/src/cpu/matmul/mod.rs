//! Matrix multiplication: `y[m, n] = sum over k of x[m, k] * w[n, k]`.
//!
//! Each `(m, n)` is summed in a fixed order, independent of batch, tile, threads and instruction set.
//! [`float`] and [`integer`] define it within a leaf, and [`leaves`](crate::leaves) how leaves are joined. A
//! row's result therefore has the same bits in any batch. This module divides the work; the kernel belongs to
//! the weights' format ([`formats`](super::packed::formats)).

pub(super) mod float;
mod gated;
mod grouped;
pub(super) mod integer;
pub(super) mod part;
mod shares;
pub(super) mod tiles;
pub(super) mod tree;
pub(super) mod unpacked;

use super::Cpu;
use super::disjoint::DisjointMut;
use super::input::Input;
use super::packed::formats::multiply;
use super::packed::{Layout, PANEL};
use super::rows::RowsMut;
use super::simd::integer::IntegerIsa;
pub use gated::{Gated, gated_matmul};
pub use grouped::{grouped_gated_matmul, grouped_matmul};
use part::{Destination, Part};
pub use part::{Linear, Write};
use shares::{Shares, Task};
use unpacked::ProductId;

/// Multiplies `x` `[m, cols]` by the matrices in `stack`, whose outputs are adjacent in `y` `[m, sum of
/// rows]`. `x` has the encoding that the weights' format requires.
///
/// # Panics
/// If the shapes disagree.
pub fn matmul(cpu: &mut Cpu, x: &Input, stack: &[Linear<'_>], y: &mut [f32], write: Write) {
    let stride = stack.iter().map(|linear| linear.weights.rows()).sum();
    assert_eq!(y.len(), x.rows() * stride, "y is [m, rows]");
    matmul_rows(cpu, x, stack, RowsMut { values: y, stride }, write);
}

/// Like [`matmul`], with rows of `y` that may be longer than the outputs.
///
/// # Panics
/// If the shapes disagree.
pub fn matmul_rows(cpu: &mut Cpu, x: &Input, stack: &[Linear<'_>], y: RowsMut<'_>, write: Write) {
    let integers = cpu.isa.integers();
    matmul_on(cpu, integers, x, stack, y, write);
}

/// [`matmul_rows`] on a given integer instruction set.
fn matmul_on(
    cpu: &mut Cpu,
    integers: IntegerIsa,
    x: &Input,
    stack: &[Linear<'_>],
    y: RowsMut<'_>,
    write: Write,
) {
    let rows: usize = stack.iter().map(|linear| linear.weights.rows()).sum();
    let (m, RowsMut { values: y, stride }) = (x.rows(), y);
    assert!(stride >= rows && (m == 0 || y.len() >= (m - 1) * stride + rows), "y has [m, rows]");
    stack.iter().for_each(|linear| linear.check(x));
    if m == 0 || stack.is_empty() {
        return;
    }
    let format = stack[0].weights.layout().format;
    let registers = if format.is_integer() {
        integers.run(integer::RegistersFor(format))
    } else {
        cpu.isa.run(float::RegistersForAll)
    };
    let shares = Shares::new(cpu, m, stack).in_streams(registers.width_of_single(m));
    let product = ProductId::new();
    let (isa, shared) = (cpu.isa, DisjointMut::new(y));
    let work = |task: usize| {
        let Task { panels, streams, pass } = shares.task(task);
        let key = (product, panels.start);
        // Panels and outputs before the current matrix.
        let (mut before, mut column) = (0, 0);
        for linear in stack {
            let Layout { rows: outputs, .. } = linear.weights.layout();
            let end = before + linear.weights.layout().panels();
            if (before..end).contains(&panels.start) && !panels.is_empty() {
                let first = (panels.start - before) * PANEL;
                let count = outputs.min((panels.end - before) * PANEL) - first;
                // Only a guess: this thread's share may end here.
                let next = linear.weights_from(first + count.next_multiple_of(PANEL));
                let x_rows = pass.rows(m);
                let at = x_rows.start * stride + column + first;
                let y = Destination { values: &shared, stride, at, is_near: false };
                let (linear, rows) = (*linear, x_rows);
                let part = Part { key, x, rows, linear, first, count, streams, next, pass, y, write };
                return multiply(&part, isa, integers);
            }
            (before, column) = (end, column + outputs);
        }
    };
    match shares.threads {
        1 => (0..shares.tasks()).for_each(work),
        _ => cpu.threads.run(shares.tasks(), |task, _| work(task)),
    }
}

#[cfg(test)]
mod leaf_tests;
#[cfg(test)]
mod tests;
