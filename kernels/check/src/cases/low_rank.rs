//! Cases of [`skein_kernels::cuda::ops::low_rank`]: against sums in f64, and the same bits in any tiles and
//! on any number of ranks.

use super::Scale;
use super::case::{Bench, DEAR, Tolerance};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::inputs::{HEADER_WORDS, Message, TileList};
use skein_kernels::cuda::ops::low_rank::{
    ChangedRows, InnerSums, LowRankAdd, MATRICES, RECORD_WORDS, SlotProduct, TILE_ROWS,
};
use skein_kernels::cuda::{CudaError, DeviceSlice};
use skein_kernels::gate::Gate;

const SLOTS: usize = 3;
/// Products before the one that is computed, so that its record is not the first.
const INDEX: usize = 2;

/// Sizes of a case. The first outputs of its matrices are those of three, two or one equal ones.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    k: usize,
    n: usize,
    matrices: usize,
    max_rank: usize,
}

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let shapes: &[[usize; 5]] = match bench.scale {
        Scale::Small => {
            &[[1, 8, 3, 1, 16], [21, 136, 96, 3, 32], [40, 520, 1032, 2, 16], [5, 64, 14, 1, 144]]
        }
        Scale::Full => &[
            [1, 4096, 6144, 3, 16],
            [64, 4096, 28_672, 2, 16],
            [300, 14_336, 4096, 1, 64],
            [9, 4096, 301, 1, 512],
        ],
    };
    for &[rows, k, n, matrices, max_rank] in shapes {
        let shape = Shape { rows, k, n, matrices, max_rank };
        case::<half::bf16>(bench, shape)?;
        case::<half::f16>(bench, shape)?;
    }
    ranks::<half::bf16>(bench)?;
    ranks::<half::f16>(bench)?;
    glu::<half::bf16>(bench)?;
    glu::<half::f16>(bench)
}

/// A slot's ranks and scales of the product's matrices.
fn of_slot(shape: Shape, slot: usize, matrix: usize) -> (usize, f32) {
    // The second slot leaves the first matrix alone if there are several.
    let is_changed = matrix < shape.matrices && (slot != 1 || matrix > 0 || shape.matrices == 1);
    let rank = if is_changed { (shape.max_rank - slot * 5 - matrix).max(1) } else { 0 };
    (rank, [2.0, 0.5, -1.25][(slot + matrix) % 3])
}

/// Slot of a row; `None`: it has no adapter.
fn slot_of(row: usize) -> Option<usize> {
    [Some(0), Some(2), None, Some(0), Some(1), Some(0)][row * 7 % 6]
}

/// A message with the rows by slot, `each` to a tile; returns its words and the number of tiles.
fn message(rows: usize, each: usize) -> (Vec<u32>, usize) {
    let of = |slot| (0..rows as u32).filter(|row| slot_of(*row as usize) == Some(slot)).collect::<Vec<_>>();
    let lists: Vec<Vec<u32>> = (0..SLOTS).map(of).collect();
    let tiles: Vec<(u32, &[u32])> =
        (0..).zip(&lists).flat_map(|(slot, rows)| rows.chunks(each).map(move |rows| (slot, rows))).collect();
    let mut words = vec![0; HEADER_WORDS + Message::tile_words(rows)];
    Message::new(&mut words).tiles(TileList::Rows, tiles.iter().copied());
    (words, tiles.len())
}

fn case<T: Activation>(bench: &mut Bench, shape: Shape) -> Result<(), CudaError> {
    let Shape { rows, k, n, matrices, max_rank } = shape;
    let name = format!("low_rank_{} {rows}x{k} {matrices} to {n} rank {max_rank}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let each = n / matrices / 2 * 2;
    let firsts = [0, 1, 2].map(|matrix| if matrix < matrices { matrix * each } else { n });
    let (records, a_bytes) = ((INDEX + 1) * RECORD_WORDS * 4, matrices * max_rank * k * 2);
    let (a_at, b_at) = (records, records + a_bytes);
    let product = SlotProduct { index: INDEX, a_at, b_at, k, n, leaves: 0, matrices, firsts };
    let n_stride = product.n_stride();
    let slot_bytes = b_at + max_rank * n_stride * 2;
    let a: Vec<T> = bench.normal_as(SLOTS * matrices * max_rank * k, T::from_f32);
    let b: Vec<T> = bench.normal_as(SLOTS * max_rank * n_stride, T::from_f32);
    let x: Vec<T> = bench.normal_as(rows * k, T::from_f32);
    let y = bench.normal(rows * n);
    let mut slots = vec![0u8; SLOTS * slot_bytes];
    for (slot, to) in slots.chunks_exact_mut(slot_bytes).enumerate() {
        for matrix in 0..MATRICES {
            let (rank, scale) = of_slot(shape, slot, matrix);
            let mut put = |word: usize, value: u32| {
                let at = (INDEX * RECORD_WORDS + word) * 4;
                to[at..at + 4].copy_from_slice(&value.to_le_bytes());
            };
            put(matrix, rank as u32);
            put(4 + matrix, scale.to_bits());
        }
        for (at, values) in [
            (a_at, &a[slot * matrices * max_rank * k..][..matrices * max_rank * k]),
            (b_at, &b[slot * max_rank * n_stride..][..max_rank * n_stride]),
        ] {
            for (to, value) in to[at..].chunks_exact_mut(2).zip(values) {
                to.copy_from_slice(&value.to_bits().to_le_bytes());
            }
        }
    }
    let (slots, on_device) = (bench.upload(&slots)?, bench.upload(&x)?);
    let kernel = LowRankAdd::<T>::new(&bench.kernels)?;
    let run = |bench: &mut Bench, each: usize| -> Result<(Vec<f32>, Vec<f32>), CudaError> {
        let (words, tiles) = message(rows, each);
        let packed = bench.upload(&words)?;
        let list = TileList::Rows;
        // A captured graph has room for more tiles than there are.
        let of = ChangedRows { slots: *slots, slot_bytes, max_rank, packed: *packed, list, tiles: tiles + 2 };
        let inner = bench.output::<f32>(rows * MATRICES * max_rank)?;
        kernel.inner(&bench.stream, &of, &product, *on_device, *inner)?;
        let inner = InnerSums { values: *inner, ranks: 1 };
        let narrow = bench.upload(&y.iter().map(|y| T::from_f32(*y)).collect::<Vec<T>>())?;
        kernel.add(&bench.stream, &of, &product, inner, *narrow)?;
        let wide = bench.upload(&y)?;
        for first in (0..rows).step_by(17) {
            let part = wide.slice(first * n..(first + 17).min(rows) * n);
            kernel.add_wide(&bench.stream, &of, &product, inner, (part, first))?;
        }
        let narrow = narrow.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
        Ok((narrow, wide.read(&bench.stream)?))
    };
    let (narrow, wide) = run(bench, TILE_ROWS)?;
    let alone = run(bench, 1)?;
    bench.compare_exact(
        &format!("{name}, tiles of one row"),
        &[alone.0, alone.1].concat(),
        &[narrow.clone(), wide.clone()].concat(),
    );

    let compared = bench.compared(rows * n);
    // Of each row and matrix, which all of its outputs share: the sums over `k`, which cost the most.
    let inner = super::case::each(rows * matrices * max_rank, DEAR, |at| {
        let (row, matrix, c) = (at / max_rank / matrices, at / max_rank % matrices, at % max_rank);
        let slot = slot_of(row).unwrap_or_default();
        let a = &a[((slot * matrices + matrix) * max_rank + c) * k..][..k];
        let products = a.iter().zip(&x[row * k..][..k]);
        products.map(|(a, x)| f64::from(a.to_f32()) * f64::from(x.to_f32())).sum::<f64>()
    });
    let change = |at: usize| -> Option<f64> {
        let (row, output) = (at / n, at % n);
        let slot = slot_of(row)?;
        let matrix = firsts.iter().rposition(|first| *first <= output).unwrap_or_default();
        let (rank, scale) = of_slot(shape, slot, matrix);
        let component = |c: usize| {
            let inner = inner[(row * matrices + matrix) * max_rank + c];
            inner * f64::from(b[(slot * max_rank + c) * n_stride + output].to_f32())
        };
        (rank > 0).then(|| (0..rank).map(component).sum::<f64>() * f64::from(scale))
    };
    let exact: Vec<(f64, f64)> = compared
        .iter()
        .map(|at| {
            let (base, change) = (y[*at], change(*at));
            let narrow = f64::from(T::from_f32(base).to_f32());
            (narrow + change.unwrap_or(0.0), f64::from(base) + change.unwrap_or(0.0))
        })
        .collect();
    let of = |values: &[f32]| compared.iter().map(|at| values[*at]).collect::<Vec<f32>>();
    // Sums of `rank` products of `k`: errors grow with their size, not with the result's.
    let size = (k as f64 * max_rank as f64).sqrt() * 2.0;
    let references: Vec<f32> = exact.iter().map(|(narrow, _)| *narrow as f32).collect();
    let rounding = if T::SUFFIX == "bf16" { 4e-3 } else { 5e-4 };
    let tolerance = Tolerance { absolute: size * 1e-5, relative: rounding };
    bench.compare(&name, &of(&narrow), &references, tolerance);
    let references: Vec<f32> = exact.iter().map(|(_, wide)| *wide as f32).collect();
    let tolerance = Tolerance { absolute: size * 1e-5, relative: 1e-5 };
    bench.compare(&format!("{name} f32"), &of(&wide), &references, tolerance);
    // Rows and outputs without a change keep their bits.
    let kept: Vec<usize> = (0..rows * n).filter(|at| change_is_none(shape, firsts, *at)).collect();
    let bits = |values: &[f32]| kept.iter().map(|at| values[*at].to_bits()).collect::<Vec<u32>>();
    bench.compare_exact(&format!("{name}, others"), &bits(&wide), &bits(&y));
    Ok(())
}

/// Leaves of the inputs that ranks divide.
const LEAVES: usize = 8;

/// A change whose inputs are divided: any number of ranks gives the bits of one.
fn ranks<T: Activation>(bench: &mut Bench) -> Result<(), CudaError> {
    let name = format!("low_rank ranks_{}", T::SUFFIX);
    if !bench.wants(&name) {
        return Ok(());
    }
    let (rows, k, n, max_rank) = (21, 512, 70, 32);
    let rounded = |values: Vec<f32>| -> Vec<T> { values.into_iter().map(T::from_f32).collect() };
    let (a, b) = (rounded(bench.normal(SLOTS * max_rank * k)), rounded(bench.normal(SLOTS * max_rank * 72)));
    let (x, y) = (rounded(bench.normal(rows * k)), bench.normal(rows * n));
    let (words, tiles) = message(rows, TILE_ROWS);
    let packed = bench.upload(&words)?;
    let kernel = LowRankAdd::<T>::new(&bench.kernels)?;
    // Some columns of rows of `k` values.
    let columns = |values: &[T], from: usize, count: usize| -> Vec<T> {
        values.chunks_exact(k).flat_map(|row| row[from..from + count].to_vec()).collect()
    };
    let run = |ranks: usize| -> Result<Vec<f32>, CudaError> {
        let each = k / ranks;
        let (a_at, b_at) = (RECORD_WORDS * 4, RECORD_WORDS * 4 + max_rank * each * 2);
        let (leaves, firsts) = (LEAVES / ranks, [0, n, n]);
        let product = SlotProduct { index: 0, a_at, b_at, k: each, n, leaves, matrices: 1, firsts };
        let slot_bytes = b_at + max_rank * product.n_stride() * 2;
        let inner = bench.output::<f32>(ranks * rows * max_rank)?;
        let out = bench.upload(&y)?;
        for rank in 0..ranks {
            let own = columns(&a, rank * each, each);
            let mut slots = vec![0u8; SLOTS * slot_bytes];
            for (slot, to) in slots.chunks_exact_mut(slot_bytes).enumerate() {
                to[..4].copy_from_slice(&(max_rank as u32 - slot as u32 * 5).to_le_bytes());
                to[16..20].copy_from_slice(&0.5f32.to_le_bytes());
                let (of_a, of_b) = (max_rank * each, max_rank * product.n_stride());
                for (at, values) in [(a_at, &own[slot * of_a..][..of_a]), (b_at, &b[slot * of_b..][..of_b])] {
                    for (to, value) in to[at..].chunks_exact_mut(2).zip(values) {
                        to.copy_from_slice(&value.to_bits().to_le_bytes());
                    }
                }
            }
            let (slots, x) = (bench.upload(&slots)?, bench.upload(&columns(&x, rank * each, each))?);
            let list = TileList::Rows;
            let of = ChangedRows { slots: *slots, slot_bytes, max_rank, packed: *packed, list, tiles };
            let part = inner.slice(rank * rows * max_rank..(rank + 1) * rows * max_rank);
            kernel.inner(&bench.stream, &of, &product, *x, part)?;
            if rank + 1 == ranks {
                let sums = InnerSums { values: *inner, ranks };
                kernel.add_wide(&bench.stream, &of, &product, sums, (*out, 0))?;
            }
            bench.stream.synchronize()?;
        }
        out.read(&bench.stream)
    };
    let whole = run(1)?;
    let of_ranks = [run(2)?, run(4)?, run(8)?];
    for (ranks, got) in [2, 4, 8].into_iter().zip(of_ranks) {
        bench.compare_exact(&format!("{name}, {ranks}"), &got, &whole);
    }
    let references: Vec<f32> = (0..rows * n)
        .map(|at| {
            let (row, output) = (at / n, at % n);
            let component = |slot: usize, c: usize| {
                let (a, x) = (&a[(slot * max_rank + c) * k..][..k], &x[row * k..][..k]);
                let inner: f64 =
                    a.iter().zip(x).map(|(a, x)| f64::from(a.to_f32()) * f64::from(x.to_f32())).sum();
                inner * f64::from(b[(slot * max_rank + c) * 72 + output].to_f32())
            };
            let change = slot_of(row)
                .map_or(0.0, |slot| (0..max_rank - slot * 5).map(|c| component(slot, c)).sum::<f64>());
            (f64::from(y[at]) + 0.5 * change) as f32
        })
        .collect();
    bench.compare(&name, &whole, &references, Tolerance { absolute: 5e-3, relative: 1e-5 });
    Ok(())
}

fn change_is_none(shape: Shape, firsts: [usize; MATRICES], at: usize) -> bool {
    let (row, output) = (at / shape.n, at % shape.n);
    let matrix = firsts.iter().rposition(|first| *first <= output).unwrap_or_default();
    slot_of(row).is_none_or(|slot| of_slot(shape, slot, matrix).0 == 0)
}

fn glu<T: Activation>(bench: &mut Bench) -> Result<(), CudaError> {
    let (rows, inner) = (3, 300);
    for by in [Gate::Silu, Gate::GeluTanh] {
        let name = format!("low_rank glu_wide_{} {by:?}", T::SUFFIX);
        if !bench.wants(&name) {
            continue;
        }
        let gate_up = bench.normal(2 * rows * inner);
        let (out, on_device) = (bench.output::<T>(rows * inner)?, bench.upload(&gate_up)?);
        let out_slice: DeviceSlice<T> = *out;
        LowRankAdd::<T>::new(&bench.kernels)?.glu(&bench.stream, out_slice, *on_device, by, inner)?;
        let mut reference = vec![0.0; rows * inner];
        skein_kernels::cpu::mlp::glu(
            &mut skein_kernels::cpu::Cpu::new(1),
            by,
            &gate_up,
            inner,
            &mut reference,
        );
        let got: Vec<f32> = out.read(&bench.stream)?.into_iter().map(T::to_f32).collect();
        bench.compare(&name, &got, &reference, Tolerance { absolute: 1e-6, relative: 4e-3 });
    }
    Ok(())
}
