//! A backend without a model. Its KV cache stores numbers instead of keys and values, and each token is a
//! hash of what is read back through the block table. A wrong block, a lost copy or a stale hit therefore
//! changes the output.
//!
//! It also checks every batch against the trait's contract, and takes the time given by its cost model.
//!
//! For measurements of routers, it can skip reading the context, whose cost grows with its length. A token
//! then depends on earlier ones only through the last token's slot.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_node::clock::{self, Timestamp};
use skein_proto::logprobs::TokenLogprobs;

use super::fake_states::{FakeStates, extend};
use super::sampling::sampling;
use super::{
    Answer, Backend, BackendError, Batch, BatchSequence, Carried, Draw, PoolRows, Sampled, ScoreRow,
    StepHandle, StepOutput, VerifyRows, Want, WindowBlocks,
};
use crate::{BlockId, TokenId};

/// Values of a pooled vector.
pub const FAKE_WIDTH: u32 = 4;

/// A slot that was never written.
const POISON: Slot = Slot { token: TokenId::MAX, key: 0xdead_beef_dead_beef };

/// Attempts after which a forbidden token is accepted, because all of them may be forbidden.
const MOST_TRIES: usize = 1000;

/// How a [`FakeBackend`] behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct FakeOptions {
    /// Size of the vocabulary.
    pub vocab_size: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// Blocks in the cache.
    pub kv_blocks: u32,
    /// Window blocks. They hold the same numbers as the other blocks, which makes them easy to check.
    pub window_blocks: Option<WindowBlocks>,
    /// Slots for states. A state stands for all tokens before it, which is checked against the context.
    pub state_slots: Option<u32>,
    /// Duration of a step.
    pub cost: StepCost,
    /// Most steps in flight.
    pub steps_in_flight: usize,
    /// Number of the launch that fails, counted from 1, like a dying device.
    pub fail_at_step: Option<u64>,
    /// Whether each step reads the whole context back through the block table.
    pub reads_context: bool,
    /// Tokens of a repeating text: seven of eight draws return the one that follows the previous token.
    /// Empty: every draw is a hash of all earlier tokens.
    pub habits: Range<TokenId>,
    /// Whether all rows of a prompt must be in the step that asks for its vector.
    pub reads_whole: bool,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self {
            vocab_size: 32_000,
            block_size: 16,
            kv_blocks: 1024,
            window_blocks: None,
            state_slots: None,
            cost: StepCost::default(),
            steps_in_flight: 2,
            fail_at_step: None,
            reads_context: true,
            habits: 0..0,
            reads_whole: false,
        }
    }
}

/// Simulated time of a step: `fixed + rows * per_row + context * per_context_token`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StepCost {
    /// Duration of a step with no rows.
    pub fixed: Duration,
    /// Additional duration per row.
    pub per_row: Duration,
    /// Additional duration per context token, summed over the sequences.
    pub per_context_token: Duration,
}

impl StepCost {
    /// Duration of `batch`.
    pub fn of(&self, batch: &Batch) -> Duration {
        let context: u32 = batch.sequences.iter().map(|sequence| sequence.context_len).sum();
        self.fixed + self.per_row * batch.tokens.len() as u32 + self.per_context_token * context
    }
}

/// The fake backend; see the module.
#[derive(Debug)]
pub struct FakeBackend {
    options: FakeOptions,
    slots: Vec<Slot>,
    /// Slots of the window blocks.
    window_slots: Vec<Slot>,
    states: Option<FakeStates>,
    launched: u64,
    /// Steps in flight, oldest first, with the time each finishes.
    in_flight: VecDeque<(u64, StepOutput, Timestamp)>,
    /// Tokens that the next step may carry.
    drawn: Vec<TokenId>,
    /// When the simulated device finishes its last step.
    busy_until: Timestamp,
}

/// Stands for one token's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    token: TokenId,
    /// Depends, as real keys do, on every token before.
    key: u64,
}

impl FakeBackend {
    /// A backend whose slots are all poisoned.
    pub fn new(options: FakeOptions) -> Self {
        let slots = vec![POISON; (options.kv_blocks * options.block_size) as usize];
        let window_blocks = options.window_blocks.map_or(0, |windows| windows.blocks);
        let window_slots = vec![POISON; (window_blocks * options.block_size) as usize];
        let (in_flight, drawn) = (VecDeque::new(), Vec::new());
        let states = options.state_slots.map(FakeStates::new);
        let busy_until = Timestamp::ZERO;
        Self { options, slots, window_slots, states, launched: 0, in_flight, drawn, busy_until }
    }

    fn compute(&mut self, batch: &Batch) -> StepOutput {
        self.copy_blocks(batch);
        self.check_rows(batch);
        match &mut self.states {
            Some(states) => states.copy(batch),
            None => assert!(batch.states.is_empty() && batch.state_copies.is_empty(), "there are no states"),
        }
        let mut states = vec![0; batch.tokens.len()];
        for (index, sequence) in batch.sequences.iter().enumerate() {
            self.run_state(batch, index);
            self.run_sequence(batch, sequence, &mut states);
        }
        StepOutput { answers: batch.wants.iter().map(|want| self.answer(batch, want, &states)).collect() }
    }

    fn answer(&self, batch: &Batch, want: &Want, states: &[u64]) -> Answer {
        match want {
            Want::Sample(sample) => self.sample(batch, &sample.draw(batch), states),
            Want::Verify(verify) => {
                check_verify(batch, verify);
                let rows = 0..verify.rows.len() as u32;
                let drawn = rows.map_while(|nth| {
                    self.sample(batch, &verify.draw(batch, nth), states).drawn().first().cloned()
                });
                Answer::verified(batch.draft(verify), drawn.collect())
            }
            Want::Score(score) => Answer::Scored(self.score(score, states[score.row as usize])),
            Want::Pool(pool) => Answer::Pooled(self.pool(batch, pool, states)),
        }
    }

    /// A vector that depends on all tokens of the prompt.
    fn pool(&self, batch: &Batch, pool: &PoolRows, states: &[u64]) -> Vec<f32> {
        let of_sequence = |sequence: &&BatchSequence| sequence.rows.end == pool.rows.end;
        let sequence = batch.sequences.iter().find(of_sequence).expect("the rows end with a sequence's");
        if self.options.reads_whole {
            assert_eq!(pool.rows, sequence.rows, "all rows of the prompt are pooled");
            assert_eq!(pool.rows.len() as u32, sequence.context_len, "and are in the step");
        }
        let state = mix(states[pool.rows.end as usize - 1], u64::from(pool.second_from.unwrap_or(0)));
        state.to_le_bytes().chunks(2).map(|pair| f32::from(u16::from_le_bytes([pair[0], pair[1]]))).collect()
    }

    /// Draws a token; under a grammar, uniformly from the allowed ones.
    fn sample(&self, batch: &Batch, draw: &Draw<'_>, states: &[u64]) -> Answer {
        let drawn = self.draw(batch, draw, states[draw.row as usize]);
        let Some(mask) = draw.mask else { return Answer::Sampled(drawn) };
        // The unconstrained token depends on every input, so it seeds the constrained choice.
        let token = mask.wait().nth(mix(u64::from(drawn.token), u64::from(draw.position)));
        token.map_or(Answer::Undrawn, |token| {
            let logprobs = drawn.logprobs.map(|scored| TokenLogprobs { token, ..scored });
            Answer::Sampled(Sampled { token, logprobs })
        })
    }

    fn copy_blocks(&mut self, batch: &Batch) {
        let size = self.options.block_size as usize;
        for copy in &batch.copies {
            let from = copy.from.0 as usize * size;
            self.slots.copy_within(from..from + size, copy.to.0 as usize * size);
        }
        for copy in &batch.window_copies {
            let from = copy.from.0 as usize * size;
            self.window_slots.copy_within(from..from + size, copy.to.0 as usize * size);
        }
    }

    /// Each carried token fills one blank place and is carried once.
    fn check_carried(&self, batch: &Batch) {
        for (carried, into) in [(&batch.carried, &batch.tokens), (&batch.carried_history, &batch.history)] {
            assert!(carried.is_sorted_by_key(|carried| carried.at), "places are ascending");
            assert!(carried.windows(2).all(|pair| pair[0].at != pair[1].at), "each place is filled once");
            for &Carried { at, want } in carried {
                assert_eq!(into[at as usize], 0, "the place of a carried token is blank");
                assert!((want as usize) < self.drawn.len(), "want {want} of the previous step exists");
            }
        }
        let mut sources: Vec<u32> = batch.carried.iter().map(|carried| carried.want).collect();
        sources.sort_unstable();
        assert!(
            sources.windows(2).all(|pair| pair[0] != pair[1]),
            "a drawn token is one sequence's next row"
        );
    }

    fn check_rows(&self, batch: &Batch) {
        let rows = batch.tokens.len();
        assert_eq!(
            (batch.positions.len(), batch.slots.len()),
            (rows, rows),
            "one position and slot for each row"
        );
        let ends: Vec<u32> = batch.sequences.iter().map(|sequence| sequence.rows.end).collect();
        let starts: Vec<u32> = batch.sequences.iter().map(|sequence| sequence.rows.start).collect();
        assert_eq!(starts.first().copied().unwrap_or(0), 0, "rows start at 0");
        assert!(
            starts.iter().skip(1).eq(ends.iter().take(ends.len().saturating_sub(1))),
            "rows without gaps"
        );
        assert_eq!(ends.last().copied().unwrap_or(0) as usize, rows, "every row has a sequence");
        for slots in [&batch.slots, &batch.window_slots] {
            let mut written = slots.clone();
            written.sort_unstable();
            assert!(written.windows(2).all(|pair| pair[0] != pair[1]), "no slot is written twice in a step");
        }
        assert!(
            batch.tokens.iter().all(|&token| token < self.options.vocab_size),
            "tokens are below the vocabulary"
        );
    }

    /// Writes the rows of one sequence and sets `states` to a hash of what each row attends to.
    fn run_sequence(&mut self, batch: &Batch, sequence: &BatchSequence, states: &mut [u64]) {
        let size = self.options.block_size;
        let blocks = &batch.block_tables[sequence.blocks.start as usize..sequence.blocks.end as usize];
        let slot_of = |position: u32| blocks[(position / size) as usize].0 * size + position % size;
        let start = sequence.context_len - sequence.rows.len() as u32;
        let mut state = 0;
        let first_read = if self.options.reads_context { 0 } else { start.saturating_sub(1) };
        for position in first_read..start {
            let slot = self.slots[slot_of(position) as usize];
            assert_ne!(slot, POISON, "position {position} is read before it was written");
            state = if self.options.reads_context { mix(state, slot.key) } else { slot.key };
        }
        self.check_window(batch, sequence, start);
        for (position, row) in (start..sequence.context_len).zip(sequence.rows.clone()) {
            let row = row as usize;
            assert_eq!(batch.positions[row], position, "rows are consecutive and end at the context's end");
            assert_eq!(batch.slots[row], slot_of(position), "a row writes to its slot in the block table");
            let token = batch.tokens[row];
            let adapter = sequence.adapter.as_ref().map_or(0, |adapter| adapter.id.0);
            let key = mix(state, u64::from(token) + 1) ^ adapter;
            self.slots[batch.slots[row] as usize] = Slot { token, key };
            self.write_window(batch, sequence, (position, row), Slot { token, key });
            state = if self.options.reads_context { mix(state, key) } else { key };
            states[row] = state;
        }
    }

    /// Applies the rows of a sequence to its state, which stands for the tokens in the sequence's blocks.
    fn run_state(&mut self, batch: &Batch, index: usize) {
        let Some(states) = &mut self.states else { return };
        let BatchSequence { rows, context_len, blocks, .. } = &batch.sequences[index];
        let start = context_len - rows.len() as u32;
        let tokens = &batch.tokens[rows.start as usize..rows.end as usize];
        let hash = states.run(&batch.states[index], start, tokens);
        if self.options.reads_context {
            let size = self.options.block_size;
            let blocks = &batch.block_tables[blocks.start as usize..blocks.end as usize];
            let slot = |at: u32| (blocks[(at / size) as usize].0 * size + at % size) as usize;
            let expected = (0..start).fold(0, |hash, at| extend(hash, self.slots[slot(at)].token));
            assert_eq!(hash, expected, "the state before position {start} has other tokens");
        }
    }

    /// Every key that the row at `start` sees before itself is in the sequence's window blocks.
    fn check_window(&self, batch: &Batch, sequence: &BatchSequence, start: u32) {
        let Some(WindowBlocks { window, .. }) = self.options.window_blocks else {
            assert!(batch.window_slots.is_empty() && batch.window_tables.is_empty(), "there are no windows");
            return;
        };
        let size = self.options.block_size;
        let slot = |tables: &[BlockId], position: u32| {
            let blocks = &tables[sequence.blocks.start as usize..sequence.blocks.end as usize];
            (blocks[(position / size) as usize].0 * size + position % size) as usize
        };
        for position in (start + 1).saturating_sub(window)..start {
            let in_window = self.window_slots[slot(&batch.window_tables, position)];
            let expected = self.slots[slot(&batch.block_tables, position)];
            assert_eq!(in_window, expected, "position {position} is in the window of {start}");
        }
    }

    fn write_window(
        &mut self,
        batch: &Batch,
        sequence: &BatchSequence,
        (position, row): (u32, usize),
        content: Slot,
    ) {
        if self.options.window_blocks.is_some() {
            let size = self.options.block_size;
            let block = batch.window_tables[(sequence.blocks.start + position / size) as usize];
            let slot = batch.window_slots[row];
            assert_eq!(
                slot,
                block.0 * size + position % size,
                "a row writes to its slot in the window table"
            );
            self.window_slots[slot as usize] = content;
        }
    }

    fn draw(&self, batch: &Batch, draw: &Draw<'_>, state: u64) -> Sampled {
        let params = draw.params;
        assert_eq!(draw.position, batch.positions[draw.row as usize] + 1, "a draw follows its row");
        let mut state = mix(state, u64::from(draw.position));
        if params.temperature > 0.0 {
            state = mix(mix(state, params.seed), u64::from(draw.sample_index));
        }
        if params.needs_history() {
            assert_eq!(draw.history.len(), draw.position as usize, "the history is all tokens so far");
            self.check_history(batch, draw);
            let output = &draw.history[draw.prompt_len as usize..];
            state = output.iter().fold(state, |state, &token| mix(state, u64::from(token)));
        }
        let mut token = self.by_habit(batch, draw, state).unwrap_or_else(|| self.token_of(state));
        let allowed = &params.allowed_token_ids;
        let banned: Vec<TokenId> = sampling(draw).ends_of_bad_words().collect();
        let is_forbidden = |token| {
            banned.contains(&token)
                || draw.forbid_stop && params.stop_token_ids.contains(&token)
                || !allowed.is_empty() && !allowed.contains(&token)
        };
        for _ in 0..MOST_TRIES {
            if !is_forbidden(token) {
                break;
            }
            state = mix(state, 1);
            token = match allowed.len() as u64 {
                0 => self.token_of(state),
                some => allowed[(state % some) as usize],
            };
        }
        Sampled { token, logprobs: params.logprobs.map(|top| self.logprobs(state, token, top)) }
    }

    fn by_habit(&self, batch: &Batch, draw: &Draw<'_>, state: u64) -> Option<TokenId> {
        let Range { start, end } = self.options.habits;
        let has_habit = end > start && !mix(state, 2).is_multiple_of(8);
        has_habit.then(|| start + (batch.tokens[draw.row as usize] * 5 + 1) % (end - start))
    }

    fn check_history(&self, batch: &Batch, draw: &Draw<'_>) {
        let reads = |sequence: &&BatchSequence| sequence.rows.contains(&draw.row);
        let sequence = batch.sequences.iter().find(reads).expect("a draw's row has a sequence");
        let blocks = &batch.block_tables[sequence.blocks.start as usize..];
        let size = self.options.block_size as usize;
        for (position, &token) in draw.history.iter().enumerate() {
            let slot = blocks[position / size].0 as usize * size + position % size;
            assert_eq!(self.slots[slot].token, token, "history and cache agree at position {position}");
        }
    }

    fn score(&self, row: &ScoreRow, state: u64) -> TokenLogprobs {
        self.logprobs(state, row.target, row.top)
    }

    /// Made up, but a pure function of the state.
    fn logprobs(&self, state: u64, token: TokenId, top: u32) -> TokenLogprobs {
        let logprob_of = |n: u64| -((mix(state, n) % 10_000) as f32 + 1.0) / 1000.0;
        let mut best: Vec<(TokenId, f32)> =
            (0..u64::from(top)).map(|n| (self.token_of(mix(state, n)), logprob_of(n))).collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        TokenLogprobs {
            token,
            logprob: logprob_of(u64::from(token)),
            rank: 1 + (state % 100) as u32,
            top: best,
        }
    }

    fn token_of(&self, state: u64) -> TokenId {
        (state % u64::from(self.options.vocab_size)) as TokenId
    }
}

impl Backend for FakeBackend {
    fn kv_blocks(&self) -> u32 {
        self.options.kv_blocks
    }

    fn window_blocks(&self) -> Option<WindowBlocks> {
        self.options.window_blocks
    }

    fn state_slots(&self) -> Option<u32> {
        self.options.state_slots
    }

    fn steps_in_flight(&self) -> usize {
        self.options.steps_in_flight
    }

    fn verifies(&self) -> bool {
        true
    }

    fn launch(&mut self, mut batch: Batch) -> Result<StepHandle, BackendError> {
        let most = self.options.steps_in_flight;
        assert!(self.in_flight.len() < most, "at most {most} steps may be in flight");
        self.launched += 1;
        if self.options.fail_at_step == Some(self.launched) {
            return Err(BackendError::Stopped { backend: "fake", reason: "it was told to fail here".into() });
        }
        self.busy_until = self.busy_until.max(clock::now()) + self.options.cost.of(&batch);
        self.check_carried(&batch);
        batch.fill_carried(&self.drawn);
        let output = self.compute(&batch);
        output.put_carried(&mut self.drawn);
        self.in_flight.push_back((self.launched, output, self.busy_until));
        Ok(StepHandle(self.launched))
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        let (launched, output, done) = self.in_flight.pop_front().expect("a collected step was launched");
        assert_eq!(launched, step.0, "steps are collected in order");
        let wait = done.since(clock::now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        Ok(output)
    }
}

/// A draft's rows are the last ones of one sequence.
fn check_verify(batch: &Batch, verify: &VerifyRows) {
    let reads = |sequence: &&BatchSequence| sequence.rows.contains(&verify.rows.start);
    let sequence = batch.sequences.iter().find(reads).expect("a draft's rows have a sequence");
    assert_eq!(verify.rows.end, sequence.rows.end, "a draft's rows are the last ones of their sequence");
}

/// One round of splitmix64 over both.
fn mix(a: u64, b: u64) -> u64 {
    let mut z = (a.rotate_left(23) ^ b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
