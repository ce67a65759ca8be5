//! Commits a step: caches blocks, hands out drawn tokens, forks samples, ends sequences, measures speeds.

use skein_node::clock::Timestamp;

use super::planned_rows::Draws;
use super::sequence::Sequence;
use super::step::Step;
use super::{Note, RequestEvent, Scheduler};
use crate::backend::{Answer, StepOutput};
use crate::kv_cache::Prefix;

impl Scheduler {
    /// Accounts for a computed step: caches full blocks, hands out tokens, forks samples, ends finished
    /// sequences. Steps are committed in the order of their plans. Results for sequences that are gone
    /// (stopped one step earlier, cancelled, preempted) are dropped.
    pub fn commit(&mut self, step: Step, output: &StepOutput, now: Timestamp) -> Vec<RequestEvent> {
        assert_eq!(step.number, self.committed_steps + 1, "steps are committed in order");
        self.committed_steps = step.number;
        let took = self.pace.observe(&step, accepted(output), now);
        if step.prompt_rows() == 0 {
            self.learn_time(step.rows, took);
        }
        let mut events = Vec::with_capacity(output.answers.len() + 2);
        let mut forks = Vec::new();
        let mut running = std::mem::take(&mut self.queues.running);
        for sequence in &mut running {
            self.commit_sequence(sequence, &step, output, &mut forks, &mut events);
        }
        let tokens = events.iter().filter(|event| matches!(event, RequestEvent::Token { .. })).count();
        self.served.output += tokens as u64;
        let sort = !forks.is_empty();
        running.append(&mut forks);
        for sequence in running.extract_if(.., |sequence| sequence.finished) {
            self.remember(&sequence);
            self.kv.release(sequence.table);
        }
        if sort {
            running.sort_unstable_by_key(|sequence| sequence.rank);
        }
        self.queues.running = running;
        events
    }

    fn commit_sequence(
        &mut self,
        sequence: &mut Sequence,
        step: &Step,
        output: &StepOutput,
        forks: &mut Vec<Sequence>,
        events: &mut Vec<RequestEvent>,
    ) {
        let Some(planned) = sequence.take_planned(step.number) else { return };
        // How much of the draft is right is known only after verification.
        let drafted = if let Draws::Verify { len, .. } = planned.draws { len } else { 0 };
        if !sequence.is_streaming() {
            self.notes.push(Note::Prefilled { request: sequence.request, rows: planned.rows });
        }
        sequence.computed += planned.rows - drafted;
        self.register(sequence);
        let request = sequence.request;
        if let Some(cached_tokens) = sequence.unreported_hit.take() {
            self.served.prompt += u64::from(sequence.prompt_len);
            self.served.cached += u64::from(cached_tokens);
            events.push(RequestEvent::Started { request, cached_tokens });
        }
        if !planned.scores.is_empty() {
            let scores: Vec<_> =
                output.answers[planned.scores].iter().filter_map(Answer::scored).cloned().collect();
            let from = sequence.next_score;
            sequence.next_score += scores.len() as u32;
            events.push(RequestEvent::PromptScored { request, from, scores });
        }
        match planned.draws {
            Draws::None => {}
            Draws::Next { want } => self.accept_draw(sequence, &output.answers[want], events),
            Draws::Pool { want } => match &output.answers[want] {
                Answer::Pooled(vector) => sequence.accept_vector(vector.clone(), events),
                other => unreachable!("a vector was wanted, not {other:?}"),
            },
            Draws::Fork { wants, samples } => {
                self.fork_samples(sequence, &samples, &output.answers[wants], forks, events);
            }
            Draws::Verify { want, len } => self.accept_draft(sequence, len, &output.answers[want], events),
        }
    }

    /// Gives each of `samples` that is still here its first token. The first keeps the sequence, the others
    /// get forks. Some may have been aborted since the step was planned.
    fn fork_samples(
        &mut self,
        sequence: &mut Sequence,
        samples: &[u32],
        answers: &[Answer],
        forks: &mut Vec<Sequence>,
        events: &mut Vec<RequestEvent>,
    ) {
        let drawn = samples.iter().zip(answers.iter().flat_map(Answer::drawn));
        let mut drawn = drawn.filter(|(sample, _)| sequence.samples.contains(sample));
        let Some((&own_sample, own)) = drawn.next() else { return };
        for (&sample, drawn) in drawn {
            let mut fork = sequence.fork(sample, self.kv.fork(&sequence.table));
            fork.accept(drawn, events);
            forks.push(fork);
        }
        self.kv.forked(&mut sequence.table);
        sequence.samples.retain(|&sample| sample == own_sample);
        sequence.accept(own, events);
    }

    pub(super) fn register(&mut self, sequence: &mut Sequence) {
        let full = sequence.computed / self.limits.block_size;
        if full > sequence.table.registered() {
            sequence.extend_hashes(self.limits.block_size);
            let Sequence { table, scope, tokens, hashes, .. } = sequence;
            self.kv.register(table, Prefix { scope, tokens, hashes }, full);
        }
        // Only now, so that blocks are cached with their window blocks.
        self.kv.slide(&mut sequence.table, sequence.computed);
    }
}

/// Draft tokens that this step verified as right.
fn accepted(output: &StepOutput) -> u32 {
    let of = |answer: &Answer| {
        if let Answer::Verified(drawn) = answer { (drawn.len() as u32).saturating_sub(1) } else { 0 }
    };
    output.answers.iter().map(of).sum()
}
