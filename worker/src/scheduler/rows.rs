//! Adds a sequence's next rows to a batch: tokens, prompt positions to score, and the draw.

use std::ops::Range;

use super::planned_rows::{Draws, PlannedRows};
use super::sequence::Sequence;
use crate::backend::{
    Batch, BatchSequence, BatchState, MaskSlot, PoolRows, SampleRow, ScoreRow, VerifyRows, Want,
};
use crate::kv_cache::KvCache;

impl Sequence {
    /// Adds the next `rows` tokens to the batch of `step`, and a draw if they reach the sequence's end. With
    /// `drafted`, even 0, the draw is a verification, and the last `drafted` rows are its draft.
    pub fn plan_rows(
        &mut self,
        step: u64,
        rows: u32,
        drafted: Option<u32>,
        kv: &mut KvCache,
        batch: &mut Batch,
    ) {
        let block_size = kv.block_size();
        let (start, end) = (self.next_row(), self.next_row() + rows);
        let (first_row, draft) = (batch.tokens.len() as u32, drafted.unwrap_or(0));
        let known = end - draft;
        let of_known = start.min(self.len()) as usize..known.min(self.len()) as usize;
        batch.tokens.extend_from_slice(&self.tokens[of_known]);
        if known > self.len() {
            batch.carried.push(self.carried_to(batch.tokens.len()));
            batch.tokens.push(0);
        }
        batch.tokens.extend_from_slice(self.progress.draft(draft));
        batch.positions.extend(start..end);
        batch.slots.extend((start..end).map(|position| self.table.slot(position, block_size)));
        let first_block = batch.block_tables.len() as u32;
        let blocks = end.div_ceil(block_size);
        batch.block_tables.extend_from_slice(&self.table.blocks()[..blocks as usize]);
        kv.put_windows(&self.table, blocks as usize, &mut batch.window_tables);
        if let Some(windows) = batch.window_tables.get(first_block as usize..) {
            let slot = |at: u32| windows[(at / block_size) as usize].0 * block_size + at % block_size;
            batch.window_slots.extend((start..end).filter(|_| !windows.is_empty()).map(slot));
        }
        batch.sequences.push(BatchSequence {
            rows: first_row..first_row + rows,
            context_len: end,
            blocks: first_block..first_block + blocks,
            adapter: self.adapter.clone(),
        });
        batch.states.extend(self.plan_state(known, draft, kv));
        let scores = self.plan_scores(start..known, first_row, batch);
        let last_row = first_row + (known - start) - 1;
        let draws = match drafted {
            _ if known < self.planned_len() => Draws::None,
            _ if self.is_pooled() => self.plan_pooling(first_row..last_row + 1, batch),
            Some(len) if self.samples.len() == 1 => self.plan_verification(len, last_row, batch),
            _ => self.plan_draws(end, last_row, batch),
        };
        self.planned.push_back(PlannedRows { step, rows, scores, draws });
    }

    /// Its state in the step being planned, in which `drafts` drafts follow position `known`.
    fn plan_state(&mut self, known: u32, drafts: u32, kv: &mut KvCache) -> Option<BatchState> {
        let (after, block_size, checkpoints) =
            (self.table.tokens_in_state()?, kv.block_size(), self.checkpoints);
        let positions = checkpoints.between(after, known, block_size);
        let only_free = |position| checkpoints.is_regular(position, block_size);
        kv.plan_state(&mut self.table, (known, drafts), &positions, only_free)
    }

    fn plan_scores(&self, positions: Range<u32>, first_row: u32, batch: &mut Batch) -> Range<usize> {
        let before = batch.wants.len();
        let top = self.params.prompt_logprobs.unwrap_or(0);
        let from = self.next_score.max(positions.start + 1);
        for target in from..(positions.end + 1).min(self.prompt_len) {
            let row = first_row + target - 1 - positions.start;
            let score = ScoreRow { row, target: self.tokens[target as usize], top };
            batch.wants.push(Want::Score(score));
        }
        before..batch.wants.len()
    }

    /// Asks for the vector of its prompt, whose rows in this step are `rows`.
    fn plan_pooling(&self, rows: Range<u32>, batch: &mut Batch) -> Draws {
        let second_from = self.params.pooling.and_then(|pooling| pooling.second_from);
        batch.wants.push(Want::Pool(PoolRows { rows, second_from }));
        Draws::Pool { want: batch.wants.len() - 1 }
    }

    /// Draws for all its samples from `row`, whose successor is at position `end`.
    fn plan_draws(&self, end: u32, row: u32, batch: &mut Batch) -> Draws {
        let history = batch.history.len() as u32;
        if self.params.needs_history() {
            batch.history.extend_from_slice(&self.tokens);
            if end > self.len() {
                batch.carried_history.push(self.carried_to(batch.history.len()));
                batch.history.push(0);
            }
        }
        let history = history..batch.history.len() as u32;
        let want = batch.wants.len();
        batch.wants.extend(self.samples.iter().map(|&sample_index| {
            Want::Sample(SampleRow {
                row,
                params: self.params.clone(),
                sample_index,
                position: end,
                forbid_stop: end - self.prompt_len < self.params.min_tokens,
                mask: self.mask_of(sample_index),
                history: history.clone(),
                prompt_len: self.prompt_len,
            })
        }));
        match self.samples.len() {
            1 => Draws::Next { want },
            _ => Draws::Fork { wants: want..batch.wants.len(), samples: self.samples.clone() },
        }
    }

    /// Verifies `len` draft tokens, in the rows after `row`, which has the sequence's last known token.
    fn plan_verification(&self, len: u32, row: u32, batch: &mut Batch) -> Draws {
        let history = batch.history.len() as u32;
        if self.params.needs_history() {
            batch.history.extend_from_slice(&self.tokens);
            batch.history.extend_from_slice(self.progress.draft(len));
        }
        batch.wants.push(Want::Verify(VerifyRows {
            rows: row..row + 1 + len,
            params: self.params.clone(),
            sample_index: self.samples[0],
            position: self.len(),
            stop_from: self.prompt_len.saturating_add(self.params.min_tokens),
            history: history..batch.history.len() as u32,
            prompt_len: self.prompt_len,
            masks: self.masks_of_draft(len),
        }));
        Draws::Verify { want: batch.wants.len() - 1, len }
    }

    /// Masks of the next draw and of the draws after `len` draft tokens; none without a grammar.
    fn masks_of_draft(&self, len: u32) -> Vec<MaskSlot> {
        let first = self.mask_of(self.samples[0]);
        let others = (0..len).map(|_| MaskSlot::default());
        first.map_or(Vec::new(), |first| std::iter::once(first).chain(others).collect())
    }
}
