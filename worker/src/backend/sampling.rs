//! A request's sampling parameters as the kernels take them. The CPU's form is the specification; the CUDA backend
//! makes the device's from it.

use skein_kernels::cpu::sample::Sampling;

use super::{Batch, SampleRow};

/// How to draw the token of `row`.
pub(super) fn sampling<'a>(batch: &'a Batch, row: &'a SampleRow) -> Sampling<'a> {
    let params = &*row.params;
    let history = if params.needs_history() { row.history.clone() } else { 0..0 };
    Sampling {
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        min_p: params.min_p,
        repetition_penalty: params.repetition_penalty,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        logit_bias: &params.logit_bias,
        forbidden: if row.forbid_stop { &params.stop_token_ids } else { &[] },
        history: &batch.history[history.start as usize..history.end as usize],
        prompt_len: row.prompt_len as usize,
        seed: params.seed,
        sample_index: row.sample_index,
        position: row.position,
    }
}
