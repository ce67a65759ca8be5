//! Batch-invariant mode: a row's log-probabilities have the same bits in any batch and any chunks.

use skein_worker::backend::cuda::Fp8;
use skein_worker::backend::{Backend, Batch, ScoreRow, Want};
use skein_worker::check::Sequence;
use skein_worker::config::CudaConfig;

use crate::models::{DEEPSEEK_V2, DEEPSEEK_V3_SHARED, KINDS, LATENTS, LLAMA, MIXTURES};
use crate::runs::{eager, on_cuda, on_cuda_in, prompt, sequence_of, step};

const LENGTH: usize = 60;

/// Bits of every position's log-probability and of its most probable tokens.
pub fn bits(backend: &mut dyn Backend, chunks: impl Fn(usize) -> usize, others: u32) -> Vec<u32> {
    let tokens = prompt(1, LENGTH + 1);
    let mut sequence = sequence_of(tokens.clone(), 0);
    let mut company: Vec<Sequence> = (0..others).map(|i| sequence_of(prompt(i + 5, 120), i + 1)).collect();
    let mut all = Vec::new();
    let mut turn = 0;
    while sequence.computed < LENGTH {
        let mut batch = Batch::default();
        for (i, other) in company.iter_mut().enumerate() {
            let left = other.tokens.len() - other.computed;
            if left > 0 {
                other.put(&mut batch, left.min((turn * 3 + i * 2) % 6 + 1));
            }
        }
        let (first, start) = (batch.tokens.len() as u32, sequence.computed);
        let count = chunks(turn).min(LENGTH - start).min(48 - first as usize);
        sequence.put(&mut batch, count);
        for i in 0..count {
            let target = tokens[start + i + 1];
            batch.wants.push(Want::Score(ScoreRow { row: first + i as u32, target, top: 2 }));
        }
        for score in step(backend, batch).scores() {
            all.push(score.logprob.to_bits());
            all.extend(score.top.iter().flat_map(|(token, logprob)| [*token, logprob.to_bits()]));
        }
        turn += 1;
    }
    all
}

#[test]
fn a_row_has_the_same_bits_in_every_batch() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (name, tiny) in [("llama", LLAMA)].into_iter().chain(KINDS).chain(MIXTURES).chain(LATENTS) {
        let dir = tiny.make(11);
        let backend = &mut on_cuda(dir.path(), CudaConfig { batch_invariant: true, ..eager() });
        let expected = bits(backend, |_| 40, 0);
        for (i, chunks) in [1, 3, 17, 48].into_iter().enumerate() {
            assert!(bits(backend, |_| chunks, i as u32) == expected, "{name}, chunks of {chunks}");
        }
        assert!(bits(backend, |turn| turn * 7 % 13 + 1, 5) == expected, "{name}, mixed chunks in company");
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_batch_over_latents_in_fp8() {
    if !skein_cuda_emulation::load() {
        return;
    }
    for (name, tiny) in [("deepseek_v3", DEEPSEEK_V3_SHARED), ("deepseek_v2", DEEPSEEK_V2)] {
        let dir = tiny.make(11);
        let config = CudaConfig { batch_invariant: true, ..eager() };
        let fp8 = Fp8 { weights: false, kv_cache: true };
        let backend = &mut on_cuda_in(dir.path(), config, fp8).unwrap();
        let expected = bits(backend, |_| 40, 0);
        for (i, chunks) in [1, 17].into_iter().enumerate() {
            assert!(bits(backend, |_| chunks, i as u32 + 1) == expected, "{name}, chunks of {chunks}");
        }
    }
}
