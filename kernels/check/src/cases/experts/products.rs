//! Products of experts against sums in f64, and their bits with other tiles and in other batches.

use half::{bf16, f16};

use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::experts::{
    ExpertProduct, ExpertProducts, ExpertWeight, Pairs, SortedPairs, Stage, Tile,
};
use skein_kernels::cuda::ops::packed::Form;
use skein_kernels::cuda::ops::product::{Granularity, LinearWeight, WeightValues};
use skein_kernels::cuda::{CudaError, DeviceBuffer};
use skein_kernels::gate::Gate;

use super::{draw_choice, sorted};
use crate::cases::Scale;
use crate::cases::case::{Bench, DEAR, Tolerance, dot, each};
use crate::cases::packed::{Case, Matrix, cases};

const CLAMPED: Gate = Gate::Clamped { alpha: 1.702, limit: 0.75 };

pub fn run(bench: &mut Bench) -> Result<(), CudaError> {
    // Pairs, results in a row, k.
    let shapes: &[(Pairs, usize, usize)] = match bench.scale {
        Scale::Small => &[
            (Pairs { rows: 1, per_token: 2, experts: 4 }, 24, 64),
            (Pairs { rows: 14, per_token: 3, experts: 3 }, 40, 208),
            (Pairs { rows: 50, per_token: 2, experts: 5 }, 24, 1168),
        ],
        Scale::Full => &[
            // A rank's share of real experts. The number of experts only moves the address of a matrix.
            (Pairs { rows: 1, per_token: 8, experts: 128 }, 192, 2048),
            (Pairs { rows: 100, per_token: 2, experts: 8 }, 512, 14_336),
            (Pairs { rows: 600, per_token: 8, experts: 64 }, 256, 2048),
        ],
    };
    let gates = [Gate::Silu, CLAMPED, Gate::GeluTanh];
    for (i, shape) in shapes.iter().enumerate() {
        let gate_up = |per_row| Stage::GateUp { by: gates[i], per_row };
        for stored in [Stored::Same, Stored::E4m3] {
            case::<bf16>(bench, *shape, gate_up(shape.0.per_token), stored)?;
            case::<bf16>(bench, *shape, Stage::Down, stored)?;
            case::<f16>(bench, *shape, gate_up(1), stored)?;
            // The most bits of the sums: another order of additions changes some of these results.
            case::<f16>(bench, *shape, Stage::Down, stored)?;
        }
    }
    for (i, codes) in cases().into_iter().enumerate() {
        let stored = Stored::Codes(codes);
        let shape = match bench.scale {
            Scale::Small => shapes[i % shapes.len()],
            Scale::Full if codes.is_common() => (Pairs { rows: 100, per_token: 2, experts: 8 }, 1024, 4096),
            Scale::Full => (Pairs { rows: 100, per_token: 2, experts: 8 }, 512, 1024),
        };
        let gate_up = Stage::GateUp { by: gates[i % gates.len()], per_row: shape.0.per_token };
        if i % 2 == 0 {
            case::<bf16>(bench, shape, gate_up, stored)?;
            case::<f16>(bench, shape, Stage::Down, stored)?;
        } else {
            case::<f16>(bench, shape, gate_up, stored)?;
            case::<bf16>(bench, shape, Stage::Down, stored)?;
        }
    }
    Ok(())
}

/// How weights are stored.
#[derive(Clone, Copy)]
enum Stored {
    Same,
    E4m3,
    Codes(Case),
}

impl Stored {
    fn name(&self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::E4m3 => "e4m3",
            Self::Codes(case) => case.name,
        }
    }
}

/// Operands on host and device.
struct Operands<T: Activation> {
    x: Vec<f32>,
    // The weight as it is stored: in one of three ways.
    same: Vec<T>,
    codes: Vec<E4m3>,
    scales: Vec<f32>,
    packed: Option<Matrix<T>>,
    bias: Vec<T>,
    x_device: DeviceBuffer<T>,
    expert: ExpertWeight<T>,
    // Memory that `expert` points to.
    _bias: DeviceBuffer<T>,
    _same: DeviceBuffer<T>,
    _codes: DeviceBuffer<E4m3>,
    _scales: DeviceBuffer<f32>,
}

impl<T: Activation> Operands<T> {
    /// `rows` of `x`, and NaN behind them. `n`: rows of an expert's matrix.
    fn new(
        bench: &mut Bench,
        rows: usize,
        (experts, n, k): (usize, usize, usize),
        stored: Stored,
    ) -> Result<Self, CudaError> {
        let is_e4m3 = matches!(stored, Stored::E4m3);
        let packed = match stored {
            Stored::Same | Stored::E4m3 => None,
            Stored::Codes(case) => {
                // Each expert has an order of inputs.
                let form = Form { orders: case.form.orders * experts, ..case.form };
                Some(Matrix::<T>::new(bench, &Case { form, ..case }, (experts * n, k, 0), true)?)
            }
        };
        let mut x: Vec<T> = bench.normal_as(rows * k, T::from_f32);
        x.extend(vec![T::from_f32(f32::NAN); 3 * k]);
        let bias: Vec<T> = bench.normal_as(experts * n, T::from_f32);
        let values = if packed.is_some() { 0 } else { experts * n * k };
        let spread = 1.0 / (k as f32).sqrt();
        let (same_len, codes_len) = if is_e4m3 { (0, values) } else { (values, 0) };
        let same: Vec<T> = bench.normal_as(same_len, |value| T::from_f32(value * spread));
        let codes: Vec<E4m3> = bench.normal_as(codes_len, |value| E4m3::from_f32(value * 64.0));
        let scales: Vec<f32> =
            bench.normal(experts * n).into_iter().map(|value| (1.5 + value / 4.0) * spread / 64.0).collect();
        let (x_device, bias_device) = (bench.upload(&x)?, bench.upload(&bias)?);
        let x = x.into_iter().map(T::to_f32).collect();
        let (same_device, codes_device, scales_device) =
            (bench.upload(&same)?, bench.upload(&codes)?, bench.upload(&scales)?);
        let values = if is_e4m3 {
            let granularity = Granularity::Channel;
            WeightValues::E4m3 { values: *codes_device, scales: *scales_device, granularity }
        } else {
            WeightValues::Same(*same_device)
        };
        let stacked = LinearWeight { n: experts * n, k, bias: *bias_device, values, leaf: 0 };
        let (bias, stacked) = match &packed {
            None => (bias, stacked),
            Some(packed) => (packed.bias.clone(), packed.linear),
        };
        let expert = ExpertWeight { experts, stacked };
        Ok(Self {
            x,
            same,
            codes,
            scales,
            packed,
            bias,
            x_device,
            expert,
            _bias: bias_device,
            _same: same_device,
            _codes: codes_device,
            _scales: scales_device,
        })
    }

    /// The product of row `row` of `x` and of row `at` of all experts' weights.
    fn dot(&self, row: usize, at: usize) -> f64 {
        let k = self.expert.stacked.k;
        let (x, of) = (&self.x[row * k..][..k], at * k..(at + 1) * k);
        let widened: Vec<f32> = match &self.packed {
            Some(packed) => return dot(x, &packed.weight[of]),
            None if self.codes.is_empty() => self.same[of].iter().map(|value| value.to_f32()).collect(),
            None => self.codes[of].iter().map(|code| code.to_f32() * self.scales[at]).collect(),
        };
        dot(x, &widened)
    }

    /// The result in a row of `x` and an expert's `column`, in f64.
    fn exact(&self, row: usize, expert: usize, column: usize, stage: Stage) -> f64 {
        let n = self.expert.n();
        let result = |column: usize| -> f64 {
            let at = expert * n + column;
            self.dot(row, at) + f64::from(self.bias[at].to_f32())
        };
        let Stage::GateUp { by, .. } = stage else { return result(column) };
        let (gate, up) = (result(column), result(n / 2 + column));
        match by {
            Gate::Silu => gate / (1.0 + (-gate).exp()) * up,
            Gate::GeluTanh => {
                let logit = (8.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
                gate / (1.0 + (-logit).exp()) * up
            }
            Gate::Clamped { alpha, limit } => {
                let (alpha, limit) = (f64::from(alpha), f64::from(limit));
                let gate = gate.min(limit);
                gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
            }
            Gate::SquaredRelu | Gate::Gelu | Gate::Relu => unreachable!("it has no kernel"),
        }
    }
}

/// Row of `x` and of the result for each pair that has an expert, in sorted order.
fn rows_of(order: &[u32], stage: Stage) -> Vec<(usize, usize)> {
    let rows = |(position, pair): (usize, &u32)| match stage {
        Stage::GateUp { per_row, .. } => (*pair as usize / per_row, position),
        Stage::Down => (position, *pair as usize),
    };
    order.iter().enumerate().map(rows).collect()
}

/// Runs a product; returns the results of each pair, in sorted order.
fn multiply<T: Activation>(
    bench: &Bench,
    operands: &Operands<T>,
    (pairs, chosen, columns): (Pairs, &[u32], usize),
    stage: Stage,
    tile: Tile,
) -> Result<Vec<f32>, CudaError> {
    let tile_rows = tile.rows(operands.expert.storage());
    let (order, mut tiles) = sorted(chosen, pairs.experts, tile_rows);
    // Behind the list, tiles of no expert, which nothing may use.
    tiles.resize(SortedPairs::tile_words(pairs, tile_rows), u32::MAX);
    let mut positions = order.clone();
    positions.resize(pairs.count(), u32::MAX);
    let (sorted, tiles) = (bench.upload(&positions)?, bench.upload(&tiles)?);
    let out = bench.output::<T>(pairs.count() * columns)?;
    let ordered = bench.output::<T>(pairs.count() * operands.expert.stacked.k)?;
    let product = ExpertProduct {
        out: *out,
        x: *operands.x_device,
        weight: &operands.expert,
        pairs: &SortedPairs { sorted: *sorted, tiles: *tiles, pairs, tile, tile_rows },
        stage,
        ordered: *ordered,
    };
    ExpertProducts::new(&bench.kernels)?.launch(&bench.stream, product)?;
    let got = out.read(&bench.stream)?;
    let rows = rows_of(&order, stage).into_iter();
    Ok(rows.flat_map(|(_, row)| got[row * columns..][..columns].iter().map(|value| value.to_f32())).collect())
}

fn case<T: Activation>(
    bench: &mut Bench,
    (pairs, columns, k): (Pairs, usize, usize),
    stage: Stage,
    stored: Stored,
) -> Result<(), CudaError> {
    let name = format!("experts {} {stage:?} {pairs:?} {columns}x{k} {}", T::SUFFIX, stored.name());
    if !bench.wants(&name) {
        return Ok(());
    }
    let (rows, n) = match stage {
        Stage::GateUp { per_row, .. } => (pairs.count() / per_row, 2 * columns),
        Stage::Down => (pairs.count(), columns),
    };
    let operands = Operands::<T>::new(bench, rows, (pairs.experts, n, k), stored)?;
    let chosen = draw_choice(bench, pairs);
    let (order, _) = sorted(&chosen, pairs.experts, 1);
    let places = rows_of(&order, stage);
    let relative = if T::SUFFIX == "bf16" { 4e-3 } else { 6e-4 };
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let mut first: Vec<u32> = Vec::new();
    for tile in Tile::ALL {
        let got = multiply(bench, &operands, (pairs, &chosen, columns), stage, tile)?;
        if !first.is_empty() {
            bench.compare_exact(&format!("{name} bits of {tile:?}"), &bits(&got), &first);
            continue;
        }
        first = bits(&got);
        let compared = bench.compared(got.len());
        let exact = |i: usize| {
            let (position, column) = (compared[i] / columns, compared[i] % columns);
            let expert = chosen[order[position] as usize] as usize;
            operands.exact(places[position].0, expert, column, stage) as f32
        };
        let reference = each(compared.len(), DEAR, exact);
        let got: Vec<f32> = compared.iter().map(|i| got[*i]).collect();
        bench.compare(&format!("{name} {tile:?}"), &got, &reference, Tolerance { absolute: 1e-4, relative });
    }
    // The first rows alone have the same bits.
    if let (Stage::GateUp { .. }, true) = (stage, pairs.rows > 2) {
        let alone = Pairs { rows: pairs.rows / 2, ..pairs };
        let part = &chosen[..alone.count()];
        let (own, _) = sorted(part, pairs.experts, 1);
        let got = bits(&multiply(bench, &operands, (alone, part, columns), stage, Tile::Few)?);
        let mut position = vec![0; pairs.count()];
        order.iter().enumerate().for_each(|(at, pair)| position[*pair as usize] = at);
        let of = |pair: &u32| &first[position[*pair as usize] * columns..][..columns];
        let expected: Vec<u32> = own.iter().flat_map(of).copied().collect();
        bench.compare_exact(&format!("{name} bits of half of the rows"), &got, &expected);
    }
    Ok(())
}
