//! Cases of [`skein_kernels::cuda::ops::embed`].

use super::Scale;
use super::case::Bench;
use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::embed::{Embed, EmbedRows};

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[(usize, usize, usize)] = match bench.scale {
        Scale::Small => &[(1, 4, 3), (5, 132, 17), (3, 4100, 9)],
        Scale::Full => &[(1, 4, 3), (5, 132, 17), (256, 4096, 32_000), (8192, 2048, 128_256)],
    };
    for &(rows, hidden, vocab) in shapes {
        let shape = (rows, hidden, vocab);
        case::<half::bf16>(bench, shape, 1.0)?;
        case::<half::f16>(bench, shape, (hidden as f32).sqrt())?;
    }
    Ok(())
}

fn case<T: Activation>(
    bench: &mut Bench,
    (rows, hidden, vocab): (usize, usize, usize),
    scale: f32,
) -> Result<(), CudaError> {
    let name = format!("embed_{} {rows}x{hidden} of {vocab} times {scale}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let table: Vec<T> = bench.normal_as(vocab * hidden, T::from_f32);
    let mut tokens: Vec<u32> = (0..rows).map(|_| bench.below(vocab as u32)).collect();
    tokens[rows - 1] = [vocab as u32 - 1, vocab as u32, u32::MAX][bench.below(3) as usize];
    let out = bench.output::<f32>(rows * hidden)?;
    let (on_device, ids) = (bench.upload(&table)?, bench.upload(&tokens)?);
    let embed = EmbedRows { out: *out, table: *on_device, tokens: *ids, rows, hidden, scale };
    Embed::<T>::new(&bench.kernels)?.launch(&bench.stream, embed)?;

    let row = |token: u32| if (token as usize) < vocab { token as usize } else { 0 };
    let reference: Vec<f32> = tokens
        .iter()
        .flat_map(|token| table[row(*token) * hidden..][..hidden].iter().map(|value| scale * value.to_f32()))
        .collect();
    let got = out.read(&bench.stream)?;
    bench.compare_exact(&name, &got, &reference);
    Ok(())
}
