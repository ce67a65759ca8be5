//! Adjusts logits before a draw: bias, forbidden tokens, penalties.

use super::parameters::{Controls, Sampling};

/// Copies `logits` to `out`, with -∞ for tokens that are not in `allowed`. Copies all of them if `allowed` is
/// empty or none of its tokens can be drawn.
pub(super) fn copy_allowed(logits: &[f32], allowed: &[u32], out: &mut Vec<f32>) {
    out.clear();
    if !allowed.is_empty() {
        out.resize(logits.len(), f32::NEG_INFINITY);
        let mut finite = false;
        for token in allowed {
            let token = *token as usize;
            if let (Some(logit), Some(out)) = (logits.get(token), out.get_mut(token)) {
                *out = *logit;
                finite |= logit.is_finite();
            }
        }
        if finite {
            return;
        }
        out.clear();
    }
    out.extend_from_slice(logits);
}

/// Applies all adjustments. `counts` is scratch, all zero before and after.
pub(super) fn adjust(logits: &mut [f32], sampling: &Sampling<'_>, counts: &mut Vec<u32>) {
    for (token, bias) in sampling.logit_bias {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit += bias;
        }
    }
    for token in sampling.forbidden.iter().copied().chain(sampling.ends_of_bad_words()) {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    penalise(logits, sampling, counts);
}

/// Bit of a count that is set if the token occurred at all. The other bits count occurrences in the output.
const SEEN: u32 = 1 << 31;

fn penalise(logits: &mut [f32], sampling: &Sampling<'_>, counts: &mut Vec<u32>) {
    let Sampling { controls, history, prompt_len, .. } = *sampling;
    let Controls { repetition_penalty, presence_penalty, frequency_penalty, .. } = controls;
    let is_off = repetition_penalty == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0;
    if history.is_empty() || is_off {
        return;
    }
    let vocab = logits.len();
    counts.resize(vocab.max(counts.len()), 0);
    let in_vocabulary = history.iter().map(|token| *token as usize).enumerate().filter(|(_, t)| *t < vocab);
    for (at, token) in in_vocabulary.clone() {
        counts[token] = (counts[token] | SEEN) + u32::from(at >= prompt_len);
    }
    for (_, token) in in_vocabulary {
        let (count, logit) = (std::mem::take(&mut counts[token]), &mut logits[token]);
        if count == 0 {
            continue; // done at its first occurrence
        }
        *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
        let outputs = count & !SEEN;
        if outputs > 0 {
            *logit -= frequency_penalty * outputs as f32 + presence_penalty;
        }
        // A penalty must not turn a logit into +∞ or NaN: -∞ * 0, or a division that overflows.
        *logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) };
    }
}
