//! Converts a request's sampling parameters for the kernels. The CPU's form is the specification; the CUDA
//! backend derives the device's from it.

use skein_kernels::cpu::sample::{Controls, Sampling};

use super::Draw;

/// The kernels' parameters for one draw.
pub(super) fn sampling<'a>(draw: &Draw<'a>) -> Sampling<'a> {
    let Draw { params, sample_index, position, forbid_stop, history, prompt_len, .. } = *draw;
    Sampling {
        controls: Controls {
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            min_p: params.min_p,
            repetition_penalty: params.repetition_penalty,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
        },
        logit_bias: &params.logit_bias,
        allowed: &params.allowed_token_ids,
        bad_words: &params.bad_words,
        forbidden: if forbid_stop { &params.stop_token_ids } else { &[] },
        history,
        prompt_len: prompt_len as usize,
        seed: params.seed,
        sample_index,
        position,
    }
}
