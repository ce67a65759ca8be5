//! Cases of [`skein_kernels::cuda::ops::latent`].

use super::Scale;
use super::case::{Bench, Tolerance};
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::norm::rms_norm;
use skein_kernels::cpu::rope::{Rotation, angles, rotate};
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::e4m3::MAX;
use skein_kernels::cuda::ops::kv::{KvElement, KvLayer, NO_SLOT};
use skein_kernels::cuda::ops::latent::{
    LatentKvWrite, LatentRows, NARROW_GROUP, NARROW_SCALES_BYTES, NARROW_UNIT, QueryRows, RotateQueries,
    key_bytes,
};
use skein_kernels::cuda::{CudaError, DeviceSlice};

const EPS: f32 = 1e-6;
const POSITIONS: u32 = 300;
const BLOCK: usize = 16;
const CLOSE: Tolerance = Tolerance { absolute: 1e-4, relative: 8e-3 };
/// Of a scale in 8 bits; sums of squares have another order.
const SCALES: Tolerance = Tolerance { absolute: 0.0, relative: 1e-5 };
/// Of codes times their scale, relative to the largest value of the group: three bits of mantissa are kept.
const CODES: Tolerance = Tolerance { absolute: 1.0 / 16.0, relative: 0.0 };

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
    let narrow = Sizes { rank: 48, ..small };
    let two_scales = Sizes { rank: 144, ..small };
    let mut all = vec![small, Sizes { query_rank: None, ..small }, narrow, two_scales, deepseek];
    if bench.scale == Scale::Full {
        all.extend([
            Sizes { rows: 70, heads: 128, ..deepseek },
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
    let latents = Latents::draw::<T>(bench, sizes, &step);
    latents.keys::<T>(bench, &name, sizes, &step)?;
    if sizes.rank.is_multiple_of(NARROW_UNIT) {
        latents.narrow_keys::<T>(bench, &name, sizes, &step)?;
    }
    queries::<T>(bench, &name, sizes, &step)
}

fn normal<T: Activation>(bench: &mut Bench, len: usize) -> (Vec<T>, Vec<f32>) {
    let values: Vec<T> = bench.normal_as(len, T::from_f32);
    let wide = values.iter().map(|value| value.to_f32()).collect();
    (values, wide)
}

/// Columns `range` of rows of `stride`.
fn columns(of: &[f32], stride: usize, range: std::ops::Range<usize>) -> Vec<f32> {
    of.chunks_exact(stride).flat_map(|row| row[range.clone()].to_vec()).collect()
}

/// Projections of the rows, and what is expected of them.
struct Latents {
    stride: usize,
    /// `[rows, stride]`, rounded to the activations' type.
    projected: Vec<f32>,
    norm: Vec<f32>,
    vector_norm: Vec<f32>,
    blocks: usize,
    /// Every other slot from the end; the last row has none.
    slots: Vec<u32>,
    /// `[rows, rank]`: normalised latents.
    latent: Vec<f32>,
    /// `[rows, rotated]`
    rest: Vec<f32>,
    /// `[rows, query_rank]`
    vector: Vec<f32>,
}

impl Latents {
    fn draw<T: Activation>(bench: &mut Bench, sizes: Sizes, step: &Step) -> Self {
        let Sizes { rows, rank, rotated, query_rank, .. } = sizes;
        let (width, vector_width) = (rank + rotated, query_rank.unwrap_or(0));
        let stride = width + vector_width + 8;
        let projected = normal::<T>(bench, rows * stride).1;
        let (norm, vector_norm) = (bench.normal(rank), bench.normal(vector_width));
        let blocks = rows.div_ceil(BLOCK) + 1;
        let mut slots: Vec<u32> = (0..rows).map(|row| (blocks * BLOCK - 1 - row) as u32).collect();
        slots[rows - 1] = NO_SLOT;
        let normalised = |from: std::ops::Range<usize>, weight: &[f32]| {
            let values = columns(&projected, stride, from);
            let mut out = vec![0.0; values.len()];
            rms_norm(&mut Cpu::new(1), &values, weight, EPS, &mut out);
            out
        };
        let latent = normalised(0..rank, &norm);
        let vector =
            if vector_width > 0 { normalised(width..width + vector_width, &vector_norm) } else { Vec::new() };
        let rest = step.rotated(columns(&projected, stride, rank..width), 1, rotated);
        Self { stride, projected, norm, vector_norm, blocks, slots, latent, rest, vector }
    }

    /// Writes the keys to a cache of `K`, `[blocks, BLOCK]` keys of `key_len` values, and returns it.
    /// Compares the vectors.
    fn written<T: Activation, K: KvElement>(
        &self,
        bench: &mut Bench,
        (name, key_len): (&str, usize),
        step: &Step,
    ) -> Result<Vec<K>, CudaError> {
        let (rows, rank) = (self.slots.len(), self.norm.len());
        let rotated = self.rest.len() / rows;
        let cache = bench.output::<K>(self.blocks * BLOCK * key_len)?;
        let vector = bench.output::<T>(self.vector.len())?;
        let projected: Vec<T> = self.projected.iter().map(|value| T::from_f32(*value)).collect();
        let (on_device, norms, vector_norms) =
            (bench.upload(&projected)?, bench.upload(&self.norm)?, bench.upload(&self.vector_norm)?);
        let (table, at, to) =
            (bench.upload(&step.table)?, bench.upload(&step.positions)?, bench.upload(&self.slots)?);
        let layer = KvLayer {
            keys: *cache,
            values: *cache,
            blocks: self.blocks,
            kv_heads: 1,
            block_size: BLOCK,
            head_dim: rank + rotated,
            key_scale: 1.0,
            value_scale: 1.0,
        };
        layer.check()?;
        let has_vector = !self.vector.is_empty();
        let latents = LatentRows {
            projected: *on_device,
            stride: self.stride,
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
        LatentKvWrite::<T, K>::new(&bench.kernels)?.launch(&bench.stream, latents)?;
        if has_vector {
            let got: Vec<f32> = vector.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
            bench.compare(&format!("{name}, vector"), &got, &self.vector, CLOSE);
        }
        cache.read(&bench.stream)
    }

    /// Rows with a slot, and their slots.
    fn with_slot(&self) -> impl Iterator<Item = (usize, usize)> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| **slot != NO_SLOT)
            .map(|(row, slot)| (row, *slot as usize))
    }

    /// Values of a cache in slots that no row has.
    fn others<'a, K: Copy>(&self, cache: &'a [K], key_len: usize) -> impl Iterator<Item = K> + use<'a, K> {
        let mut written = vec![false; self.blocks * BLOCK];
        self.with_slot().for_each(|(_, slot)| written[slot] = true);
        let others = cache.chunks_exact(key_len).zip(written).filter(|(_, is_written)| !is_written);
        others.flat_map(|(key, _)| key.iter().copied())
    }

    fn keys<T: Activation + KvElement>(
        &self,
        bench: &mut Bench,
        name: &str,
        sizes: Sizes,
        step: &Step,
    ) -> Result<(), CudaError> {
        let Sizes { rank, rotated, .. } = sizes;
        let width = rank + rotated;
        let got: Vec<T> = self.written::<T, T>(bench, (name, width), step)?;
        let (mut read, mut expected) = (Vec::new(), Vec::new());
        for (row, slot) in self.with_slot() {
            read.extend(got[slot * width..][..width].iter().map(|value| value.to_f32()));
            expected.extend_from_slice(&self.latent[row * rank..][..rank]);
            expected.extend_from_slice(&self.rest[row * rotated..][..rotated]);
        }
        bench.compare(&format!("{name}, keys"), &read, &expected, CLOSE);
        let others: Vec<u16> = self.others(&got, width).map(|value| value.to_bits()).collect();
        bench.compare_exact(&format!("{name}, other slots stay"), &others, &vec![u16::MAX; others.len()]);
        Ok(())
    }

    /// Keys in 8 bits: scales of groups, codes, and the rotated part as in 16 bits.
    fn narrow_keys<T: Activation + KvElement>(
        &self,
        bench: &mut Bench,
        name: &str,
        sizes: Sizes,
        step: &Step,
    ) -> Result<(), CudaError> {
        let Sizes { rank, rotated, .. } = sizes;
        let (name, bytes) = (format!("{name}, in 8 bits"), key_bytes::<E4m3>(rank, rotated));
        let got: Vec<E4m3> = self.written::<T, E4m3>(bench, (&name, bytes), step)?;
        let in_sixteen: Vec<T> = self.written::<T, T>(bench, (&name, rank + rotated), step)?;
        let (mut scales, mut expected_scales) = (Vec::new(), Vec::new());
        let (mut values, mut expected) = (Vec::new(), Vec::new());
        let (mut rest, mut expected_rest) = (Vec::new(), Vec::new());
        for (row, slot) in self.with_slot() {
            let key = &got[slot * bytes..][..bytes];
            let own: Vec<f32> = key[rank..][..NARROW_SCALES_BYTES]
                .as_chunks::<4>()
                .0
                .iter()
                .map(|four| f32::from_le_bytes(four.map(|byte| byte.0)))
                .collect();
            let latent = &self.latent[row * rank..][..rank];
            let largest = |group: &[f32]| group.iter().fold(0f32, |most, value| most.max(value.abs()));
            let groups = latent.chunks(NARROW_GROUP).map(largest).collect::<Vec<_>>();
            let behind = std::iter::repeat_n(1.0, own.len() - groups.len());
            expected_scales.extend(groups.iter().map(|largest| largest / MAX).chain(behind));
            for (at, (code, value)) in key[..rank].iter().zip(latent).enumerate() {
                let (scale, largest) = (own[at / NARROW_GROUP], groups[at / NARROW_GROUP]);
                values.push(code.to_f32() * scale / value.abs().max(largest / 64.0));
                expected.push(value / value.abs().max(largest / 64.0));
            }
            scales.extend(own);
            rest.extend(key[rank + NARROW_SCALES_BYTES..].iter().map(|byte| byte.0));
            let rotated_of = &in_sixteen[slot * (rank + rotated) + rank..][..rotated];
            expected_rest.extend(rotated_of.iter().flat_map(|value| value.to_bits().to_le_bytes()));
        }
        bench.compare(&format!("{name}, scales"), &scales, &expected_scales, SCALES);
        bench.compare(&format!("{name}, codes"), &values, &expected, CODES);
        bench.compare_exact(&format!("{name}, rotated"), &rest, &expected_rest);
        let others: Vec<u8> = self.others(&got, bytes).map(|byte| byte.0).collect();
        bench.compare_exact(&format!("{name}, other slots stay"), &others, &vec![u8::MAX; others.len()]);
        Ok(())
    }
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
