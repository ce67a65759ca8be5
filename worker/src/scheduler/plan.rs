//! Plans a step: which sequences get rows, which are admitted, and which are preempted.

use std::ops::Range;

use skein_node::clock::Timestamp;

use super::budget::even_chunk;
use super::checkpoints::Checkpoints;
use super::class::Class;
use super::drafts::Drafts;
use super::fair_share::FairShare;
use super::overtake::{Overtaking, Room, shorter};
use super::sequence::{Rank, Sequence};
use super::step::{Plan, Step};
use super::{Note, Scheduler};
use crate::backend::Batch;

impl Scheduler {
    /// Plans one step. `None` if there is nothing to compute, or if everything left waits for a step in
    /// flight.
    ///
    /// If steps are in flight, the batch may carry tokens over from the latest one and must be launched
    /// right after it.
    pub fn plan(&mut self, now: Timestamp) -> Option<Plan> {
        let step = Step {
            number: self.planned_steps + 1,
            rows: 0,
            streams: 0,
            stream_rows: 0,
            attended: 0,
            budget: self.limits.max_num_batched_tokens,
            draft_blocks: 0,
            started: now,
        };
        let mut plan = Plan { batch: Batch::default(), step };
        self.short_of_blocks = false;
        self.make_room_for_higher_priority();
        let mut fair = self.share_seats();
        self.plan_decodes(Class::Foreground, u32::MAX, &mut plan);
        self.plan_prefills(Class::Foreground, u32::MAX, fair.as_mut(), &mut plan);
        let most = self.background_rows(&plan, now);
        if most > 0 && self.has_background() {
            plan.step.budget = self.limits.max_num_batched_tokens;
            let others = plan.step.rows;
            self.plan_decodes(Class::Background, most, &mut plan);
            let most = most - (plan.step.rows - others).min(most);
            self.plan_prefills(Class::Background, most, fair.as_mut(), &mut plan);
        }
        if plan.step.rows == 0 {
            let waits = self.planned_steps > self.committed_steps;
            assert!(waits || self.is_idle(), "some sequence can always make progress");
            return None;
        }
        self.planned_steps = plan.step.number;
        plan.batch.state_copies = self.kv.take_state_copies();
        Some(plan)
    }

    /// Preempts running sequences of lower priority than the head of the queue until the head fits. Equal
    /// priorities are not preempted.
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

    /// Gives each stream of `class`, at most `most`, one row, and one for each token of its draft.
    fn plan_decodes(&mut self, class: Class, most: u32, plan: &mut Plan) {
        let number = plan.step.number;
        let decoding =
            self.queues.running.iter().filter(|seq| class.has(seq.rank) && seq.is_decoding(number));
        let rows = most.min(plan.step.left());
        let most = self.streams_in_a_step().min(rows as usize);
        let ranks: Vec<Rank> = decoding.map(|seq| seq.rank).take(most).collect();
        self.make_drafts(class, most, rows, plan);
        for rank in ranks {
            // An earlier stream may have preempted it. If there is no block for it, it sits out this step.
            if let Some(index) = self.queues.index_of(rank) {
                self.plan_sequence(index, 1, true, plan);
            }
        }
    }

    /// Most streams in one step: all of them divided evenly by the number of stages.
    fn streams_in_a_step(&self) -> usize {
        match self.limits.stages {
            1 => usize::MAX,
            stages => {
                let streams = self.queues.running.iter().filter(|sequence| sequence.is_streaming()).count();
                streams.div_ceil(stages as usize)
            }
        }
    }

    /// Gives prompts of `class` rows in rank order, running and waiting alike, at most `rows` together. Each
    /// takes as much of the budget as it can, except the rows reserved for prompts that overtake.
    fn plan_prefills(&mut self, class: Class, rows: u32, mut fair: Option<&mut FairShare>, plan: &mut Plan) {
        if rows == 0 {
            return;
        }
        let most = plan.step.rows.saturating_add(rows);
        plan.step.budget = self.budget_in_time(&plan.step).min(most);
        let overtaking = self.plan_overtaking(class, plan);
        let mut admitting = true;
        loop {
            let number = plan.step.number;
            let open = plan.step.left() - overtaking.rows_reserved(&self.queues, number);
            let most = |sequence: &Sequence| open + overtaking.rows(sequence.rank);
            // In a pipeline, streams without a row in this step wait for the next one.
            let is_for_later = |sequence: &Sequence| !sequence.carries && sequence.is_decoding(number);
            let wants = |sequence: &Sequence| {
                class.has(sequence.rank)
                    && !sequence.is_in(number)
                    && sequence.pending(number) > 0
                    && most(sequence) > 0
                    && self.may_be_in(sequence, &plan.step)
                    && !is_for_later(sequence)
            };
            let next = self.queues.running.iter().position(wants);
            let may_enter = admitting && !self.short_of_blocks && open > 0;
            let head = may_enter.then(|| self.next_to_admit(fair.as_deref())).flatten();
            let head = head.filter(|head| {
                class.has(*head) && next.is_none_or(|next| *head < self.queues.running[next].rank)
            });
            if let Some(head) = head {
                admitting = self.admit(head);
                fair.iter_mut().for_each(|fair| self.seated(head, fair));
                continue;
            }
            let Some(next) = next else { break };
            let sequence = &self.queues.running[next];
            let mut most = most(sequence);
            if self.limits.whole_prompts {
                let rows = sequence.pending(number);
                plan.step.budget += rows.saturating_sub(most);
                most = rows;
            } else if overtaking.is_empty() {
                let is_last =
                    self.queues.waiting.is_empty() && !self.queues.running[next + 1..].iter().any(wants);
                let rows = self.chunk_rows(sequence.pending(number), most, is_last, &plan.step);
                plan.step.budget += rows.saturating_sub(most);
                most = rows;
            }
            if !self.plan_sequence(next, most, false, plan) {
                break;
            }
        }
    }

    /// Whether the step has room for as many rows of the prompt as it needs at once.
    fn may_be_in(&self, sequence: &Sequence, step: &Step) -> bool {
        // A prompt that is longer than any step allows has one for itself.
        !self.limits.whole_prompts || step.rows == 0 || sequence.pending(step.number) <= step.left()
    }

    /// Admits overtaking prompts, reserves rows for them, and shortens the step so that overtaking pays off.
    fn plan_overtaking(&mut self, class: Class, plan: &mut Plan) -> Overtaking {
        let prompt_rows = plan.step.left();
        let mut overtaking = Overtaking::default();
        let mut half = prompt_rows / 2;
        // Part of a prompt that is read whole would be of no use.
        if self.limits.whole_prompts {
            return overtaking;
        }
        let found = shorter(&self.queues, &self.limits, &self.kv, self.room(), plan.step.number);
        let Some((first, shorter)) = found.filter(|(first, _)| class.has(first.rank)) else {
            return overtaking;
        };
        for candidate in shorter {
            let whole_fits = candidate.left <= half;
            // The shortest takes what is available; others join only if they finish in this step.
            if half == 0 || !(whole_fits || overtaking.is_empty()) {
                break;
            }
            let left =
                self.ensure_running(candidate.rank, plan.step.number).filter(|&left| left < first.left);
            let Some(left) = left else { continue };
            let rows = even_chunk(left, half);
            if overtaking.is_empty() {
                let rows = self.overtaking_step_rows(rows, &plan.step).min(prompt_rows);
                plan.step.budget = plan.step.rows + rows;
                half = rows / 2;
            }
            half = half.saturating_sub(rows);
            overtaking.reserve(candidate.rank, rows);
        }
        overtaking
    }

    /// Admits the sequence if it still waits. Returns its tokens left to compute, `None` if it could
    /// not be admitted.
    fn ensure_running(&mut self, rank: Rank, step: u64) -> Option<u32> {
        if self.queues.waiting.contains_key(&rank) && !self.admit(rank) {
            return None;
        }
        self.queues.index_of(rank).map(|index| self.queues.running[index].pending(step))
    }

    /// Gives the running sequence at `index` up to `most` rows of this step and, if it `drafts`, those of its
    /// draft, as far as blocks allow. False if it gets none.
    fn plan_sequence(&mut self, index: usize, most: u32, drafts: bool, plan: &mut Plan) -> bool {
        let number = plan.step.number;
        let sequence = &self.queues.running[index];
        let (start, decoding) = (sequence.next_row(), sequence.is_decoding(number));
        let wanted = start + sequence.pending(number).min(most);
        if wanted == start {
            return false;
        }
        let known = self.grow(index, start..wanted, plan);
        let is_cut = self.limits.whole_prompts && known < wanted;
        if known == start || is_cut {
            return false;
        }
        let drafted = if drafts { self.grow_for_draft(index, known, plan) } else { 0 };
        let rows = known + drafted - start;
        let always = self.drafts.as_ref().is_some_and(Drafts::are_given);
        let sequence = &mut self.queues.running[index];
        let drafted = (drafted > 0 || always).then_some(drafted);
        sequence.plan_rows(number, rows, drafted, &mut self.kv, &mut plan.batch);
        plan.step.attended += self.limits.attended(start, start + rows);
        plan.step.rows += rows;
        if decoding {
            plan.step.streams += 1;
            plan.step.stream_rows += rows;
        }
        true
    }

    /// Makes `positions` of the running sequence at `index` writable, preempting others if necessary. Returns
    /// the end of the writable positions.
    fn grow(&mut self, index: usize, positions: Range<u32>, plan: &mut Plan) -> u32 {
        loop {
            let table = &mut self.queues.running[index].table;
            let end = self.kv.grow(table, positions.start, positions.end, plan.batch.all_copies());
            // With too few window blocks for all rows, some of them suffice, because each gives some back.
            if end == positions.end || (end > positions.start && self.kv.available() > 0) {
                return end;
            }
            // Victims come after it in rank and have no rows in this step. A sequence that ends with a step
            // in flight is spared: its blocks come back without recomputing anything.
            let may_go = |sequence: &Sequence| !sequence.is_in(plan.step.number) && !sequence.is_ending();
            match self.queues.running.iter().rposition(may_go) {
                Some(victim) if victim > index => self.preempt(victim),
                _ => return end,
            }
        }
    }

    /// Moves a waiting sequence to the running ones, with its cached prefix, if it fits.
    pub(super) fn admit(&mut self, rank: Rank) -> bool {
        if !self.queues.waiting.get(&rank).is_some_and(|sequence| self.fits(sequence)) {
            return false;
        }
        let Some(mut sequence) = self.queues.waiting.remove(&rank) else { return false };
        if self.kv.state_slots().is_some() {
            let parted = self.kv.cached_len(sequence.cacheable_prefix()) * self.limits.block_size;
            sequence.checkpoints = Checkpoints::new(sequence.len(), parted);
        }
        let samples = sequence.samples.len() as u32;
        sequence.table = self.kv.adopt_prefix(sequence.cacheable_prefix(), samples);
        sequence.computed = sequence.table.positions(self.limits.block_size);
        if std::mem::take(&mut sequence.reports_hit) {
            sequence.unreported_hit = Some(sequence.computed.min(sequence.prompt_len));
        }
        self.queues.run(sequence);
        true
    }

    /// Whether there are free seats for its samples and blocks for all its tokens. Sets aside what the
    /// running sequences still need: blocks for their tokens and one more each to grow.
    pub(super) fn fits(&self, sequence: &Sequence) -> bool {
        let held = self.kv.match_prefix(sequence.cacheable_prefix()).held;
        let needed = self.kv.blocks_for(sequence.len()) - held;
        let seats = self.queues.seats_taken(self.planned_steps + 1) + sequence.samples.len();
        seats <= self.limits.max_num_seqs as usize
            && self.kv.has_room_for_states(sequence.samples.len() as u32)
            && needed + self.queues.blocks_reserved(&self.limits) <= self.kv.available()
            && self.kv.windows_for(sequence.len()) + self.queues.windows_reserved(&self.kv)
                <= self.windows_to_admit()
    }

    /// Seats and blocks left for waiting sequences.
    pub(super) fn room(&self) -> Room {
        if self.short_of_blocks {
            return Room::default();
        }
        let seats = self.queues.seats_taken(self.planned_steps + 1);
        Room {
            seats: (self.limits.max_num_seqs as usize).saturating_sub(seats),
            blocks: self.kv.available().saturating_sub(self.queues.blocks_reserved(&self.limits)),
            windows: self.windows_to_admit().saturating_sub(self.queues.windows_reserved(&self.kv)),
        }
    }

    /// Window blocks that a new sequence could get. While others run, sets aside those of a full step's rows,
    /// without which a long prompt would be computed in small steps, but at most a quarter.
    fn windows_to_admit(&self) -> u32 {
        let available = self.kv.available_windows();
        let Some(counts) = self.kv.window_counts().filter(|_| !self.queues.running.is_empty()) else {
            return available;
        };
        let rows = self.kv.blocks_for(self.limits.max_num_batched_tokens);
        available.saturating_sub(rows.min((counts.free + counts.cached + counts.held) / 4))
    }

    /// Preempts the running sequence at `index`: takes all its blocks and queues it to be recomputed. Tokens
    /// that a step in flight draws for it are dropped, since no client has seen them, and drawn again.
    pub(super) fn preempt(&mut self, index: usize) {
        let mut sequence = self.queues.running.remove(index);
        assert!(!sequence.is_in(self.planned_steps + 1), "blocks of this step's rows stay where they are");
        self.kv.release(std::mem::take(&mut sequence.table));
        sequence.computed = 0;
        sequence.planned.clear();
        sequence.progress.clear();
        sequence.reports_hit |= sequence.unreported_hit.take().is_some();
        sequence.extend_hashes(self.limits.block_size);
        self.short_of_blocks = true;
        self.preemptions += 1;
        self.notes.push(Note::Preempted { request: sequence.request });
        self.enqueue(sequence);
    }
}
