//! Packs batches into messages for the device: chooses the rows whose logits are drawn from together, and
//! encodes their parameters. Pure.

use skein_kernels::cpu::sample::Sampling;
use skein_kernels::cuda::ops::inputs::{CARRIED, Message};
use skein_kernels::cuda::ops::sample::{NONE, SampleParams, Stages};
use skein_kernels::cuda::ops::score::ScoreParams;

use crate::BlockId;
use crate::backend::sampling::sampling;
use crate::backend::{
    Allowed, BackendError, Batch, BatchSequence, BlockCopy, Carried, Draw, MaskSlot, SampleRow, ScoreRow,
    Want,
};

/// Limits of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PassLimits {
    /// Rows of logits; also the most samples and the most scores.
    pub rows: usize,
    /// Words of histories and forbidden tokens.
    pub list_words: usize,
    /// Logit biases of all samples.
    pub biases: usize,
}

/// Rows drawn from and scored together. Nearly every step is one pass; long prompts with
/// log-probabilities take more.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Pass {
    /// Batch rows, ascending: row `i` of the logits is batch row `rows[i]`.
    pub rows: Vec<u32>,
    /// Samples, and the draws at the rows of drafts.
    pub samples: Vec<Drawn>,
    /// Scores: (row of the logits, index into [`Batch::wants`]).
    pub scores: Vec<(u32, usize)>,
}

/// One draw of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Drawn {
    /// Row of the logits.
    pub row: u32,
    /// Index into [`Batch::wants`].
    pub want: usize,
    /// Which of the want's rows it is: 0 for a sample.
    pub nth: u32,
}

impl Drawn {
    fn draw<'a>(&self, batch: &'a Batch) -> Option<Draw<'a>> {
        batch.wants[self.want].draw(batch, self.nth)
    }
}

impl Pass {
    /// Converts logits rows to batch rows, for a step that computes the logits of all its rows.
    pub fn of_all_rows(mut self) -> Self {
        let samples = self.samples.iter_mut().map(|drawn| &mut drawn.row);
        for row in samples.chain(self.scores.iter_mut().map(|(row, _)| row)) {
            *row = self.rows[*row as usize];
        }
        self
    }
}

/// Splits a batch's wants into passes. The draws of a draft stay in order, also over passes.
pub(super) fn passes(batch: &Batch, limits: PassLimits) -> Result<Vec<Pass>, BackendError> {
    let mut wanted: Vec<(u32, bool, usize, u32)> = Vec::with_capacity(batch.wants.len());
    for (index, want) in batch.wants.iter().enumerate() {
        match want {
            Want::Sample(sample) => wanted.push((sample.row, true, index, 0)),
            Want::Verify(verify) => {
                wanted.extend(verify.rows.clone().zip(0..).map(|(row, nth)| (row, true, index, nth)));
            }
            Want::Score(score) => wanted.push((score.row, false, index, 0)),
            Want::Pool(_) => return Err(unsupported("pool")),
        }
    }
    wanted.sort_by_key(|(row, draws, ..)| (*row, !draws));
    let (mut passes, mut pass, mut used) = (Vec::new(), Pass::default(), (0, 0));
    for (row, draws, want, nth) in wanted {
        let (words, biases) = batch.wants[want].draw(batch, nth).as_ref().map_or((0, 0), list_sizes);
        assert!(
            words <= limits.list_words && biases <= limits.biases,
            "a sample's {words} words of lists and {biases} biases are within {limits:?}"
        );
        let is_new = pass.rows.last() != Some(&row);
        let is_full = pass.samples.len() + usize::from(draws) > limits.rows
            || pass.scores.len() + usize::from(!draws) > limits.rows
            || pass.rows.len() + usize::from(is_new) > limits.rows
            || used.0 + words > limits.list_words
            || used.1 + biases > limits.biases;
        if is_full {
            passes.push(std::mem::take(&mut pass));
            used = (0, 0);
        }
        if pass.rows.last() != Some(&row) {
            pass.rows.push(row);
        }
        let place = pass.rows.len() as u32 - 1;
        if draws {
            pass.samples.push(Drawn { row: place, want, nth });
        } else {
            pass.scores.push((place, want));
        }
        used = (used.0 + words, used.1 + biases);
    }
    if !pass.rows.is_empty() {
        passes.push(pass);
    }
    Ok(passes)
}

fn unsupported(want: &'static str) -> BackendError {
    BackendError::Unsupported { backend: "cuda", want }
}

/// Words of a draw's lists, and its number of biases.
fn list_sizes(draw: &Draw<'_>) -> (usize, usize) {
    let params = draw.params;
    let history = if params.has_penalties() { draw.history.len() } else { 0 };
    let forbidden = if draw.forbid_stop { params.stop_token_ids.len() } else { 0 };
    (history + forbidden + params.bad_words.len(), params.logit_bias.len())
}

/// Layout of a message for the sampler; word offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Drawing {
    pub samples: usize,
    pub samples_at: usize,
    pub sample_count_at: usize,
    pub scores: usize,
    pub scores_at: usize,
    pub score_count_at: usize,
    pub biases: usize,
    pub bias_tokens_at: usize,
    pub bias_values_at: usize,
    /// Stages of sampling that any sample needs.
    pub stages: Stages,
    /// Whether any sample wants log-probabilities.
    pub has_logprobs: bool,
}

/// Adds the rows and sequences. `places`: index of the output for each want of the previous step.
pub(super) fn pack_rows(message: &mut Message<'_>, batch: &Batch, places: &[u32]) {
    let mut carried = batch.carried.iter().peekable();
    let tokens = batch.tokens.iter().enumerate().map(|(row, token)| {
        match carried.next_if(|carried| carried.at as usize == row) {
            Some(carried) => CARRIED | places[carried.want as usize],
            None => *token,
        }
    });
    message.rows(tokens, &batch.positions, &batch.slots);
    let tables = &batch.block_tables;
    message.sequences(batch.sequences.iter().map(|sequence| {
        let table = tables[sequence.blocks.start as usize..sequence.blocks.end as usize].iter();
        (sequence.rows.start, sequence.context_len, table.map(|block| block.0))
    }));
    if !batch.window_slots.is_empty() {
        let of = |sequence: &BatchSequence| sequence.blocks.start as usize..sequence.blocks.end as usize;
        let tables = batch.sequences.iter().flat_map(|sequence| &batch.window_tables[of(sequence)]);
        message.windows(&batch.window_slots, tables.map(|block| block.0));
    }
}

/// Adds a pass's rows, samples and scores.
pub(super) fn pack_pass(message: &mut Message<'_>, batch: &Batch, pass: &Pass, places: &[u32]) -> Drawing {
    message.logit_rows(&pass.rows);
    let (mut params, mut biases) = (Vec::with_capacity(pass.samples.len()), Vec::new());
    let mut masks = 0..;
    for drawn in &pass.samples {
        let Some(draw) = drawn.draw(batch) else { continue };
        let mask = if is_masked(&draw) { masks.next() } else { None };
        let carried = carried_history(batch, &batch.wants[drawn.want]).map(|want| places[want as usize]);
        let params_of = sample_params(message, &draw, drawn.row, carried, &mut biases);
        params.push(SampleParams { mask: mask.unwrap_or(NONE), ..params_of });
    }
    let score = |&(row, index): &(u32, usize)| match batch.wants[index] {
        Want::Score(ScoreRow { target, top, .. }) => Some(ScoreParams { row, target, top }),
        _ => None,
    };
    let scores: Vec<ScoreParams> = pass.scores.iter().filter_map(score).collect();
    Drawing {
        samples: params.len(),
        samples_at: message.values(&params) as usize,
        sample_count_at: message.list(&[params.len() as u32]) as usize,
        scores: scores.len(),
        scores_at: message.values(&scores) as usize,
        score_count_at: message.list(&[scores.len() as u32]) as usize,
        biases: biases.len(),
        bias_tokens_at: message.list_of(biases.iter().map(|(token, _)| *token)) as usize,
        bias_values_at: message.list_of(biases.iter().map(|(_, bias)| bias.to_bits())) as usize,
        stages: params.iter().map(Stages::of).fold(Stages::Greedy, Stages::with),
        has_logprobs: params.iter().any(|params| params.logprobs != NONE),
    }
}

/// Packs a step whose draws fit one pass into `words`, as it is sent to a device; returns the number of its
/// words. For measurements.
///
/// # Errors
/// If a want is not supported.
pub fn pack_step(batch: &Batch, words: &mut [u32]) -> Result<usize, BackendError> {
    let limits = PassLimits { rows: batch.wants.len(), list_words: words.len(), biases: words.len() };
    let passes = passes(batch, limits)?;
    let mut message = Message::new(words);
    pack_rows(&mut message, batch, &[]);
    for pass in passes {
        pack_pass(&mut message, batch, &pass.of_all_rows(), &[]);
    }
    Ok(message.len())
}

/// Whether a draw is under a mask: of its grammar, of its allowed tokens, or of both.
pub(super) fn is_masked(draw: &Draw<'_>) -> bool {
    draw.mask.is_some() || !draw.params.allowed_token_ids.is_empty()
}

/// The want of the previous step that draws the last token of the history of `want`, if only the device
/// knows it. A draft follows a known token.
fn carried_history(batch: &Batch, want: &Want) -> Option<u32> {
    let Want::Sample(SampleRow { history, .. }) = want else { return None };
    carried_at(&batch.carried_history, history.end.checked_sub(1)?)
}

/// One draw's parameters. Its lists go into the message, its biases into `biases`. `carried`: the output of
/// the previous step that is the last token of its history.
fn sample_params(
    message: &mut Message<'_>,
    draw: &Draw<'_>,
    row: u32,
    carried: Option<u32>,
    biases: &mut Vec<(u32, f32)>,
) -> SampleParams {
    let mut sampling = sampling(draw);
    // Bad words that this token would complete are known here: the scheduler plans a draw with bad words of
    // several tokens only once all earlier tokens are known.
    let mut forbidden: Vec<u32> =
        sampling.forbidden.iter().copied().chain(sampling.ends_of_bad_words()).collect();
    if is_masked(draw) {
        // The mask already excludes them.
        forbidden.clear();
    }
    if !draw.params.has_penalties() {
        sampling.history = &[];
    }
    let mut last = NONE;
    if let ([known @ .., _], Some(place)) = (sampling.history, carried) {
        (sampling.history, last) = (known, place);
    }
    let bias_start = biases.len() as u32;
    biases.extend_from_slice(sampling.logit_bias);
    SampleParams {
        bias_start,
        forbidden_start: message.list(&forbidden),
        forbidden_len: forbidden.len() as u32,
        history_start: message.list(sampling.history),
        carried: last,
        logprobs: draw.params.logprobs.unwrap_or(NONE),
        ..SampleParams::of(row, &sampling)
    }
}

/// Writes the masks of a pass's draws to `masks`, in their order. Waits for masks that grammars are still
/// computing. Also returns the draws whose grammar allows no token.
pub(super) fn fill_masks(batch: &Batch, pass: &Pass, vocab: usize, masks: &mut [u32]) -> (usize, Vec<Drawn>) {
    let (mut filled, mut closed) = (0, Vec::new());
    for drawn in &pass.samples {
        let Some(draw) = drawn.draw(batch).filter(is_masked) else { continue };
        let words = &mut masks[filled..filled + mask_words(vocab)];
        if !fill_mask(&sampling(&draw), draw.mask, words) {
            closed.push(*drawn);
        }
        filled += words.len();
    }
    (filled, closed)
}

/// Fills one sample's mask; false if its grammar allows no token. As on the CPU, a restriction that would
/// leave no token is ignored: first the forbidden tokens, then the list of allowed ones. If all allowed
/// tokens are forbidden, the device draws among the allowed ones, while the CPU takes the most likely one.
fn fill_mask(sampling: &Sampling<'_>, grammar: Option<&MaskSlot>, words: &mut [u32]) -> bool {
    let allowed = grammar.map(MaskSlot::wait);
    match allowed.as_deref() {
        Some(Allowed::Tokens(mask)) => words.copy_from_slice(mask.words()),
        Some(Allowed::End | Allowed::Stuck(_)) => {
            words.fill(u32::MAX);
            return false;
        }
        None => words.fill(u32::MAX),
    }
    if !sampling.allowed.is_empty() {
        let mut listed = vec![0; words.len()];
        for &token in sampling.allowed {
            set(&mut listed, token, true);
        }
        listed.iter_mut().zip(&*words).for_each(|(listed, word)| *listed &= word);
        replace_unless_empty(words, &listed);
    }
    let mut unforbidden = words.to_vec();
    for token in sampling.forbidden.iter().copied().chain(sampling.ends_of_bad_words()) {
        set(&mut unforbidden, token, false);
    }
    replace_unless_empty(words, &unforbidden);
    true
}

fn set(words: &mut [u32], token: u32, allowed: bool) {
    let (word, bit) = (token / u32::BITS, 1 << (token % u32::BITS));
    if let Some(word) = words.get_mut(word as usize) {
        *word = if allowed { *word | bit } else { *word & !bit };
    }
}

fn replace_unless_empty(words: &mut [u32], other: &[u32]) {
    if other.iter().any(|word| *word != 0) {
        words.copy_from_slice(other);
    }
}

fn carried_at(carried: &[Carried], at: u32) -> Option<u32> {
    carried.iter().find(|carried| carried.at == at).map(|carried| carried.want)
}

/// Splits copies into waves that can run in any order inside: no block written by one copy is
/// used by another.
pub(super) fn copy_waves(copies: &[BlockCopy]) -> Vec<&[BlockCopy]> {
    let (mut waves, mut start) = (Vec::new(), 0);
    let touches = |copy: &BlockCopy, block: BlockId| copy.from == block || copy.to == block;
    for (end, copy) in copies.iter().enumerate() {
        let wave = &copies[start..end];
        if wave.iter().any(|before| touches(before, copy.to) || before.to == copy.from) {
            waves.push(wave);
            start = end;
        }
    }
    if start < copies.len() {
        waves.push(&copies[start..]);
    }
    waves
}

/// Words of a mask over `vocab` tokens.
pub(super) fn mask_words(vocab: usize) -> usize {
    vocab.div_ceil(u32::BITS as usize)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use skein_grammar::Mask;
    use skein_proto::sampling::SamplingParams;

    use super::*;
    use crate::backend::VerifyRows;

    fn sample(row: u32, history: std::ops::Range<u32>) -> SampleRow {
        let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::default() };
        SampleRow {
            row,
            params: Arc::new(params),
            sample_index: 0,
            position: row + 1,
            forbid_stop: false,
            history,
            prompt_len: 1,
            mask: None,
        }
    }

    const LIMITS: PassLimits = PassLimits { rows: 2, list_words: 10, biases: 10 };

    #[test]
    fn passes_hold_what_fits_and_share_rows() {
        let samples = [sample(5, 0..4), sample(1, 4..8), sample(5, 0..4)].map(Want::Sample);
        let scores = [1, 7].map(|row| Want::Score(ScoreRow { row, target: 3, top: 0 }));
        let wants = samples.into_iter().chain(scores).collect();
        let batch = Batch { wants, history: vec![9; 8], ..Batch::default() };
        let cut = passes(&batch, LIMITS).unwrap();
        let drawn = |row, want| Drawn { row, want, nth: 0 };
        let first = Pass { rows: vec![1, 5], samples: vec![drawn(0, 1), drawn(1, 0)], scores: vec![(0, 3)] };
        let second = Pass { rows: vec![5, 7], samples: vec![drawn(0, 2)], scores: vec![(1, 4)] };
        assert_eq!(cut, [first, second]);
        let one = passes(&batch, PassLimits { rows: 3, list_words: 12, biases: 0 }).unwrap();
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].clone().of_all_rows().samples, [drawn(1, 1), drawn(5, 0), drawn(5, 2)]);
    }

    #[test]
    fn the_rows_of_a_draft_are_drawn_in_order_also_over_passes() {
        let verify = VerifyRows {
            rows: 2..5,
            params: Arc::new(SamplingParams::default()),
            sample_index: 0,
            position: 9,
            stop_from: 0,
            history: 0..0,
            prompt_len: 1,
            masks: Vec::new(),
        };
        let wants = vec![Want::Verify(verify), Want::Sample(sample(1, 0..0))];
        let batch = Batch { wants, ..Batch::default() };
        let cut = passes(&batch, LIMITS).unwrap();
        let drawn = |row, want, nth| Drawn { row, want, nth };
        let first = Pass { rows: vec![1, 2], samples: vec![drawn(0, 1, 0), drawn(1, 0, 0)], scores: vec![] };
        let second = Pass { rows: vec![3, 4], samples: vec![drawn(0, 0, 1), drawn(1, 0, 2)], scores: vec![] };
        assert_eq!(cut, [first, second]);
    }

    #[test]
    fn tokens_that_only_the_device_knows_are_named() {
        let mut batch = Batch {
            tokens: vec![9, 0, 8],
            positions: vec![0, 1, 2],
            slots: vec![0, 1, 2],
            wants: vec![Want::Sample(sample(1, 0..3))],
            history: vec![4, 5, 0],
            ..Batch::default()
        };
        batch.carried.push(Carried { at: 1, want: 0 });
        batch.carried_history.push(Carried { at: 2, want: 1 });
        let mut words = [u32::MAX; 256];
        let mut message = Message::new(&mut words);
        pack_rows(&mut message, &batch, &[6, 7]);
        let drawing = pack_pass(&mut message, &batch, &passes(&batch, LIMITS).unwrap()[0], &[6, 7]);
        let len = message.len();
        assert!(words[..len].windows(3).any(|three| three == [9, CARRIED | 6, 8]));
        let params = &words[drawing.samples_at..][..22];
        assert_eq!(
            (params[17], params[18], params[19]),
            (2, 1, 7),
            "two known tokens, and the second sample's"
        );
        assert_eq!(&words[params[16] as usize..][..2], [4, 5]);
        assert_eq!(words[drawing.sample_count_at], 1);
    }

    #[test]
    fn masks_are_those_of_grammar_list_and_bans_while_a_token_is_left() {
        let check = |grammar: &[u32], allowed: &[u32], forbidden: &[u32], expected: &[u32]| {
            let mut params =
                SamplingParams { allowed_token_ids: allowed.to_vec(), ..SamplingParams::default() };
            params.stop_token_ids = forbidden.to_vec();
            let mut sample = SampleRow { params: Arc::new(params), forbid_stop: true, ..sample(0, 0..0) };
            if !grammar.is_empty() {
                let mut mask = Mask::none(70);
                grammar.iter().for_each(|token| mask.allow(*token));
                sample.mask = Some(MaskSlot::filled(Allowed::Tokens(mask)));
            }
            let batch = Batch { wants: vec![Want::Sample(sample)], ..Batch::default() };
            let mut words = [7; 4];
            let pass = &passes(&batch, LIMITS).unwrap()[0];
            assert_eq!(fill_masks(&batch, pass, 70, &mut words), (3, Vec::new()));
            let has = |token: &u32| words[*token as usize / 32] >> (token % 32) & 1 == 1;
            assert_eq!(
                (0..70).filter(has).collect::<Vec<_>>(),
                expected,
                "{grammar:?} {allowed:?} {forbidden:?}"
            );
            assert_eq!(words[3], 7, "beyond the mask");
        };
        check(&[], &[3, 64, 900], &[], &[3, 64]);
        check(&[3, 5, 64], &[], &[5], &[3, 64]);
        check(&[3, 5, 64], &[5, 6], &[], &[5]);
        check(&[3, 5], &[6], &[], &[3, 5]);
        check(&[3, 5], &[5], &[5], &[5]);
        let closed = SampleRow { mask: Some(MaskSlot::filled(Allowed::End)), ..sample(0, 0..0) };
        let batch = Batch { wants: vec![Want::Sample(closed)], ..Batch::default() };
        let pass = &passes(&batch, LIMITS).unwrap()[0];
        let drawn = Drawn { row: 0, want: 0, nth: 0 };
        assert_eq!(fill_masks(&batch, pass, 70, &mut [0; 3]), (3, vec![drawn]));
    }

    #[test]
    fn copies_that_depend_on_each_other_are_in_different_waves() {
        let copy = |from, to| BlockCopy { from: BlockId(from), to: BlockId(to) };
        let check = |copies: &[BlockCopy], expected: &[usize]| {
            let waves: Vec<usize> = copy_waves(copies).iter().map(|wave| wave.len()).collect();
            assert_eq!(waves, expected, "{copies:?}");
        };
        check(&[], &[]);
        check(&[copy(1, 2), copy(1, 3), copy(4, 5)], &[3]);
        check(&[copy(1, 2), copy(2, 3)], &[1, 1]);
        check(&[copy(1, 2), copy(3, 2), copy(7, 8)], &[1, 2]);
        check(&[copy(1, 2), copy(3, 1)], &[1, 1]);
    }
}
