//! Steps of a simulated worker: each has a token of every running answer and a chunk of the waiting prompts,
//! takes the time of a token and that of its chunk, and answers at its end.

use skein_proto::runs::CacheChange;

use super::steps::Step;
use super::worker::{Prefilled, Prompt, SimWorker};

/// Result of a step.
#[derive(Debug, Default)]
pub struct StepEnd {
    /// Prompts that are computed.
    pub done: Vec<Prefilled>,
    /// Requests whose answers are complete.
    pub ended: Vec<usize>,
    /// End of the next step, if there is more to do.
    pub next_ends: Option<u64>,
}

impl SimWorker {
    /// Begins a step; returns its end, `None` if there is nothing to do.
    pub(super) fn begin_step(&mut self, now: u64) -> Option<u64> {
        let waiting: u64 = self.queue.iter().map(|queued| queued.left).sum();
        let chunk = waiting.min(u64::from(self.machine.step_tokens));
        if chunk == 0 && self.steps.answers.is_empty() {
            return None;
        }
        self.steps.now = Some(Step { began: now, chunk });
        self.busy_until = now + self.machine.token_ns + chunk * self.machine.prefill_ns;
        Some(self.busy_until)
    }

    /// Handles the end of a step. `request` tells a request's prompt and the tokens of its answer.
    pub fn step_ended<'a>(&mut self, now: u64, request: impl Fn(usize) -> (Prompt<'a>, u32)) -> StepEnd {
        let Some(step) = self.steps.now.take() else { return StepEnd::default() };
        self.steps.observe(&step, self.steps.answers.len(), now);
        let mut end = StepEnd::default();
        self.steps.answers.iter_mut().for_each(|(_, left)| *left -= 1);
        let mut chunk = step.chunk;
        while let Some(front) = self.queue.front_mut() {
            let part = front.left.min(chunk);
            (front.left, chunk) = (front.left - part, chunk - part);
            if front.left > 0 {
                break;
            }
            let done = self.queue.pop_front().expect("it has a front");
            let (prompt, output) = request(done.request);
            self.steps.answers.push((done.request, output - 1));
            let change: CacheChange = self.cache.store(prompt.blocks);
            let cached_tokens = u64::from(prompt.tokens).saturating_sub(done.uncached);
            end.done.push(Prefilled { request: done.request, cached_tokens, change, next_ends: None });
            self.find_again(|request_| request(request_).0);
        }
        self.steps.answers.retain(|&(request, left)| {
            if left == 0 {
                end.ended.push(request);
            }
            left > 0
        });
        self.running = self.steps.answers.len() as u32;
        end.next_ends = self.begin_step(now);
        end
    }

    /// Blocks cached since the next prompt arrived count for it, unless it has begun.
    fn find_again<'a>(&mut self, prompt: impl Fn(usize) -> Prompt<'a>) {
        let Some(next) = self.queue.front().filter(|next| next.left == next.uncached) else { return };
        let Prompt { blocks, tokens } = prompt(next.request);
        let uncached = self.uncached(blocks, tokens);
        if let Some(next) = self.queue.front_mut() {
            (next.uncached, next.left) = (uncached, uncached);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::worker::{Machine, Placed};

    #[test]
    fn a_step_has_a_chunk_and_a_token_of_each_answer() {
        let machine = Machine {
            prefill_ns: 10,
            token_ns: 1000,
            blocks: 99,
            block_size: 16,
            seats: 8,
            step_tokens: 100,
        };
        let mut worker = SimWorker::new(machine, 1.0, 1);
        let prompts: [(&[u64], u32); 2] = [(&[1, 2, 3], 150), (&[1, 2], 40)];
        let prompt = |request: usize| Prompt { blocks: prompts[request].0, tokens: prompts[request].1 };
        let place = |placement| Placed { router: 0, placement };
        assert_eq!(worker.arrive(0, 0, place(1), prompt(0)), Some(2000), "100 of its tokens");
        assert_eq!(worker.arrive(5, 1, place(2), prompt(1)), None);
        let request = |request: usize| (prompt(request), 3);
        let first = worker.step_ended(2000, request);
        assert!(first.done.is_empty() && first.next_ends == Some(2000 + 1000 + 900), "{first:?}");
        assert_eq!(worker.report(2000).load.queued_uncached_tokens, 50 + 40);
        let second = worker.step_ended(3900, request);
        let done: Vec<_> = second.done.iter().map(|done| (done.request, done.cached_tokens)).collect();
        assert_eq!(done, [(0, 0), (1, 32)]);
        assert_eq!((worker.report(3900).load.running, second.next_ends), (2, Some(4900)));
        let rate = worker.report(3900).load.prefill_tokens_per_second;
        assert!((rate - 190.0 / 3900.0 * 1e9).abs() < 0.1e9 && rate > 0.0, "{rate}");
        assert!(worker.step_ended(4900, request).ended.is_empty());
        let last = worker.step_ended(5900, request);
        assert_eq!((last.ended, last.next_ends, worker.report(5900).load.running), (vec![0, 1], None, 0));
    }
}
