//! Cases of [`skein_kernels::cuda::ops::attention`].

mod narrow;
pub(super) mod reference;
mod step;

use half::{bf16, f16};

use super::Scale;
use super::case::{Bench, Tolerance};
use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::attention::{AttentionShape, StepKind};
use step::{AttentionStep, Case, PLAIN, Stored, compute};

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    for case in cases(bench.scale) {
        check::<bf16, bf16>(bench, case)?;
    }
    for head_dim in [64, 128, 256] {
        let case = Case { head_dim, lengths: &[(1, 150), (20, 90)], ..PLAIN };
        check::<f16, f16>(bench, case)?;
        if head_dim < 256 {
            check::<bf16, E4m3>(bench, case)?;
            check::<f16, E4m3>(bench, case)?;
        }
    }
    check::<bf16, E4m3>(bench, Case { head_dim: 96, lengths: &[(1, 70), (9, 33)], ..PLAIN })?;
    for case in [
        // The chunk crosses a tile boundary: only its later rows see the last tile.
        Case { lengths: &[(37, 590)], ..PLAIN },
        Case { lengths: &[(40, 340)], window: Some(77), sinks: true, ..PLAIN },
        Case { lengths: &[(40, 340)], window: Some(160), is_chunked: true, ..PLAIN },
    ] {
        rows_do_not_depend_on_their_batch::<f16, f16>(bench, case)?;
        rows_do_not_depend_on_their_batch::<f16, E4m3>(bench, case)?;
    }
    for case in latents(bench.scale) {
        check::<bf16, bf16>(bench, case)?;
        check::<bf16, bf16>(bench, Case { batch_invariant: true, ..case })?;
    }
    let small = Case { group: 3, head_dim: 56, latent: Some(40), ..PLAIN };
    check::<f16, f16>(bench, Case { lengths: &[(1, 150), (20, 90)], ..small })?;
    check::<f16, f16>(bench, Case { lengths: &[(1, 150), (20, 90)], ..DEEPSEEK })?;
    for case in [
        Case { lengths: &[(23, 590)], ..small },
        // Decode has large tiles, too, and divides them.
        Case { group: 24, lengths: &[(9, 540)], ..small },
        Case { group: 16, lengths: &[(5, 300)], ..DEEPSEEK },
    ] {
        rows_do_not_depend_on_their_batch::<f16, f16>(bench, case)?;
    }
    for case in narrow_latents(bench.scale) {
        narrow::check::<bf16>(bench, case)?;
        narrow::check::<f16>(bench, Case { batch_invariant: true, ..case })?;
    }
    Ok(())
}

/// Latents in 8 bits: keys of fewer values than the kernel has space for, and of exactly as many.
fn narrow_latents(scale: Scale) -> Vec<Case> {
    let small = Case { head_dim: 64, latent: Some(48), ..PLAIN };
    let mut cases = vec![
        Case { lengths: &[(1, 1), (1, 16), (1, 17), (0, 0), (1, 300), (0, 0)], ..small },
        Case { group: 7, block_size: 8, lengths: &[(1, 250), (2, 33), (5, 99)], ..small },
        Case { head_dim: 80, latent: Some(64), block_size: 64, lengths: &[(1, 1500), (30, 70)], ..small },
        Case { group: 40, kind: StepKind::Decode, lengths: &[(1, 300), (1, 20), (1, 700)], ..small },
        Case { lengths: &[(1, 200), (3, 70)], ..DEEPSEEK },
        Case { group: 2, head_dim: 176, latent: Some(144), lengths: &[(1, 40), (9, 20)], ..DEEPSEEK },
    ];
    if scale == Scale::Full {
        cases.extend([
            Case { lengths: &[(512, 4000), (1, 900), (37, 37)], ..DEEPSEEK },
            Case { group: 128, lengths: &[(1, 16_000), (1, 100), (1, 4097)], ..DEEPSEEK },
        ]);
    }
    cases
}

/// The widths of DeepSeek-V2 and V3.
const DEEPSEEK: Case = Case { group: 16, head_dim: 576, latent: Some(512), ..PLAIN };

/// Latent attention. Keys of fewer values than the kernel has space for, and of exactly as many.
fn latents(scale: Scale) -> Vec<Case> {
    let small = Case { head_dim: 56, latent: Some(40), ..PLAIN };
    let decode = Case { kind: StepKind::Decode, lengths: &[(1, 300), (0, 0), (1, 20), (1, 700)], ..small };
    let mut cases = vec![
        Case { lengths: &[(1, 1), (1, 16), (1, 17), (0, 0), (1, 300), (0, 0)], ..small },
        Case { group: 1, lengths: &[(1, 129), (17, 17), (3, 200)], ..small },
        Case { group: 7, block_size: 8, lengths: &[(1, 250), (2, 33), (5, 99)], ..small },
        Case { head_dim: 80, latent: Some(64), lengths: &[(1, 90), (30, 70)], ..small },
        Case { head_dim: 24, latent: Some(16), block_size: 64, lengths: &[(1, 90), (11, 70)], ..small },
        Case { lengths: &[(1, 1500), (1, 3), (18, 1300)], ..small },
        decode,
        Case { group: 40, ..decode },
        Case { lengths: &[(1, 200), (3, 70)], ..DEEPSEEK },
        Case { group: 128, lengths: &[(1, 150), (1, 33)], ..DEEPSEEK },
        Case { group: 2, head_dim: 104, latent: Some(72), lengths: &[(1, 40), (9, 20)], ..DEEPSEEK },
    ];
    if scale == Scale::Full {
        cases.extend([
            Case { lengths: &[(1, 32_000), (1, 100)], ..DEEPSEEK },
            Case { lengths: &[(130, 4000), (1, 900), (37, 37)], ..DEEPSEEK },
            Case { group: 128, lengths: &[(1, 16_000), (1, 100), (1, 4097)], ..DEEPSEEK },
            Case { group: 128, lengths: &[(100, 2000), (1, 31)], ..DEEPSEEK },
        ]);
    }
    cases
}

fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = vec![
        Case { lengths: &[(1, 1), (1, 64), (1, 65), (0, 0), (1, 300), (0, 0)], ..PLAIN },
        Case { group: 1, lengths: &[(1, 129), (17, 17), (3, 200)], ..PLAIN },
        Case { group: 2, kv_heads: 2, block_size: 8, lengths: &[(1, 77), (40, 150)], ..PLAIN },
        Case { group: 7, block_size: 32, lengths: &[(1, 250), (2, 33), (5, 99)], ..PLAIN },
        Case { group: 8, kv_heads: 2, head_dim: 128, lengths: &[(1, 200), (2, 130), (9, 140)], ..PLAIN },
        Case { group: 20, block_size: 128, lengths: &[(1, 90), (4, 260)], ..PLAIN },
        Case { head_dim: 16, lengths: &[(1, 40), (30, 70)], ..PLAIN },
        Case { head_dim: 32, lengths: &[(1, 40), (30, 70)], ..PLAIN },
        Case { head_dim: 96, lengths: &[(1, 140), (18, 70)], ..PLAIN },
        Case { head_dim: 256, group: 2, lengths: &[(1, 100), (12, 45)], ..PLAIN },
        Case { window: Some(9), lengths: &[(1, 300), (1, 4), (30, 200)], ..PLAIN },
        Case { window: Some(130), sinks: true, block_size: 8, lengths: &[(1, 300), (65, 190)], ..PLAIN },
        // Rows of a tile in several chunks, and a row that starts a chunk.
        Case { window: Some(9), is_chunked: true, lengths: &[(1, 300), (1, 10), (30, 200)], ..PLAIN },
        Case {
            window: Some(130),
            is_chunked: true,
            sinks: true,
            block_size: 8,
            lengths: &[(1, 261), (65, 290)],
            ..PLAIN
        },
        Case { softcap: Some(2.5), lengths: &[(1, 200), (20, 90)], ..PLAIN },
        Case { softcap: Some(30.0), sinks: true, lengths: &[(1, 1), (7, 65)], ..PLAIN },
        Case { lengths: &[(1, 1500), (1, 3), (1, 20), (1, 9)], kv_heads: 2, ..PLAIN },
        Case { sinks: true, lengths: &[(18, 1300)], ..PLAIN },
    ];
    let invariant: Vec<Case> = cases.iter().map(|case| Case { batch_invariant: true, ..*case }).collect();
    cases.extend(invariant);
    let decode = Case { kind: StepKind::Decode, lengths: &[(1, 300), (0, 0), (1, 20), (1, 700)], ..PLAIN };
    cases.extend([decode, Case { group: 20, ..decode }, Case { block_size: 256, sinks: true, ..decode }]);
    if scale == Scale::Full {
        let large = Case { kv_heads: 8, head_dim: 128, ..PLAIN };
        cases.extend([
            Case { lengths: &[(1, 32_000)], ..large },
            Case { lengths: &[(1, 16_000), (1, 100), (1, 2000), (1, 31), (1, 4097)], ..large },
            Case { lengths: &[(1024, 1024), (511, 3337), (1, 900), (37, 37)], ..large },
            Case { lengths: &[(1024, 2048), (1, 8000)], batch_invariant: true, ..large },
            Case { lengths: &[(300, 4000), (1, 9000)], window: Some(1024), sinks: true, ..large },
        ]);
    }
    cases
}

fn check<T: Stored, K: Stored>(bench: &mut Bench, case: Case) -> Result<(), CudaError> {
    let name = name::<T, K>(&case);
    if !bench.wants(&name) {
        return Ok(());
    }
    let step = AttentionStep::<T, K>::draw(bench, &case);
    let got = compute(bench, &case, &step)?;
    let tolerance = match T::NAME {
        "f16" => Tolerance { absolute: 1e-3, relative: 4e-3 },
        _ => Tolerance { absolute: 4e-3, relative: 1.6e-2 },
    };
    bench.compare(&name, &got, &step.reference(&case), tolerance);
    Ok(())
}

fn name<T: Stored, K: Stored>(case: &Case) -> String {
    let AttentionShape { heads, kv_heads, head_dim, latent, window, is_chunked, softcap, .. } = case.shape();
    let of_window = if is_chunked { "chunks of" } else { "window" };
    format!(
        "attention_{}{}_{} {heads}/{kv_heads}x{head_dim} blocks of {} {:?} {:?}{}{}{}{}",
        latent.map_or(String::new(), |latent| format!("latent_{latent}_")),
        T::NAME,
        K::NAME,
        case.block_size,
        case.kind,
        case.lengths,
        window.map_or(String::new(), |window| format!(" {of_window} {window}")),
        softcap.map_or(String::new(), |cap| format!(" softcap {cap}")),
        if case.sinks { " sinks" } else { "" },
        if case.batch_invariant { " invariant" } else { "" },
    )
}

/// A row has the same bits whether its sequence comes in one chunk, several, or token by token, alone or
/// beside others.
fn rows_do_not_depend_on_their_batch<T: Stored, K: Stored>(
    bench: &mut Bench,
    case: Case,
) -> Result<(), CudaError> {
    let whole = Case { batch_invariant: true, ..case };
    let name = format!("{} chunks", name::<T, K>(&whole));
    if !bench.wants(&name) {
        return Ok(());
    }
    let step = AttentionStep::<T, K>::draw(bench, &whole).shifted(&whole);
    let expected = compute(bench, &whole, &step)?;
    let (rows, context) = whole.lengths[0];
    let width = whole.shape().heads * whole.shape().value_dim();
    let mut differing = 0;
    for chunk in [1, 7, 16, 64] {
        // The chunks of a sequence as separate sequences of one step, each with the context up to its end, so
        // that batch-mates differ.
        let lengths: Vec<(usize, usize)> = (0..rows)
            .step_by(chunk)
            .map(|start| (chunk.min(rows - start), context - rows + (start + chunk).min(rows)))
            .collect();
        let together = Case { lengths: lengths.leak(), ..whole };
        let got = compute(bench, &together, &step.split(&together))?;
        differing += got.iter().zip(&expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    }
    for row in [0, rows / 2, rows - 1] {
        let alone =
            Case { lengths: vec![(1, context - rows + row + 1)].leak(), kind: StepKind::Decode, ..whole };
        let got = compute(bench, &alone, &step.row(&alone, row))?;
        let expected = &expected[row * width..][..width];
        differing += got.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    }
    bench.compare_exact(&name, &[differing], &[0]);
    Ok(())
}
