//! Encodes a step as the words that all ranks read: everything in a [`Batch`], without pointers.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skein_grammar::Mask;
use skein_proto::adapter::AdapterId;
use skein_proto::sampling::SamplingParams;

use crate::BlockId;
use crate::backend::{
    Allowed, Batch, BatchSequence, BatchState, BlockCopy, Carried, LoadedAdapter, MaskSlot, PoolRows,
    SampleRow, ScoreRow, StateCopy, StateId, StateSave, VerifyRows, Want,
};

/// The words do not encode a step, so the ranks run different versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the words do not encode a step: unexpected word {at} of {of}")]
pub struct Malformed {
    at: usize,
    of: usize,
}

/// What a row produces.
const SAMPLE: u32 = 0;
const VERIFY: u32 = 1;
const SCORE: u32 = 2;
const POOL: u32 = 3;

/// Appends `batch` to `words`.
pub fn write(batch: &Batch, words: &mut Vec<u32>) {
    // The pattern names every field, so that a new one does not compile until it is encoded here.
    let Batch {
        tokens,
        positions,
        slots,
        sequences,
        block_tables,
        window_slots,
        window_tables,
        window_copies,
        states,
        state_copies,
        copies,
        wants,
        history,
        carried,
        carried_history,
    } = batch;
    for list in [tokens, positions, slots, history, window_slots] {
        put_list(words, list);
    }
    for tables in [block_tables, window_tables] {
        words.push(tables.len() as u32);
        words.extend(tables.iter().map(|block| block.0));
    }
    words.push(sequences.len() as u32);
    for BatchSequence { rows, context_len, blocks, adapter } in sequences {
        words.extend([rows.start, rows.end, *context_len, blocks.start, blocks.end]);
        // Each rank has its own part of the weights. 0 is no adapter.
        let AdapterId(id) = adapter.as_ref().map_or(AdapterId(0), |adapter| adapter.id);
        words.extend([id as u32, (id >> 32) as u32]);
    }
    for copies in [copies, window_copies] {
        words.push(copies.len() as u32);
        words.extend(copies.iter().flat_map(|copy| [copy.from.0, copy.to.0]));
    }
    words.push(state_copies.len() as u32);
    words.extend(state_copies.iter().flat_map(|copy| [copy.from.0, copy.to.0]));
    words.push(states.len() as u32);
    for BatchState { slot, drafts, saves } in states {
        words.extend([slot.0, *drafts, saves.len() as u32]);
        words.extend(saves.iter().flat_map(|save| [save.position, save.to.0]));
    }
    for list in [carried, carried_history] {
        words.push(list.len() as u32);
        words.extend(list.iter().flat_map(|carried| [carried.at, carried.want]));
    }
    words.push(wants.len() as u32);
    for want in wants {
        put_want(words, want);
    }
}

fn put_list(words: &mut Vec<u32>, list: &[u32]) {
    words.push(list.len() as u32);
    words.extend_from_slice(list);
}

fn put_want(words: &mut Vec<u32>, want: &Want) {
    match want {
        Want::Sample(sample) => {
            let SampleRow { row, params, sample_index, position, forbid_stop, history, prompt_len, mask } =
                sample;
            words.extend([SAMPLE, *row, *sample_index, *position, u32::from(*forbid_stop)]);
            words.extend([history.start, history.end, *prompt_len]);
            put_params(words, params);
            put_masks(words, mask.as_slice());
        }
        Want::Verify(verify) => {
            let VerifyRows { rows, params, sample_index, position, stop_from, history, prompt_len, masks } =
                verify;
            words.extend([VERIFY, rows.start, rows.end, *sample_index, *position, *stop_from]);
            words.extend([history.start, history.end, *prompt_len]);
            put_params(words, params);
            put_masks(words, masks);
        }
        Want::Score(ScoreRow { row, target, top }) => words.extend([SCORE, *row, *target, *top]),
        Want::Pool(PoolRows { rows, second_from }) => {
            words.extend([POOL, rows.start, rows.end, second_from.unwrap_or(0)]);
        }
    }
}

/// Appends what grammars allow, and waits for those that are still computing. Ranks need not know why no
/// token is allowed: the leader's engine does.
fn put_masks(words: &mut Vec<u32>, masks: &[MaskSlot]) {
    words.push(masks.len() as u32);
    for slot in masks {
        match &*slot.wait() {
            Allowed::Tokens(mask) => {
                words.push(mask.vocab_size());
                words.extend_from_slice(mask.words());
            }
            Allowed::End | Allowed::Stuck(_) => words.push(0),
        }
    }
}

fn put_params(words: &mut Vec<u32>, params: &SamplingParams) {
    let SamplingParams {
        temperature,
        top_p,
        top_k,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        seed,
        logit_bias,
        max_tokens,
        min_tokens,
        stop_token_ids,
        ignore_eos,
        logprobs,
        prompt_logprobs,
        allowed_token_ids,
        bad_words,
        // Used by the engine only.
        grammar: _,
        // Only draws travel with their parameters.
        pooling: _,
    } = params;
    let floats = [temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty];
    words.extend(floats.map(|value| value.to_bits()));
    words.extend([
        *top_k,
        *max_tokens,
        *min_tokens,
        u32::from(*ignore_eos),
        *seed as u32,
        (*seed >> 32) as u32,
    ]);
    for optional in [logprobs, prompt_logprobs] {
        words.extend([u32::from(optional.is_some()), optional.unwrap_or(0)]);
    }
    put_list(words, stop_token_ids);
    words.push(logit_bias.len() as u32);
    words.extend(logit_bias.iter().flat_map(|(token, bias)| [*token, bias.to_bits()]));
    put_list(words, allowed_token_ids);
    words.push(bad_words.len() as u32);
    bad_words.iter().for_each(|word| put_list(words, word));
}

/// Appends an adapter's identity and directory to `words`.
pub fn write_adapter(AdapterId(id): AdapterId, directory: &Path, words: &mut Vec<u32>) {
    let bytes = directory.as_os_str().as_encoded_bytes();
    words.extend([id as u32, (id >> 32) as u32, bytes.len() as u32]);
    words.extend(bytes.chunks(4).map(|part| {
        let mut word = [0; 4];
        word[..part.len()].copy_from_slice(part);
        u32::from_le_bytes(word)
    }));
}

/// Decodes what [`write_adapter`] has encoded.
///
/// # Errors
/// If there are too few or too many words.
pub fn read_adapter(words: &[u32]) -> Result<(AdapterId, PathBuf), Malformed> {
    let mut reader = Reader { words, at: 0 };
    let [low, high, len] = reader.take()?;
    let bytes: Vec<u8> = words[reader.at..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let path = bytes.get(..len as usize).filter(|_| bytes.len() < len as usize + 4);
    let path = path.ok_or(reader.malformed())?;
    let id = AdapterId(u64::from(low) | u64::from(high) << 32);
    Ok((id, std::ffi::OsStr::from_bytes(path).into()))
}

/// Decodes a step that [`write`] has encoded.
///
/// # Errors
/// If there are too few or too many words, or one has an unknown kind.
pub fn read(words: &[u32]) -> Result<Batch, Malformed> {
    let mut reader = Reader { words, at: 0 };
    let batch = reader.batch()?;
    if reader.at == words.len() { Ok(batch) } else { Err(reader.malformed()) }
}

struct Reader<'a> {
    words: &'a [u32],
    at: usize,
}

impl Reader<'_> {
    fn malformed(&self) -> Malformed {
        Malformed { at: self.at, of: self.words.len() }
    }

    fn take<const N: usize>(&mut self) -> Result<[u32; N], Malformed> {
        let taken = self.words[self.at..].first_chunk().ok_or(self.malformed())?;
        self.at += N;
        Ok(*taken)
    }

    /// A list of items of `N` words each.
    fn list<const N: usize, T>(&mut self, item: impl Fn([u32; N]) -> T) -> Result<Vec<T>, Malformed> {
        let [count] = self.take()?;
        let len = (count as usize).checked_mul(N);
        let list = len.and_then(|len| self.words[self.at..].get(..len)).ok_or(self.malformed())?;
        self.at += list.len();
        Ok(list.as_chunks().0.iter().map(|words| item(*words)).collect())
    }

    fn words(&mut self) -> Result<Vec<u32>, Malformed> {
        let [count] = self.take()?;
        let list = self.words[self.at..].get(..count as usize).ok_or(self.malformed())?;
        self.at += list.len();
        Ok(list.to_vec())
    }

    fn batch(&mut self) -> Result<Batch, Malformed> {
        let (tokens, positions, slots, history) =
            (self.words()?, self.words()?, self.words()?, self.words()?);
        let window_slots = self.words()?;
        let block_tables = self.list(|[block]| BlockId(block))?;
        let window_tables = self.list(|[block]| BlockId(block))?;
        let sequences = self.list(|[start, end, context_len, first, last, low, high]| BatchSequence {
            rows: start..end,
            context_len,
            blocks: first..last,
            adapter: AdapterId::from_wire(u64::from(low) | u64::from(high) << 32)
                .map(|id| Arc::new(LoadedAdapter::new(id, None, Arc::default()))),
        })?;
        let copies = self.list(|[from, to]| BlockCopy { from: BlockId(from), to: BlockId(to) })?;
        let window_copies = self.list(|[from, to]| BlockCopy { from: BlockId(from), to: BlockId(to) })?;
        let state_copies = self.list(|[from, to]| StateCopy { from: StateId(from), to: StateId(to) })?;
        let [states] = self.take()?;
        // One by one, as in `bad_words`.
        let states = (0..states).map(|_| self.state()).collect::<Result<_, _>>()?;
        let carried = self.list(|[at, want]| Carried { at, want })?;
        let carried_history = self.list(|[at, want]| Carried { at, want })?;
        let [wants] = self.take()?;
        let wants = (0..wants).map(|_| self.want()).collect::<Result<_, _>>()?;
        Ok(Batch {
            tokens,
            positions,
            slots,
            sequences,
            block_tables,
            window_slots,
            window_tables,
            window_copies,
            states,
            state_copies,
            copies,
            wants,
            history,
            carried,
            carried_history,
        })
    }

    fn state(&mut self) -> Result<BatchState, Malformed> {
        let [slot, drafts] = self.take()?;
        let saves = self.list(|[position, to]| StateSave { position, to: StateId(to) })?;
        Ok(BatchState { slot: StateId(slot), drafts, saves })
    }

    fn want(&mut self) -> Result<Want, Malformed> {
        match self.take()? {
            [SAMPLE] => {
                let [row, sample_index, position, forbid_stop] = self.take()?;
                let (history, prompt_len) = self.history()?;
                let (params, forbid_stop) = (Arc::new(self.params()?), forbid_stop != 0);
                let mask = self.masks()?.pop();
                Ok(Want::Sample(SampleRow {
                    row,
                    params,
                    sample_index,
                    position,
                    forbid_stop,
                    history,
                    prompt_len,
                    mask,
                }))
            }
            [VERIFY] => {
                let [start, end, sample_index, position, stop_from] = self.take()?;
                let (history, prompt_len) = self.history()?;
                let (params, rows) = (Arc::new(self.params()?), start..end);
                let masks = self.masks()?;
                Ok(Want::Verify(VerifyRows {
                    rows,
                    params,
                    sample_index,
                    position,
                    stop_from,
                    history,
                    prompt_len,
                    masks,
                }))
            }
            [SCORE] => self.take().map(|[row, target, top]| Want::Score(ScoreRow { row, target, top })),
            [POOL] => self.take().map(|[start, end, second]| {
                let second_from = (second != 0).then_some(second);
                Want::Pool(PoolRows { rows: start..end, second_from })
            }),
            [_] => Err(self.malformed()),
        }
    }

    fn history(&mut self) -> Result<(Range<u32>, u32), Malformed> {
        self.take().map(|[start, end, prompt_len]| (start..end, prompt_len))
    }

    fn masks(&mut self) -> Result<Vec<MaskSlot>, Malformed> {
        let [count] = self.take()?;
        // One by one, as in `bad_words`.
        (0..count).map(|_| self.mask().map(MaskSlot::filled)).collect()
    }

    fn mask(&mut self) -> Result<Allowed, Malformed> {
        let [vocab_size] = self.take()?;
        if vocab_size == 0 {
            return Ok(Allowed::End);
        }
        let count = (vocab_size as usize).div_ceil(u32::BITS as usize);
        let words = self.words[self.at..].get(..count).ok_or(self.malformed())?;
        self.at += count;
        Ok(Allowed::Tokens(Mask::from_words(words, vocab_size)))
    }

    fn params(&mut self) -> Result<SamplingParams, Malformed> {
        let floats = self.take::<6>()?.map(f32::from_bits);
        let [temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty] = floats;
        let [top_k, max_tokens, min_tokens, ignore_eos, low, high] = self.take()?;
        let [logprobs, prompt_logprobs] = [self.optional()?, self.optional()?];
        Ok(SamplingParams {
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed: u64::from(low) | u64::from(high) << 32,
            max_tokens,
            min_tokens,
            ignore_eos: ignore_eos != 0,
            logprobs,
            prompt_logprobs,
            stop_token_ids: self.words()?,
            logit_bias: self.list(|[token, bias]| (token, f32::from_bits(bias)))?,
            allowed_token_ids: self.words()?,
            bad_words: self.bad_words()?,
            pooling: None,
            grammar: None,
        })
    }

    fn bad_words(&mut self) -> Result<Vec<Vec<u32>>, Malformed> {
        let [count] = self.take()?;
        // Reads items one by one, so that a wrong count fails at the last word without a large allocation.
        (0..count).map(|_| self.words()).collect()
    }

    fn optional(&mut self) -> Result<Option<u32>, Malformed> {
        self.take().map(|[is_some, value]| (is_some != 0).then_some(value))
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod samples {
    use super::*;

    pub fn params() -> Arc<SamplingParams> {
        Arc::new(SamplingParams {
            temperature: 0.5,
            seed: 0x1234_5678_9abc_def0,
            logit_bias: vec![(3, -1.5)],
            stop_token_ids: vec![1, 2],
            allowed_token_ids: vec![3, 4, 5],
            bad_words: vec![vec![3], vec![4, 5]],
            ignore_eos: true,
            logprobs: Some(0),
            ..SamplingParams::default()
        })
    }

    /// A step with a value in every field.
    pub fn full() -> Batch {
        let mut mask = Mask::none(70);
        [3, 64].into_iter().for_each(|token| mask.allow(token));
        let sample = SampleRow {
            row: 1,
            params: params(),
            sample_index: 2,
            position: 7,
            forbid_stop: true,
            history: 0..3,
            prompt_len: 2,
            mask: Some(MaskSlot::filled(Allowed::Tokens(mask))),
        };
        let verify = VerifyRows {
            rows: 0..2,
            params: Arc::new(SamplingParams { min_p: 0.25, ..SamplingParams::default() }),
            sample_index: 0,
            position: 9,
            stop_from: 11,
            history: 1..3,
            prompt_len: 1,
            masks: vec![MaskSlot::filled(Allowed::End)],
        };
        let adapter = Arc::new(LoadedAdapter::new(AdapterId(u64::MAX - 9), None, Arc::default()));
        Batch {
            tokens: vec![5, 6],
            positions: vec![1, 6],
            slots: vec![17, 22],
            sequences: vec![BatchSequence {
                rows: 0..2,
                context_len: 7,
                blocks: 0..2,
                adapter: Some(adapter),
            }],
            block_tables: vec![BlockId(1), BlockId(4)],
            window_slots: vec![33, 38],
            window_tables: vec![BlockId(0), BlockId(2)],
            window_copies: vec![BlockCopy { from: BlockId(3), to: BlockId(2) }],
            states: vec![
                BatchState {
                    slot: StateId(3),
                    drafts: 1,
                    saves: vec![StateSave { position: 4, to: StateId(9) }],
                },
                BatchState { slot: StateId(5), drafts: 0, saves: Vec::new() },
            ],
            state_copies: vec![StateCopy { from: StateId(7), to: StateId(3) }],
            copies: vec![BlockCopy { from: BlockId(2), to: BlockId(3) }],
            wants: vec![
                Want::Sample(sample),
                Want::Verify(verify),
                Want::Score(ScoreRow { row: 0, target: 9, top: 4 }),
                Want::Pool(PoolRows { rows: 1..2, second_from: Some(4) }),
            ],
            history: vec![7, 8, 9],
            carried: vec![Carried { at: 1, want: 0 }],
            carried_history: vec![Carried { at: 2, want: 3 }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::*;
    use super::*;

    #[test]
    fn a_step_is_read_back() {
        for batch in [full(), Batch::default(), Batch::of_one_row(Vec::new())] {
            let mut words = Vec::new();
            write(&batch, &mut words);
            assert_eq!(format!("{:?}", read(&words)), format!("{:?}", Ok::<_, Malformed>(batch)));
        }
    }

    #[test]
    fn words_cut_or_changed_are_an_error_and_never_a_panic() {
        let mut words = Vec::new();
        write(&full(), &mut words);
        for length in 0..words.len() {
            assert!(read(&words[..length]).is_err(), "{length} of {} words", words.len());
        }
        for at in 0..words.len() {
            let mut changed = words.clone();
            changed[at] = u32::MAX;
            let _ = read(&changed); // ids and numbers may be anything; lengths and kinds are checked
        }
        words.push(0);
        assert_eq!(read(&words).unwrap_err().at, words.len() - 1);
    }
}
