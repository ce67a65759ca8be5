//! Cases of [`skein_kernels::cuda::ops::latent`].

use super::Scale;
use super::case::{Bench, Tolerance};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::norm::rms_norm;
use skein_kernels::cpu::rope::{Rotation, angles, rotate};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::kv::{KvElement, KvLayer, NO_SLOT};
use skein_kernels::cuda::ops::latent::{LatentKvWrite, LatentRows, QueryRows, RotateQueries};
use skein_kernels::cuda::{CudaError, DeviceSlice};

const EPS: f32 = 1e-6;
const POSITIONS: u32 = 300;
const BLOCK: usize = 16;
const CLOSE: Tolerance = Tolerance { absolute: 1e-4, relative: 8e-3 };

/// Sizes of a model's latents.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    rows: usize,
    heads: usize,
    rank: usize,
    plain: usize,
    rotated: usize,
    query_rank: Option<usize>,
}

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let small = Sizes { rows: 5, heads: 3, rank: 40, plain: 24, rotated: 16, query_rank: Some(48) };
    let deepseek = Sizes { rows: 3, heads: 16, rank: 512, plain: 128, rotated: 64, query_rank: Some(1536) };
    let mut all = vec![small, Sizes { query_rank: None, ..small }, deepseek];
    if bench.scale == Scale::Full {
        all.extend([
            Sizes { rows: 700, heads: 128, ..deepseek },
            Sizes { query_rank: None, rows: 400, ..deepseek },
        ]);
    }
    for sizes in all {
        case::<half::bf16>(bench, sizes)?;
        case::<half::f16>(bench, sizes)?;
    }
    Ok(())
}

/// The step's rows, the same for keys and queries.
struct Step {
    positions: Vec<u32>,
    /// `[POSITIONS, rotated]`: cosines, then sines.
    table: Vec<f32>,
    rotation: Rotation,
}

impl Step {
    fn draw(bench: &mut Bench, sizes: Sizes) -> Self {
        let rotation = Rotation::plain(sizes.rotated, 10_000.0);
        let half = sizes.rotated / 2;
        let all: Vec<u32> = (0..POSITIONS).collect();
        let (mut cos, mut sin) = (vec![0.0; all.len() * half], vec![0.0; all.len() * half]);
        angles(&mut Cpu::new(1), &rotation, &all, &mut cos, &mut sin);
        let rows = cos.chunks_exact(half).zip(sin.chunks_exact(half));
        let table = rows.flat_map(|(cos, sin)| cos.iter().chain(sin).copied()).collect();
        let mut positions: Vec<u32> = (0..sizes.rows).map(|_| bench.below(POSITIONS)).collect();
        // Positions past the table use its last row.
        positions[0] = POSITIONS + 5;
        Self { positions, table, rotation }
    }

    /// Rotates heads of `rotated` values, `heads` of them a row.
    fn rotated(&self, mut heads: Vec<f32>, of_row: usize, rotated: usize) -> Vec<f32> {
        let positions: Vec<u32> = self.positions.iter().map(|at| (*at).min(POSITIONS - 1)).collect();
        let half = rotated / 2;
        let (mut cos, mut sin) = (vec![0.0; positions.len() * half], vec![0.0; positions.len() * half]);
        let cpu = &mut Cpu::new(1);
        angles(cpu, &self.rotation, &positions, &mut cos, &mut sin);
        rotate(cpu, &mut heads, of_row * rotated, of_row, &cos, &sin);
        heads
    }
}

fn case<T: Activation + KvElement>(bench: &mut Bench, sizes: Sizes) -> Result<(), CudaError> {
    let name = format!("latent_{} {sizes:?}", <T as Activation>::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let step = Step::draw(bench, sizes);
    keys::<T>(bench, &name, sizes, &step)?;
    queries::<T>(bench, &name, sizes, &step)
}

fn normal<T: Activation>(bench: &mut Bench, len: usize) -> (Vec<T>, Vec<f32>) {
    let values: Vec<T> = bench.normal(len).into_iter().map(T::from_f32).collect();
    let wide = values.iter().map(|value| value.to_f32()).collect();
    (values, wide)
}

/// Columns `range` of rows of `stride`.
fn columns(of: &[f32], stride: usize, range: std::ops::Range<usize>) -> Vec<f32> {
    of.chunks_exact(stride).flat_map(|row| row[range.clone()].to_vec()).collect()
}

fn keys<T: Activation + KvElement>(
    bench: &mut Bench,
    name: &str,
    sizes: Sizes,
    step: &Step,
) -> Result<(), CudaError> {
    let Sizes { rows, rank, rotated, query_rank, .. } = sizes;
    let (width, vector_width) = (rank + rotated, query_rank.unwrap_or(0));
    let stride = width + vector_width + 8;
    let (projected, wide) = normal::<T>(bench, rows * stride);
    let (norm, vector_norm) = (bench.normal(rank), bench.normal(vector_width));
    let blocks = rows.div_ceil(BLOCK) + 1;
    // Every other slot from the end; the last row has none.
    let mut slots: Vec<u32> = (0..rows).map(|row| (blocks * BLOCK - 1 - row) as u32).collect();
    slots[rows - 1] = NO_SLOT;
    let cache = bench.output::<T>(blocks * BLOCK * width)?;
    let vector = bench.output::<T>(rows * vector_width)?;
    let (on_device, norms, vector_norms) =
        (bench.upload(&projected)?, bench.upload(&norm)?, bench.upload(&vector_norm)?);
    let (table, at, to) = (bench.upload(&step.table)?, bench.upload(&step.positions)?, bench.upload(&slots)?);
    let layer = KvLayer {
        keys: *cache,
        values: *cache,
        blocks,
        kv_heads: 1,
        block_size: BLOCK,
        head_dim: width,
        key_scale: 1.0,
        value_scale: 1.0,
    };
    layer.check()?;
    let has_vector = query_rank.is_some();
    let latents = LatentRows {
        projected: *on_device,
        stride,
        norm: *norms,
        vector: if has_vector { *vector } else { DeviceSlice::NONE },
        vector_norm: if has_vector { *vector_norms } else { DeviceSlice::NONE },
        eps: EPS,
        angles: *table,
        positions: *at,
        slots: *to,
        layer,
        rows,
    };
    LatentKvWrite::<T>::new(&bench.kernels)?.launch(&bench.stream, latents)?;

    let cpu = &mut Cpu::new(1);
    let normalised = |cpu: &mut Cpu, from: std::ops::Range<usize>, weight: &[f32]| {
        let values = columns(&wide, stride, from);
        let mut out = vec![0.0; values.len()];
        rms_norm(cpu, &values, weight, EPS, &mut out);
        out
    };
    let latent = normalised(cpu, 0..rank, &norm);
    let rest = step.rotated(columns(&wide, stride, rank..width), 1, rotated);
    let got: Vec<T> = cache.read(&bench.stream)?;
    let (mut read, mut expected, mut written) = (Vec::new(), Vec::new(), vec![false; blocks * BLOCK]);
    for (row, slot) in slots.iter().enumerate().take(rows - 1) {
        written[*slot as usize] = true;
        read.extend(got[*slot as usize * width..][..width].iter().map(|value| value.to_f32()));
        expected.extend_from_slice(&latent[row * rank..][..rank]);
        expected.extend_from_slice(&rest[row * rotated..][..rotated]);
    }
    bench.compare(&format!("{name}, keys"), &read, &expected, CLOSE);
    let others: Vec<u16> = (0..got.len()).filter(|i| !written[i / width]).map(|i| got[i].to_bits()).collect();
    bench.compare_exact(&format!("{name}, other slots stay"), &others, &vec![u16::MAX; others.len()]);
    if has_vector {
        let expected = normalised(cpu, width..width + vector_width, &vector_norm);
        let got: Vec<f32> = vector.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
        bench.compare(&format!("{name}, vector"), &got, &expected, CLOSE);
    }
    Ok(())
}

fn queries<T: Activation>(bench: &mut Bench, name: &str, sizes: Sizes, step: &Step) -> Result<(), CudaError> {
    let Sizes { rows, heads, rank, plain, rotated, .. } = sizes;
    let query_dim = plain + rotated;
    let (width, stride) = (rank + rotated, heads * query_dim + 8);
    let (queries, wide) = normal::<T>(bench, rows * stride);
    let out = bench.output::<T>(rows * heads * width)?;
    let (on_device, table, at) =
        (bench.upload(&queries)?, bench.upload(&step.table)?, bench.upload(&step.positions)?);
    let rotation = QueryRows {
        out: *out,
        queries: *on_device,
        stride,
        heads,
        query_dim,
        rank,
        rotated,
        angles: *table,
        positions: *at,
        rows,
    };
    RotateQueries::<T>::new(&bench.kernels)?.launch(&bench.stream, rotation)?;
    let of_heads = columns(&wide, stride, 0..heads * query_dim);
    let expected = step.rotated(columns(&of_heads, query_dim, plain..query_dim), heads, rotated);
    let got: Vec<T> = out.read(&bench.stream)?;
    let bits: Vec<u16> = got.iter().flat_map(|value| [value.to_bits()]).collect();
    let wide: Vec<f32> = got.into_iter().map(T::to_f32).collect();
    bench.compare(&format!("{name}, queries"), &columns(&wide, width, rank..width), &expected, CLOSE);
    let others: Vec<u16> = bits.chunks_exact(width).flat_map(|head| head[..rank].to_vec()).collect();
    bench.compare_exact(&format!("{name}, the rest stays"), &others, &vec![u16::MAX; others.len()]);
    Ok(())
}
