//! Router logits against sums in f64, and their bits in other batches and tiles.

use skein_kernels::cuda::ops::experts::{Router, RouterRows};
use skein_kernels::cuda::{CudaError, DeviceSlice};

use crate::cases::Scale;
use crate::cases::case::{Bench, DEAR, Tolerance, each};

const EPS: f32 = 1e-5;

pub fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[(usize, usize, usize)] = match bench.scale {
        Scale::Small => &[(1, 8, 64), (5, 3, 1284), (18, 21, 260)],
        Scale::Full => &[(1, 8, 4096), (16, 128, 2048), (1000, 257, 7168)],
    };
    shapes.iter().try_for_each(|shape| case(bench, *shape))
}

fn case(bench: &mut Bench, (rows, outputs, hidden): (usize, usize, usize)) -> Result<(), CudaError> {
    let name = format!("router_logits {rows}x{outputs}x{hidden}");
    if !bench.wants(&name) {
        return Ok(());
    }
    let x = bench.normal(rows * hidden).into_iter().map(|x| x * 3.0).collect::<Vec<_>>();
    let norm = bench.normal(hidden).into_iter().map(|weight| 1.0 + weight / 4.0).collect::<Vec<_>>();
    let (weight, bias) = (bench.normal(outputs * hidden), bench.normal(outputs));
    let (on_device, norms, weights, biases) =
        (bench.upload(&x)?, bench.upload(&norm)?, bench.upload(&weight)?, bench.upload(&bias)?);
    let router = Router::new(&bench.kernels)?;
    let run = |bench: &Bench, first: usize, count: usize, with_bias: bool, is_large: bool| {
        let logits = bench.output::<f32>(count * outputs)?;
        let launch = RouterRows {
            logits: *logits,
            residual: on_device.slice(first * hidden..(first + count) * hidden),
            norm: *norms,
            weight: *weights,
            bias: if with_bias { *biases } else { DeviceSlice::NONE },
            rows: count,
            eps: EPS,
        };
        router.launch_tile(&bench.stream, launch, is_large)?;
        logits.read(&bench.stream)
    };
    for with_bias in [false, true] {
        let got = run(bench, 0, rows, with_bias, false)?;
        let compared = bench.compared(got.len());
        let exact = |i: usize| {
            let (row, output) = (compared[i] / outputs, compared[i] % outputs);
            let x = &x[row * hidden..][..hidden];
            let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            let weight = &weight[output * hidden..][..hidden];
            let dot: f64 = x
                .iter()
                .zip(&norm)
                .zip(weight)
                .map(|((x, n), w)| f64::from(*x) * f64::from(*n) * f64::from(*w))
                .sum();
            let bias = if with_bias { f64::from(bias[output]) } else { 0.0 };
            (dot / (squares / hidden as f64 + f64::from(EPS)).sqrt() + bias) as f32
        };
        let reference = each(compared.len(), DEAR, exact);
        let got_compared: Vec<f32> = compared.iter().map(|i| got[*i]).collect();
        // Sums of thousands of values of size 1.
        let tolerance = Tolerance { absolute: 1e-4, relative: 1e-5 };
        bench.compare(&format!("{name} bias {with_bias}"), &got_compared, &reference, tolerance);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let large = run(bench, 0, rows, with_bias, true)?;
        bench.compare_exact(&format!("{name} bits of the large tile"), &bits(&large), &bits(&got));
        let alone = run(bench, rows - 1, 1, with_bias, false)?;
        let last = &got[(rows - 1) * outputs..];
        bench.compare_exact(&format!("{name} bits of a row alone"), &bits(&alone), &bits(last));
    }
    Ok(())
}
