//! Products of many matrices with different rows of one input: the experts of a mixture. Their tasks share
//! one queue, so that threads finish together however few rows an expert has, and each matrix is read once.

use std::ops::Range;

use super::super::Cpu;
use super::super::disjoint::DisjointMut;
use super::super::input::{ColumnTasks, Encoding, Input};
use super::super::packed::PANEL;
use super::super::packed::formats::multiply;
use super::gated::{Gated, GatedRows};
use super::part::{Destination, Linear, Part, Write};
use super::shares::{Shares, Task};
use super::unpacked::ProductId;
use super::{float, integer};

/// A matrix and its rows of the input.
pub type Member<T> = (Range<usize>, T);

/// `y = x * weights` for the rows of each member. `y` is `[rows of x, outputs]`. Members have disjoint,
/// non-empty rows and equally many outputs.
///
/// # Panics
/// If the shapes disagree.
pub fn grouped_matmul(cpu: &mut Cpu, x: &Input, members: &[Member<Linear<'_>>], y: &mut [f32]) {
    let Some((_, first)) = members.first() else { return };
    let outputs = first.weights.rows();
    assert_eq!(y.len(), x.rows() * outputs, "y is [rows, outputs]");
    check(x, members.iter().map(|(rows, linear)| (rows, linear)));
    let (isa, integers) = (cpu.isa, cpu.isa.integers());
    let tasks = Tasks::new(members.iter().map(|(rows, linear)| {
        assert_eq!(linear.weights.rows(), outputs, "all members have as many outputs");
        let format = linear.weights.layout().format;
        let registers = if format.is_integer() {
            integers.run(integer::RegistersFor(format))
        } else {
            isa.run(float::RegistersForAll)
        };
        Shares::of_member(rows.len(), linear).in_streams(registers.width_of_single(rows.len()))
    }));
    let shared = DisjointMut::new(y);
    cpu.threads.run(tasks.count(), |task, _| {
        let (member, product, Task { panels, streams, pass }) = tasks.task(task);
        if panels.is_empty() {
            return;
        }
        let (of_member, linear) = &members[member];
        let (first, of_pass) = (panels.start * PANEL, pass.rows(of_member.len()));
        let rows = of_member.start + of_pass.start..of_member.start + of_pass.end;
        let count = outputs.min(panels.end * PANEL) - first;
        let next = linear.weights_from(first + count.next_multiple_of(PANEL));
        let y = Destination {
            values: &shared,
            stride: outputs,
            at: rows.start * outputs + first,
            is_near: false,
        };
        let (key, linear) = ((product, panels.start), *linear);
        let part = Part { key, x, rows, linear, first, count, streams, next, pass, y, write: Write::Set };
        multiply(&part, isa, integers);
    });
}

/// [`gated_matmul`](super::gated_matmul) for the rows of each member. `out` becomes `[rows of x, outputs]`;
/// every row of `x` belongs to one member.
///
/// # Panics
/// If the shapes disagree.
pub fn grouped_gated_matmul(
    cpu: &mut Cpu,
    x: &Input,
    members: &[Member<Gated<'_>>],
    encoding: Encoding,
    out: &mut Input,
) {
    let Some((_, first)) = members.first() else { return };
    let outputs = first.gate.weights.rows();
    for linear in [|gated: &Gated<'_>| gated.gate.weights.rows(), |gated: &Gated<'_>| gated.up.weights.rows()]
    {
        assert!(
            members.iter().all(|(_, gated)| linear(gated) == outputs),
            "all members have as many outputs"
        );
    }
    check(x, members.iter().flat_map(|(rows, gated)| [(rows, &gated.gate), (rows, &gated.up)]));
    let isa = cpu.isa;
    let tasks = Tasks::new(members.iter().map(|(rows, gated)| Shares::of_member(rows.len(), &gated.gate)));
    let part = |member: usize, product| {
        let (rows, gated) = &members[member];
        GatedRows { x, rows: rows.clone(), gated: *gated, product, isa }
    };
    let of_member = |(member, shares)| part(member, tasks.products[member]).scratch_len(shares);
    let scratch_len = tasks.shares.iter().enumerate().map(of_member).max().unwrap_or_default();
    let division = ColumnTasks { rows: x.rows(), width: outputs, tasks: tasks.count(), scratch_len };
    out.fill_columns(cpu, encoding, division, |task, scratch, columns| {
        let (member, product, task) = tasks.task(task);
        part(member, product).run(task, scratch, columns);
    });
}

/// Asserts that each matrix fits its rows of `x`.
fn check<'a>(x: &Input, members: impl Iterator<Item = (&'a Range<usize>, &'a Linear<'a>)>) {
    for (rows, linear) in members {
        linear.check(x);
        assert!(rows.start < rows.end && rows.end <= x.rows(), "rows of x");
    }
}

/// Tasks of all members, in member order.
struct Tasks<'a> {
    shares: Vec<Shares<'a>>,
    products: Vec<ProductId>,
    /// Cumulative number of tasks up to and including each member.
    ends: Vec<usize>,
}

impl<'a> Tasks<'a> {
    fn new(shares: impl Iterator<Item = Shares<'a>>) -> Self {
        let shares: Vec<Shares<'a>> = shares.collect();
        let ends = shares.iter().scan(0, |end, shares| {
            *end += shares.tasks();
            Some(*end)
        });
        Self { ends: ends.collect(), products: shares.iter().map(|_| ProductId::new()).collect(), shares }
    }

    fn count(&self) -> usize {
        self.ends.last().copied().unwrap_or_default()
    }

    /// Member and product of task number `task`, and the task.
    fn task(&self, task: usize) -> (usize, ProductId, Task) {
        let member = self.ends.partition_point(|end| *end <= task);
        let before = if member == 0 { 0 } else { self.ends[member - 1] };
        (member, self.products[member], self.shares[member].task(task - before))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{gated_matmul, matmul};
    use super::*;
    use crate::cpu::matrix::{Storage, WeightMatrix};
    use crate::cpu::packed::{Format, Packed};
    use crate::cpu::simd::Isa;
    use crate::gate::Gate;

    const COLS: usize = 96;
    const INNER: usize = 200;

    fn matrix(seed: usize, rows: usize, cols: usize, format: Format) -> Packed {
        let value = |i: usize| ((i * 131 + seed * 977) % 1009) as f32 / 1009.0 - 0.5;
        let bytes: Vec<u8> = (0..rows * cols).flat_map(|i| value(i).to_le_bytes()).collect();
        let weights = WeightMatrix::new(Storage::F32(bytes.into()), rows, cols);
        Packed::of(&mut Cpu::new(2), &weights, format).expect("it packs")
    }

    fn gated([gate, up, _]: &[Packed; 3]) -> Gated<'_> {
        Gated { activation: Gate::Silu, gate: gate.into(), up: up.into() }
    }

    #[test]
    fn a_group_has_the_bits_of_its_members_alone() {
        // One row, part of a tile, and several tiles.
        let counts = [1, 3, 70, 2, 200];
        let rows: usize = counts.iter().sum();
        let x: Vec<f32> = (0..rows * COLS).map(|i| ((i * 71) % 997) as f32 / 498.5 - 1.0).collect();
        for isa in Isa::available() {
            for format in [Format::F32, Format::INT8, Format::INT4] {
                let cpu = &mut Cpu::with_isa(2, isa);
                let networks: Vec<[Packed; 3]> = (0..counts.len())
                    .map(|seed| {
                        let of = |part, rows, cols| matrix(3 * seed + part, rows, cols, format);
                        [of(0, INNER, COLS), of(1, INNER, COLS), of(2, COLS, INNER)]
                    })
                    .collect();
                let encoding = networks[0][0].layout().encoding(false);
                let mut start = 0;
                let ranges: Vec<Range<usize>> = counts
                    .iter()
                    .map(|count| {
                        start += count;
                        start - count..start
                    })
                    .collect();
                let (mut input, mut inner, mut all) =
                    (Input::default(), Input::default(), vec![0.0; rows * COLS]);
                input.set(cpu, encoding, &x, COLS);
                let members: Vec<_> = ranges.iter().cloned().zip(networks.iter().map(gated)).collect();
                grouped_gated_matmul(cpu, &input, &members, encoding, &mut inner);
                let down = networks.iter().map(|[_, _, down]| Linear::from(down));
                let members: Vec<_> = ranges.iter().cloned().zip(down).collect();
                grouped_matmul(cpu, &inner, &members, &mut all);
                for (range, network) in ranges.iter().zip(&networks) {
                    let own = &x[range.start * COLS..range.end * COLS];
                    let mut alone = vec![0.0; own.len()];
                    input.set(cpu, encoding, own, COLS);
                    gated_matmul(cpu, &input, gated(network), encoding, &mut inner);
                    matmul(cpu, &inner, &[(&network[2]).into()], &mut alone, Write::Set);
                    assert!(alone == all[range.start * COLS..range.end * COLS], "{} {range:?}", isa.name());
                }
            }
        }
    }
}
