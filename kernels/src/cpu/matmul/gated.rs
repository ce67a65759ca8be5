//! The gate of a feed-forward network, SwiGLU (Shazeer 2020), with the two products it is of. They are computed some outputs at a
//! time, for all rows: what is multiplied next is all that leaves the cache.

use super::super::Cpu;
use super::super::input::{self, Form, Input};
use super::super::mlp::silu_mul_in_place;
use super::super::shared::Shared;
use super::super::simd::{Kernel, Simd};
use super::{Destination, Linear, PANEL, Part, Shares, Write};

/// `silu(x * gate) * (x * up)`, written down in `form`. `x` is `[m, cols]` in the form that the weights ask for; `gate` and `up` are
/// `[rows, cols]` each; `out` becomes `[m, rows]`.
///
/// # Panics
/// If the shapes disagree.
pub fn gated_matmul(cpu: &mut Cpu, x: &Input, gate: Linear<'_>, up: Linear<'_>, form: Form, out: &mut Input) {
    assert_eq!(gate.weights.rows(), up.weights.rows(), "gate and up are [rows, cols]");
    [gate, up].iter().for_each(|linear| linear.check(x));
    let (m, rows) = (x.rows(), gate.weights.rows());
    let shares = Shares::new(cpu, m.max(1), gate.weights.layout().panels(), gate.weights);
    let tasks = if m == 0 { 0 } else { shares.tasks() };
    let (isa, integers) = (cpu.isa, cpu.isa.integers());
    let most = shares.most * PANEL;
    out.fill_columns(cpu, form, (m, rows), (tasks, 2 * m * most), |task, room, columns| {
        let share = shares.task(task);
        let first = share.start * PANEL;
        let count = rows.min(share.end * PANEL).saturating_sub(first);
        if count == 0 {
            return;
        }
        let products = &mut room[..2 * m * count];
        let shared = Shared::new(products);
        let part = |linear, next, at| {
            let y = Destination { values: &shared, stride: 2 * count, at };
            Part { x, linear, first, count, next, y, write: Write::Set }
        };
        part(gate, up.weights_from(first), 0).run(isa, integers);
        part(up, gate.weights_from(share.end * PANEL), count).run(isa, integers);
        isa.run(Gate { products, first, count, columns });
    });
}

/// Gates each row of `products`, `[m, gate | up]`, and puts it where its columns go.
struct Gate<'a> {
    products: &'a mut [f32],
    first: usize,
    count: usize,
    columns: &'a input::Columns<'a>,
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (row, products) in self.products.chunks_exact_mut(2 * self.count).enumerate() {
            let (gate, up) = products.split_at_mut(self.count);
            silu_mul_in_place(gate, up);
            // SAFETY: these columns are this task's.
            unsafe { self.columns.put(row, self.first, gate) };
        }
    }
}
