//! Cases of [`skein_kernels::cuda::ops::ranks`], and of products whose inputs are split over ranks: the
//! joined sums of any number of ranks have the same bits as one rank with all leaves.

use half::{bf16, f16};

use super::Scale;
use super::case::{Bench, DEAR, Tolerance, each};
use skein_kernels::cuda::memory::{E4m3, Element};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::gemm::{Gemm, Tile};
use skein_kernels::cuda::ops::gemv::{self, Gemv};
use skein_kernels::cuda::ops::product::{Granularity, LinearWeight, Output, Product, WeightValues};
use skein_kernels::cuda::ops::ranks::{
    EmbedChosen, EmbedPart, JoinLogits, JoinSums, RankKernels, Vocabulary,
};
use skein_kernels::cuda::{CudaError, DeviceBuffer, DeviceSlice};

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    // Rows, outputs, inputs, leaves. Includes leaves that end within a stage, and a single leaf of all
    // inputs.
    let shapes: &[Shape] = match bench.scale {
        Scale::Small => &[Shape(3, 40, 8 * 96, 8), Shape(19, 72, 4 * 160, 4), Shape(9, 24, 208, 1)],
        Scale::Full => &[
            Shape(1, 2048, 14336, 8),
            Shape(16, 4096, 8192, 8),
            Shape(300, 1024, 18944, 8),
            Shape(70, 896, 896, 2),
        ],
    };
    for shape in shapes {
        products::<bf16>(bench, *shape, false)?;
        products::<f16>(bench, *shape, false)?;
        products::<bf16>(bench, *shape, true)?;
    }
    for ranks in [1, 2, 4, 8] {
        joins::<bf16>(bench, ranks)?;
        joins::<f16>(bench, ranks)?;
    }
    for (ranks, size) in [(2, 300), (4, 300), (8, 300), (4, 64)] {
        vocabularies::<bf16>(bench, ranks, size)?;
        vocabularies::<f16>(bench, ranks, size)?;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Shape(usize, usize, usize, usize);

/// Operands of a product on the host. An e4m3 weight is `codes` times `scales`.
struct Operands<T> {
    x: Vec<T>,
    same: Vec<T>,
    codes: Vec<E4m3>,
    scales: Vec<f32>,
    bias: Vec<T>,
}

/// Columns `part` of each row of `k` values.
fn columns<T: Copy>(all: &[T], k: usize, part: &std::ops::Range<usize>) -> Vec<T> {
    all.chunks_exact(k.max(1)).flat_map(|row| &row[part.clone()]).copied().collect()
}

impl<T: Activation> Operands<T> {
    fn new(bench: &mut Bench, Shape(rows, n, k, leaves): Shape, e4m3: bool) -> Self {
        let spread = 1.0 / (k as f32).sqrt();
        let x = bench.normal_as(rows * k, T::from_f32);
        let (same, codes) = if e4m3 { (0, n * k) } else { (n * k, 0) };
        let scales = bench.normal(if e4m3 { n * leaves } else { 0 });
        Self {
            x,
            same: bench.normal_as(same, |value| T::from_f32(value * spread)),
            codes: bench.normal_as(codes, |value| E4m3::from_f32(value * 64.0)),
            scales: scales.into_iter().map(|scale| (1.5 + scale / 4.0) * spread / 64.0).collect(),
            bias: bench.normal_as(n, T::from_f32),
        }
    }

    fn exact(&self, Shape(_, _, k, leaves): Shape, row: usize, output: usize) -> f64 {
        let weight = |column: usize| {
            if self.scales.is_empty() {
                self.same[output * k + column].to_f32()
            } else {
                let scale = self.scales[output * leaves + column / (k / leaves)];
                self.codes[output * k + column].to_f32() * scale
            }
        };
        let products = (0..k).map(|i| f64::from(self.x[row * k + i].to_f32()) * f64::from(weight(i)));
        products.sum::<f64>() + f64::from(self.bias[output].to_f32())
    }

    /// Writes the product over the inputs of one of `ranks` ranks to `out`.
    fn multiply<O: Element>(
        &self,
        bench: &Bench,
        Shape(rows, n, k, leaves): Shape,
        (rank, ranks): (usize, usize),
        (bias, out): (DeviceSlice<T>, DeviceSlice<O>),
    ) -> Result<(), CudaError> {
        let part = |of: usize| of * rank / ranks..of * (rank + 1) / ranks;
        let x = bench.upload(&columns(&self.x, k, &part(k)))?;
        let same = bench.upload(&columns(&self.same, k, &part(k)))?;
        let codes = bench.upload(&columns(&self.codes, k, &part(k)))?;
        let scales = bench.upload(&columns(&self.scales, leaves, &part(leaves)))?;
        let values = if self.scales.is_empty() {
            WeightValues::Same(*same)
        } else {
            WeightValues::E4m3 { values: *codes, scales: *scales, granularity: Granularity::Leaf }
        };
        let weight = LinearWeight { n, k: k / ranks, bias, values, leaf: k / leaves };
        let output = if ranks == 1 { Output::Plain } else { Output::F32 };
        let product = Product { out, x: *x, weight: &weight, rows, output };
        if rows <= gemv::MAX_ROWS {
            Gemv::new(&bench.kernels)?.launch(&bench.stream, &product)?;
        } else {
            let tile = Tile::ALL[(rank + ranks) % Tile::ALL.len()];
            Gemm::new(&bench.kernels)?.launch_tile(&bench.stream, &product, tile)?;
        }
        bench.stream.synchronize() // the operands are freed on return
    }
}

/// Checks one rank with all leaves against the exact product, and other numbers of ranks against one rank.
fn products<T: Activation>(bench: &mut Bench, shape: Shape, e4m3: bool) -> Result<(), CudaError> {
    let Shape(rows, n, k, leaves) = shape;
    let name = format!("leaves {} {rows}x{n}x{k} in {leaves}, e4m3 {e4m3}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let operands = Operands::<T>::new(bench, shape, e4m3);
    let bias = bench.upload(&operands.bias)?;
    let whole = bench.output::<T>(rows * n)?;
    operands.multiply(bench, shape, (0, 1), (*bias, *whole))?;
    let whole: Vec<f32> = whole.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
    let compared = bench.compared(whole.len());
    let exact: Vec<f32> =
        each(compared.len(), DEAR, |i| operands.exact(shape, compared[i] / n, compared[i] % n) as f32);
    let got: Vec<f32> = compared.iter().map(|i| whole[*i]).collect();
    let relative = if T::SUFFIX == "bf16" { 4e-3 } else { 6e-4 };
    bench.compare(&name, &got, &exact, Tolerance { absolute: 1e-4, relative });
    for ranks in [2, 4, 8].into_iter().filter(|ranks| leaves.is_multiple_of(*ranks)) {
        let sums = bench.output::<f32>(ranks * rows * n)?;
        for rank in 0..ranks {
            let own = sums.slice(rank * rows * n..(rank + 1) * rows * n);
            operands.multiply(bench, shape, (rank, ranks), (DeviceSlice::NONE, own))?;
        }
        let out = bench.output::<T>(rows * n)?;
        let join = JoinSums { out: *out, sums: *sums, bias: *bias, ranks, rows, n };
        RankKernels::<T>::new(&bench.kernels)?.join_sums(&bench.stream, join)?;
        let got: Vec<f32> = out.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
        bench.compare_exact(&format!("{name}, {ranks} ranks"), &got, &whole);
    }
    Ok(())
}

/// Checks joined sums of ranks against [`skein_kernels::leaves::join`].
fn joins<T: Activation>(bench: &mut Bench, ranks: usize) -> Result<(), CudaError> {
    let name = format!("join_sums_{} of {ranks} ranks", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let (rows, n) = (3, 420);
    let mut sums: Vec<Vec<f32>> = (0..ranks).map(|_| bench.normal(rows * n)).collect();
    let bias: Vec<T> = bench.normal_as(n, T::from_f32);
    let (on_device, given) = (bench.upload(&sums.concat())?, bench.upload(&bias)?);
    let mut views: Vec<&mut [f32]> = sums.iter_mut().map(Vec::as_mut_slice).collect();
    skein_kernels::leaves::join(&mut views);
    for with_bias in [false, true] {
        let out = bench.output::<T>(rows * n)?;
        let bias_given = if with_bias { *given } else { DeviceSlice::NONE };
        let join = JoinSums { out: *out, sums: *on_device, bias: bias_given, ranks, rows, n };
        RankKernels::<T>::new(&bench.kernels)?.join_sums(&bench.stream, join)?;
        let of_bias = |i: usize| if with_bias { bias[i % n].to_f32() } else { 0.0 };
        let expected: Vec<f32> =
            sums[0].iter().enumerate().map(|(i, sum)| T::from_f32(sum + of_bias(i)).to_f32()).collect();
        let got: Vec<f32> = out.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
        bench.compare_exact(&format!("{name}, bias {with_bias}"), &got, &expected);
    }
    Ok(())
}

/// Checks embedding rows and logits of a vocabulary split over ranks; if it is small, the last ranks have no
/// tokens.
fn vocabularies<T: Activation>(bench: &mut Bench, ranks: usize, size: usize) -> Result<(), CudaError> {
    let (rows, hidden, each) = (5, 136, size.div_ceil(64).div_ceil(ranks) * 64);
    let name = format!("embed_part join_logits {} {size} of {ranks} ranks", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let kernels = RankKernels::<T>::new(&bench.kernels)?;
    let vocabulary = Vocabulary { size, each };
    let table: Vec<T> = bench.normal_as(size * hidden, T::from_f32);
    let logits = bench.normal(rows * size);
    let mut tokens: Vec<u32> = (0..rows).map(|_| bench.below(size as u32)).collect();
    (tokens[0], tokens[rows - 1]) = (size as u32 - 1, size as u32);
    let ids = bench.upload(&tokens)?;
    let all: DeviceBuffer<T> = bench.output(ranks * rows * hidden)?;
    let parts: DeviceBuffer<f32> = bench.output(ranks * rows * each)?;
    for rank in 0..ranks {
        let own = (rank * each).min(size)..((rank + 1) * each).min(size);
        let own_table = bench.upload(&table[own.start * hidden..own.end * hidden])?;
        let out = all.slice(rank * rows * hidden..(rank + 1) * rows * hidden);
        let part = EmbedPart { out, table: *own_table, tokens: *ids, rows, hidden, vocabulary, rank };
        kernels.embed_part(&bench.stream, part)?;
        let own_logits = columns(&logits, size, &own);
        if !own_logits.is_empty() {
            let at = rank * rows * each;
            parts.slice(at..at + own_logits.len()).write(&bench.stream, &own_logits)?;
        }
        bench.stream.synchronize()?; // the table is freed
    }
    let scale = 1.5;
    let out = bench.output::<f32>(rows * hidden)?;
    let chosen = EmbedChosen { out: *out, all: *all, tokens: *ids, rows, hidden, vocabulary, scale };
    kernels.embed_chosen(&bench.stream, chosen)?;
    let row = |token: u32| if (token as usize) < size { token as usize } else { 0 };
    let expected: Vec<f32> = tokens
        .iter()
        .flat_map(|token| table[row(*token) * hidden..][..hidden].iter().map(|value| scale * value.to_f32()))
        .collect();
    let got = out.read(&bench.stream)?;
    bench.compare_exact(&format!("{name}, rows"), &got, &expected);
    let joined = bench.output::<f32>(rows * size)?;
    kernels.join_logits(&bench.stream, JoinLogits { out: *joined, all: *parts, rows, vocabulary })?;
    let got = joined.read(&bench.stream)?;
    bench.compare_exact(&format!("{name}, logits"), &got, &logits);
    Ok(())
}
