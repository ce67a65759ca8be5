//! Before a step: who gets rows, who gets in, and who has to give way.

use std::ops::Range;

use skein_node::clock::Timestamp;

use super::Scheduler;
use super::budget::{attended, even_part};
use super::overtake::{Overtaking, Room, shorter};
use super::sequence::{Rank, Sequence};
use super::step::Step;
use crate::backend::Batch;

/// One step: what the backend computes, and what [`Scheduler::commit`] wants back.
#[derive(Debug)]
pub struct Plan {
    /// For the backend.
    pub batch: Batch,
    /// For the commit.
    pub step: Step,
}

impl Scheduler {
    /// Plans one step; `None` when there is nothing to compute, or nothing before a step under way is known or a hold is
    /// lifted.
    ///
    /// Steps may be under way, planned and not committed; then the batch may carry tokens over from the latest of them, and
    /// has to be launched right after it.
    pub fn plan(&mut self, now: Timestamp) -> Option<Plan> {
        let step = Step {
            number: self.planned_steps + 1,
            rows: 0,
            streams: 0,
            stream_rows: 0,
            attended: 0,
            budget: self.limits.max_num_batched_tokens,
            started: now,
        };
        let mut plan = Plan { batch: Batch::default(), step };
        self.short_of_blocks = false;
        self.make_room_for_higher_priority();
        self.plan_decodes(&mut plan);
        self.plan_prefills(&mut plan);
        if plan.step.rows == 0 {
            let waits = self.planned_steps > self.committed_steps || self.holds_any();
            assert!(waits || self.is_idle(), "somebody can always get on");
            return None;
        }
        self.planned_steps = plan.step.number;
        Some(plan)
    }

    /// The head of the queue may take the place of sequences of lower priority, but not of its own.
    fn make_room_for_higher_priority(&mut self) {
        while let Some((head, sequence)) = self.queues.waiting.first_key_value() {
            let gives_way = |last: &Sequence| last.rank.priority > head.priority && !last.is_ending();
            let outranked = self.queues.running.last().is_some_and(gives_way);
            if !outranked || self.fits(sequence) {
                break;
            }
            self.preempt(self.queues.running.len() - 1);
        }
        self.short_of_blocks = false;
    }

    /// One row for each stream, and for drafts up to half of what that leaves: prompts get the other half.
    fn plan_decodes(&mut self, plan: &mut Plan) {
        let number = plan.step.number;
        let decoding = self.queues.running.iter().filter(|seq| seq.is_decoding(number));
        let ranks: Vec<Rank> = decoding.map(|seq| seq.rank).collect();
        let for_drafts = (plan.step.budget - ranks.len() as u32) / 2;
        for rank in ranks {
            // It may have lost its place to one before it; or there is no block for it now, and it waits a step.
            if let Some(index) = self.queues.index_of(rank) {
                let drafted = plan.step.stream_rows - plan.step.streams;
                self.plan_sequence(index, 1 + for_drafts - drafted, plan);
            }
        }
    }

    /// Prompts in rank order, those that run and those that wait alike; each takes all it can of the budget, but for the
    /// rows that are kept for those that overtake.
    fn plan_prefills(&mut self, plan: &mut Plan) {
        plan.step.budget = self.budget_in_time(&plan.step);
        let overtaking = self.let_overtake(plan);
        let mut admitting = true;
        loop {
            let number = plan.step.number;
            let open = plan.step.left() - overtaking.rows_kept(&self.queues, number);
            let most = |sequence: &Sequence| open + overtaking.rows(sequence.rank);
            let wants = |sequence: &Sequence| {
                !sequence.is_in(number) && sequence.pending(number) > 0 && most(sequence) > 0
            };
            let next = self.queues.running.iter().position(wants);
            let may_enter = admitting && !self.short_of_blocks && open > 0;
            let head = self.queues.waiting.keys().next().copied().filter(|_| may_enter);
            let head = head.filter(|head| next.is_none_or(|next| *head < self.queues.running[next].rank));
            if let Some(head) = head {
                admitting = self.admit(head);
                continue;
            }
            let Some(next) = next else { break };
            let sequence = &self.queues.running[next];
            let mut most = most(sequence);
            if overtaking.is_empty() {
                let is_last =
                    self.queues.waiting.is_empty() && !self.queues.running[next + 1..].iter().any(wants);
                let rows = self.part_in_time(sequence.pending(number), most, is_last, &plan.step);
                plan.step.budget += rows.saturating_sub(most);
                most = rows;
            }
            if !self.plan_sequence(next, most, plan) {
                break;
            }
        }
    }

    /// Lets in those that overtake, keeps rows for them, and shortens the step to be worth their while.
    fn let_overtake(&mut self, plan: &mut Plan) -> Overtaking {
        let prompt_rows = plan.step.left();
        let mut overtaking = Overtaking::default();
        let mut half = prompt_rows / 2;
        let Some((first, shorter)) = shorter(&self.queues, &self.limits, self.room(), plan.step.number)
        else {
            return overtaking;
        };
        for candidate in shorter {
            let whole_fits = candidate.left <= half;
            // The shortest gets what there is; others come along where they end in this step, too.
            if half == 0 || !(whole_fits || overtaking.is_empty()) {
                break;
            }
            let left = self.let_in(candidate.rank, plan.step.number).filter(|&left| left < first.left);
            let Some(left) = left else { continue };
            let rows = even_part(left, half);
            if overtaking.is_empty() {
                let rows = self.rows_beside(rows, &plan.step).min(prompt_rows);
                plan.step.budget = plan.step.rows + rows;
                half = rows / 2;
            }
            half = half.saturating_sub(rows);
            overtaking.keep(candidate.rank, rows);
        }
        overtaking
    }

    /// Tokens that this one has left to compute, now that it runs; `None` where it could not be let in.
    fn let_in(&mut self, rank: Rank, step: u64) -> Option<u32> {
        if self.queues.waiting.contains_key(&rank) && !self.admit(rank) {
            return None;
        }
        self.queues.index_of(rank).map(|index| self.queues.running[index].pending(step))
    }

    /// Gives the running sequence at `index` rows of this step, as many as `most` and the blocks allow.
    fn plan_sequence(&mut self, index: usize, most: u32, plan: &mut Plan) -> bool {
        let number = plan.step.number;
        let sequence = &self.queues.running[index];
        let (start, decoding) = (sequence.next_row(), sequence.is_decoding(number));
        let wanted = start + sequence.pending(number).min(most);
        if wanted == start {
            return false;
        }
        let known = self.grow(index, start..wanted, plan);
        if known == start {
            return false;
        }
        let drafted = if decoding { self.make_draft(index, known, most - 1, plan) } else { 0 };
        let draft = self.drafts.as_ref().map(|drafts| drafts.latest(drafted));
        let rows = known + drafted - start;
        let sequence = &mut self.queues.running[index];
        sequence.plan_rows(number, rows, draft, self.limits.block_size, &mut plan.batch);
        plan.step.attended += attended(start, start + rows);
        plan.step.rows += rows;
        if decoding {
            plan.step.streams += 1;
            plan.step.stream_rows += rows;
        }
        true
    }

    /// Makes `positions` of the running sequence at `index` writable, and others give way for it; returns the end of what is.
    fn grow(&mut self, index: usize, positions: Range<u32>, plan: &mut Plan) -> u32 {
        loop {
            let table = &mut self.queues.running[index].table;
            let end = self.kv.grow(table, positions.start, positions.end, &mut plan.batch.copies);
            if end == positions.end {
                return end;
            }
            // Only those after it in rank, and not those whose rows are in this step already, nor those that end with
            // the step under way: theirs come back without computing anything again.
            let may_go = |sequence: &Sequence| !sequence.is_in(plan.step.number) && !sequence.is_ending();
            match self.queues.running.iter().rposition(may_go) {
                Some(victim) if victim > index => self.preempt(victim),
                _ => return end,
            }
        }
    }

    /// Makes a draft for the running sequence at `index`, whose last token is the one before position `end`, and room for it
    /// for which nobody gives way; how many tokens it has.
    fn make_draft(&mut self, index: usize, end: u32, most: u32, plan: &mut Plan) -> u32 {
        let Some(drafts) = &mut self.drafts else { return 0 };
        let sequence = &mut self.queues.running[index];
        assert_eq!(sequence.len(), end, "a draft follows a known token");
        // One token comes after it, whatever is right of it.
        let drafted = drafts.make(&sequence.tokens, most.min(sequence.max_len - end - 1));
        self.kv.grow(&mut sequence.table, end, end + drafted, &mut plan.batch.copies) - end
    }

    /// Moves one that waits to the running sequences if it fits, with what the cache has of it.
    fn admit(&mut self, rank: Rank) -> bool {
        if !self.queues.waiting.get(&rank).is_some_and(|sequence| self.fits(sequence)) {
            return false;
        }
        let Some(mut sequence) = self.queues.waiting.remove(&rank) else { return false };
        sequence.table = self.kv.adopt_prefix(sequence.cacheable_prefix());
        sequence.computed = sequence.table.positions(self.limits.block_size);
        if std::mem::take(&mut sequence.reports_hit) {
            sequence.unreported_hit = Some(sequence.computed.min(sequence.prompt_len));
        }
        self.queues.run(sequence);
        true
    }

    /// Whether there are seats for its samples and blocks for all its tokens, beside what the running ones still
    /// need for theirs and one block each to grow.
    fn fits(&self, sequence: &Sequence) -> bool {
        let held = self.kv.match_prefix(sequence.cacheable_prefix()).held;
        let needed = self.kv.blocks_for(sequence.len()) - held;
        let seats = self.queues.seats_taken(self.planned_steps + 1) + sequence.samples.len();
        seats <= self.limits.max_num_seqs as usize
            && needed + self.queues.blocks_reserved(&self.limits) <= self.kv.available()
    }

    /// What is left for those that wait.
    fn room(&self) -> Room {
        if self.short_of_blocks {
            return Room::default();
        }
        let seats = self.queues.seats_taken(self.planned_steps + 1);
        Room {
            seats: (self.limits.max_num_seqs as usize).saturating_sub(seats),
            blocks: self.kv.available().saturating_sub(self.queues.blocks_reserved(&self.limits)),
        }
    }

    /// Takes back all blocks of the running sequence at `index`; it is computed again when its turn comes. What the
    /// step under way draws for it is dropped, since nobody has seen it, and drawn again.
    fn preempt(&mut self, index: usize) {
        let mut sequence = self.queues.running.remove(index);
        assert!(!sequence.is_in(self.planned_steps + 1), "blocks of this step's rows stay where they are");
        self.kv.release(std::mem::take(&mut sequence.table));
        sequence.computed = 0;
        sequence.shares.clear();
        sequence.reports_hit |= sequence.unreported_hit.take().is_some();
        sequence.extend_hashes(self.limits.block_size);
        self.short_of_blocks = true;
        self.enqueue(sequence);
    }
}
