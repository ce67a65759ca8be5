//! After a step: cached blocks, drawn tokens, parted samples, ended sequences, measured speeds.

use skein_node::clock::Timestamp;

use super::sequence::Sequence;
use super::shares::Draws;
use super::step::Step;
use super::{Event, Scheduler};
use crate::backend::{Answer, StepOutput};
use crate::kv_cache::Prefix;

impl Scheduler {
    /// Accounts for a computed step: caches full blocks, hands tokens out, parts samples, ends what is complete.
    /// Steps are committed in the order of their plans. What the step computed for sequences that are gone (stopped one
    /// step before, cancelled, preempted) is dropped.
    pub fn commit(&mut self, step: Step, output: &StepOutput, now: Timestamp) -> Vec<Event> {
        assert_eq!(step.number, self.committed_steps + 1, "steps are committed in order");
        self.committed_steps = step.number;
        self.pace.observe(&step, accepted(output), now);
        let mut events = Vec::with_capacity(output.answers.len() + 2);
        let mut born = Vec::new();
        let mut running = std::mem::take(&mut self.queues.running);
        for sequence in &mut running {
            self.commit_sequence(sequence, &step, output, &mut born, &mut events);
        }
        let sort = !born.is_empty();
        running.append(&mut born);
        for sequence in running.extract_if(.., |sequence| sequence.finished) {
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
        born: &mut Vec<Sequence>,
        events: &mut Vec<Event>,
    ) {
        let Some(share) = sequence.take_share(step.number) else { return };
        // How much of a draft is right is not known yet.
        let drafted = if let Draws::Verify { len, .. } = share.draws { len } else { 0 };
        sequence.computed += share.rows - drafted;
        self.register(sequence);
        let request = sequence.request;
        if let Some(cached_tokens) = sequence.unreported_hit.take() {
            events.push(Event::Started { request, cached_tokens });
        }
        if !share.scores.is_empty() {
            let scores: Vec<_> =
                output.answers[share.scores].iter().filter_map(Answer::scored).cloned().collect();
            let from = sequence.next_score;
            sequence.next_score += scores.len() as u32;
            events.push(Event::PromptScored { request, from, scores });
        }
        match share.draws {
            Draws::None => {}
            Draws::Next { want } => {
                output.answers[want].drawn().iter().for_each(|drawn| sequence.accept(drawn, events));
            }
            Draws::Parting { wants, samples } => {
                self.part(sequence, &samples, &output.answers[wants], born, events);
            }
            Draws::Verify { want, .. } => self.accept_draft(sequence, &output.answers[want], events),
        }
    }

    /// Gives each of `samples` that is still here its first token: the first one keeps the sequence, the others get copies.
    /// The rest may have been aborted since the step was planned.
    fn part(
        &mut self,
        sequence: &mut Sequence,
        samples: &[u32],
        answers: &[Answer],
        born: &mut Vec<Sequence>,
        events: &mut Vec<Event>,
    ) {
        let drawn = samples.iter().zip(answers.iter().flat_map(Answer::drawn));
        let mut drawn = drawn.filter(|(sample, _)| sequence.samples.contains(sample));
        let Some((&own_sample, own)) = drawn.next() else { return };
        for (&sample, drawn) in drawn {
            let mut fork = sequence.fork(sample, self.kv.fork(&sequence.table));
            fork.accept(drawn, events);
            born.push(fork);
        }
        sequence.samples.retain(|&sample| sample == own_sample);
        sequence.accept(own, events);
    }

    /// Takes the right tokens of a draft and the one after them, and cuts the blocks of the wrong ones off.
    fn accept_draft(&mut self, sequence: &mut Sequence, answer: &Answer, events: &mut Vec<Event>) {
        let computed = sequence.computed + answer.drawn().len() as u32 - 1;
        for drawn in answer.drawn() {
            sequence.accept(drawn, events);
            if sequence.finished {
                break;
            }
        }
        sequence.computed = computed.min(sequence.len());
        let known = sequence.len();
        self.kv.truncate(&mut sequence.table, known);
        self.register(sequence);
    }

    fn register(&mut self, sequence: &mut Sequence) {
        let full = sequence.computed / self.limits.block_size;
        if full > sequence.table.registered() {
            sequence.extend_hashes(self.limits.block_size);
            let Sequence { table, scope, tokens, hashes, .. } = sequence;
            self.kv.register(table, Prefix { scope, tokens, hashes }, full);
        }
    }
}

/// Tokens of drafts that the step found right.
fn accepted(output: &StepOutput) -> u32 {
    let of = |answer: &Answer| if let Answer::Verified(drawn) = answer { drawn.len() as u32 - 1 } else { 0 };
    output.answers.iter().map(of).sum()
}
