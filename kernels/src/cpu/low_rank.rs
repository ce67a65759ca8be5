//! Products with low-rank adapters (LoRA, arXiv 2106.09685): `y += scale * (x A) B` for some rows.
//!
//! The rows of a step are grouped by adapter, so that each adapter is read once. A row's sums have one order,
//! whatever other rows the step has: the inner product adds the inputs of a [leaf](crate::leaves) in four
//! interleaved parts, which are joined as `(0 + 1) + (2 + 3)`, and joins leaves as a tree; the outer one adds
//! components in ascending order. So ranks that divide the inputs can add their inner products in between:
//! [`inner_low_rank`], then [`add_outer`].

use std::ops::Range;

use super::Cpu;
use super::aligned::Aligned;
use super::disjoint::DisjointMut;
use super::rows::{Rows, RowsMut};
use super::simd::{Kernel, LANES, Simd};
use crate::leaves::MAX_LEAVES;

/// Highest supported rank: the inner products of a block of rows are on the stack.
pub const MAX_RANK: usize = 512;
/// Rows of a task. Its adapter's matrices stay in the cache meanwhile.
const ROWS_PER_TASK: usize = 16;
/// Rows that read a vector of weights together.
const BLOCK: usize = 4;
/// Interleaved parts of an inner product, so that multiply-adds need not wait for each other.
const PARTS: usize = 4;

/// The change to one matrix, arranged for products.
#[derive(Debug)]
pub struct LowRank {
    rank: usize,
    inputs: usize,
    outputs: usize,
    /// Leaves of the inner sums: a power of two that divides the inputs.
    leaves: usize,
    scale: f32,
    /// `[rank / LANES, inputs, LANES]`, padded with zeros.
    a: Values,
    /// `[outputs / LANES, rank, LANES]`, padded with zeros.
    b: Values,
}

/// Weights as the adapter stores them. IEEE halves are widened, which is exact.
#[derive(Debug)]
enum Values {
    F32(Aligned<f32>),
    Bf16(Aligned<u16>),
}

impl Values {
    fn new(count: usize, is_bf16: bool, value: impl Fn(usize) -> f32) -> Self {
        if is_bf16 {
            let mut values = Aligned::zeros(count);
            values.iter_mut().enumerate().for_each(|(i, to)| *to = half::bf16::from_f32(value(i)).to_bits());
            return Self::Bf16(values);
        }
        let mut values = Aligned::zeros(count);
        values.iter_mut().enumerate().for_each(|(i, to)| *to = value(i));
        Self::F32(values)
    }

    /// Loads the vector of sixteen values at `at`.
    #[inline(always)]
    fn vector<S: Simd>(&self, s: S, at: usize) -> S::V {
        // SAFETY: the slices have sixteen values.
        unsafe {
            match self {
                Self::F32(values) => s.load(values[at..at + LANES].as_ptr()),
                Self::Bf16(values) => s.load_bf16(values[at..at + LANES].as_ptr().cast()),
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::F32(values) => size_of_val(&**values),
            Self::Bf16(values) => size_of_val(&**values),
        }
    }
}

/// Sizes of a [`LowRank`].
#[derive(Debug, Clone, Copy)]
pub struct LowRankShape {
    /// Length of the inner dimension of `A B`.
    pub rank: usize,
    /// Inputs of the changed matrix.
    pub inputs: usize,
    /// Outputs of the changed matrix.
    pub outputs: usize,
}

impl LowRankShape {
    /// Size in memory with weights of `value_bytes` bytes.
    pub fn bytes(&self, value_bytes: usize) -> usize {
        let lanes = |count: usize| count.next_multiple_of(LANES);
        (lanes(self.rank) * self.inputs + lanes(self.outputs) * self.rank) * value_bytes
    }
}

impl LowRank {
    /// Arranges A, `a(component, input)`, and B, `b(output, component)`. `is_bf16`: all values are bfloat16.
    ///
    /// # Panics
    /// If the rank is above [`MAX_RANK`], or the inputs are not `leaves` of equal length.
    pub fn new(
        shape: LowRankShape,
        leaves: usize,
        scale: f32,
        is_bf16: bool,
        a: impl Fn(usize, usize) -> f32,
        b: impl Fn(usize, usize) -> f32,
    ) -> Self {
        let LowRankShape { rank, inputs, outputs } = shape;
        assert!((1..=MAX_RANK).contains(&rank), "a rank is 1 to {MAX_RANK}");
        let divides = leaves.is_power_of_two() && leaves <= MAX_LEAVES && inputs.is_multiple_of(leaves);
        assert!(divides, "{inputs} inputs are {leaves} leaves");
        let or_zero = |exists: bool, value: &dyn Fn() -> f32| if exists { value() } else { 0.0 };
        let of_a = |i: usize| {
            let (component, input) = (i / LANES / inputs * LANES + i % LANES, i / LANES % inputs);
            or_zero(component < rank, &|| a(component, input))
        };
        let of_b = |i: usize| {
            let (output, component) = (i / LANES / rank * LANES + i % LANES, i / LANES % rank);
            or_zero(output < outputs, &|| b(output, component))
        };
        let a = Values::new(rank.next_multiple_of(LANES) * inputs, is_bf16, of_a);
        let b = Values::new(outputs.next_multiple_of(LANES) * rank, is_bf16, of_b);
        Self { rank, inputs, outputs, leaves, scale, a, b }
    }

    /// Size in memory.
    pub fn bytes(&self) -> usize {
        self.a.bytes() + self.b.bytes()
    }

    /// Number of components.
    pub fn rank(&self) -> usize {
        self.rank
    }
}

/// Rows that use the same adapter.
#[derive(Debug, Clone, Copy)]
pub struct Changed<'a> {
    /// Their indices, each in one group only.
    pub rows: &'a [u32],
    /// Changes that read the same input, each with the first of its outputs in a row of `y`.
    pub changes: [Option<(&'a LowRank, usize)>; 3],
}

/// Adds the changes of `groups` to `y`. Only the first inputs of each row of `x` are used if it is padded.
///
/// # Panics
/// If the shapes disagree.
pub fn add_low_rank<'a>(
    cpu: &mut Cpu,
    x: Rows<'_>,
    groups: &(impl Fn(usize) -> Changed<'a> + Sync),
    count: usize,
    y: RowsMut<'_>,
) {
    for Changed { rows, changes } in (0..count).map(groups) {
        let last = rows.iter().max().map_or(0, |row| *row as usize + 1);
        let fits = last * x.stride <= x.values.len() && last * y.stride <= y.values.len();
        assert!(fits, "every row is in x and y");
        for (matrix, first) in changes.iter().flatten() {
            let fits = matrix.inputs <= x.stride && first + matrix.outputs <= y.stride;
            assert!(fits, "a change has inputs and outputs of a row");
        }
    }
    let y = DisjointRows::new(y);
    run(cpu, groups, count, Part { x: Some(x), y: Some(&y), inner: None, components: None });
}

/// Sets `inner`, a row of components for each changed row, to the inner products of the first change of each
/// of `groups`. The changed rows are those of all groups, one after another.
///
/// # Panics
/// If the shapes disagree.
pub fn inner_low_rank<'a>(
    cpu: &mut Cpu,
    x: Rows<'_>,
    groups: &(impl Fn(usize) -> Changed<'a> + Sync),
    count: usize,
    inner: RowsMut<'_>,
) {
    let (mut all, components) = (0, inner.stride);
    for Changed { rows, changes } in (0..count).map(groups) {
        let last = rows.iter().max().map_or(0, |row| *row as usize + 1);
        let fits = |matrix: &LowRank| matrix.inputs <= x.stride && matrix.rank <= components;
        assert!(last * x.stride <= x.values.len(), "every row is in x");
        assert!(changes[0].is_none_or(|(matrix, _)| fits(matrix)), "a change has inputs of a row");
        all += rows.len();
    }
    assert!(all * components <= inner.values.len(), "{all} rows of {components} components have room");
    let inner = DisjointRows::new(inner);
    run(cpu, groups, count, Part { x: Some(x), y: None, inner: Some(&inner), components: None });
}

/// Adds the outer products of `inner`, as [`inner_low_rank`] lays it out, to `y`.
///
/// # Panics
/// If the shapes disagree.
pub fn add_outer<'a>(
    cpu: &mut Cpu,
    inner: Rows<'_>,
    groups: &(impl Fn(usize) -> Changed<'a> + Sync),
    count: usize,
    y: RowsMut<'_>,
) {
    let (mut all, components) = (0, inner.stride);
    for Changed { rows, changes } in (0..count).map(groups) {
        let last = rows.iter().max().map_or(0, |row| *row as usize + 1);
        let fits = |(matrix, first): (&LowRank, usize)| {
            matrix.rank <= components && first + matrix.outputs <= y.stride
        };
        assert!(last * y.stride <= y.values.len(), "every row is in y");
        assert!(changes[0].is_none_or(fits), "a change has outputs of a row");
        all += rows.len();
    }
    assert!(all * components <= inner.values.len(), "{all} rows have {components} components");
    let y = DisjointRows::new(y);
    run(cpu, groups, count, Part { x: None, y: Some(&y), inner: None, components: Some(inner) });
}

/// What of a change is computed: both products from `x` to `y`, or only one of them.
#[derive(Clone, Copy)]
struct Part<'a, 'y> {
    x: Option<Rows<'a>>,
    y: Option<&'a DisjointRows<'y>>,
    /// Where the inner products go.
    inner: Option<&'a DisjointRows<'y>>,
    /// The inner products, if they are known.
    components: Option<Rows<'a>>,
}

/// Rows that tasks share, each writing its own.
struct DisjointRows<'a> {
    values: DisjointMut<'a, f32>,
    stride: usize,
}

impl<'a> DisjointRows<'a> {
    fn new(rows: RowsMut<'a>) -> Self {
        Self { values: DisjointMut::new(rows.values), stride: rows.stride }
    }
}

/// Runs blocks of the rows of `groups` on all threads.
fn run<'a>(cpu: &mut Cpu, groups: &(impl Fn(usize) -> Changed<'a> + Sync), count: usize, part: Part<'_, '_>) {
    let blocks = |group: &Changed<'_>| group.rows.len().div_ceil(ROWS_PER_TASK);
    let tasks = (0..count).map(|group| blocks(&groups(group))).sum();
    let isa = cpu.isa;
    cpu.threads.run(tasks, |mut task, _| {
        let mut first = 0;
        for group in (0..count).map(groups) {
            let of_group = blocks(&group);
            if task < of_group {
                let rows = group.rows.chunks(ROWS_PER_TASK).nth(task).unwrap_or_default();
                first += task * ROWS_PER_TASK;
                return isa.run(Task { part, rows, first, changes: group.changes });
            }
            task -= of_group;
            first += group.rows.len();
        }
    });
}

struct Task<'a, 'y> {
    part: Part<'a, 'y>,
    rows: &'a [u32],
    /// Number of its first row among all changed rows.
    first: usize,
    changes: [Option<(&'a LowRank, usize)>; 3],
}

impl Kernel for Task<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (matrix, output) in self.changes.iter().flatten() {
            let (blocks, rest) = self.rows.as_chunks::<BLOCK>();
            for (i, rows) in blocks.iter().enumerate() {
                self.add(s, matrix, *output, self.first + i * BLOCK, rows);
            }
            for (i, row) in rest.iter().enumerate() {
                self.add(s, matrix, *output, self.first + blocks.len() * BLOCK + i, &[*row]);
            }
        }
    }
}

impl Task<'_, '_> {
    /// The change of `rows`, the `number`th changed ones and following.
    #[inline(always)]
    fn add<S: Simd, const ROWS: usize>(
        &self,
        s: S,
        matrix: &LowRank,
        first: usize,
        number: usize,
        rows: &[u32; ROWS],
    ) {
        let mut inner = [[0f32; MAX_RANK]; ROWS];
        if let Some(x) = self.part.x {
            let x = rows.map(|row| &x.values[row as usize * x.stride..][..matrix.inputs]);
            for strip in 0..matrix.rank.div_ceil(LANES) {
                let sums = inner_products(s, matrix, strip, &x);
                for (inner, sum) in inner.iter_mut().zip(sums) {
                    // SAFETY: the slice has sixteen values.
                    unsafe { s.store(sum, inner[strip * LANES..][..LANES].as_mut_ptr()) };
                }
            }
        }
        if let Some(known) = self.part.components {
            for (i, inner) in inner.iter_mut().enumerate() {
                let known = &known.values[(number + i) * known.stride..][..matrix.rank];
                inner[..matrix.rank].copy_from_slice(known);
            }
        }
        if let Some(DisjointRows { values: to, stride }) = self.part.inner {
            for (i, inner) in inner.iter().enumerate() {
                let to = to.pointer((number + i) * stride, matrix.rank);
                // SAFETY: `rank` values, and a row is in one task.
                unsafe { std::ptr::copy_nonoverlapping(inner.as_ptr(), to, matrix.rank) };
            }
        }
        let Some(DisjointRows { values: y, stride }) = self.part.y else { return };
        for strip in 0..matrix.outputs.div_ceil(LANES) {
            let mut sums = [s.zero(); ROWS];
            for component in 0..matrix.rank {
                let weights = matrix.b.vector(s, (strip * matrix.rank + component) * LANES);
                for (sum, inner) in sums.iter_mut().zip(&inner) {
                    *sum = s.fma(s.splat(inner[component]), weights, *sum);
                }
            }
            let (at, count) = (first + strip * LANES, LANES.min(matrix.outputs - strip * LANES));
            for (row, sum) in rows.iter().zip(sums) {
                let y = y.pointer(*row as usize * stride + at, count);
                // SAFETY: `count` values, and a row is in one task.
                unsafe {
                    if count == LANES {
                        s.store(s.fma(sum, s.splat(matrix.scale), s.load(y)), y);
                    } else {
                        let changed = s.fma(sum, s.splat(matrix.scale), s.load_part(y, count));
                        s.store_part(changed, y, count);
                    }
                }
            }
        }
    }
}

/// Sixteen components of `x A`, for some rows: leaves joined as a tree.
#[inline(always)]
fn inner_products<S: Simd, const ROWS: usize>(
    s: S,
    matrix: &LowRank,
    strip: usize,
    x: &[&[f32]; ROWS],
) -> [S::V; ROWS] {
    let length = matrix.inputs / matrix.leaves;
    let mut leaves = [[s.zero(); ROWS]; MAX_LEAVES];
    for (leaf, sums) in leaves.iter_mut().take(matrix.leaves).enumerate() {
        *sums = leaf_products(s, matrix, strip, x, leaf * length..(leaf + 1) * length);
    }
    let mut apart = 1;
    while apart < matrix.leaves {
        for left in (0..matrix.leaves).step_by(2 * apart) {
            let (to, from) = leaves.split_at_mut(left + apart);
            for (to, from) in to[left].iter_mut().zip(&from[0]) {
                *to = s.add(*to, *from);
            }
        }
        apart *= 2;
    }
    leaves[0]
}

/// The sums over the inputs of one leaf.
#[inline(always)]
fn leaf_products<S: Simd, const ROWS: usize>(
    s: S,
    matrix: &LowRank,
    strip: usize,
    x: &[&[f32]; ROWS],
    leaf: Range<usize>,
) -> [S::V; ROWS] {
    let mut sums = [[s.zero(); PARTS]; ROWS];
    let of_strip = strip * matrix.inputs;
    let whole = leaf.start + leaf.len() / PARTS * PARTS;
    for input in (leaf.start..whole).step_by(PARTS) {
        for part in 0..PARTS {
            let weights = matrix.a.vector(s, (of_strip + input + part) * LANES);
            for (sums, x) in sums.iter_mut().zip(x) {
                sums[part] = s.fma(s.splat(x[input + part]), weights, sums[part]);
            }
        }
    }
    for input in whole..leaf.end {
        let weights = matrix.a.vector(s, (of_strip + input) * LANES);
        for (sums, x) in sums.iter_mut().zip(x) {
            sums[input - whole] = s.fma(s.splat(x[input]), weights, sums[input - whole]);
        }
    }
    sums.map(|sums| s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Isa;

    fn value(i: usize) -> f32 {
        half::bf16::from_f32(((i * 71 % 997) as f32 - 498.0) * 0.003).to_f32()
    }

    fn matrix(rank: usize, inputs: usize, outputs: usize, is_bf16: bool) -> LowRank {
        let shape = LowRankShape { rank, inputs, outputs };
        let a = |component, input| value(component * inputs + input);
        let b = |output, component| value(7 + output * rank + component);
        let made = LowRank::new(shape, 1, 0.75, is_bf16, a, b);
        assert_eq!(made.bytes(), shape.bytes(if is_bf16 { 2 } else { 4 }));
        made
    }

    #[test]
    fn agrees_with_f64_and_has_equal_bits_on_every_instruction_set_and_in_any_batch() {
        for (rank, inputs, outputs) in [(1, 3, 5), (8, 64, 40), (16, 35, 100), (33, 130, 16)] {
            let (rows, first, width, stride) = (23, 3, inputs + 2, outputs + 6);
            let x: Vec<f32> = (0..rows * width).map(|i| value(i * 3)).collect();
            let y: Vec<f32> = (0..rows * stride).map(|i| value(i * 5)).collect();
            let mut expected: Option<Vec<f32>> = None;
            for is_bf16 in [false, true] {
                let matrix = matrix(rank, inputs, outputs, is_bf16);
                let changed: Vec<u32> = (0..rows as u32).filter(|row| row % 5 != 2).collect();
                for isa in Isa::available() {
                    // All rows together, and each alone.
                    for alone in [false, true] {
                        let mut got = y.clone();
                        let each = if alone { 1 } else { changed.len() };
                        let groups: Vec<&[u32]> = changed.chunks(each).collect();
                        let group = |i: usize| Changed {
                            rows: groups[i],
                            changes: [Some((&matrix, first)), None, None],
                        };
                        let mut cpu = Cpu::with_isa(2, isa);
                        let count = groups.len();
                        let x = Rows { values: &x, stride: width };
                        let y = RowsMut { values: &mut got, stride };
                        add_low_rank(&mut cpu, x, &group, count, y);
                        let before = expected.get_or_insert_with(|| got.clone());
                        assert_eq!(*before, got, "{}, alone {alone}, bfloat16 {is_bf16}", isa.name());
                    }
                }
            }
            let got = expected.unwrap();
            for (row, output) in (0..rows).flat_map(|row| (0..stride).map(move |output| (row, output))) {
                let at = row * stride + output;
                let is_changed = row % 5 != 2 && (first..first + outputs).contains(&output);
                let component = |k: usize| {
                    let a = |i: usize| f64::from(value(k * inputs + i)) * f64::from(x[row * width + i]);
                    let b = f64::from(value(7 + (output - first) * rank + k));
                    (0..inputs).map(a).sum::<f64>() * b
                };
                let change = if is_changed { (0..rank).map(component).sum::<f64>() * 0.75 } else { 0.0 };
                let exact = f64::from(y[at]) + change;
                assert!((f64::from(got[at]) - exact).abs() < 2e-4, "{} for {exact}", got[at]);
            }
        }
    }

    #[test]
    fn ranks_that_divide_the_inputs_give_the_bits_of_one() {
        let (rank, inputs, outputs, rows) = (19, 256, 21, 11);
        let shape = LowRankShape { rank, inputs, outputs };
        let x: Vec<f32> = (0..rows * inputs).map(|i| value(i * 3)).collect();
        let b = |output, component| value(7 + output * rank + component);
        let changed: [&[u32]; 2] = [&[0, 3, 4, 5, 6, 9], &[1, 10]];
        for isa in Isa::available() {
            let mut cpu = Cpu::with_isa(2, isa);
            let whole = LowRank::new(shape, 8, 0.5, false, |c, i| value(c * inputs + i), b);
            assert_eq!(whole.rank(), rank);
            let of = |i: usize| Changed { rows: changed[i], changes: [Some((&whole, 0)), None, None] };
            let mut expected: Vec<f32> = (0..rows * outputs).map(value).collect();
            let y = RowsMut { values: &mut expected, stride: outputs };
            add_low_rank(&mut cpu, Rows { values: &x, stride: inputs }, &of, 2, y);
            for ranks in [1, 2, 4, 8] {
                let each = inputs / ranks;
                let all = changed[0].len() + changed[1].len();
                let mut sums: Vec<Vec<f32>> = (0..ranks)
                    .map(|number| {
                        let a = |c, i| value(c * inputs + number * each + i);
                        let shape = LowRankShape { inputs: each, ..shape };
                        let own = LowRank::new(shape, 8 / ranks, 0.5, false, a, b);
                        let of =
                            |i: usize| Changed { rows: changed[i], changes: [Some((&own, 0)), None, None] };
                        let x: Vec<f32> =
                            x.chunks(inputs).flat_map(|x| x[number * each..][..each].to_vec()).collect();
                        let mut inner = vec![f32::NAN; all * 20];
                        let to = RowsMut { values: &mut inner, stride: 20 };
                        inner_low_rank(&mut cpu, Rows { values: &x, stride: each }, &of, 2, to);
                        inner
                    })
                    .collect();
                crate::leaves::join(&mut sums.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
                let mut got: Vec<f32> = (0..rows * outputs).map(value).collect();
                let y = RowsMut { values: &mut got, stride: outputs };
                add_outer(&mut cpu, Rows { values: &sums[0], stride: 20 }, &of, 2, y);
                assert_eq!(got, expected, "{ranks} ranks, {}", isa.name());
            }
        }
    }
}
