//! Cases of [`skein_kernels::cuda::ops::rope`].

use super::Scale;
use super::case::{Bench, Tolerance};
use skein_kernels::cpu::norm::rms_norm;
use skein_kernels::cpu::rope::{Rotation, Temperature, angles, rotate, scale_by_position};
use skein_kernels::cpu::rows::RowsMut;
use skein_kernels::cpu::{Cpu, rope};
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::kv::{KvElement, KvLayer, NO_SLOT};
use skein_kernels::cuda::ops::rope::{
    HeadNorm, HeadSquares, QueryTemperature, RopeKvWrite, RopeRows, RowSquares, SquaresOfHeads,
};
use skein_kernels::cuda::{CudaError, DeviceBuffer, DeviceSlice};

const EPS: f32 = 1e-6;
const POSITIONS: u32 = 300;
const BLOCK: usize = 16;
/// Changes several times within [`POSITIONS`].
const TEMPERATURE: QueryTemperature = QueryTemperature { every: 70, scale: 0.4 };

#[derive(Debug, Clone, Copy)]
struct RopeShape {
    rows: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shape = |rows, heads, kv_heads, head_dim| RopeShape { rows, heads, kv_heads, head_dim };
    let shapes = match bench.scale {
        Scale::Small => {
            vec![shape(3, 4, 2, 64), shape(5, 3, 1, 80), shape(2, 7, 7, 128), shape(2, 2, 1, 256)]
        }
        Scale::Full => {
            // Many rows and many heads apart: the product of both only costs time.
            vec![
                shape(3, 4, 2, 64),
                shape(5, 3, 1, 80),
                shape(257, 32, 8, 128),
                shape(4000, 2, 1, 64),
                shape(70, 16, 8, 256),
            ]
        }
    };
    for shape in shapes {
        for by in [By::None, By::Heads, By::Unweighted, By::Row] {
            case::<half::bf16, half::bf16>(bench, shape, by, |value| value.to_f32(), 1.0)?;
            case::<half::f16, half::f16>(bench, shape, by, |value| value.to_f32(), 1.0)?;
            case::<half::bf16, E4m3>(bench, shape, by, E4m3::to_f32, 0.01)?;
            case::<half::f16, E4m3>(bench, shape, by, E4m3::to_f32, 0.25)?;
        }
    }
    for ranks in [2, 4, 8] {
        sums_do_not_depend_on_the_ranks::<half::bf16>(bench, ranks)?;
        sums_do_not_depend_on_the_ranks::<half::f16>(bench, ranks)?;
    }
    Ok(())
}

/// Norm of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    None,
    Heads,
    /// With queries scaled by their position.
    Unweighted,
    Row,
}

fn case<T: Activation, K: KvElement>(
    bench: &mut Bench,
    shape: RopeShape,
    by: By,
    widen: fn(K) -> f32,
    scale: f32,
) -> Result<(), CudaError> {
    let name = format!("rope_kv_write_{}_{} {shape:?} norm {by:?}", T::SUFFIX, K::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let RopeShape { rows, heads, kv_heads, head_dim } = shape;
    let stride = (heads + 2 * kv_heads) * head_dim;
    let qkv: Vec<T> = bench.normal_as(rows * stride, T::from_f32);
    let widths = if by == By::Row { [heads, kv_heads].map(|heads| heads * head_dim) } else { [head_dim; 2] };
    let norms = if by == By::Unweighted {
        widths.map(|width| vec![1.0; width])
    } else {
        widths.map(|width| bench.normal(width))
    };
    let temperature = (by == By::Unweighted).then_some(TEMPERATURE);
    let mut positions: Vec<u32> = (0..rows).map(|_| bench.below(POSITIONS)).collect();
    if let Some(QueryTemperature { every, .. }) = temperature {
        // The first position of a warmer range.
        positions[rows / 2] = every - 1;
    }
    let blocks = rows.div_ceil(BLOCK) + 1;
    let slots = distinct_slots(bench, rows, blocks * BLOCK);
    let rotation = Rotation::plain(head_dim, 10_000.0);
    let table = table(&rotation);

    let on_device = bench.upload(&qkv)?;
    let len = blocks * BLOCK * kv_heads * head_dim;
    let (keys, values) = (bench.output::<K>(len)?, bench.output::<K>(len)?);
    let (q_norm, k_norm) = (bench.upload(&norms[0])?, bench.upload(&norms[1])?);
    let (table, at, to) = (bench.upload(&table)?, bench.upload(&positions)?, bench.upload(&slots)?);
    let layer = KvLayer {
        keys: *keys,
        values: *values,
        blocks,
        kv_heads,
        block_size: BLOCK,
        head_dim,
        key_scale: scale,
        value_scale: scale * 2.0,
    };
    layer.check()?;
    let sums = squares(bench, shape, *on_device)?;
    let norm = match by {
        By::None => HeadNorm::None,
        By::Heads => HeadNorm::Heads { q: *q_norm, k: *k_norm },
        By::Unweighted => HeadNorm::Unweighted,
        By::Row => {
            let squares = RowSquares { sums: *sums, ranks: 1, sharers: 1 };
            HeadNorm::Row { q: *q_norm, k: *k_norm, squares }
        }
    };
    let rope = RopeRows {
        qkv: *on_device,
        heads,
        norm,
        norm_eps: EPS,
        temperature,
        angles: *table,
        positions: *at,
        slots: *to,
        layer,
        rows,
    };
    RopeKvWrite::<T, K>::new(&bench.kernels)?.launch(&bench.stream, rope)?;

    let wide: Vec<f32> = qkv.iter().map(|value| value.to_f32()).collect();
    let mut reference = reference(shape, wide, (by != By::None).then_some(&norms), &positions, &rotation);
    if let Some(QueryTemperature { every, scale }) = temperature {
        let (x, width) = (RowsMut { values: &mut reference, stride }, heads * head_dim);
        scale_by_position(&mut Cpu::new(1), x, width, &positions, Temperature { every, shift: 1, scale });
    }
    let got: Vec<f32> = on_device.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
    let part = |of: &[f32], from: usize, heads: usize| -> Vec<f32> {
        of.chunks(stride).flat_map(|row| row[from * head_dim..][..heads * head_dim].to_vec()).collect()
    };
    let close = Tolerance { absolute: 1e-4, relative: 4e-3 };
    bench.compare(&name, &part(&got, 0, heads), &part(&reference, 0, heads), close);
    let kept: Vec<f32> = qkv.iter().map(|value| value.to_f32()).collect();
    let (got, kept) = (part(&got, heads, 2 * kv_heads), part(&kept, heads, 2 * kv_heads));
    bench.compare_exact(&format!("{name}, keys and values stay"), &got, &kept);

    let half_step = f64::from(scale) * 2f64.powi(-10) * 1.001;
    let tolerance = match K::SUFFIX {
        "e4m3" => Tolerance { absolute: 2.0 * half_step + 1e-5, relative: 0.0626 },
        _ => close,
    };
    let caches = [
        ("keys", keys.read(&bench.stream)?, heads, scale),
        ("values", values.read(&bench.stream)?, heads + kv_heads, 2.0 * scale),
    ];
    for (what, cache, first, scale) in caches {
        let stored: Vec<f32> = cache.into_iter().map(|value| widen(value) * scale).collect();
        let (got, untouched) = gather(&stored, &slots, shape);
        let limit = f32::from(448u16) * scale;
        let mut expected = part(&reference, first, kv_heads);
        let is_stored = |i: usize| slots[i / (kv_heads * head_dim)] != NO_SLOT;
        expected =
            expected.into_iter().enumerate().filter(|(i, _)| is_stored(*i)).map(|(_, value)| value).collect();
        if K::SUFFIX == "e4m3" {
            expected.iter_mut().for_each(|value| *value = value.clamp(-limit, limit));
        }
        bench.compare(&format!("{name}, {what}"), &got, &expected, tolerance);
        bench.compare_exact(&format!("{name}, other {what}"), &untouched, &vec![true; untouched.len()]);
    }
    Ok(())
}

/// The sums of squares of the rows' heads.
fn squares<T: Activation>(
    bench: &Bench,
    shape: RopeShape,
    qkv: DeviceSlice<T>,
) -> Result<DeviceBuffer<f32>, CudaError> {
    let RopeShape { rows, heads, kv_heads, head_dim } = shape;
    let out = bench.output::<f32>(rows * (heads + kv_heads))?;
    let squares = SquaresOfHeads { out: *out, qkv, heads, kv_heads, head_dim, rows };
    HeadSquares::new(&bench.kernels)?.launch(&bench.stream, squares)?;
    Ok(out)
}

/// With a norm over whole rows, each rank's queries and keys have the bits that they have on a single rank.
/// Up to eight ranks share four KV heads.
fn sums_do_not_depend_on_the_ranks<T: Activation + KvElement>(
    bench: &mut Bench,
    ranks: usize,
) -> Result<(), CudaError> {
    let name = format!("rope_kv_write_{} rows on {ranks} ranks", <T as Activation>::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let whole = RopeShape { rows: 3, heads: 40, kv_heads: 4, head_dim: 64 };
    let RopeShape { rows, heads, kv_heads, head_dim } = whole;
    let sharers = ranks.div_ceil(kv_heads);
    let own = RopeShape { heads: heads / ranks, kv_heads: kv_heads * sharers / ranks, ..whole };
    let stride = (heads + 2 * kv_heads) * head_dim;
    let qkv: Vec<T> = bench.normal_as(rows * stride, T::from_f32);
    let [q_norm, k_norm] = [heads, kv_heads].map(|heads| bench.normal(heads * head_dim));
    let of_rank = |rank: usize| -> Vec<T> {
        let (first, first_kv) = (rank * own.heads, rank / sharers * own.kv_heads);
        let parts = [
            (first, own.heads),
            (heads + first_kv, own.kv_heads),
            (heads + kv_heads + first_kv, own.kv_heads),
        ];
        let row = |row: usize| {
            let row = &qkv[row * stride..][..stride];
            parts.map(|(first, count)| &row[first * head_dim..][..count * head_dim]).concat()
        };
        (0..rows).flat_map(row).collect()
    };
    let expected = rotated(bench, whole, &qkv, (&q_norm, &k_norm), None)?;
    let mut gathered = Vec::new();
    for rank in 0..ranks {
        let on_device = bench.upload(&of_rank(rank))?;
        gathered.extend(squares(bench, own, *on_device)?.read(&bench.stream)?);
    }
    let mut differing = 0;
    for rank in 0..ranks {
        let part =
            |norm: &[f32], first: usize, count: usize| norm[first * head_dim..][..count * head_dim].to_vec();
        let (first, first_kv) = (rank * own.heads, rank / sharers * own.kv_heads);
        let norms = (part(&q_norm, first, own.heads), part(&k_norm, first_kv, own.kv_heads));
        let sums = Some((&gathered[..], ranks, sharers));
        let got = rotated(bench, own, &of_rank(rank), (&norms.0, &norms.1), sums)?;
        for row in 0..rows {
            let [queries, keys] = &expected;
            let queries = &queries[(row * heads + first) * head_dim..][..own.heads * head_dim];
            let keys = &keys[(row * kv_heads + first_kv) * head_dim..][..own.kv_heads * head_dim];
            let of_row =
                |values: &[f32], heads: usize| values[row * heads * head_dim..][..heads * head_dim].to_vec();
            differing += usize::from(of_row(&got[0], own.heads) != queries);
            differing += usize::from(of_row(&got[1], own.kv_heads) != keys);
        }
    }
    bench.compare_exact(&name, &[differing], &[0]);
    Ok(())
}

/// Queries `[rows, heads * head_dim]` and stored keys `[rows, kv_heads * head_dim]`, normalised over whole
/// rows: of the only rank, or with the sums of all ranks, their number, and how many share KV heads.
fn rotated<T: Activation + KvElement>(
    bench: &Bench,
    shape: RopeShape,
    qkv: &[T],
    (q_norm, k_norm): (&[f32], &[f32]),
    sums: Option<(&[f32], usize, usize)>,
) -> Result<[Vec<f32>; 2], CudaError> {
    let RopeShape { rows, heads, kv_heads, head_dim } = shape;
    let on_device = bench.upload(qkv)?;
    let (sums, ranks, sharers) = match sums {
        None => (squares(bench, shape, *on_device)?, 1, 1),
        Some((sums, ranks, sharers)) => (bench.upload(sums)?, ranks, sharers),
    };
    let (q_norm, k_norm) = (bench.upload(q_norm)?, bench.upload(k_norm)?);
    let table = bench.upload(&table(&Rotation::plain(head_dim, 10_000.0)))?;
    let places: Vec<u32> = (0..rows as u32).collect();
    let places = bench.upload(&places)?;
    let len = BLOCK * kv_heads * head_dim;
    let (keys, values) = (bench.output::<T>(len)?, bench.output::<T>(len)?);
    let layer = KvLayer {
        keys: *keys,
        values: *values,
        blocks: 1,
        kv_heads,
        block_size: BLOCK,
        head_dim,
        key_scale: 1.0,
        value_scale: 1.0,
    };
    let squares = RowSquares { sums: *sums, ranks, sharers };
    let rope = RopeRows {
        qkv: *on_device,
        heads,
        norm: HeadNorm::Row { q: *q_norm, k: *k_norm, squares },
        norm_eps: EPS,
        temperature: None,
        angles: *table,
        positions: *places,
        slots: *places,
        layer,
        rows,
    };
    RopeKvWrite::<T, T>::new(&bench.kernels)?.launch(&bench.stream, rope)?;
    let stride = (heads + 2 * kv_heads) * head_dim;
    let queries = on_device.read(&bench.stream)?;
    let queries = queries.chunks(stride).flat_map(|row| row[..heads * head_dim].to_vec());
    let stored: Vec<f32> = keys.read(&bench.stream)?.into_iter().map(Activation::to_f32).collect();
    let slots: Vec<u32> = (0..rows as u32).collect();
    let (keys, _) = gather(&stored, &slots, shape);
    Ok([queries.map(Activation::to_f32).collect(), keys])
}

/// A slot for each row; about one row in eight has none.
fn distinct_slots(bench: &mut Bench, rows: usize, count: usize) -> Vec<u32> {
    let mut slots: Vec<u32> = (0..count as u32).collect();
    for i in (1..count).rev() {
        slots.swap(i, bench.below(i as u32 + 1) as usize);
    }
    slots.truncate(rows);
    let pick = |slot| if bench.below(8) == 0 { NO_SLOT } else { slot };
    slots.into_iter().map(pick).collect()
}

fn table(rotation: &Rotation) -> Vec<f32> {
    let positions: Vec<u32> = (0..POSITIONS).collect();
    let half = rotation.frequencies.len();
    let (mut cos, mut sin) = (vec![0.0; positions.len() * half], vec![0.0; positions.len() * half]);
    rope::angles(&mut Cpu::new(1), rotation, &positions, &mut cos, &mut sin);
    cos.chunks(half).zip(sin.chunks(half)).flat_map(|(cos, sin)| [cos, sin].concat()).collect()
}

/// The rows with queries and keys normalised and rotated.
fn reference(
    shape: RopeShape,
    mut rows: Vec<f32>,
    norms: Option<&[Vec<f32>; 2]>,
    positions: &[u32],
    rotation: &Rotation,
) -> Vec<f32> {
    let RopeShape { heads, kv_heads, head_dim, .. } = shape;
    let (cpu, stride) = (&mut Cpu::new(1), (heads + 2 * kv_heads) * head_dim);
    for row in rows.chunks_mut(stride) {
        let Some([q_norm, k_norm]) = norms else { break };
        let (queries, rest) = row.split_at_mut(heads * head_dim);
        // A norm has the width of its weights: of a head, or of all heads.
        for (part, weight) in [(queries, q_norm), (&mut rest[..kv_heads * head_dim], k_norm)] {
            let before = part.to_vec();
            rms_norm(cpu, &before, weight, EPS, part);
        }
    }
    let half = rotation.frequencies.len();
    let (mut cos, mut sin) = (vec![0.0; positions.len() * half], vec![0.0; positions.len() * half]);
    angles(cpu, rotation, positions, &mut cos, &mut sin);
    rotate(cpu, &mut rows, stride, heads + kv_heads, &cos, &sin);
    rows
}

/// The values in the slots, in row order; for all other slots, whether each value is still poison.
fn gather(cache: &[f32], slots: &[u32], shape: RopeShape) -> (Vec<f32>, Vec<bool>) {
    let RopeShape { kv_heads, head_dim, .. } = shape;
    let place =
        |slot: usize, head: usize| ((slot / BLOCK * kv_heads + head) * BLOCK + slot % BLOCK) * head_dim;
    let head_of = |slot: usize, head: usize| &cache[place(slot, head)..][..head_dim];
    let heads = |slot: u32| (0..kv_heads).flat_map(move |head| head_of(slot as usize, head).to_vec());
    let written = slots.iter().filter(|slot| **slot != NO_SLOT).flat_map(|slot| heads(*slot)).collect();
    let all = (cache.len() / kv_heads / head_dim) as u32;
    let used: std::collections::HashSet<u32> = slots.iter().copied().collect();
    let others = (0..all).filter(|slot| !used.contains(slot));
    (written, others.flat_map(heads).map(f32::is_nan).collect())
}
