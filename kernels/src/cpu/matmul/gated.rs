//! A gated linear unit ([`glu`](super::super::mlp::glu)) together with its two products. Computes some
//! outputs at a time for all rows, so only the input of the next product leaves the cache.

use std::ops::Range;

use super::super::Cpu;
use super::super::disjoint::DisjointMut;
use super::super::input::{self, ColumnTasks, Encoding, Input};
use super::super::mlp::{Activation, Clamped, Gelu, GeluTanh, Relu, Silu, SquaredRelu, gate_in_place};
use super::super::packed::PANEL;
use super::super::packed::formats::multiply;
use super::super::simd::{Isa, Kernel, LANES, Simd};
use super::part::{Destination, Linear, Part, Write};
use super::shares::{Shares, Task};
use super::unpacked::ProductId;
use crate::gate::Gate;

/// The two products of a gated linear unit, `[rows, cols]` each.
#[derive(Clone, Copy)]
pub struct Gated<'a> {
    /// Activation of the gate.
    pub activation: Gate,
    /// The gate projection.
    pub gate: Linear<'a>,
    /// The up projection.
    pub up: Linear<'a>,
}

/// `activation(x * gate) * (x * up)`, written in `encoding`. `x` is `[m, cols]` in the encoding that the
/// weights' format requires; `out` becomes `[m, rows]`.
///
/// # Panics
/// If the shapes disagree.
pub fn gated_matmul(cpu: &mut Cpu, x: &Input, gated: Gated<'_>, encoding: Encoding, out: &mut Input) {
    let Gated { gate, up, .. } = gated;
    assert_eq!(gate.weights.rows(), up.weights.rows(), "gate and up are [rows, cols]");
    [gate, up].iter().for_each(|linear| linear.check(x));
    let (m, rows) = (x.rows(), gate.weights.rows());
    let like_both = [gate];
    let shares = Shares::in_long_tasks(cpu, m.max(1), &like_both);
    let tasks = if m == 0 { 0 } else { shares.tasks() };
    let part = GatedRows { x, rows: 0..m, gated, product: ProductId::new(), isa: cpu.isa };
    let scratch_len = part.scratch_len(&shares);
    let division = ColumnTasks { rows: m, width: rows, tasks, scratch_len };
    out.fill_columns(cpu, encoding, division, |task, scratch, columns| {
        part.run(shares.task(task), scratch, columns);
    });
}

/// Gated linear unit for some rows of `x`.
pub(super) struct GatedRows<'a> {
    pub(super) x: &'a Input,
    pub(super) rows: Range<usize>,
    pub(super) gated: Gated<'a>,
    pub(super) product: ProductId,
    pub(super) isa: Isa,
}

impl GatedRows<'_> {
    /// Scratch values per task.
    pub(super) fn scratch_len(&self, shares: &Shares<'_>) -> usize {
        2 * shares.highest(self.rows.len()) * shares.widest() * PANEL
    }

    /// Computes the outputs of a task.
    pub(super) fn run(&self, task: Task, scratch: &mut [f32], columns: &input::Columns<'_>) {
        let Self { x, rows: of_part, gated, product, isa } = self;
        let Gated { activation, gate, up } = *gated;
        let (x, rows, isa, integers) = (*x, gate.weights.rows(), *isa, isa.integers());
        let Task { panels, pass, .. } = task;
        let key = (*product, panels.start);
        let (first, of_pass) = (panels.start * PANEL, pass.rows(of_part.len()));
        let x_rows = of_part.start + of_pass.start..of_part.start + of_pass.end;
        let count = rows.min(panels.end * PANEL).saturating_sub(first);
        if count == 0 {
            return;
        }
        let products = &mut scratch[..2 * x_rows.len() * count];
        let shared = DisjointMut::new(products);
        let part = |linear, next, at| {
            let y = Destination { values: &shared, stride: 2 * count, at, is_near: true };
            Part {
                key,
                x,
                rows: x_rows.clone(),
                linear,
                first,
                count,
                streams: None,
                next,
                pass,
                y,
                write: Write::Set,
            }
        };
        // In a single pass, up's weights are read after gate's. In several passes both are cached, so
        // prefetch the next task's.
        let end = panels.end * PANEL;
        let [next_gate, next_up] = match pass.of {
            1 => [up.weights_from(first), gate.weights_from(end)],
            _ => [gate, up].map(|linear| linear.weights_from(end)),
        };
        multiply(&part(gate, next_gate, 0), isa, integers);
        multiply(&part(up, next_up, count), isa, integers);
        let row = x_rows.start;
        match activation {
            Gate::Silu => isa.run(GateRows { products, row, first, count, columns, activation: Silu }),
            Gate::GeluTanh => {
                isa.run(GateRows { products, row, first, count, columns, activation: GeluTanh })
            }
            Gate::Gelu => isa.run(GateRows { products, row, first, count, columns, activation: Gelu }),
            Gate::Relu => isa.run(GateRows { products, row, first, count, columns, activation: Relu }),
            Gate::Clamped { alpha, limit } => {
                let activation = Clamped { alpha, limit };
                isa.run(GateRows { products, row, first, count, columns, activation });
            }
            Gate::SquaredRelu => {
                isa.run(GateRows { products, row, first, count, columns, activation: SquaredRelu })
            }
        }
    }
}

/// Applies the gate to each row of `products`, `[m, gate | up]`, and puts the results into the output's
/// columns.
struct GateRows<'a, F> {
    products: &'a mut [f32],
    /// First row of `products` in the output.
    row: usize,
    /// First column in the output.
    first: usize,
    count: usize,
    columns: &'a input::Columns<'a>,
    activation: F,
}

impl<F: Activation> Kernel for GateRows<'_, F> {
    type Output = ();
    const USES_DOT: bool = true; // rounds to bfloat16 by an instruction

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { products, row, first, count, columns, activation } = self;
        let rows = row..row + products.len() / (2 * count);
        for (row, products) in rows.clone().zip(products.chunks_exact_mut(2 * count)) {
            let (gate, up) = products.split_at_mut(count);
            let (gates, gate) = gate.as_chunks_mut::<LANES>();
            let (ups, up) = up.as_chunks::<LANES>();
            // SAFETY: only this task writes these columns.
            unsafe {
                for (i, (values, up)) in gates.iter().zip(ups).enumerate() {
                    let mut values = *values;
                    gate_in_place(activation, &mut values, up);
                    columns.put_vector(s, row, first + i * LANES, values);
                }
                if !gate.is_empty() {
                    gate_in_place(activation, gate, up);
                    columns.put(s, row, first + count - gate.len(), gate);
                }
            }
        }
        // SAFETY: as above.
        unsafe { columns.end(rows, first + count) };
    }
}
