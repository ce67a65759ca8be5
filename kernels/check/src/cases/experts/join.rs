//! Sums of the outputs of a row's experts, and weighted inputs.

use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::experts::{Join, JoinExperts, Pairs, WeighInputs, WeighedInputs};
use skein_kernels::cuda::{CudaError, DeviceSlice};

use super::NO_EXPERT;
use crate::cases::Scale;
use crate::cases::case::{Bench, Tolerance};

/// What is added to the experts' outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shared {
    None,
    Plain,
    Weighted,
}

pub fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[(usize, usize, usize)] = match bench.scale {
        Scale::Small => &[(1, 2, 8), (5, 3, 136), (3, 8, 2120)],
        Scale::Full => &[(8, 8, 2048), (4096, 2, 512), (150, 8, 7168)],
    };
    for (i, &(rows, per_token, hidden)) in shapes.iter().enumerate() {
        let pairs = Pairs { rows, per_token, experts: 8 };
        let shared = [Shared::Weighted, Shared::Plain, Shared::None];
        join::<half::bf16>(bench, (pairs, hidden), shared[i % 3], true, 1)?;
        join::<half::bf16>(bench, (pairs, hidden), shared[(i + 2) % 3], true, 4)?;
        join::<half::f16>(bench, (pairs, hidden), shared[(i + 1) % 3], false, 1 + i)?;
        weigh::<half::bf16>(bench, pairs, hidden)?;
        weigh::<half::f16>(bench, pairs, hidden)?;
    }
    Ok(())
}

fn tolerance<T: Activation>() -> Tolerance {
    let relative = if T::SUFFIX == "bf16" { 4e-3 } else { 6e-4 };
    Tolerance { absolute: 1e-5, relative }
}

fn join<T: Activation>(
    bench: &mut Bench,
    (pairs, hidden): (Pairs, usize),
    shared: Shared,
    has_weights: bool,
    ranks: usize,
) -> Result<(), CudaError> {
    let name = format!(
        "join_experts_{} {pairs:?}x{hidden}, shared {shared:?}, weights {has_weights}, ranks {ranks}",
        T::SUFFIX
    );
    if !bench.wants(&name) {
        return Ok(());
    }
    let Pairs { rows, per_token, .. } = pairs;
    let (count, stride) = (pairs.count(), 3);
    let narrow = |values: Vec<f32>| values.into_iter().map(T::from_f32).collect::<Vec<T>>();
    let mut outputs = narrow(bench.normal(count * hidden));
    let (weights, of_shared) = (bench.normal(count), narrow(bench.normal(rows * hidden)));
    let logits = bench.normal(rows * stride);
    let mut chosen: Vec<u32> = (0..count).map(|_| bench.below(8)).collect();
    let padding = (rows > 1).then(|| rows - 2);
    if let Some(row) = padding {
        // Nothing has been written for padding.
        let of_row = row * per_token..(row + 1) * per_token;
        chosen[of_row.clone()].fill(NO_EXPERT);
        outputs[of_row.start * hidden..of_row.end * hidden].fill(T::from_f32(f32::NAN));
    }
    // Other ranks have written nothing of a pair.
    let rank_of: Vec<u32> =
        (0..pairs.experts).map(|expert| (expert * ranks / pairs.experts) as u32).collect();
    let of_ranks: Vec<T> = (0..ranks * count * hidden)
        .map(|i| {
            let (rank, value) = (i / (count * hidden), i % (count * hidden));
            let owner = rank_of.get(chosen[value / hidden] as usize);
            let is_own = owner.is_some_and(|owner| *owner as usize == rank);
            if is_own { outputs[value] } else { T::from_f32(f32::NAN) }
        })
        .collect();
    let ranks_on = bench.upload(&rank_of)?;
    let (outputs_on, weights_on, chosen_on, shared_on, logits_on) = (
        bench.upload(&of_ranks)?,
        bench.upload(&weights)?,
        bench.upload(&chosen)?,
        bench.upload(&of_shared)?,
        bench.upload(&logits)?,
    );
    let out = bench.output::<T>(rows * hidden)?;
    let launch = JoinExperts {
        out: *out,
        outputs: *outputs_on,
        ranks: if ranks > 1 { *ranks_on } else { DeviceSlice::NONE },
        weights: if has_weights { *weights_on } else { DeviceSlice::NONE },
        chosen: *chosen_on,
        shared: if shared == Shared::None { DeviceSlice::NONE } else { *shared_on },
        shared_logits: match shared {
            Shared::Weighted => (logits_on.slice(1..logits.len()), stride),
            _ => (DeviceSlice::NONE, stride),
        },
        pairs,
        hidden,
    };
    Join::new(&bench.kernels)?.launch(&bench.stream, launch)?;
    let exact = |row: usize, column: usize| {
        let of = |pair: usize| {
            let weight = if has_weights { f64::from(weights[pair]) } else { 1.0 };
            weight * f64::from(outputs[pair * hidden + column].to_f32())
        };
        let experts: f64 = (row * per_token..(row + 1) * per_token).map(of).sum();
        let factor = match shared {
            Shared::None => 0.0,
            Shared::Plain => 1.0,
            Shared::Weighted => 1.0 / (1.0 + (-f64::from(logits[row * stride + 1])).exp()),
        };
        (experts + factor * f64::from(of_shared[row * hidden + column].to_f32())) as f32
    };
    let reference = |i: usize| if Some(i / hidden) == padding { 0.0 } else { exact(i / hidden, i % hidden) };
    let reference: Vec<f32> = (0..rows * hidden).map(reference).collect();
    let got: Vec<f32> = out.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
    bench.compare(&name, &got, &reference, tolerance::<T>());
    Ok(())
}

fn weigh<T: Activation>(bench: &mut Bench, pairs: Pairs, hidden: usize) -> Result<(), CudaError> {
    let name = format!("weigh_inputs_{} {pairs:?}x{hidden}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let x: Vec<T> = bench.normal_as(pairs.rows * hidden, T::from_f32);
    let weights = bench.normal(pairs.count());
    let (x_on, weights_on) = (bench.upload(&x)?, bench.upload(&weights)?);
    let out = bench.output::<T>(pairs.count() * hidden)?;
    let launch = WeighedInputs { out: *out, x: *x_on, weights: *weights_on, pairs, hidden };
    WeighInputs::new(&bench.kernels)?.launch(&bench.stream, launch)?;
    let of = |i: usize| {
        let (pair, column) = (i / hidden, i % hidden);
        weights[pair] * x[pair / pairs.per_token * hidden + column].to_f32()
    };
    let reference: Vec<f32> = (0..pairs.count() * hidden).map(of).collect();
    let got: Vec<f32> = out.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
    bench.compare(&name, &got, &reference, tolerance::<T>());
    Ok(())
}
