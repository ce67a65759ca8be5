//! After a step: cached blocks, drawn tokens, parted samples, ended sequences, measured speeds.

use skein_node::clock::Timestamp;

use super::plan::Step;
use super::sequence::Sequence;
use super::{Event, Scheduler};
use crate::backend::StepOutput;
use crate::kv_cache::Prefix;

impl Scheduler {
    /// Accounts for a computed step: caches full blocks, hands tokens out, parts samples, ends what is complete.
    pub fn commit(&mut self, step: Step, output: &StepOutput, now: Timestamp) -> Vec<Event> {
        self.observe(step, now);
        let mut events = Vec::with_capacity(output.samples.len() + 2);
        let mut born = Vec::new();
        let mut running = std::mem::take(&mut self.running);
        for sequence in &mut running {
            self.commit_sequence(sequence, output, &mut born, &mut events);
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
        output: &StepOutput,
        born: &mut Vec<Sequence>,
        events: &mut Vec<Event>,
    ) {
        let Some(planned) = sequence.planned.take() else { return };
        sequence.computed += planned.rows;
        self.register(sequence);
        let request = sequence.request;
        if let Some(cached_tokens) = sequence.unreported_hit.take() {
            events.push(Event::Started { request, cached_tokens });
        }
        if !planned.scores.is_empty() {
            let (from, scores) = (sequence.next_score, output.scores[planned.scores].to_vec());
            sequence.next_score += scores.len() as u32;
            events.push(Event::PromptScored { request, from, scores });
        }
        let Some((own, others)) = output.samples[planned.samples].split_first() else { return };
        for (sample, drawn) in sequence.samples.split_off(1).into_iter().zip(others) {
            let mut fork = sequence.fork(sample, self.kv.fork(&sequence.table));
            fork.accept(drawn, self.max_model_len, events);
            born.push(fork);
        }
        sequence.accept(own, self.max_model_len, events);
    }

    fn register(&mut self, sequence: &mut Sequence) {
        let full = sequence.computed / self.kv.block_size();
        if full > sequence.table.registered() {
            sequence.extend_hashes(self.kv.block_size());
            let Sequence { table, scope, tokens, hashes, .. } = sequence;
            self.kv.register(table, Prefix { scope, tokens, hashes }, full);
        }
    }

    fn observe(&mut self, step: Step, now: Timestamp) {
        let took = now.since(step.started);
        self.step_time.observe(step.tokens(), took);
        if step.prefill_tokens > step.decode_tokens {
            self.prefill_rate.observe(step.tokens(), took);
        } else if step.prefill_tokens == 0 {
            self.decode_rate.observe(step.decode_tokens, took);
        }
    }
}
