//! A smaller model that drafts. It draws the next tokens of texts with their own parameters and noise, so it
//! agrees with the model wherever their distributions do (shared noise; Daliri et al. 2024, "Coupling without
//! communication and drafter-invariant speculative decoding").
//!
//! It has a KV cache of its own, whose blocks follow the texts and not the model's blocks: it may lag behind
//! them, or forget them, without any effect on answers. [`crate::draft`] decides when it runs.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use skein_node::clock;
use skein_proto::sampling::SamplingParams;

use crate::backend::{Answer, Backend, BackendError, Batch, BatchSequence, SampleRow, Want};
use crate::kv_cache::{BlockTable, KvCache, Prefix};
use crate::scheduler::{ModelDraft, ModelText, RequestKey};
use crate::{BlockId, TokenId};

/// Sizes of the first steps, which measure their times.
const MEASURED: [u32; 7] = [1, 1, 1, 4, 8, 64, 64];

/// A draft model, and the texts that it follows.
pub struct DraftModel {
    backend: Box<dyn Backend>,
    kv: KvCache,
    streams: HashMap<(RequestKey, u32), Stream>,
    /// Tokens of the draft model and of the model.
    vocab: (u32, u32),
    /// Rows and times of its steps, until they are taken.
    times: Vec<(u32, Duration)>,
}

/// A text that it follows.
#[derive(Debug)]
struct Stream {
    table: BlockTable,
    /// Leading tokens of the text whose keys and values are computed.
    known: u32,
    /// Tokens computed after those: drafts that were not yet compared with the text.
    guessed: Vec<TokenId>,
    /// The text's parameters without what drafts do not need.
    params: Arc<SamplingParams>,
}

/// A draft being made.
struct Making<'a> {
    draft: &'a ModelDraft,
    text: ModelText<'a>,
    tokens: Vec<TokenId>,
}

impl Stream {
    /// Leading tokens of `text` whose keys and values are computed.
    fn computed(&self, text: &[TokenId]) -> u32 {
        let rest = text.get(self.known as usize..).unwrap_or_default();
        let right = self.guessed.iter().zip(rest).take_while(|(guessed, token)| guessed == token).count();
        // The last token is computed again, because a draw needs its logits.
        (self.known + right as u32).min(text.len().saturating_sub(1) as u32)
    }
}

impl DraftModel {
    /// A draft model on `backend`, with blocks of `block_size` tokens. `vocab`: the numbers of its tokens and
    /// of the model's. With `share_prefixes`, equal prefixes are computed once.
    ///
    /// # Errors
    /// If its first steps fail.
    pub fn start(
        backend: Box<dyn Backend>,
        block_size: u32,
        vocab: (u32, u32),
        share_prefixes: bool,
    ) -> Result<Self, BackendError> {
        let kv = KvCache::new(backend.kv_blocks(), block_size, share_prefixes);
        let mut model = Self { backend, kv, streams: HashMap::new(), vocab, times: Vec::new() };
        model.measure()?;
        Ok(model)
    }

    /// Runs steps of different sizes on token 0, so that their times are known before the first draft.
    fn measure(&mut self) -> Result<(), BackendError> {
        let mut table = BlockTable::default();
        let most = self.kv.total().saturating_mul(self.kv.block_size());
        for rows in MEASURED.into_iter().filter(|rows| *rows <= most) {
            let mut batch = Batch::default();
            self.kv.grow(&mut table, 0, rows, batch.all_copies());
            self.append(&table, 0, vec![0; rows as usize], &mut batch);
            batch.wants.push(Want::Sample(SampleRow {
                row: rows - 1,
                params: Arc::new(SamplingParams::default()),
                sample_index: 0,
                position: rows,
                forbid_stop: false,
                history: 0..0,
                prompt_len: 0,
                mask: None,
            }));
            self.run(batch)?;
        }
        self.kv.release(table);
        Ok(())
    }

    /// Known tokens of the sample with `text` that it has not computed.
    pub fn behind(&self, request: RequestKey, sample: u32, text: &ModelText<'_>) -> u32 {
        let computed = match self.streams.get(&(request, sample)) {
            Some(stream) => stream.computed(text.tokens),
            None => self.kv.match_prefix(prefix(text)).blocks * self.kv.block_size(),
        };
        text.tokens.len() as u32 - computed
    }

    /// Forgets the samples that `is_here` denies.
    pub fn keep(&mut self, is_here: impl Fn(RequestKey, u32) -> bool) {
        for (_, stream) in self.streams.extract_if(|&(request, sample), _| !is_here(request, sample)) {
            self.kv.release(stream.table);
        }
    }

    /// Whether it follows any text.
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Blocks in use.
    pub fn held_blocks(&self) -> u32 {
        self.kv.counts().held
    }

    /// Rows and times of its steps since the last call.
    pub fn take_times(&mut self) -> Vec<(u32, Duration)> {
        std::mem::take(&mut self.times)
    }

    /// Makes `drafts`; `text` returns the text of each. Returns the drafted tokens of each, in order; none if
    /// the text is gone, has no room in the cache, or is still behind.
    ///
    /// # Errors
    /// If its backend fails. The model is unusable afterwards.
    pub fn draft<'a>(
        &mut self,
        drafts: &'a [ModelDraft],
        text: impl Fn(&ModelDraft) -> Option<ModelText<'a>>,
    ) -> Result<Vec<Vec<TokenId>>, BackendError> {
        let making = |draft| Some(Making { draft, text: text(draft)?, tokens: Vec::new() });
        let mut making: Vec<Option<Making<'_>>> = drafts.iter().map(making).collect();
        let mut depth = 0;
        loop {
            let mut batch = Batch::default();
            let mut drawing = Vec::new();
            for made in making.iter_mut().flatten() {
                let is_open = match depth {
                    0 => true,
                    depth => made.tokens.len() == depth && (depth as u32) < made.draft.share.drafted,
                };
                if is_open && self.add_rows(made, &mut batch) {
                    drawing.push(made);
                }
            }
            if batch.tokens.is_empty() {
                break;
            }
            let output = self.run(batch)?;
            for (made, answer) in drawing.into_iter().zip(&output) {
                let token = answer.drawn().first().map(|drawn| drawn.token);
                // Tokens that end the text, and those that only this model has, are never drafted.
                let stops = &made.text.params.stop_token_ids;
                made.tokens.extend(token.filter(|token| !stops.contains(token) && *token < self.vocab.1));
            }
            depth += 1;
        }
        // No router is told what this cache has.
        drop(self.kv.take_changes());
        Ok(making.into_iter().map(|made| made.map_or(Vec::new(), |made| made.tokens)).collect())
    }

    /// Adds the next rows of a draft to `batch`; true if they include a draw.
    fn add_rows(&mut self, made: &Making<'_>, batch: &mut Batch) -> bool {
        let Making { draft, text, tokens } = made;
        let len = text.tokens.len() as u32;
        let key = (draft.request, draft.sample);
        let mut stream = self.streams.remove(&key).unwrap_or_else(|| self.follow(text));
        if tokens.is_empty() {
            self.settle(&mut stream, text);
        }
        let start = stream.known + stream.guessed.len() as u32;
        let known = draft.share.rows.min(len.saturating_sub(start));
        let end = if tokens.is_empty() { start + known } else { start + 1 };
        let writable = self.kv.grow(&mut stream.table, start, end, batch.all_copies());
        let draws = writable == end && end >= len && draft.share.drafted > 0;
        if writable > start && (writable == end || tokens.is_empty()) {
            let of_text = &text.tokens[(start.min(len) as usize)..(writable.min(len) as usize)];
            let drawn = tokens.last().filter(|_| !tokens.is_empty());
            let rows: Vec<TokenId> = of_text.iter().chain(drawn).copied().collect();
            if tokens.is_empty() {
                stream.known = writable;
            } else {
                stream.guessed.extend(drawn);
            }
            self.append(&stream.table, start, rows, batch);
            if draws {
                self.add_draw(made, &stream.params, end, batch);
            }
        }
        self.streams.insert(key, stream);
        draws
    }

    /// Starts to follow a text, from what the cache has of it.
    fn follow(&mut self, text: &ModelText<'_>) -> Stream {
        let table = self.kv.adopt_prefix(prefix(text), 1);
        let known = table.positions(self.kv.block_size());
        let params = SamplingParams { logprobs: None, grammar: None, ..SamplingParams::clone(text.params) };
        Stream { table, known, guessed: Vec::new(), params: Arc::new(params) }
    }

    /// Compares drafts with the text, and caches full blocks of what is right.
    fn settle(&mut self, stream: &mut Stream, text: &ModelText<'_>) {
        stream.known = stream.computed(text.tokens);
        stream.guessed.clear();
        let full = (stream.known / self.kv.block_size()).min(text.hashes.len() as u32);
        self.kv.register(&mut stream.table, prefix(text), full);
    }

    /// Adds rows of `tokens` from position `start` on.
    fn append(&self, table: &BlockTable, start: u32, tokens: Vec<TokenId>, batch: &mut Batch) {
        let block_size = self.kv.block_size();
        let (first, end) = (batch.tokens.len() as u32, start + tokens.len() as u32);
        batch.positions.extend(start..end);
        batch.slots.extend((start..end).map(|position| table.slot(position, block_size)));
        // It has no embedding for further tokens of the model; any other only makes drafts worse.
        batch.tokens.extend(tokens.into_iter().map(|token| token.min(self.vocab.0 - 1)));
        let blocks = batch.block_tables.len() as u32;
        let used: &[BlockId] = &table.blocks()[..end.div_ceil(block_size) as usize];
        batch.block_tables.extend_from_slice(used);
        batch.sequences.push(BatchSequence {
            rows: first..first + (end - start),
            context_len: end,
            blocks: blocks..blocks + used.len() as u32,
            adapter: None,
        });
    }

    /// Adds the draw after the last row of `batch`, for position `end`.
    fn add_draw(&self, made: &Making<'_>, params: &Arc<SamplingParams>, end: u32, batch: &mut Batch) {
        let Making { draft, text, tokens } = made;
        let history = batch.history.len() as u32;
        if params.needs_history() {
            let ours = text.tokens.iter().chain(tokens).map(|token| (*token).min(self.vocab.0 - 1));
            batch.history.extend(ours);
        }
        batch.wants.push(Want::Sample(SampleRow {
            row: batch.tokens.len() as u32 - 1,
            params: params.clone(),
            sample_index: draft.sample,
            position: end,
            forbid_stop: end - text.prompt_len < params.min_tokens,
            history: history..batch.history.len() as u32,
            prompt_len: text.prompt_len,
            mask: None,
        }));
    }

    /// Runs one step and waits for it.
    fn run(&mut self, batch: Batch) -> Result<Vec<Answer>, BackendError> {
        let (rows, started) = (batch.tokens.len() as u32, clock::now());
        let step = self.backend.launch(batch)?;
        let output = self.backend.collect(step)?;
        self.times.push((rows, clock::now().since(started)));
        Ok(output.answers)
    }
}

fn prefix<'a>(text: &ModelText<'a>) -> Prefix<'a> {
    Prefix { scope: text.scope, tokens: text.tokens, hashes: text.hashes }
}
