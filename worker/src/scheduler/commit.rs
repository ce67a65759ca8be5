//! After a step: cached blocks, drawn tokens, parted samples, ended sequences, measured speeds.

use skein_node::clock::Timestamp;
use skein_proto::logprobs::TokenLogprobs;

use super::plan::Step;
use super::sequence::Sequence;
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
        self.observe(&step, now);
        let mut events = Vec::with_capacity(output.answers.len() + 2);
        let mut born = Vec::new();
        let mut running = std::mem::take(&mut self.running);
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
        self.running = running;
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
        sequence.computed += share.rows;
        self.register(sequence);
        let request = sequence.request;
        if let Some(cached_tokens) = sequence.unreported_hit.take() {
            events.push(Event::Started { request, cached_tokens });
        }
        if !share.scores.is_empty() {
            let (from, scores) = (sequence.next_score, scored(&output.answers[share.scores]));
            sequence.next_score += scores.len() as u32;
            events.push(Event::PromptScored { request, from, scores });
        }
        // The samples that are still here: others may have been aborted since the step was planned.
        let drawn = output.answers[share.samples.clone()].iter().flat_map(Answer::drawn);
        let drawn = step.sample_indices[share.samples].iter().zip(drawn);
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

    fn register(&mut self, sequence: &mut Sequence) {
        let full = sequence.computed / self.kv.block_size();
        if full > sequence.table.registered() {
            sequence.extend_hashes(self.kv.block_size());
            let Sequence { table, scope, tokens, hashes, .. } = sequence;
            self.kv.register(table, Prefix { scope, tokens, hashes }, full);
        }
    }

    /// Measures the step's own time: it began when it was planned, or when the step before it was done.
    fn observe(&mut self, step: &Step, now: Timestamp) {
        let took = now.since(step.started.max(self.last_commit));
        self.last_commit = now;
        self.step_time.observe(step.work(), took);
        if step.prefill_tokens > step.decode_tokens {
            self.prefill_rate.observe(step.tokens(), took);
        } else if step.prefill_tokens == 0 {
            self.decode_rate.observe(step.decode_tokens, took);
        }
    }
}

fn scored(answers: &[Answer]) -> Vec<TokenLogprobs> {
    answers.iter().filter_map(Answer::scored).cloned().collect()
}
