//! Cases of [`skein_kernels::cuda::ops::heads`].

use super::Scale;
use super::case::{Bench, COMPARED, DEAR, Tolerance, each};
use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::gemm::Tile;
use skein_kernels::cuda::ops::heads::{HeadProduct, HeadProducts, OfHeads};

/// Sizes of a product. Heads of `x` and of the result are `gap` values longer than what is used.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    rows: usize,
    heads: usize,
    n: usize,
    k: usize,
    gap: usize,
}

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let sizes = |rows, heads, n, k, gap| Sizes { rows, heads, n, k, gap };
    let mut all = vec![
        sizes(1, 4, 40, 24, 16),
        sizes(3, 3, 20, 40, 0),
        sizes(33, 2, 72, 136, 8),
        sizes(130, 3, 129, 72, 24),
    ];
    if bench.scale == Scale::Full {
        all.extend([sizes(1, 128, 512, 128, 64), sizes(700, 128, 128, 512, 0), sizes(64, 16, 512, 128, 64)]);
    }
    for sizes in all {
        case::<half::bf16>(bench, sizes)?;
        case::<half::f16>(bench, sizes)?;
    }
    Ok(())
}

fn case<T: Activation>(bench: &mut Bench, sizes: Sizes) -> Result<(), CudaError> {
    let name = format!("gemm_heads_{} {sizes:?}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let Sizes { rows, heads, n, k, gap } = sizes;
    let (x_each, out_each) = (k + gap, n + gap);
    // Rows begin behind other values, and end before others.
    let (x_stride, out_stride) = (heads * x_each + 16, heads * out_each + if gap == 0 { 0 } else { 8 });
    let draw = |bench: &mut Bench, len| -> Vec<T> { bench.normal_as(len, T::from_f32) };
    let (x, weight) = (draw(bench, rows * x_stride), draw(bench, heads * n * k));
    let (on_device, weights) = (bench.upload(&x)?, bench.upload(&weight)?);
    let products = HeadProducts::<T>::new(&bench.kernels)?;
    let mut results = Vec::new();
    for tile in [None, Some(Tile::Small), Some(Tile::Medium), Some(Tile::Large)] {
        let out = bench.output::<T>(rows * out_stride)?;
        let product = HeadProduct {
            out: OfHeads { values: *out, stride: out_stride, each: out_each },
            x: OfHeads { values: on_device.slice(8..x.len()), stride: x_stride, each: x_each },
            weight: *weights,
            heads,
            n,
            k,
            rows,
        };
        match tile {
            None => products.launch(&bench.stream, product)?,
            Some(tile) => products.launch_tile(&bench.stream, product, tile)?,
        }
        let got: Vec<u16> = out.read(&bench.stream)?.into_iter().map(T::to_bits).collect();
        results.push(got);
    }
    let is_result = |i: &usize| i % out_stride / out_each < heads && i % out_stride % out_each < n;
    let indices: Vec<usize> = (0..rows * out_stride).filter(is_result).collect();
    let others: Vec<u16> = (0..rows * out_stride).filter(|i| !is_result(i)).map(|i| results[0][i]).collect();
    bench.compare_exact(&format!("{name}, the rest stays"), &others, &vec![u16::MAX; others.len()]);
    for other in &results[1..] {
        bench.compare_exact(&format!("{name}, tiles"), other, &results[0]);
    }
    let chosen: Vec<usize> = if indices.len() <= COMPARED {
        indices
    } else {
        bench.compared(indices.len()).into_iter().map(|i| indices[i]).collect()
    };
    let reference = each(chosen.len(), DEAR, |i| {
        let (row, rest) = (chosen[i] / out_stride, chosen[i] % out_stride);
        let (head, output) = (rest / out_each, rest % out_each);
        let values = &x[8 + row * x_stride + head * x_each..][..k];
        let matrix = &weight[(head * n + output) * k..][..k];
        let product = |(x, w): (&T, &T)| f64::from(x.to_f32()) * f64::from(w.to_f32());
        values.iter().zip(matrix).map(product).sum::<f64>() as f32
    });
    let got: Vec<f32> = chosen.iter().map(|i| T::from_bits(results[0][*i]).to_f32()).collect();
    let tolerance = match T::SUFFIX {
        "f16" => Tolerance { absolute: 1e-3, relative: 1e-3 },
        _ => Tolerance { absolute: 1e-3, relative: 8e-3 },
    };
    bench.compare(&name, &got, &reference, tolerance);
    Ok(())
}
